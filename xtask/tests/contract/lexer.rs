//! Rust source as tokens: identifiers and punctuation with their lines. Comments and literals are left out, so that a name in a comment
//! or in a string is never taken for a test.

/// A token that the scan needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or keyword, without `r#`.
    Word(String),
    /// Any other character outside literals.
    Mark(char),
}

/// A token and its line, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub kind: Kind,
    pub line: usize,
}

impl Token {
    /// The identifier, if it is one.
    pub fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            Kind::Mark(_) => None,
        }
    }

    /// `true` if it is this character.
    pub fn is(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

/// Splits source into tokens. Source that does not compile yields any tokens, but never a panic.
pub fn tokens(source: &str) -> Vec<Token> {
    let mut lexer = Lexer { rest: source, line: 1 };
    let mut tokens = Vec::new();
    while let Some(first) = lexer.rest.chars().next() {
        let line = lexer.line;
        if lexer.rest.starts_with("//") {
            lexer.skip_until("\n");
        } else if lexer.rest.starts_with("/*") {
            lexer.skip_comment();
        } else if first == '"' {
            lexer.skip_string();
        } else if first == '\'' {
            lexer.skip_char_or_lifetime();
        } else if is_of_word(first) {
            if let Some(word) = lexer.take_word() {
                tokens.push(Token { kind: Kind::Word(word), line });
            }
        } else {
            if !first.is_whitespace() {
                tokens.push(Token { kind: Kind::Mark(first), line });
            }
            lexer.skip(first.len_utf8());
        }
    }
    tokens
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

impl Lexer<'_> {
    /// Passes over this many bytes.
    fn skip(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }

    /// Passes over everything up to and including `end`.
    fn skip_until(&mut self, end: &str) {
        self.skip(self.rest.find(end).map_or(self.rest.len(), |at| at + end.len()));
    }

    /// Comments nest.
    fn skip_comment(&mut self) {
        self.skip(2);
        while !self.rest.is_empty() {
            let (inner, end) = (self.rest.find("/*"), self.rest.find("*/").unwrap_or(self.rest.len()));
            match inner {
                Some(inner) if inner < end => {
                    self.skip(inner);
                    self.skip_comment();
                }
                _ => return self.skip((end + 2).min(self.rest.len())),
            }
        }
    }

    fn skip_string(&mut self) {
        let mut is_escaped = true;
        let end = self.rest.find(|c: char| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        // The first character is the opening mark, which counts as escaped.
        self.skip(end.map_or(self.rest.len(), |end| end + 1));
    }

    fn skip_char_or_lifetime(&mut self) {
        let mut chars = self.rest.char_indices().skip(1);
        match (chars.next(), chars.next()) {
            (Some((_, '\\')), Some((at, escaped))) => {
                self.skip(at + escaped.len_utf8());
                self.skip_until("'");
            }
            (_, Some((at, '\''))) => self.skip(at + 1),
            _ => {
                self.skip(1);
                self.skip(self.rest.find(|c| !is_of_word(c)).unwrap_or(self.rest.len()));
            }
        }
    }

    /// Takes an identifier; none for a number and for the prefix of a literal, which is passed over with the literal.
    fn take_word(&mut self) -> Option<String> {
        let end = self.rest.find(|c| !is_of_word(c)).unwrap_or(self.rest.len());
        let word = self.rest[..end].to_owned();
        self.skip(end);
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        if matches!(word.as_str(), "r" | "br" | "cr") {
            let hashes = self.rest.len() - self.rest.trim_start_matches('#').len();
            if self.rest[hashes..].starts_with('"') {
                self.skip(hashes + 1);
                self.skip_until(&format!("\"{}", "#".repeat(hashes)));
                return None;
            }
            if hashes == 1 {
                self.skip(1);
                return self.take_word();
            }
        }
        let is_prefix = matches!(word.as_str(), "b" | "c") && self.rest.starts_with(['"', '\'']);
        (!is_prefix).then_some(word)
    }
}

#[test]
fn comments_and_literals_are_left_out() {
    let source = r###"
        // en1_in_a_comment
        /* en1_nested /* en1_deeper */ en1_still_inside */
        let text = ("en1_\"quoted", r#"en1_"raw"#, b"en1_bytes", 'e', '\'', b'\\', 1_000u64, 'label: r#mod);
    "###;
    let found = tokens(source);
    let words: Vec<&str> = found.iter().filter_map(Token::word).collect();
    assert_eq!(words, ["let", "text", "mod"]);
    assert_eq!(found.last().map(|token| token.line), Some(4));
}
