//! As much of PromQL as the dashboard and the alert rules use: which metrics an expression reads, with which labels.
//!
//! A word that is neither a metric, a label nor among those known here is an error, so that a typo does not pass as
//! something that this scanner does not understand.

use std::collections::BTreeSet;

/// Aggregations, functions and operators.
const WORDS: &[&str] = &[
    "absent",
    "and",
    "changes",
    "count",
    "delta",
    "deriv",
    "histogram_quantile",
    "increase",
    "max",
    "min",
    "or",
    "rate",
    "sum",
    "topk",
    "unless",
];

/// What is followed by labels in brackets.
const GROUPINGS: &[&str] = &["by", "without", "on", "ignoring", "group_left", "group_right"];

/// What an expression reads.
#[derive(Debug, Default)]
pub(crate) struct Expression {
    pub(crate) selectors: Vec<Selector>,
    /// The labels of all its groupings.
    pub(crate) grouped_by: BTreeSet<String>,
}

/// One metric in an expression.
#[derive(Debug)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    /// Labels and what they are compared with.
    pub(crate) matchers: Vec<(String, String)>,
    /// Whether it is read over a time, as in `[5m]`.
    pub(crate) over_time: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    Number,
    Sign(char),
}

/// Reads an expression, or says what is wrong with it.
pub(crate) fn read(text: &str) -> Result<Expression, String> {
    let tokens = tokens(text)?;
    let mut expression = Expression::default();
    let mut depth = 0_i32;
    let mut rest = tokens.as_slice();
    while let [token, after @ ..] = rest {
        rest = after;
        match token {
            Token::Name(name) if GROUPINGS.contains(&name.as_str()) => {
                let labels;
                (labels, rest) = bracketed(rest, '(', ')').ok_or_else(|| format!("{name} without ( )"))?;
                for token in labels {
                    match token {
                        Token::Name(label) => drop(expression.grouped_by.insert(label.clone())),
                        Token::Sign(',') => {}
                        other => return Err(format!("{other:?} among the labels of {name}")),
                    }
                }
            }
            Token::Name(name) if WORDS.contains(&name.as_str()) => {}
            Token::Name(name) if name == "up" || name.starts_with("outbox_") => {
                let mut selector = Selector { metric: name.clone(), matchers: Vec::new(), over_time: false };
                if let Some((inside, after)) = bracketed(rest, '{', '}') {
                    selector.matchers = matchers(inside)?;
                    rest = after;
                }
                if let Some((_, after)) = bracketed(rest, '[', ']') {
                    selector.over_time = true;
                    rest = after;
                }
                expression.selectors.push(selector);
            }
            Token::Name(name) => return Err(format!("{name} is neither a metric nor a known word")),
            Token::Sign('(') => depth += 1,
            Token::Sign(')') => depth -= 1,
            Token::Sign(sign @ ('{' | '}' | '[' | ']')) => return Err(format!("{sign} without a metric")),
            Token::Sign(_) | Token::Number | Token::Text(_) => {}
        }
        if depth < 0 {
            return Err("a ) too many".to_owned());
        }
    }
    if depth == 0 { Ok(expression) } else { Err("a ( too many".to_owned()) }
}

/// What is between two signs at the beginning, and what is behind.
fn bracketed(tokens: &[Token], open: char, close: char) -> Option<(&[Token], &[Token])> {
    let [first, rest @ ..] = tokens else { return None };
    if *first != Token::Sign(open) {
        return None;
    }
    let end = rest.iter().position(|token| *token == Token::Sign(close))?;
    Some((&rest[..end], &rest[end + 1..]))
}

/// `label="value", other=~"value"`.
fn matchers(tokens: &[Token]) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for matcher in tokens.split(|token| *token == Token::Sign(',')) {
        let [Token::Name(label), signs @ .., Token::Text(value)] = matcher else {
            return Err(format!("{matcher:?} is no comparison of a label"));
        };
        let known: [&[Token]; 4] = [
            &[Token::Sign('=')],
            &[Token::Sign('='), Token::Sign('~')],
            &[Token::Sign('!'), Token::Sign('=')],
            &[Token::Sign('!'), Token::Sign('~')],
        ];
        if !known.contains(&signs) {
            return Err(format!("{signs:?} does not compare {label}"));
        }
        found.push((label.clone(), value.clone()));
    }
    Ok(found)
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '$');
        if first.is_whitespace() {
            rest = &rest[first.len_utf8()..];
        } else if first == '"' {
            let (value, after) = rest[1..].split_once('"').ok_or("a text without an end")?;
            tokens.push(Token::Text(value.to_owned()));
            rest = after;
        } else if first.is_ascii_digit() {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
            tokens.push(Token::Number);
        } else if is_word(first) {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            tokens.push(Token::Name(rest[..end].to_owned()));
            rest = &rest[end..];
        } else {
            tokens.push(Token::Sign(first));
            rest = &rest[first.len_utf8()..];
        }
    }
    Ok(tokens)
}

#[test]
fn op8_expressions_are_read() {
    let text = r#"topk(10, sum by (table, le) (rate(outbox_x_bucket{table=~"$table", result="dead"}[$__rate_interval])) > 0.5)
        unless outbox_y"#;
    let expression = read(text).unwrap();
    assert_eq!(expression.grouped_by.iter().map(String::as_str).collect::<Vec<_>>(), ["le", "table"]);
    let [first, second] = expression.selectors.as_slice() else { panic!("{expression:?}") };
    assert_eq!((first.metric.as_str(), first.over_time), ("outbox_x_bucket", true));
    let expected = [("table", "$table"), ("result", "dead")].map(|(l, v)| (l.to_owned(), v.to_owned()));
    assert_eq!(first.matchers, expected);
    assert_eq!((second.metric.as_str(), second.over_time, second.matchers.len()), ("outbox_y", false, 0));

    for wrong in [
        "summ(outbox_x)",
        "sum(outbox_x",
        "outbox_x)",
        "outbox_x{table}",
        "outbox_x{a==\"b\"}",
        "by table (outbox_x)",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}
