//! Redaction: a failure's text as it may be stored and logged.
//!
//! A handler or broker says what it likes, and often quotes what it was given. Three things are taken out,
//! each found in one pass over the text, before the text is cut to its limit:
//!
//! | file | what it finds | what stands there instead |
//! |---|---|---|
//! | `payload.rs` | the payload, its values, and values of headers that look secret | `[payload]`, `***` |
//! | `leaves.rs` | the values of a JSON payload, for the above | |
//! | `credentials.rs` | passwords, tokens and keys, by what stands before them | `***` |

mod credentials;
mod leaves;
mod payload;

use crate::event::Event;

/// Bytes of what is kept: as many as the table keeps.
const LIMIT: usize = 2048;
/// Bytes of the text that are read at all: a stack trace's worth, so that the cost has a bound.
const READ_LIMIT: usize = 16 * 1024;
/// Bytes read beyond what may be kept of a longer text: what begins before the end is recognised by as many.
const MARGIN: usize = 2 * payload::WINDOW;

/// What stands where a part of the payload was.
const PAYLOAD: &str = "[payload]";
/// What stands where a secret was.
const SECRET: &str = "***";

/// A failure's text without its event's payload and without secrets, on one line, at most 2048 bytes.
///
/// The relay applies it to every failure before it is stored or logged; a delivery loop of one's own should
/// too.
///
/// ```
/// use posthaste::Event;
/// use posthaste::dispatch::redact;
///
/// let event = Event::json("user.joined.v1", &serde_json::json!({"mail": "ann@example.com"}))?.build()?;
/// let error = "no route for ann@example.com\n  at https://mailer:hunter22@smtp.internal, api_key=4f6a21";
/// assert_eq!(
///     redact(error, &event),
///     "no route for [payload]   at https://***@smtp.internal, api_key=***"
/// );
/// # Ok::<_, posthaste::Error>(())
/// ```
///
/// Taken out are the payload, any 32 bytes of it, its JSON strings of six characters and numbers of six
/// digits or more, in plain and in escaped form; the values of headers named like a secret; credentials in
/// URLs; what follows `Bearer` and `Basic`; and the values of keys such as `password`, `token` or `api_key`.
pub fn redact(error: &str, event: &Event) -> String {
    let read = &error[..error.floor_char_boundary(READ_LIMIT + MARGIN)];
    let is_cut = read.len() < error.len();
    let line = Line::from(read);

    let mut marks = payload::find(&line.text, event);
    credentials::find(&line, is_cut, &mut marks);

    let kept = if is_cut { line.text.len().saturating_sub(MARGIN) } else { line.text.len() };
    let clean = replace(&line.text, line.text.floor_char_boundary(kept), marks);
    let clean = clean.trim();
    clean[..clean.floor_char_boundary(LIMIT)].to_owned()
}

/// A stretch of the text that must not be kept.
struct Mark {
    start: usize,
    end: usize,
    instead: &'static str,
}

/// A text on one line.
struct Line {
    text: String,
    /// Where its lines ended.
    breaks: Vec<usize>,
}

impl From<&str> for Line {
    /// Each run of control characters becomes a space.
    fn from(text: &str) -> Self {
        let mut line = Self { text: String::with_capacity(text.len()), breaks: Vec::new() };
        let mut in_run = false;
        for c in text.chars() {
            if c == '\n' {
                line.breaks.push(line.text.len() - usize::from(in_run));
            }
            if !c.is_control() {
                line.text.push(c);
            } else if !in_run {
                line.text.push(' ');
            }
            in_run = c.is_control();
        }
        line
    }
}

impl Line {
    /// Where the line that this place is in ended.
    fn end_of_line(&self, at: usize) -> usize {
        let next = self.breaks.partition_point(|end| *end < at);
        self.breaks.get(next).copied().unwrap_or(self.text.len())
    }
}

/// The text up to `kept` with every mark replaced; marks that overlap are one.
fn replace(text: &str, kept: usize, mut marks: Vec<Mark>) -> String {
    marks.sort_by_key(|mark| mark.start);
    let mut clean = String::with_capacity(kept.min(LIMIT * 2));
    // How far the text is dealt with, and what stood there last.
    let (mut done, mut last) = (0, "");
    for mark in marks {
        // A window of bytes may begin or end within a character.
        let (start, end) = (text.floor_char_boundary(mark.start), text.ceil_char_boundary(mark.end));
        if start >= kept {
            break;
        }
        let joins = start < done || (start == done && mark.instead == last);
        if !joins {
            clean.push_str(&text[done..start]);
            clean.push_str(mark.instead);
            last = mark.instead;
        }
        done = done.max(end);
    }
    if done < kept {
        clean.push_str(&text[done..kept]);
    }
    clean
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::error::Result;

    fn event(payload: &Value) -> Result<Event> {
        Event::json("t", payload)?.build()
    }

    #[test]
    fn rt5_the_payload_and_its_values_are_taken_out() -> Result<()> {
        let payload = json!({
            "mail": "ann@example.com", "pin": 123_456_789, "sum": 1_234_567.5, "quoted": "say \"hi\"\nthere",
            "note": "x".repeat(40), "short": "abc", "year": 1999,
        });
        let event = event(&payload)?;
        for (error, expected) in [
            (format!("got {payload}"), "got [payload]"),
            (format!("got {:?}", payload.to_string()), "got \"[payload]\""),
            (format!("body {}", &payload.to_string()[..60]), "body [payload]"),
            (format!("bytes {:?}", payload.to_string().as_bytes()), "bytes [[payload]]"),
            ("no mailbox ann@example.com.".to_owned(), "no mailbox [payload]."),
            ("pin=123456789!".to_owned(), "pin=[payload]!"),
            ("sum 1234567.5, or 1234567".to_owned(), "sum [payload], or [payload]"),
            ("unknown say \"hi\"\nthere".to_owned(), "unknown [payload]"),
            (r#"unknown "say \"hi\"\nthere""#.to_owned(), "unknown \"[payload]\""),
            ("x".repeat(50), "[payload]"),
            ("abc in 1999, field mail missing".to_owned(), "abc in 1999, field mail missing"),
        ] {
            assert_eq!(redact(&error, &event), expected, "{error}");
        }
        Ok(())
    }

    #[test]
    fn rt5_payloads_that_are_not_json_are_taken_out() -> Result<()> {
        let text = Event::builder("t").bytes("text/plain", "card 4111").build()?;
        assert_eq!(redact("refused: card 4111", &text), "refused: [payload]");
        let binary = Event::builder("t").bytes("image/png", vec![0xff, 0xd8, 0x01, b'a', b'b']).build()?;
        assert_eq!(redact(r"refused: \xff\xd8\x01ab", &binary), "refused: [payload]");
        assert_eq!(redact("refused: [255, 216, 1, 97, 98]", &binary), "refused: [[payload]]");
        Ok(())
    }

    #[test]
    fn rt5_credentials_are_taken_out() -> Result<()> {
        let event = event(&json!(1))?;
        for (error, expected) in [
            ("postgres://app:pa/ss@db/x refused", "postgres://***@db/x refused"),
            ("amqp://guest@mq, https://a.example/b", "amqp://***@mq, https://a.example/b"),
            ("sent Bearer abc.def-ghi to it", "sent Bearer *** to it"),
            ("bearer token abc", "bearer token ***"),
            ("basic dXNlcjpwYXNz", "basic ***"),
            ("PASSWORD=hunter2 host=db", "PASSWORD=*** host=db"),
            ("dsn: host=db;pwd=hun,ter;port=1", "dsn: host=db;pwd=***;port=1"),
            ("GET /?access_token=abc&x=1", "GET /?access_token=***&x=1"),
            (r#"{"apiKey": "a\"b", "x": 1}"#, r#"{"apiKey": "***", "x": 1}"#),
            (r#""{\"client_secret\":\"abc\",\"x\":1}""#, r#""{\"client_secret\":\"***\",\"x\":1}""#),
            (r#"Config { password: Some("abc"), port: 1 }"#, r#"Config { password: ***"), port: 1 }"#),
            (r#"tokens: ["abc", "def"] refused"#, "tokens: [***] refused"),
            ("Authorization: Digest a=b, c=d\nhost: x", "Authorization: *** host: x"),
            (r#"{"authorization": "Bearer abc", "host": "x"}"#, r#"{"authorization": "***", "host": "x"}"#),
            ("token: Bearer abc", "token: *** ***"),
            ("'private-key' => 'abc'", "'private-key' => '***'"),
            ("the token expired; password rejected", "the token expired; password rejected"),
            ("password=", "password="),
        ] {
            assert_eq!(redact(error, &event), expected);
        }
        Ok(())
    }

    #[test]
    fn rt5_values_of_secret_headers_are_taken_out() -> Result<()> {
        let event = Event::json("t", &1)?
            .header("Authorization", "Bearer s3cr3t-value")
            .header("cookie", "session=0123456789; theme=darkest")
            .header("x-csrf-token", "t0k3n!")
            .header("source", "warehouse")
            .build()?;
        let error = "warehouse sent s3cr3t-value, 0123456789 and t0k3n!";
        assert_eq!(redact(error, &event), "warehouse sent ***, *** and ***");
        Ok(())
    }

    #[test]
    fn rt5_the_text_is_one_line_of_at_most_2048_bytes() -> Result<()> {
        let event = event(&json!("secret value"))?;
        assert_eq!(redact("\n a\r\n\tb\0c\n", &event), "a b c");
        assert_eq!(redact(&"é".repeat(3000), &event).len(), 2048);
        let odd = format!("x{}", "é".repeat(3000));
        assert_eq!(redact(&odd, &event).len(), 2047);
        // Cut after redaction: what the cut leaves of a secret is not one that was overlooked.
        let error = format!("{}secret value", "x".repeat(2042));
        assert_eq!(redact(&error, &event), format!("{}[paylo", "x".repeat(2042)));
        Ok(())
    }

    #[test]
    fn rt5_what_begins_where_reading_ends_is_taken_out() -> Result<()> {
        let event = event(&json!("secret value"))?;
        let repeated = "secret value".repeat(2000);
        assert_eq!(redact(&repeated, &event), "[payload]");
        for secret in ["password=abcdefghij", "https://user:abcdefghij@host ", "Bearer abcdefghij"] {
            for shift in (0..100).step_by(9) {
                // As long as what is read, and short once it is redacted.
                let filler = "secret value ".repeat((READ_LIMIT + MARGIN - shift) / 13);
                let clean = redact(&format!("{filler}{secret} and more {repeated}"), &event);
                assert!(!clean.contains("abc"), "{shift}: {clean}");
            }
        }
        Ok(())
    }

    #[test]
    fn rt5_large_texts_and_payloads_take_no_time() -> Result<()> {
        let leaves: Vec<String> = (0..70_000).map(|n| format!("order-{n:06}")).collect();
        let texts = [
            "a".repeat(1 << 20),
            "order-0".repeat(150_000),
            "token=[".repeat(150_000),
            "://@/".repeat(200_000),
            "basic,".repeat(170_000),
            "password=\"\\".repeat(100_000),
        ];
        for payload in [json!(leaves), json!("a".repeat(1_000_000)), json!("\"\\".repeat(250_000))] {
            let event = Event::json("t", &payload)?.build_by(&rules())?;
            for text in &texts {
                let start = Instant::now();
                assert!(redact(text, &event).len() <= LIMIT);
                assert!(start.elapsed() < Duration::from_secs(60), "{:.20}: {:?}", text, start.elapsed());
            }
        }
        Ok(())
    }

    fn rules() -> crate::event::EventRules {
        crate::event::EventRules { max_payload: 4 << 20, ..Default::default() }
    }

    fn config() -> ProptestConfig {
        ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn rt5_no_value_of_the_payload_is_left(
            before in any::<String>(),
            after in "\\PC{0,500}",
            value in prop_oneof!["[^\\[*]{6,60}", "[a-z \\n\"\\\\]{6,40}", "\\PC{6,10}"],
            number in 100_000..u64::MAX,
            debug in any::<bool>(),
        ) {
            let event = event(&json!({"a": [{"b": value}], "n": number}))?;
            let shown = if debug { format!("{value:?}") } else { value.clone() };
            let clean = redact(&format!("{before}{shown}{number}{after}{shown}"), &event);
            prop_assert!(clean.len() <= LIMIT);
            prop_assert!(!clean.contains(|c: char| c.is_control()));
            for planted in [value.clone(), Line::from(&*value).text, number.to_string()] {
                prop_assert!(!clean.contains(&planted), "{planted:?} in {clean:?}");
            }
        }

        #[test]
        fn rt5_no_secret_is_left(
            before in any::<String>(),
            after in any::<String>(),
            secret in "[A-Za-z0-9!#$%+/._-]{8,60}",
            form in prop::sample::select(vec![
                "password=$", "Passwd: $", "\"api_key\":\"$\"", "{\\\"token\\\":\\\"$\\\"}", "Bearer $",
                "Authorization: Basic $", "postgres://app:$@db/x", "x?secret=$&y=1", "(private_key = $)",
            ]),
        ) {
            let event = event(&json!(null))?;
            let error = format!("{before} {} {after}", form.replace('$', &secret));
            let clean = redact(&error, &event);
            prop_assert!(clean.len() <= LIMIT);
            prop_assert!(!clean.contains(&secret), "{clean:?}");
        }

        #[test]
        fn rt5_nothing_breaks_it(
            error in any::<String>(),
            payload in any::<Vec<u8>>(),
            header in "[ -~]{0,40}",
        ) {
            let event = Event::builder("t").bytes("x", payload).header("token", header).build()?;
            prop_assert!(redact(&error, &event).len() <= LIMIT);
        }
    }
}
