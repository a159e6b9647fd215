//! What is said of an error: one shape, `{"error": {"kind", "message"}}`, whose kind programs decide on.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use posthaste::ErrorKind;
use serde::Serialize;
use serde_json::json;

use crate::exit::Exit;

/// What every handler answers with.
pub(super) type Answer = Result<Response, Problem>;

/// Why a request is not answered with what it asked for.
#[derive(Debug)]
pub(super) struct Problem {
    kind: Kind,
    message: String,
}

/// The kinds; each has one status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Timeout,
    Conflict,
    TooLarge,
    UnsupportedMediaType,
    Invalid,
    Unconfirmed,
    TooSlow,
    Internal,
    Unavailable,
}

impl Kind {
    /// Its name, and the code that it has.
    fn parts(self) -> (&'static str, StatusCode) {
        match self {
            Self::BadRequest => ("bad_request", StatusCode::BAD_REQUEST),
            Self::Unauthorized => ("unauthorized", StatusCode::UNAUTHORIZED),
            Self::Forbidden => ("forbidden", StatusCode::FORBIDDEN),
            Self::NotFound => ("not_found", StatusCode::NOT_FOUND),
            Self::MethodNotAllowed => ("method_not_allowed", StatusCode::METHOD_NOT_ALLOWED),
            Self::Timeout => ("timeout", StatusCode::REQUEST_TIMEOUT),
            Self::Conflict => ("conflict", StatusCode::CONFLICT),
            Self::TooLarge => ("too_large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::UnsupportedMediaType => ("unsupported_media_type", StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Self::Invalid => ("invalid", StatusCode::UNPROCESSABLE_ENTITY),
            Self::Unconfirmed => ("unconfirmed", StatusCode::UNPROCESSABLE_ENTITY),
            Self::TooSlow => ("too_slow", StatusCode::UNPROCESSABLE_ENTITY),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR),
            Self::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE),
        }
    }
}

impl Problem {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> StatusCode {
        self.kind.parts().1
    }

    /// What is said.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// The request cannot be understood.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(Kind::BadRequest, message)
    }

    /// There is no such thing.
    pub(super) fn missing(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }
}

/// What somebody sent, in quotation marks, as far as a message repeats it: 60 characters. A precision would not do that for
/// texts in quotation marks.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(60) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// The library's messages hold neither payloads nor secrets.
impl From<posthaste::Error> for Problem {
    fn from(error: posthaste::Error) -> Self {
        let kind = match (error.kind(), Exit::from(error.kind())) {
            (ErrorKind::PayloadTooLarge { .. }, _) => Kind::TooLarge,
            // Asking for the same again would take as long again: whoever asks has to ask for less.
            (ErrorKind::TooSlow, _) => Kind::TooSlow,
            (ErrorKind::Conflict, _) | (_, Exit::Database | Exit::Table) => Kind::Unavailable,
            (_, Exit::BadInput) => Kind::Invalid,
            _ => Kind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (kind, code) = self.kind.parts();
        json_with(code, &json!({ "error": { "kind": kind, "message": self.message } }))
    }
}

/// A value as an answer.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> Response {
    json_with(StatusCode::OK, value)
}

/// A value as an answer with this code.
pub(super) fn json_with<T: Serialize + ?Sized>(code: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(mut text) => {
            // So that a shell's prompt does not stand behind it.
            text.push(b'\n');
            (code, [("content-type", "application/json")], text).into_response()
        }
        // What is shown is made of texts and numbers: it can always be written.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn op5_an_answer_ends_with_a_line_break() {
        for answer in [json(&[1]), Problem::bad("no").into_response()] {
            let body = answer.into_body().collect().await.map(|body| body.to_bytes());
            assert!(body.is_ok_and(|body| body.ends_with(b"\n") && !body.ends_with(b"\n\n")));
        }
    }
}
