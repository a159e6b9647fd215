//! What a key takes, and how a value is read: from the file, where it has a type, and from a variable or a flag, where
//! it is text. An error says what the value is, unless it is secret, and what to write instead.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste::TopicMap;
use posthaste::sink::{Envelope, Format};
use toml::de::DeValue;

use crate::when;

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A length of time that is not zero.
    Duration,
    /// A length of time; zero has a meaning of its own.
    DurationOrZero,
    /// A whole number from here to there.
    Count(u64, u64),
    /// Yes or no.
    Bool,
    /// Any text.
    Text,
    /// A text, or several.
    List,
    /// One of these.
    Choice(&'static [&'static str]),
    /// The name of a table.
    TableName,
    /// Names of tables.
    Tables,
    /// An address to listen on.
    Address,
    /// The path of a URL.
    UrlPath,
    /// What is logged.
    Filter,
    /// A destination with placeholders.
    Template,
    /// A CloudEvents source.
    Source,
}

/// What a key is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Duration(Duration),
    Count(u64),
    Bool(bool),
    Text(String),
    List(Vec<String>),
}

/// A value, and whether errors may repeat it.
pub(crate) struct Given<'a> {
    pub(crate) value: Raw<'a>,
    pub(crate) secret: bool,
}

/// A value as it was written.
pub(crate) enum Raw<'a> {
    /// In the file.
    Toml(&'a DeValue<'a>),
    /// In a variable or flag.
    Plain(&'a str),
}

impl Kind {
    /// Its name for people.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Duration => "duration".to_owned(),
            Self::DurationOrZero => "duration, or 0".to_owned(),
            Self::Count(least, most) if most >= 1_000_000_000 => format!("number, at least {least}"),
            Self::Count(least, most) => format!("number, {least} to {most}"),
            Self::Bool => "`true` or `false`".to_owned(),
            Self::Text => "text".to_owned(),
            Self::List => "text, or a list of texts".to_owned(),
            Self::Choice(choices) => {
                choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", ")
            }
            Self::TableName => "name of a table".to_owned(),
            Self::Tables => "name of a table, or a list of names".to_owned(),
            Self::Address => "address and port".to_owned(),
            Self::UrlPath => "path that begins with /".to_owned(),
            Self::Filter => "filter".to_owned(),
            Self::Template => "text with placeholders".to_owned(),
            Self::Source => "URI".to_owned(),
        }
    }

    /// Whether it is text, in which the file may name variables of the environment.
    pub(crate) fn is_text(self) -> bool {
        !matches!(self, Self::Duration | Self::DurationOrZero | Self::Count(..) | Self::Bool)
    }

    fn is_list(self) -> bool {
        matches!(self, Self::List | Self::Tables)
    }

    /// Reads a value; the error says what it is and what to write.
    pub(crate) fn read(self, given: &Given<'_>) -> Result<Value, String> {
        match self {
            Self::Duration | Self::DurationOrZero => self.duration(given),
            Self::Count(least, most) => count(given, least, most),
            Self::Bool => match given.value {
                Raw::Toml(DeValue::Boolean(yes)) => Ok(Value::Bool(*yes)),
                Raw::Plain("true" | "yes" | "on" | "1") => Ok(Value::Bool(true)),
                Raw::Plain("false" | "no" | "off" | "0") => Ok(Value::Bool(false)),
                _ => Err(format!("is {}; write true or false", given.shown())),
            },
            kind if kind.is_list() => {
                let texts: Vec<String> = match given.value {
                    Raw::Plain(text) => text
                        .split(',')
                        .map(|part| part.trim().to_owned())
                        .filter(|part| !part.is_empty())
                        .collect(),
                    Raw::Toml(DeValue::String(text)) => vec![text.to_string()],
                    Raw::Toml(DeValue::Array(values)) => values
                        .iter()
                        .map(|value| value.get_ref().as_str().map(str::to_owned))
                        .collect::<Option<_>>()
                        .ok_or("is a list of other things than texts; write each in quotation marks")?,
                    Raw::Toml(_) => {
                        return Err(format!(
                            "is {}; write a text in quotation marks, or a list of them",
                            given.shown()
                        ));
                    }
                };
                if texts.is_empty() {
                    return Err("is an empty list; name at least one, or leave the key away".to_owned());
                }
                texts.iter().try_for_each(|text| self.check(text, given.secret))?;
                Ok(Value::List(texts))
            }
            _ => {
                let text = match given.value {
                    Raw::Plain(text) => text,
                    Raw::Toml(DeValue::String(text)) => text,
                    Raw::Toml(_) => {
                        return Err(format!("is {}; write a text in quotation marks", given.shown()));
                    }
                };
                self.check(text, given.secret)?;
                Ok(Value::Text(text.to_owned()))
            }
        }
    }

    fn duration(self, given: &Given<'_>) -> Result<Value, String> {
        let text = match given.value {
            Raw::Plain(text) => text.to_owned(),
            Raw::Toml(DeValue::String(text)) => text.to_string(),
            Raw::Toml(DeValue::Integer(number)) => number.to_string(),
            Raw::Toml(_) => return Err(format!("is {}; write a duration such as \"30s\"", given.shown())),
        };
        let number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let zero = number && text.bytes().all(|b| b == b'0');
        match when::duration(&text) {
            Ok(Duration::ZERO) if self == Self::Duration => {
                Err("is 0, and nothing would ever happen; write a duration such as \"30s\"".to_owned())
            }
            Ok(duration) => Ok(Value::Duration(duration)),
            Err(_) if zero && self == Self::DurationOrZero => Ok(Value::Duration(Duration::ZERO)),
            Err(_) if number => Err(format!(
                "is {}, a number without a unit; write \"{text}s\", or another of ms, s, m, h, d",
                given.shown()
            )),
            Err(_) => Err(format!(
                "is {}; write a whole number and a unit, such as \"500ms\", \"30s\", \"5m\", \"2h\" or \"7d\"",
                given.shown()
            )),
        }
    }

    /// Whether a text will do.
    fn check(self, text: &str, secret: bool) -> Result<(), String> {
        let shown = if secret { "not one".to_owned() } else { format!("{text:?}") };
        let advice = match self {
            _ if text.is_empty() => return Err("is empty; write something, or leave the key away".to_owned()),
            Self::Choice(choices) if !choices.contains(&text) => {
                let near = super::nearest(text, choices.iter().copied());
                let near = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
                let all = choices.iter().map(|choice| format!("{choice:?}")).collect::<Vec<_>>().join(", ");
                return Err(format!("is {shown}, not one of {all}{near}"));
            }
            Self::TableName | Self::Tables if text.parse::<posthaste::TableName>().is_err() => {
                "write the name of a table, such as \"orders_outbox\" or \"shop.orders_outbox\""
            }
            Self::Address if text.parse::<SocketAddr>().is_err() => {
                "write an IP address and a port, such as \"127.0.0.1:8470\" or \"[::1]:8470\""
            }
            Self::UrlPath if !is_free_path(text) => {
                "write a path such as \"/metrics\" of letters, digits and -_./, beside /healthz, /readyz and /api"
            }
            Self::Filter if !is_filter(text) => {
                "write a level such as \"info\", or levels by module such as \"info,posthaste=debug\""
            }
            Self::Template => match TopicMap::template(text) {
                Err(error) if !secret => return Err(format!("does not do: {}", error.message())),
                Err(_) => "write a text with placeholders, such as \"shop.{topic}\"",
                Ok(_) => return Ok(()),
            },
            Self::Source => match Envelope::new(Format::default()).source(text) {
                Err(error) if !secret => return Err(format!("does not do: {}", error.message())),
                Err(_) => "write a URI without blanks, such as \"https://shop.example/orders\"",
                Ok(_) => return Ok(()),
            },
            _ => return Ok(()),
        };
        Err(format!("is {shown}; {advice}"))
    }
}

fn count(given: &Given<'_>, least: u64, most: u64) -> Result<Value, String> {
    let number = match given.value {
        Raw::Plain(text) => text.parse::<u64>().ok(),
        Raw::Toml(DeValue::Integer(number)) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
        Raw::Toml(DeValue::String(text)) if text.parse::<u64>().is_ok() => {
            return Err(format!("is the text {text:?}; write the number {text}, without quotation marks"));
        }
        Raw::Toml(_) => None,
    };
    match number {
        Some(number) if (least..=most).contains(&number) => Ok(Value::Count(number)),
        _ => Err(format!("is {}; write a whole number from {least} to {most}", given.shown())),
    }
}

impl Given<'_> {
    /// For an error; never a secret.
    fn shown(&self) -> String {
        let kind = |value: &DeValue<'_>| match value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) | DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a section",
        };
        match &self.value {
            Raw::Plain(_) if self.secret => "something else".to_owned(),
            Raw::Plain(text) => format!("{text:?}"),
            Raw::Toml(value) if self.secret => kind(value).to_owned(),
            Raw::Toml(DeValue::String(text)) => format!("{text:?}"),
            Raw::Toml(DeValue::Integer(number)) => number.to_string(),
            Raw::Toml(DeValue::Float(number)) => number.to_string(),
            Raw::Toml(DeValue::Boolean(yes)) => yes.to_string(),
            Raw::Toml(value) => kind(value).to_owned(),
        }
    }
}

impl Value {
    /// As a variable would have it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Duration(Duration::ZERO) => "0".to_owned(),
            Self::Duration(duration) => exact(*duration),
            Self::Count(number) => number.to_string(),
            Self::Bool(yes) => yes.to_string(),
            Self::Text(text) => text.clone(),
            Self::List(texts) => texts.join(", "),
        }
    }
}

/// A length in the largest unit that leaves nothing over, days aside: `168h`, `90s`.
fn exact(duration: Duration) -> String {
    let millis = duration.as_millis();
    let (unit, size) = [("h", 3_600_000), ("m", 60_000), ("s", 1000)]
        .into_iter()
        .find(|(_, size)| millis.is_multiple_of(*size))
        .unwrap_or(("ms", 1));
    format!("{}{unit}", millis / size)
}

/// Whether a server has nothing else at this path.
fn is_free_path(path: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let taken = matches!(path, "/" | "/healthz" | "/readyz" | "/api") || path.starts_with("/api/");
    path.starts_with('/') && path.chars().all(plain) && !taken
}

/// Levels, and modules with theirs. A word alone that is no level would silence everything but a module of that name.
fn is_filter(text: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_known = |part: &str| {
        part.contains('=')
            || part.contains("::")
            || LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level))
    };
    text.parse::<tracing_subscriber::filter::Targets>().is_ok()
        && text.split(',').map(str::trim).all(is_known)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn read(kind: Kind, toml: &str) -> Result<Value, String> {
        let value = DeValue::parse(toml).unwrap();
        kind.read(&Given { value: Raw::Toml(value.get_ref()), secret: false })
    }

    #[test]
    fn op3_values_are_read_by_their_kind() {
        assert_eq!(read(Kind::Duration, "\"90s\"").unwrap().shown(), "90s");
        assert_eq!(read(Kind::Duration, "\"2h\"").unwrap().shown(), "2h");
        assert_eq!(read(Kind::DurationOrZero, "0").unwrap(), Value::Duration(Duration::ZERO));
        assert_eq!(read(Kind::Count(1, 10), "0x0a").unwrap(), Value::Count(10));
        assert_eq!(read(Kind::Bool, "false").unwrap(), Value::Bool(false));
        assert_eq!(read(Kind::List, "\"a,b\"").unwrap(), Value::List(vec!["a,b".to_owned()]));
        assert_eq!(read(Kind::Tables, "[\"a\", \"b.c\"]").unwrap().shown(), "a, b.c");
        assert_eq!(read(Kind::Filter, "\"info,posthaste=debug\"").unwrap().shown(), "info,posthaste=debug");
    }

    #[test]
    fn op3_a_value_of_the_wrong_kind_says_what_to_write() {
        for (kind, toml, words) in [
            (Kind::Duration, "\"90\"", "is \"90\", a number without a unit; write \"90s\""),
            (Kind::Duration, "90", "is 90, a number without a unit; write \"90s\""),
            (Kind::Duration, "\"0s\"", "is 0, and nothing would ever happen"),
            (Kind::Duration, "\"soon\"", "write a whole number and a unit"),
            (Kind::Count(1, 10), "\"5\"", "is the text \"5\"; write the number 5"),
            (Kind::Count(1, 10), "11", "is 11; write a whole number from 1 to 10"),
            (Kind::Count(1, 10), "-1", "is -1; write"),
            (Kind::Bool, "\"true\"", "is \"true\"; write true or false"),
            (Kind::Text, "5", "is 5; write a text in quotation marks"),
            (Kind::Text, "\"\"", "is empty"),
            (Kind::Choice(&["queue", "stream"]), "\"steam\"", "did you mean \"stream\"?"),
            (Kind::TableName, "\"a;b\"", "write the name of a table"),
            (Kind::Address, "\"8470\"", "write an IP address and a port"),
            (Kind::UrlPath, "\"metrics\"", "write a path"),
            (Kind::UrlPath, "\"/\"", "write a path"),
            (Kind::UrlPath, "\"/a/{b}\"", "write a path"),
            (Kind::UrlPath, "\"/:a\"", "write a path"),
            (Kind::UrlPath, "\"/readyz\"", "write a path"),
            (Kind::UrlPath, "\"/api/v1/metrics\"", "write a path"),
            (Kind::Filter, "\"posthaste=loud\"", "write a level"),
            (Kind::Filter, "\"loud\"", "write a level"),
            (Kind::Template, "\"a.{tpic}\"", "unknown placeholder \"tpic\""),
            (Kind::Source, "\"a b\"", "is not a URI"),
            (Kind::List, "[1]", "other things than texts"),
            (Kind::List, "[]", "is an empty list"),
        ] {
            let error = read(kind, toml).unwrap_err();
            assert!(error.contains(words), "{toml}: {error}");
        }
    }

    #[test]
    fn op3_an_error_does_not_repeat_a_secret() {
        let value = DeValue::parse("[\"hunter22\", 1]").unwrap();
        let error = Kind::Text.read(&Given { value: Raw::Toml(value.get_ref()), secret: true }).unwrap_err();
        assert!(!error.contains("hunter22"), "{error}");
    }
}
