//! Listings for people: columns without lines, a line for each row. On a terminal they fit it: what is too long ends
//! with `…`. Where the reader is a program, everything is whole.

use comfy_table::{Attribute, ColumnConstraint, ContentArrangement, Row, Table, Width, presets};
use posthaste::store::{Record, Status};
use time::OffsetDateTime;

use crate::tone::{self, Tone};
use crate::when;

/// How narrow a column may get, with the space behind it: what is cut shorter says nothing any more.
const NARROWEST: u16 = 12;

/// Between two columns.
const SPACE: u16 = 2;

/// Cells are cut anywhere, not between words: no cell has this character.
const NOWHERE: char = '\0';

/// Characters below which a terminal has no room for every column.
const NARROW: u16 = 100;

/// As much of a remark as is worth a column; with less room it gets a line of its own.
const REMARK: u16 = 60;

/// What a column may do where the terminal is narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Keep its width.
    Rigid(&'static str),
    /// Be cut, down to [`NARROWEST`]; if there is no other way, all but the first such column vanish.
    Soft(&'static str),
    /// Keep its width, or vanish from a terminal that is narrower than [`NARROW`].
    Spare(&'static str),
    /// Keep its width, or vanish if there is no other way; those on the right go first.
    Extra(&'static str),
}

use Column::{Extra, Rigid, Soft, Spare};

impl Column {
    fn name(self) -> &'static str {
        match self {
            Rigid(name) | Soft(name) | Spare(name) | Extra(name) => name,
        }
    }
}

/// A text, and what it says of the state of things.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }

    fn styled(self, coloured: bool) -> comfy_table::Cell {
        let cell = comfy_table::Cell::new(visible(&self.text, false));
        match self.tone.colour() {
            Some(colour) if coloured => cell.fg(colour),
            _ => cell,
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// Columns below their names; the text ends with a line break.
pub(crate) fn columns<const N: usize, C: Into<Cell>>(
    columns: [Column; N],
    rows: impl IntoIterator<Item = [C; N]>,
) -> String {
    let rows = rows.into_iter().map(|row| row.map(Into::into).into()).collect();
    laid_out(&columns, rows, Table::new().width())
}

/// Columns, and behind them a remark on each row, of this name. Where a terminal leaves too little room for it, it is below its row.
pub(crate) fn columns_with_remarks<const N: usize>(
    columns: [Column; N],
    name: &'static str,
    rows: impl IntoIterator<Item = ([Cell; N], Cell)>,
) -> String {
    with_remarks(
        &columns,
        name,
        rows.into_iter().map(|(row, remark)| (row.into(), remark)).collect(),
        Table::new().width(),
    )
}

fn with_remarks(
    columns: &[Column],
    name: &'static str,
    rows: Vec<(Vec<Cell>, Cell)>,
    width: Option<u16>,
) -> String {
    let others = rows.iter().map(|(row, _)| row);
    let taken = needed(columns, others, width.is_some_and(|width| width < NARROW));
    let longest = rows.iter().map(|(_, remark)| wide(&remark.text)).max().unwrap_or_default();
    let Some(width) = width.filter(|width| width.saturating_sub(taken) < longest.min(REMARK)) else {
        let columns: Vec<Column> = columns.iter().copied().chain([Soft(name)]).collect();
        let rows = rows.into_iter().map(|(mut row, remark)| {
            row.push(remark);
            row
        });
        return laid_out(&columns, rows.collect(), width);
    };
    let coloured = tone::is_coloured();
    let (rows, remarks): (Vec<Vec<Cell>>, Vec<Cell>) = rows.into_iter().unzip();
    let table = laid_out(columns, rows, Some(width));
    let mut lines = table.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    for (line, remark) in lines.zip(remarks) {
        let shown = cut(&visible(&remark.text, false), usize::from(width.saturating_sub(SPACE)));
        let mut below = Table::new();
        below.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if coloured {
            below.enforce_styling();
        }
        below.add_row([Cell::new(shown, remark.tone).styled(coloured)]);
        for column in below.column_iter_mut() {
            column.set_padding((SPACE, 0));
        }
        let shown = below.trim_fmt();
        text += &format!("{line}\n{shown}\n");
    }
    text
}

/// How many characters these columns take, with the space behind each.
fn needed<'a>(columns: &[Column], rows: impl Iterator<Item = &'a Vec<Cell>>, narrow: bool) -> u16 {
    let mut widths: Vec<u16> = columns.iter().map(|column| wide(column.name())).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = wide(&visible(&cell.text, false)).max(*width);
        }
    }
    let shown = columns.iter().zip(widths).filter(|(column, _)| !(narrow && matches!(column, Spare(_))));
    shown.map(|(_, width)| width + SPACE).sum()
}

fn wide(text: &str) -> u16 {
    u16::try_from(text.chars().count()).unwrap_or(u16::MAX - 1000)
}

/// A text of at most so many characters; one that was cut says so.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

fn laid_out(columns: &[Column], rows: Vec<Vec<Cell>>, width: Option<u16>) -> String {
    let coloured = tone::is_coloured();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_truncation_indicator("…").set_delimiter(NOWHERE).style_text_only();
    if let Some(width) = width {
        table.set_width(width);
    }
    if coloured {
        // Else it would ask the environment once more, and not know of --color.
        crossterm::style::force_color_output(true);
        table.enforce_styling();
    }
    let mut header = Row::from(columns.iter().map(|column| {
        let name = comfy_table::Cell::new(column.name());
        if coloured { name.add_attribute(Attribute::Bold) } else { name }
    }));
    header.max_height(1);
    table.set_header(header);
    for row in rows {
        let mut line = Row::from(row.into_iter().map(|cell| cell.styled(coloured)).collect::<Vec<_>>());
        line.max_height(1);
        table.add_row(line);
    }
    let widths = table.column_max_content_widths();
    let hidden = hidden(columns, &widths, width);
    for (((column, kind), width), hidden) in table.column_iter_mut().zip(columns).zip(widths).zip(hidden) {
        column.set_padding((0, SPACE));
        column.set_constraint(match kind {
            _ if hidden => ColumnConstraint::Hidden,
            Rigid(_) | Spare(_) | Extra(_) => ColumnConstraint::ContentWidth,
            Soft(_) => ColumnConstraint::LowerBoundary(Width::Fixed(NARROWEST.min(width + SPACE))),
        });
    }
    table.trim_fmt() + "\n"
}

/// Which columns vanish on a terminal so wide.
fn hidden(columns: &[Column], widths: &[u16], terminal: Option<u16>) -> Vec<bool> {
    let Some(terminal) = terminal else { return vec![false; columns.len()] };
    let mut hidden: Vec<bool> =
        columns.iter().map(|column| matches!(column, Spare(_)) && terminal < NARROW).collect();
    let least = |at: usize| match columns[at] {
        Soft(_) => NARROWEST.min(widths[at] + SPACE),
        _ => widths[at] + SPACE,
    };
    let extras = (0..columns.len()).rev().filter(|at| matches!(columns[*at], Extra(_)));
    // What can be cut no further is worth less than what cannot be cut, but for the first such column.
    let mut soft: Vec<usize> =
        (0..columns.len()).filter(|at| matches!(columns[*at], Soft(_))).skip(1).collect();
    soft.reverse();
    for at in extras.chain(soft) {
        let shown = (0..columns.len()).filter(|at| !hidden[*at]);
        if shown.map(least).sum::<u16>() <= terminal {
            break;
        }
        hidden[at] = true;
    }
    hidden
}

/// A table of events.
pub(crate) fn events(records: &[Record], now: OffsetDateTime) -> String {
    let rows = records.iter().map(|record| {
        [
            record.id.to_string().into(),
            record.sequence.to_string().into(),
            Cell::new(status(record, now), Tone::of(record.status)),
            topic(record).into(),
            aggregate_of(record).into(),
            record.attempts.to_string().into(),
            when::length(when::since(record.created_at, now)).into(),
        ]
    });
    let names = [
        Rigid("ID"),
        Spare("SEQ"),
        Rigid("STATUS"),
        Soft("TOPIC"),
        Soft("AGGREGATE"),
        Spare("ATTEMPTS"),
        Rigid("AGE"),
    ];
    columns(names, rows)
}

/// Its topic, or why it has none.
pub(crate) fn topic(record: &Record) -> String {
    match &record.event {
        Ok(event) => event.topic().to_owned(),
        Err(reason) => format!("({reason})"),
    }
}

/// Its aggregate, or a dash.
pub(crate) fn aggregate_of(record: &Record) -> String {
    record.event.as_ref().ok().and_then(aggregate).unwrap_or_else(|| "-".to_owned())
}

/// The status, and of one that is still to come, when.
pub(crate) fn status(record: &Record, now: OffsetDateTime) -> String {
    if record.status == Status::Pending && record.available_at > now {
        format!("pending, in {}", when::length(when::until(record.available_at, now)))
    } else {
        record.status.to_string()
    }
}

/// The aggregate as the command line names it.
pub(crate) fn aggregate(event: &posthaste::Event) -> Option<String> {
    match (event.aggregate_type(), event.aggregate_id()) {
        (None, None) => None,
        (kind, id) => Some(format!("{}/{}", kind.unwrap_or_default(), id.unwrap_or_default())),
    }
}

/// Text whose control characters are shown instead of obeyed: anyone who can write to the table could
/// otherwise write to the operator's terminal.
pub(crate) fn visible(text: &str, keep_lines: bool) -> String {
    let obeyed = |c: char| c.is_control() && !(keep_lines && matches!(c, '\n' | '\t'));
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if obeyed(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op1_a_listing_cannot_steer_the_terminal() {
        assert_eq!(visible("a\x1b[2Jb\nc\u{9b}", false), "a\\u{1b}[2Jb\\nc\\u{9b}");
        assert_eq!(visible("{\n\t1\r}", true), "{\n\t1\\r}");
    }

    #[test]
    fn op1_columns_are_aligned_and_have_no_lines() {
        let rows = [["1".to_owned(), "long".to_owned()], ["22".to_owned(), "s".to_owned()]];
        assert_eq!(columns([Rigid("A"), Soft("B")], rows), "A   B\n1   long\n22  s\n");
    }

    #[test]
    fn op1_what_has_no_room_is_cut_vanishes_or_gets_a_line_of_its_own() {
        let cells =
            |texts: &[&str]| texts.iter().map(|text| Cell::from((*text).to_owned())).collect::<Vec<_>>();
        let names = [Rigid("ID"), Extra("ONE"), Extra("TWO")];
        let rows = || vec![cells(&["12345", "1", "2"])];
        assert_eq!(laid_out(&names, rows(), Some(17)), "ID     ONE  TWO\n12345  1    2\n");
        assert_eq!(laid_out(&names, rows(), Some(16)), "ID     ONE\n12345  1\n");
        assert_eq!(laid_out(&names, rows(), Some(8)), "ID\n12345\n");

        let remark = || vec![(cells(&["12345"]), Cell::from("it was refused".to_owned()))];
        let with = |width| with_remarks(&[Rigid("ID")], "WHY", remark(), width);
        assert_eq!(with(None), "ID     WHY\n12345  it was refused\n");
        assert_eq!(with(Some(30)), with(None));
        assert_eq!(with(Some(18)), "ID\n12345\n  it was refused\n");
        assert_eq!(with(Some(10)), "ID\n12345\n  it was …\n");
    }
}
