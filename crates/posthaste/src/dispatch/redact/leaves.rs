//! The values of a JSON text, without building it up in memory: a payload may be large and deeply nested.

/// One value that is not an object or array.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leaf<'a> {
    /// A string with its quotes, escaped as it was written.
    Text(&'a str),
    /// A number as it was written.
    Number(&'a str),
}

/// The strings and numbers of a JSON text, the keys of its objects not among them.
pub(super) fn leaves(json: &str) -> impl Iterator<Item = Leaf<'_>> {
    let mut rest = json;
    std::iter::from_fn(move || {
        loop {
            rest = &rest[rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit())?..];
            if rest.starts_with('"') {
                let (text, after) = rest.split_at(string_end(rest));
                rest = after;
                if !after.trim_ascii_start().starts_with(':') {
                    return Some(Leaf::Text(text));
                }
            } else {
                let end = rest.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c)));
                let (number, after) = rest.split_at(end.unwrap_or(rest.len()));
                rest = after;
                return Some(Leaf::Number(number));
            }
        }
    })
}

/// Where the string that the text begins with ends, its closing quote included.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return at + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rt5_every_value_is_found_and_no_key() {
        let json = r#" {"a" : "x\"y\\", "b":[-1.5e3, "é", {"c": 7}], "d": true, "e":""} "#;
        let found: Vec<Leaf<'_>> = leaves(json).collect();
        let text = Leaf::Text;
        assert_eq!(
            found,
            [text(r#""x\"y\\""#), Leaf::Number("-1.5e3"), text("\"é\""), Leaf::Number("7"), text("\"\"")]
        );
        assert_eq!(leaves("\"unclosed").count(), 1);
    }
}
