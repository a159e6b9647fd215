//! Rows, parts and their states, as `docs/contract.md` lists them.

use crate::PAGE;

/// State of a row or part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Built,
    Planned,
    /// The row consists of its parts.
    Parts,
}

/// A line of a table: a row, or a part of the row above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Id of the row, such as `SI1`.
    pub row: String,
    /// The part's word, such as `nats`; none for the row itself.
    pub part: Option<String>,
    pub state: State,
    /// Line of the page.
    pub line: usize,
}

impl Entry {
    /// Id as the page shows it, such as `SI1 nats`.
    pub fn id(&self) -> String {
        match &self.part {
            Some(part) => format!("{} {part}", self.row),
            None => self.row.clone(),
        }
    }
}

/// The page's entries, and what is wrong with its tables.
#[derive(Debug, Default)]
pub struct Page {
    pub entries: Vec<Entry>,
    pub breaches: Vec<String>,
}

/// `true` if this is a row's id: two capital letters and a number without leading zeros.
fn is_row(text: &str) -> bool {
    text.len() > 2
        && text.is_ascii()
        && text[..2].bytes().all(|byte| byte.is_ascii_uppercase())
        && text[2..].bytes().all(|byte| byte.is_ascii_digit())
        && !text[2..].starts_with('0')
}

/// `true` if a part can have this name: one lower-case word, as it stands in names of tests and modules.
fn is_part(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

impl Page {
    /// Reads every table whose header is `id | row | state`.
    pub fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut is_in_table = false;
        for (index, line) in text.lines().enumerate() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            match &cells[..] {
                ["", "id", "row", "state", ""] => is_in_table = true,
                ["", id, _, state, ""] if is_in_table => page.add(id, state, index + 1),
                _ if is_in_table && line.starts_with('|') => page.breach(
                    index + 1,
                    "this line does not have the three cells id, row and state; a cell must not contain `|`",
                ),
                _ => {
                    is_in_table = false;
                    if cells.get(1).is_some_and(|cell| is_row(cell)) {
                        page.breach(index + 1, "this row is in no table with the header `id | row | state`");
                    }
                }
            }
        }
        if page.entries.is_empty() {
            page.breach(1, "no table with the header `id | row | state` was found");
        }
        page.check_rows();
        page
    }

    /// The entry of a row.
    pub fn row(&self, id: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.row == id && entry.part.is_none())
    }

    /// The parts of a row.
    pub fn parts<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |entry| entry.row == id && entry.part.is_some())
    }

    fn breach(&mut self, line: usize, words: &str) {
        self.breaches.push(format!("{PAGE}:{line}: {words}"));
    }

    /// Adds a line of a table.
    fn add(&mut self, id: &str, state: &str, line: usize) {
        // The line below the header.
        if id.starts_with("---") {
            return;
        }
        let (row, part) = id.split_once(' ').map_or((id, None), |(row, part)| (row, Some(part)));
        if !is_row(row) || part.is_some_and(|part| !is_part(part)) {
            let words = format!("`{id}` is not an id: write a row as `EV1`, and its part as `EV1 word`");
            return self.breach(line, &words);
        }
        let state = match state {
            "built" => State::Built,
            "planned" => State::Planned,
            "parts" if part.is_none() => State::Parts,
            _ => {
                let words = format!(
                    "the state of {id} is `{state}`: write `built` or `planned`, or `parts` for a row that has some"
                );
                return self.breach(line, &words);
            }
        };
        if part.is_some() && self.entries.last().is_none_or(|entry| entry.row != row) {
            self.breach(line, &format!("{id} is not below its row: move it directly below {row}"));
        }
        let entry = Entry { row: row.to_owned(), part: part.map(str::to_owned), state, line };
        if let Some(first) = self.entries.iter().find(|other| other.id() == id) {
            let words = format!("{id} is already in line {}: remove one of them", first.line);
            return self.breach(line, &words);
        }
        self.entries.push(entry);
    }

    /// Compares each row with its parts.
    fn check_rows(&mut self) {
        let mut breaches = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.part.is_none()) {
            let has_any = self.parts(&entry.row).next().is_some();
            let has_built = self.parts(&entry.row).any(|part| part.state == State::Built);
            match entry.state {
                State::Parts if !has_any => breaches.push((
                    entry.line,
                    format!("{} has the state `parts` and no part: list its parts below it", entry.row),
                )),
                State::Planned if has_built => breaches.push((
                    entry.line,
                    format!("{} is planned and has a built part: mark the row `built` or `parts`", entry.row),
                )),
                _ => {}
            }
        }
        for (line, words) in breaches {
            self.breach(line, &words);
        }
    }
}
