//! SQL lives in the store alone.

use crate::tree::{Literal, Tree};

/// Beginnings of statements.
const STATEMENTS: &[&str] =
    &["SELECT ", "INSERT INTO ", "UPDATE ", "DELETE FROM ", "CREATE TABLE ", "ALTER TABLE ", "DROP TABLE "];

/// Files outside the store that hold SQL, with the reason. An exception that is not needed fails the test.
pub const EXCEPTIONS: &[(&str, &str)] =
    &[("planted.rs", "replaces parts of the store's statements, to plant bugs in them")];

/// `true` if a statement begins at the start of the text in any case, or further in, in upper case.
fn is_sql(text: &str) -> bool {
    let upper = text.trim_start().to_uppercase();
    STATEMENTS.iter().any(|statement| text.contains(statement) || upper.starts_with(statement))
}

fn outside_the_store(tree: &Tree) -> impl Iterator<Item = &Literal> {
    tree.literals.iter().filter(|literal| !literal.file.starts_with("store/") && is_sql(&literal.text))
}

/// Literals with SQL outside the store.
pub fn violations(tree: &Tree) -> Vec<String> {
    let is_excepted = |literal: &&Literal| EXCEPTIONS.iter().any(|(file, _)| *file == literal.file);
    let found = outside_the_store(tree).filter(|literal| !is_excepted(literal));
    found
        .map(|Literal { file, line, text }| format!("{file}:{line}: SQL outside the store: {text:?}"))
        .collect()
}

/// Exceptions for files without SQL.
pub fn unneeded(tree: &Tree) -> Vec<String> {
    let needed = |file: &str| outside_the_store(tree).any(|literal| literal.file == file);
    let unneeded = EXCEPTIONS.iter().filter(|(file, _)| !needed(file));
    unneeded.map(|(file, reason)| format!("{file} holds no SQL: remove the exception ({reason})")).collect()
}
