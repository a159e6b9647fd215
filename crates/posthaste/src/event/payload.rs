//! The payload: JSON text or bytes with a content type, exactly one of them.

use bytes::Bytes;

/// Content type of JSON payloads.
const JSON: &str = "application/json";

/// What an event carries: serialised once, delivered as the same bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// `None` for JSON.
    content_type: Option<String>,
    bytes: Bytes,
}

impl Payload {
    /// JSON text whose validity the caller has established.
    pub(crate) fn json(text: impl Into<Bytes>) -> Self {
        Self { content_type: None, bytes: text.into() }
    }

    /// Bytes of the given content type.
    pub(crate) fn binary(content_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        Self { content_type: Some(content_type.into()), bytes: bytes.into() }
    }

    /// Whether it is JSON; otherwise it is bytes with their own content type.
    pub fn is_json(&self) -> bool {
        self.content_type.is_none()
    }

    /// `application/json`, or what the producer said of its bytes.
    pub fn content_type(&self) -> &str {
        self.content_type.as_deref().unwrap_or(JSON)
    }

    /// The bytes as they were written and will be delivered.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same bytes, shared instead of copied.
    pub(crate) fn shared(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The JSON text, if it is JSON.
    pub fn as_json(&self) -> Option<&str> {
        if self.is_json() { std::str::from_utf8(&self.bytes).ok() } else { None }
    }

    /// The bytes, if it is not JSON.
    pub(crate) fn as_binary(&self) -> Option<&[u8]> {
        if self.is_json() { None } else { Some(&self.bytes) }
    }

    /// The content type to store: none for JSON, whose column says it already.
    pub(crate) fn stored_content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }
}

/// Shows kind and size only: payloads stay out of logs.
impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({}, {} bytes)", self.content_type(), self.bytes.len())
    }
}
