//! Tests in Rust source whose names begin with a row of the contract.
//!
//! There are two ways to make a test:
//!
//! - An attribute whose last segment is `test` (`#[test]`, `#[tokio::test]`) before a function. An `#[ignore]`d test shows nothing and is
//!   left out.
//! - A *test macro*: one that contains such an attribute, or calls a test macro. Each identifier in its arguments that begins like a row
//!   is a test. A test macro that also lists databases, as `databases!(name, with_db: postgres Postgres, mysql MySql)` does, or that
//!   contains functions with their names, makes one test per database.
//!
//! A function that is neither is no test: the generic function `si1_…<D>` of a suite shows nothing until a macro calls it.

use std::collections::{BTreeMap, BTreeSet};

use crate::lexer::{Token, tokens};

/// A file of Rust source, named by its path below the root.
#[derive(Debug, Clone)]
pub struct Source {
    pub path: String,
    pub text: String,
}

/// A test that names a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    /// The row, such as `EN3`.
    pub row: String,
    /// Name of the function.
    pub name: String,
    /// Database that a macro runs the test on.
    pub database: Option<String>,
    /// Modules around the test, by file and by `mod`, the outermost first.
    pub modules: Vec<String>,
    /// File and line.
    pub place: String,
}

impl Test {
    /// `true` if the test names this part: directly after the row's id, as a module, or as its database.
    pub fn names_part(&self, part: &str) -> bool {
        let (_, rest) = self.name.split_once('_').unwrap_or_default();
        rest == part
            || rest.strip_prefix(part).is_some_and(|rest| rest.starts_with('_'))
            || self.modules.iter().any(|module| module == part)
            || self.database.as_deref() == Some(part)
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.name)?;
        self.database.iter().try_for_each(|database| write!(f, "::{database}"))
    }
}

/// The row that a name begins with: `en3_…` is of `EN3`.
fn row_of(name: &str) -> Option<String> {
    let (id, rest) = name.split_once('_')?;
    let digits = id.get(2..)?;
    let is_row = id[..2].bytes().all(|byte| byte.is_ascii_lowercase())
        && !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !rest.is_empty();
    is_row.then(|| id.to_ascii_uppercase())
}

/// Finds all tests that name a row.
pub fn tests(sources: &[Source]) -> Vec<Test> {
    let files: Vec<(&str, Vec<Token>)> =
        sources.iter().map(|source| (source.path.as_str(), tokens(&source.text))).collect();
    // A macro is known to its whole crate: `mod harness` with its macros precedes the tests.
    let mut macros: BTreeMap<&str, Macros> = BTreeMap::new();
    for (path, tokens) in &files {
        macros.entry(crate_of(path)).or_default().add_definitions(tokens);
    }
    let in_file = |(path, tokens): &(&str, Vec<Token>)| tests_in(path, tokens, &macros[crate_of(path)]);
    files.iter().flat_map(in_file).collect()
}

/// Directory of the crate that a file belongs to.
fn crate_of(path: &str) -> &str {
    let end = path.find("/src/").or_else(|| path.find("/tests/"));
    &path[..end.unwrap_or(path.len())]
}

/// Modules that a file's path stands for: `crates/x/tests/main/relay/mod.rs` is `main::relay`.
fn modules_of(path: &str) -> Vec<String> {
    let inside = path.split_once("/src/").or_else(|| path.split_once("/tests/"));
    let inside = inside.map_or(path, |(_, inside)| inside);
    let names = inside.trim_end_matches(".rs").split('/');
    names.filter(|name| !matches!(*name, "mod" | "lib")).map(str::to_owned).collect()
}

fn tests_in(path: &str, tokens: &[Token], macros: &Macros) -> Vec<Test> {
    let file_modules = modules_of(path);
    let mut found = Vec::new();
    let mut add = |token: &Token, at: usize, database: Option<&String>| {
        let Some((name, row)) = token.word().and_then(|name| Some((name, row_of(name)?))) else { return };
        let inline = modules_at(tokens, at);
        found.push(Test {
            row,
            name: name.to_owned(),
            database: database.cloned(),
            modules: file_modules.iter().cloned().chain(inline).collect(),
            place: format!("{path}:{}", token.line),
        });
    };
    for function in test_functions(tokens) {
        add(&tokens[function], function, None);
    }
    for call in calls(tokens).filter(|call| macros.makes_tests(call.name)) {
        let databases = macros.databases(&call);
        for at in call.arguments.clone() {
            if databases.is_empty() {
                add(&tokens[at], at, None);
            }
            databases.iter().for_each(|database| add(&tokens[at], at, Some(database)));
        }
    }
    found
}

/// Names of the `mod … {` around a token.
fn modules_at(tokens: &[Token], at: usize) -> Vec<String> {
    let mut open: Vec<Option<&str>> = Vec::new();
    for (index, token) in tokens[..at].iter().enumerate() {
        if token.is('{') {
            let named = index >= 2 && tokens[index - 2].word() == Some("mod");
            open.push(if named { tokens[index - 1].word() } else { None });
        } else if token.is('}') {
            open.pop();
        }
    }
    open.into_iter().flatten().map(str::to_owned).collect()
}

/// Finds the names of functions below an attribute `test`; for a name that a macro fills in, its `$`.
fn test_functions(tokens: &[Token]) -> Vec<usize> {
    let mut found = Vec::new();
    let (mut is_test, mut is_ignored) = (false, false);
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].is('#') && tokens.get(at + 1).is_some_and(|token| token.is('[')) {
            let end = closing(tokens, at + 1);
            let path = tokens[at + 2..end].iter().take_while(|token| !token.is('(') && !token.is('='));
            let last = path.filter_map(Token::word).last();
            is_test |= last == Some("test");
            is_ignored |= last == Some("ignore");
            at = end;
        } else if tokens[at].word() == Some("fn") {
            if is_test && !is_ignored && at + 1 < tokens.len() {
                found.push(at + 1);
            }
            (is_test, is_ignored) = (false, false);
        } else if [';', '{', '}'].iter().any(|mark| tokens[at].is(*mark)) {
            (is_test, is_ignored) = (false, false);
        }
        at += 1;
    }
    found
}

/// Index of the token that closes the bracket at `open`, or of the end of the file.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        if ['(', '[', '{'].iter().any(|mark| token.is(*mark)) {
            depth += 1;
        } else if [')', ']', '}'].iter().any(|mark| token.is(*mark)) {
            depth -= 1;
            if depth == 0 {
                return index;
            }
        }
    }
    tokens.len()
}

/// A call of a macro.
struct Call<'a> {
    name: &'a str,
    tokens: &'a [Token],
    arguments: std::ops::Range<usize>,
}

/// Finds the calls of macros, also those inside other macros.
fn calls(tokens: &[Token]) -> impl Iterator<Item = Call<'_>> {
    (2..tokens.len()).filter_map(|open| {
        let name = tokens[open - 2].word()?;
        let is_call = tokens[open - 1].is('!') && ['(', '[', '{'].iter().any(|mark| tokens[open].is(*mark));
        is_call.then(|| Call { name, tokens, arguments: open + 1..closing(tokens, open) })
    })
}

/// The macros of a crate, by name; macros of the same name are taken together.
#[derive(Debug, Default)]
struct Macros(BTreeMap<String, Macro>);

#[derive(Debug, Default)]
struct Macro {
    has_test: bool,
    /// Names of the databases that it or its calls list.
    databases: BTreeSet<String>,
    calls: BTreeSet<String>,
}

impl Macros {
    fn add_definitions(&mut self, tokens: &[Token]) {
        for at in 3..tokens.len() {
            let (Some("macro_rules"), Some(name)) = (tokens[at - 3].word(), tokens[at - 1].word()) else {
                continue;
            };
            let body = &tokens[at..closing(tokens, at)];
            let definition = self.0.entry(name.to_owned()).or_default();
            for function in test_functions(body) {
                definition.has_test = true;
                // Of a `mod $test { fn postgres() … }`.
                let database = body[function].word().filter(|name| row_of(name).is_none());
                definition.databases.extend(database.map(str::to_owned));
            }
            for call in calls(body) {
                definition.calls.insert(call.name.to_owned());
                definition.databases.extend(listed_databases(&call));
            }
        }
    }

    /// The macro and every macro that it calls.
    fn reached<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Macro> {
        let mut names = BTreeSet::new();
        let mut next = vec![name];
        while let Some((name, definition)) = next.pop().and_then(|name| self.0.get_key_value(name)) {
            if names.insert(name.as_str()) {
                next.extend(
                    definition.calls.iter().map(String::as_str).filter(|name| self.0.contains_key(*name)),
                );
            }
        }
        names.into_iter().map(|name| &self.0[name])
    }

    fn makes_tests(&self, name: &str) -> bool {
        self.reached(name).any(|definition| definition.has_test)
    }

    /// Databases that a call makes a test for; none if it makes a single test.
    fn databases(&self, call: &Call<'_>) -> BTreeSet<String> {
        let of_macros = self.reached(call.name).flat_map(|definition| definition.databases.iter().cloned());
        of_macros.chain(listed_databases(call)).collect()
    }
}

/// The `name Kind` pairs of a call: a word in lower case, and directly after it one with a capital letter.
fn listed_databases(call: &Call<'_>) -> impl Iterator<Item = String> {
    call.tokens[call.arguments.clone()].windows(2).filter_map(|pair| {
        let (name, kind) = (pair[0].word()?, pair[1].word()?);
        let is_pair = name.starts_with(|c: char| c.is_ascii_lowercase())
            && kind.starts_with(|c: char| c.is_ascii_uppercase());
        is_pair.then(|| name.to_owned())
    })
}
