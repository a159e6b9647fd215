//! Parameters and bodies, read strictly: what nobody knows, what is there twice and what is of another type is an error
//! that says where and what would do.

use std::fmt;
use std::ops::RangeInclusive;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;

use super::limits;
use super::problem::{Kind, Problem, quoted};
use crate::config::nearest;

/// The parts of a path in braces.
pub(super) struct At<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(at)) => Ok(Self(at)),
            Err(rejection) => {
                Err(Problem::bad(format!("the path cannot be read: {}", rejection.body_text())))
            }
        }
    }
}

/// The parameters behind the path.
pub(super) struct Query(Fields);

impl Query {
    /// All of them, if they are among these.
    pub(super) fn of(self, known: &[&str]) -> Result<Fields, Problem> {
        self.0.of(known)
    }

    /// None is expected.
    pub(super) fn none(self) -> Result<(), Problem> {
        self.of(&[]).map(drop)
    }
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let pairs = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let fields = pairs.map(|(name, value)| (name.into_owned(), Field::Text(value.into_owned())));
        Ok(Self(Fields { within: "the parameter ", fields: fields.collect() }))
    }
}

/// A JSON object; nothing is one without fields.
pub(super) struct Body(Fields);

impl Body {
    /// All of its fields, if they are among these.
    pub(super) fn of(self, known: &[&str]) -> Result<Fields, Problem> {
        self.0.of(known)
    }

    /// None is expected.
    pub(super) fn none(self) -> Result<(), Problem> {
        self.of(&[]).map(drop)
    }
}

impl<S: Sync> FromRequest<S> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_owned());
        let body = Limited::new(request.into_body(), limits::BODY).collect();
        let bytes = match tokio::time::timeout(limits::BODY_TIME, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let message = format!("the body is larger than {} bytes; send less at once", limits::BODY);
                return Err(Problem::new(Kind::TooLarge, message));
            }
            Ok(Err(_)) => return Err(Problem::bad("the body ended before it was complete; send it again")),
            Err(_) => {
                let message =
                    format!("the body did not arrive within {:?}; send it again", limits::BODY_TIME);
                return Err(Problem::new(Kind::Timeout, message));
            }
        };
        if bytes.is_empty() {
            return Ok(Self(Fields { within: "", fields: Vec::new() }));
        }
        if !kind.is_some_and(|kind| is_json(&kind)) {
            let message =
                "the body is not declared as JSON; send the header `Content-Type: application/json`";
            return Err(Problem::new(Kind::UnsupportedMediaType, message));
        }
        // What else it may be, the error would repeat in full.
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad("the body is not a JSON object: it does not begin with {"));
        }
        serde_json::from_slice::<Object>(&bytes)
            .map(|object| Self(Fields { within: "", fields: object.0 }))
            .map_err(|error| Problem::bad(format!("the body is not a JSON object: {error}")))
    }
}

fn is_json(kind: &[u8]) -> bool {
    let end = kind.iter().position(|byte| *byte == b';').unwrap_or(kind.len());
    kind[..end].trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// A field as it came.
#[derive(Debug)]
enum Field {
    /// Of a query: whatever it is, it is written as text.
    Text(String),
    /// Of a body.
    Json(Box<RawValue>),
}

/// Names and values of one query or object.
#[derive(Debug)]
pub(super) struct Fields {
    /// What stands before a name in messages.
    within: &'static str,
    fields: Vec<(String, Field)>,
}

impl Fields {
    fn of(self, known: &[&str]) -> Result<Self, Problem> {
        let within = self.within;
        for (at, (name, _)) in self.fields.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let meant = match nearest(name, known.iter().copied()) {
                    Some(meant) => format!("; do you mean {meant}?"),
                    None if known.is_empty() => "; there are none here".to_owned(),
                    None => format!("; there are {}", known.join(", ")),
                };
                return Err(Problem::bad(format!("{within}{} is not known{meant}", quoted(name))));
            }
            if self.fields[..at].iter().any(|(other, _)| other == name) {
                return Err(Problem::bad(format!("{within}{name} is there twice; give it once")));
            }
        }
        Ok(self)
    }

    /// That a field will not do.
    pub(super) fn wrong(&self, name: &str, why: impl fmt::Display) -> Problem {
        Problem::bad(format!("{}{name} is {why}", self.within))
    }

    /// A value; null is none.
    fn get(&self, name: &str) -> Option<&Field> {
        let (_, field) = self.fields.iter().find(|(known, _)| known == name)?;
        match field {
            Field::Json(raw) if raw.get() == "null" => None,
            field => Some(field),
        }
    }

    fn typed<T: DeserializeOwned>(&self, name: &str, raw: &RawValue, wanted: &str) -> Result<T, Problem> {
        serde_json::from_str(raw.get()).map_err(|_| self.wrong(name, format!("not {wanted}")))
    }

    /// Whether nothing is said.
    pub(super) fn is_empty(&self) -> bool {
        self.fields.iter().all(|(name, _)| self.get(name).is_none())
    }

    /// A text.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Problem> {
        match self.get(name) {
            None => Ok(None),
            Some(Field::Text(text)) => Ok(Some(text.clone())),
            Some(Field::Json(raw)) => self.typed(name, raw, "a text in quotation marks").map(Some),
        }
    }

    /// A text that means something.
    pub(super) fn parsed<T, E: fmt::Display>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, Problem> {
        let parse =
            |text: String| parse(&text).map_err(|why| self.wrong(name, format!("{}: {why}", quoted(&text))));
        self.text(name)?.map(parse).transpose()
    }

    /// Yes or no; no, unless it is said.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None => Ok(false),
            Some(Field::Text(text)) => {
                text.parse().map_err(|_| self.wrong(name, format!("{}; write true or false", quoted(text))))
            }
            Some(Field::Json(raw)) => self.typed(name, raw, "true or false"),
        }
    }

    /// A number of this range.
    pub(super) fn number(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let text = match self.get(name) {
            None => return Ok(None),
            Some(Field::Text(text)) => text.as_str(),
            Some(Field::Json(raw)) => raw.get(),
        };
        match text.parse().ok().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (least, most) = range.into_inner();
                let given: String = text.chars().take(60).flat_map(char::escape_debug).collect();
                Err(self.wrong(name, format!("{given}, and not a number from {least} to {most}")))
            }
        }
    }

    /// Texts.
    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<String>>, Problem> {
        match self.get(name) {
            Some(Field::Json(raw)) => self.typed(name, raw, "an array of texts").map(Some),
            Some(Field::Text(_)) | None => Ok(None),
        }
    }

    /// Texts by their names.
    pub(super) fn pairs(&self, name: &str) -> Result<Vec<(String, String)>, Problem> {
        let Some(Field::Json(raw)) = self.get(name) else { return Ok(Vec::new()) };
        let object: Object = self.typed(name, raw, "an object of texts")?;
        let pair = |(key, value): (String, Field)| match value {
            Field::Json(raw) => Ok((key, self.typed(name, &raw, "an object of texts")?)),
            Field::Text(text) => Ok((key, text)),
        };
        let pairs: Vec<(String, String)> = object.0.into_iter().map(pair).collect::<Result<_, Problem>>()?;
        let is_there_before = |at: usize| pairs[..at].iter().any(|(key, _)| *key == pairs[at].0);
        match (1..pairs.len()).find(|at| is_there_before(*at)) {
            Some(at) => {
                Err(self.wrong(name, format!("an object with {} twice; give it once", quoted(&pairs[at].0))))
            }
            None => Ok(pairs),
        }
    }

    /// An object within, with the fields that it may have.
    pub(super) fn object(
        &self,
        name: &str,
        within: &'static str,
        known: &[&str],
    ) -> Result<Option<Self>, Problem> {
        let Some(Field::Json(raw)) = self.get(name) else { return Ok(None) };
        let object: Object = self.typed(name, raw, "an object")?;
        Self { within, fields: object.0 }.of(known).map(Some)
    }

    /// A value as it was written, null included.
    pub(super) fn raw(&self, name: &str) -> Option<&str> {
        match self.fields.iter().find(|(known, _)| known == name) {
            Some((_, Field::Json(raw))) => Some(raw.get()),
            _ => None,
        }
    }
}

/// A JSON object as it was written.
struct Object(Vec<(String, Field)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if members.len() == limits::HEADERS * 4 {
                        return Err(de::Error::custom("it has too many fields"));
                    }
                    members.push((name, Field::Json(value)));
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}
