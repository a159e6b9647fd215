//! The rules that page and tests keep, and a message for each breach: where it is, and what to do.

use crate::PAGE;
use crate::page::{Entry, Page, State};
use crate::sources::{Source, Test, tests};

/// Compares a page with source, and returns a message per breach.
pub fn check(page: &str, sources: &[Source]) -> Vec<String> {
    let page = Page::read(page);
    let tests = tests(sources);
    let mut breaches = page.breaches.clone();
    breaches.extend(page.entries.iter().filter_map(|entry| check_entry(entry, &tests)));
    breaches.extend(tests.iter().filter_map(|test| check_test(test, &page)));
    breaches.extend(sources.iter().flat_map(|source| check_header(source, &page)));
    breaches
}

/// A built row or part has a test.
fn check_entry(entry: &Entry, tests: &[Test]) -> Option<String> {
    let part = entry.part.as_deref();
    let is_shown =
        tests.iter().any(|test| test.row == entry.row && part.is_none_or(|part| test.names_part(part)));
    if entry.state != State::Built || is_shown {
        return None;
    }
    let row = entry.row.to_ascii_lowercase();
    let advice = match part {
        Some(part) => {
            format!("name a test `{row}_{part}_…`, or a test `{row}_…` in a module or on a database `{part}`")
        }
        None => format!("name a test `{row}_…`"),
    };
    Some(format!(
        "{PAGE}:{}: {} is built, but no test shows it: {advice}, or mark it planned",
        entry.line,
        entry.id()
    ))
}

/// A test names a row of the page, no planned part, and one of the parts where a row consists of them.
fn check_test(test: &Test, page: &Page) -> Option<String> {
    let (row, name) = (&test.row, &test.name);
    let Some(entry) = page.row(row) else {
        return Some(format!("{test}: {row} is not in {PAGE}: correct the name of the test, or add the row"));
    };
    let named: Vec<&Entry> = page
        .parts(row)
        .filter(|entry| entry.part.as_deref().is_some_and(|part| test.names_part(part)))
        .collect();
    let has_built = page.parts(row).any(|part| part.state == State::Built);
    let planned = if entry.state == State::Planned || (entry.state == State::Parts && !has_built) {
        Some(entry)
    } else {
        named.iter().find(|part| part.state == State::Planned).copied()
    };
    if let Some(planned) = planned {
        return Some(format!(
            "{test}: {} is planned ({PAGE}:{}): mark it built if {name} shows it, or rename the test",
            planned.id(),
            planned.line
        ));
    }
    (entry.state == State::Parts && named.is_empty()).then(|| {
        format!(
            "{test}: it names no part of {row} ({PAGE}:{}): put a part's word directly after the id, as in `{}_{}_…`",
            entry.line,
            row.to_ascii_lowercase(),
            page.parts(row).next().and_then(|part| part.part.as_deref()).unwrap_or("word"),
        )
    })
}

/// The rows of a file's header exist and are not planned.
fn check_header(source: &Source, page: &Page) -> Vec<String> {
    let mut breaches = Vec::new();
    for row in header_rows(&source.text) {
        let place = format!("{}: the header `Rows of the contract` names `{row}`", source.path);
        match page.row(&row) {
            None => breaches.push(format!("{place}, which is not in {PAGE}: correct it, or add the row")),
            Some(entry) if entry.state == State::Planned => breaches.push(format!(
                "{place}, which is planned ({PAGE}:{}): mark the row built, or remove it from the header",
                entry.line
            )),
            Some(_) => {}
        }
    }
    breaches
}

/// The ids in `//! Rows of the contract: EN2, EN3.`, which may take several lines.
fn header_rows(text: &str) -> Vec<String> {
    let comment: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let comment = comment.join(" ");
    let Some((_, rows)) = comment.split_once("Rows of the contract: ") else { return Vec::new() };
    let rows = rows.split('.').next().unwrap_or_default();
    rows.split(',').map(|row| row.trim().to_owned()).collect()
}
