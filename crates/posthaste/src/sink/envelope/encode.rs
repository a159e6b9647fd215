//! What headers and URLs cannot carry as it is, percent-encoded.

use std::fmt::Write;

/// Names that belong to the transport: an event's header of such a name is left out.
const RESERVED: [&str; 13] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Names that begin so steer a broker or are a part of a signature.
const RESERVED_PREFIXES: [&str; 2] = ["nats-", "webhook-"];

/// Whether a header of this name is the transport's own.
pub(super) fn is_reserved(name: &str) -> bool {
    let begins = |prefix: &&str| {
        name.get(..prefix.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(prefix))
    };
    RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
        || RESERVED_PREFIXES.iter().any(begins)
}

/// A CloudEvents attribute as a header's value: blanks, `"`, `%` and what is not printable ASCII are encoded.
pub(super) fn attribute(value: &str) -> String {
    percent(value, |byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'%'))
}

/// A header's name: whatever is not a token of HTTP, and `%`, is encoded.
pub(super) fn name(name: &str) -> String {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    percent(name, is_token)
}

/// A segment of a URL's path: whatever is not unreserved there is encoded.
pub(in crate::sink) fn path(segment: &str) -> String {
    percent(segment, |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
}

fn percent(text: &str, is_kept: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if is_kept(byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
