//! Passwords, tokens and keys in a text, known by what stands before them.

use super::{Line, Mark, SECRET};

/// What the name of a secret has in it, in small letters and without `_` and `-`.
const SECRET_NAMES: [&str; 13] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "privatekey",
    "authorization",
    "cookie",
    "credential",
    "signature",
];

/// What stands before the credentials in the header `Authorization`.
const SCHEMES: [&str; 2] = ["bearer", "basic"];

/// Characters that may end a value, if nothing of it can follow.
const CLOSING: &str = ",;&)]}>\"'`\\";

/// Whether a header or key of this name holds a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name: String =
        name.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// Marks every secret. Of a text that was cut, what may be one that ends beyond the cut is marked too.
pub(super) fn find(line: &Line, is_cut: bool, marks: &mut Vec<Mark>) {
    urls(&line.text, is_cut, marks);
    let text = &line.text;
    let mut at = 0;
    while let Some((start, end)) = word(text, at) {
        at = end;
        let name = &text[start..end];
        let secret = if SCHEMES.iter().any(|scheme| name.eq_ignore_ascii_case(scheme)) {
            after_scheme(text, end)
        } else if is_secret_name(name)
            && let Some(value) = assigned(line, end, name)
        {
            // `token: Bearer x` goes on behind the scheme.
            let value_text = text[value.0..value.1].to_ascii_lowercase();
            let scheme = SCHEMES.iter().find(|scheme| value_text.ends_with(**scheme));
            at = value.1 - scheme.map_or(0, |scheme| scheme.len());
            value
        } else {
            continue;
        };
        if secret.0 < secret.1 {
            marks.push(Mark { start: secret.0, end: secret.1, instead: SECRET });
        }
    }
}

/// What follows `Bearer` or `Basic`, which ends here.
fn after_scheme(text: &str, end: usize) -> (usize, usize) {
    let start = spaces(text, end);
    if start == end {
        return (end, end);
    }
    let value = plain_value(text, start);
    let is_label = text[value.0..value.1].trim_end_matches(':').eq_ignore_ascii_case("token");
    if is_label { plain_value(text, spaces(text, value.1)) } else { value }
}

/// `scheme://user:password@host`: what is between the slashes and the `@`.
fn urls(text: &str, is_cut: bool, marks: &mut Vec<Mark>) {
    let (mut at, mut end) = (0, 0);
    while let Some(found) = text[at..].find("://") {
        let start = at + found + "://".len();
        // Several may stand together with nothing in between that ends one for certain.
        if start > end {
            let length = text[start..].find(|c: char| c.is_whitespace() || "\"'`<>".contains(c));
            end = length.map_or(text.len(), |length| start + length);
        }
        let url = &text[start..end];
        let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
        // A password may have a slash of its own; then only the colon tells it from a path.
        let credentials =
            authority.rfind('@').or_else(|| url.rfind('@').filter(|sign| url[..*sign].contains(':')));
        at = match credentials {
            Some(length) => {
                marks.push(Mark { start, end: start + length, instead: SECRET });
                start + length
            }
            None => {
                if is_cut && end == text.len() {
                    marks.push(Mark { start, end, instead: SECRET });
                }
                end
            }
        };
    }
}

/// The next run of letters, digits, `_` and `-`.
fn word(text: &str, from: usize) -> Option<(usize, usize)> {
    let start = from + text[from..].find(is_word)?;
    let length = text[start..].find(|c| !is_word(c)).unwrap_or(text.len() - start);
    Some((start, start + length))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Behind any spaces.
fn spaces(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start_matches(' ').len()
}

/// The quote at this place with the backslashes before it, as in JSON within a string: how many backslashes,
/// which quote, and where it ends.
fn quote(text: &str, at: usize) -> Option<(usize, char, usize)> {
    let rest = text[at..].trim_start_matches('\\');
    let start = text.len() - rest.len();
    rest.chars().next().filter(|c| "\"'`".contains(*c)).map(|c| (start - at, c, start + 1))
}

/// The value that is given to a name which ends here, if one is: `name=value`, `name: value`,
/// `"name":"value"`.
fn assigned(line: &Line, end_of_name: usize, name: &str) -> Option<(usize, usize)> {
    let text = &line.text;
    let at = quote(text, end_of_name).map_or(end_of_name, |(.., end)| end);
    let at = spaces(text, at);
    let rest = text[at..].strip_prefix(['=', ':'])?;
    let at = spaces(text, text.len() - rest.trim_start_matches(['=', '>']).len());
    if let Some((backslashes, quote, start)) = quote(text, at) {
        return Some((start, closing_quote(text, start, quote, backslashes)));
    }
    if let Some(open @ ('[' | '{')) = text[at..].chars().next() {
        return Some((at + 1, closing_bracket(text, at, open)));
    }
    // Headers of many words.
    let whole_line =
        ["authorization", "cookie"].iter().any(|header| name.to_ascii_lowercase().contains(header));
    if whole_line { Some((at, line.end_of_line(at))) } else { Some(plain_value(text, at)) }
}

/// Where the quote is closed, or the text's end; one with more backslashes before it is part of the value.
fn closing_quote(text: &str, start: usize, quote: char, backslashes: usize) -> usize {
    let mut before = 0;
    for (at, c) in text[start..].char_indices() {
        if c == quote && before <= backslashes {
            return start + at - before;
        }
        before = if c == '\\' { before + 1 } else { 0 };
    }
    text.len()
}

/// Where the bracket at this place is closed, or the text's end.
fn closing_bracket(text: &str, at: usize, open: char) -> usize {
    let close = if open == '[' { ']' } else { '}' };
    let mut depth = 0;
    for (length, c) in text[at..].char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
            if depth == 0 {
                return at + length;
            }
        }
    }
    text.len()
}

/// A value without quotes: up to a space, or to a character that closes it with nothing but another name
/// behind.
fn plain_value(text: &str, start: usize) -> (usize, usize) {
    let ends = |at: usize, c: char| {
        c.is_whitespace() || (CLOSING.contains(c) && is_outside(&text[at + c.len_utf8()..]))
    };
    let found = text[start..].char_indices().find(|(at, c)| ends(start + at, *c));
    (start, found.map_or(text.len(), |(length, _)| start + length))
}

/// Whether what follows a closing character is no part of the value: the end, a space, another one, or
/// `name=`.
fn is_outside(rest: &str) -> bool {
    match rest.chars().next() {
        None => true,
        Some(c) if c.is_whitespace() || CLOSING.contains(c) => true,
        Some(_) => {
            let after = rest.trim_start_matches(is_word);
            after.len() < rest.len() && after.starts_with(['=', ':'])
        }
    }
}
