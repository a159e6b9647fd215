//! Event ids: UUIDs, or ULIDs read as the same 128 bits.

use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result, quoted};

/// Reads an id from a UUID (any of its usual forms) or from a ULID's 26 characters.
///
/// ```
/// let id = posthaste::event::parse_id("01ARZ3NDEKTSV4RRFFQ69G5FAV")?;
/// assert_eq!(id.to_string(), "01563e3a-b5d3-d676-4c61-efb99302bd5b");
/// # Ok::<_, posthaste::Error>(())
/// ```
pub fn parse_id(text: &str) -> Result<Uuid> {
    Uuid::try_parse(text).ok().or_else(|| parse_ulid(text)).ok_or_else(|| {
        let message = format!("{} is neither a UUID nor a ULID", quoted(text, 64));
        Error::new(ErrorKind::InvalidId, message)
    })
}

/// Crockford's base 32: 26 digits of 5 bits, of which the first may only use three.
fn parse_ulid(text: &str) -> Option<Uuid> {
    const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    if text.len() != 26 {
        return None;
    }
    text.bytes()
        .try_fold(0u128, |bits, digit| {
            let value = DIGITS.iter().position(|known| *known == digit.to_ascii_uppercase())?;
            (bits >> 123 == 0).then_some(bits << 5 | value as u128)
        })
        .map(Uuid::from_u128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ev1_a_ulid_is_its_128_bits() -> Result<()> {
        assert_eq!(parse_id("00000000000000000000000000")?, Uuid::nil());
        assert_eq!(parse_id("7ZZZZZZZZZZZZZZZZZZZZZZZZZ")?, Uuid::max());
        assert_eq!(
            parse_id("01arz3ndektsv4rrffq69g5fav")?,
            parse_id("01563e3a-b5d3-d676-4c61-efb99302bd5b")?
        );
        Ok(())
    }

    #[test]
    fn ev1_what_is_neither_is_refused() {
        for text in [
            "",
            "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "01ARZ3NDEKTSV4RRFFQ69G5FAU",
            "not-an-id",
            "01ARZ3NDEKTSV4RRFFQ69G5FA",
        ] {
            assert_eq!(parse_id(text).err().map(|e| e.kind().clone()), Some(ErrorKind::InvalidId), "{text}");
        }
    }
}
