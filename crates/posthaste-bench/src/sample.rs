//! The events that everybody writes and delivers: 300 bytes of JSON with a number, of a thousand aggregates.

/// Bytes of a payload.
pub(crate) const BYTES: usize = 300;

/// The business table.
pub(crate) const CREATE_ORDERS: &str = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer bigint NOT NULL, total bigint NOT NULL)";

/// The business statement: `$1` is [`Sample::number`] of an event, or anything.
pub(crate) const INSERT_ORDER: &str = "INSERT INTO orders (customer, total) VALUES ($1, 990)";

/// What there are aggregates of.
pub(crate) const AGGREGATE_TYPE: &str = "order";

pub(crate) const TOPIC: &str = "order.placed.v1";

/// How many aggregates there are.
pub(crate) const AGGREGATES: u64 = 1000;

pub(crate) const CUSTOMER: &str = "Ada Lovelace";
pub(crate) const CURRENCY: &str = "EUR";
pub(crate) const TOTAL: &str = "9.90";

const TAIL: &str = r#","customer":"Ada Lovelace","currency":"EUR","total":"9.90","note":""#;

/// One event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) number: u64,
}

impl Sample {
    pub(crate) fn new(number: u64) -> Self {
        Self { number }
    }

    pub(crate) fn aggregate_id(&self) -> String {
        (self.number % AGGREGATES).to_string()
    }

    /// JSON text of [`BYTES`] bytes that begins with its number.
    pub(crate) fn payload(&self) -> String {
        format!("{{\"n\":{}{TAIL}{}\"}}", self.number, self.note())
    }

    /// What fills it up.
    pub(crate) fn note(&self) -> String {
        let digits = self.number.checked_ilog10().map_or(1, |digits| digits as usize + 1);
        "x".repeat(BYTES.saturating_sub(r#"{"n":"#.len() + digits + TAIL.len() + 2))
    }
}

/// The same payload as an expression in SQL of a number `n`, of type text.
pub(crate) fn payload_sql() -> String {
    let rest = BYTES - r#"{"n":"#.len() - TAIL.len() - 2;
    format!(r#"('{{"n":' || n || '{TAIL}' || repeat('x', {rest} - length(n::text)) || '"}}')"#)
}

/// The same aggregate as an expression in SQL of a number `n`, of type text.
pub(crate) fn aggregate_sql() -> String {
    format!("((n % {AGGREGATES})::text)")
}

/// The number in a payload, however a database has spaced it: `n` is its first key, also of a `jsonb`.
pub(crate) fn number_in(payload: &[u8]) -> Option<u64> {
    let digits = payload.strip_prefix(br#"{"n":"#)?;
    let digits = digits.strip_prefix(b" ").unwrap_or(digits);
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_json_of_its_size_with_its_number() {
        for number in [0, 7, 123_456, 1_999_999] {
            let payload = Sample::new(number).payload();
            assert_eq!(payload.len(), BYTES);
            let value: serde_json::Value = serde_json::from_str(&payload).unwrap();
            assert_eq!(value["n"], number);
            assert_eq!(number_in(payload.as_bytes()), Some(number));
        }
    }

    #[test]
    fn a_number_is_read_however_it_is_spaced() {
        assert_eq!(number_in(br#"{"n": 12, "total": 1}"#), Some(12));
        assert_eq!(number_in(br#"{"n":12}"#), Some(12));
        assert_eq!(number_in(br#"{"total":12}"#), None);
        assert_eq!(number_in(b""), None);
    }
}
