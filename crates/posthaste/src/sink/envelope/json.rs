//! A JSON object written member by member, so that a payload's bytes can be copied into it as they are.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// An object in the making.
pub(super) struct Object(Vec<u8>);

impl Object {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        let mut out = Vec::with_capacity(bytes);
        out.push(b'{');
        Self(out)
    }

    /// A member that is a string.
    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        string(&mut self.0, value);
    }

    /// A member that is a number.
    pub(super) fn number(&mut self, name: &str, value: i64) {
        self.raw(name, value.to_string().as_bytes());
    }

    /// A member that is JSON already.
    pub(super) fn raw(&mut self, name: &str, json: &[u8]) {
        self.name(name);
        self.0.extend_from_slice(json);
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }

    fn name(&mut self, name: &str) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        string(&mut self.0, name);
        self.0.push(b':');
    }
}

/// Appends a JSON string.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend([b'\\', c as u8]),
            c if c.is_control() => out.extend(format!("\\u{:04x}", c as u32).into_bytes()),
            c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

/// Bytes as base 64, with padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
