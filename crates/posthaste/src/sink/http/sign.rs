//! Signatures by the Standard Webhooks specification: HMAC-SHA256 over `id.timestamp.body`.
//!
//! The id stays the same at every try and is what the receiver dedupes on; the timestamp is that of the try, so
//! that an old request cannot be sent again by somebody else.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::{Error, ErrorKind, Result};

/// What secrets begin with.
const PREFIX: &str = "whsec_";

/// Bytes that the specification wants a secret to have.
const LENGTH: std::ops::RangeInclusive<usize> = 24..=64;

/// A key to sign with.
#[derive(Clone)]
pub(super) struct Secret(Hmac<Sha256>);

impl Secret {
    /// Reads `whsec_` and base 64, or base 64 alone. The error does not repeat it.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = |what: String| Error::new(ErrorKind::InvalidSetting, format!("a webhook secret {what}"));
        let text = text.trim();
        let key = STANDARD
            .decode(text.strip_prefix(PREFIX).unwrap_or(text))
            .map_err(|_| wrong(format!("is not {PREFIX:?} followed by base 64")))?;
        if !LENGTH.contains(&key.len()) {
            let (least, most) = (LENGTH.start(), LENGTH.end());
            return Err(wrong(format!("has {} bytes, not between {least} and {most}", key.len())));
        }
        let mac = Hmac::new_from_slice(&key).map_err(|error| wrong(format!("cannot be used: {error}")))?;
        Ok(Self(mac))
    }

    fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// The value of `webhook-signature`: one signature for each secret, so that a receiver that knows any of them is
/// content.
pub(super) fn signatures(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
    signatures.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn si4_the_signature_is_the_published_one() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", br#"{"test": 2432232314}"#);
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signatures(std::slice::from_ref(&secret), id, 1_614_265_330, body), expected);

        let other = Secret::parse(&STANDARD.encode([7; 32])).unwrap();
        let both = signatures(&[other, secret], id, 1_614_265_330, body);
        assert_eq!(both.split(' ').nth(1), Some(expected));
    }

    #[test]
    fn si4_a_secret_that_is_none_is_refused_and_not_repeated() {
        for wrong in ["whsec_", "whsec_c2hvcnQ=", "not base 64!", &STANDARD.encode([1; 65])] {
            let error = Secret::parse(wrong).err().unwrap().to_string();
            assert!(!error.contains(wrong) || wrong == "whsec_", "{error}");
        }
    }
}
