//! Listings for people: columns without lines, a line for each row. On a terminal they fit it: what is too long ends
//! with `…`. Where the reader is a program, everything is whole.

use comfy_table::{Attribute, ColumnConstraint, ContentArrangement, Row, Table, Width, presets};
use posthaste::store::{Record, Status};
use time::OffsetDateTime;

use crate::tone::{self, Tone};
use crate::when;

/// How narrow a column may get, with the space behind it: what is cut shorter says nothing any more.
const NARROWEST: u16 = 12;

/// Cells are cut anywhere, not between words: no cell has this character.
const NOWHERE: char = '\0';

/// Characters below which a terminal has no room for every column.
const NARROW: u16 = 100;

/// What a column may do where the terminal is narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Keep its width.
    Rigid(&'static str),
    /// Be cut, down to [`NARROWEST`].
    Soft(&'static str),
    /// Keep its width, or vanish from a terminal that is narrower than [`NARROW`].
    Spare(&'static str),
}

use Column::{Rigid, Soft, Spare};

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
    let coloured = tone::is_coloured();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_truncation_indicator("…").set_delimiter(NOWHERE).style_text_only();
    if coloured {
        // Else it would ask the environment once more, and not know of --color.
        crossterm::style::force_color_output(true);
        table.enforce_styling();
    }
    table.set_header(columns.map(|(Rigid(name) | Soft(name) | Spare(name))| {
        let name = comfy_table::Cell::new(name);
        if coloured { name.add_attribute(Attribute::Bold) } else { name }
    }));
    for row in rows {
        let mut line = Row::from(row.map(|cell| cell.into().styled(coloured)));
        line.max_height(1);
        table.add_row(line);
    }
    let narrow = table.width().is_some_and(|width| width < NARROW);
    let widths = table.column_max_content_widths();
    for ((column, kind), width) in table.column_iter_mut().zip(columns).zip(widths) {
        column.set_padding((0, 2));
        column.set_constraint(match kind {
            Spare(_) if narrow => ColumnConstraint::Hidden,
            Rigid(_) | Spare(_) => ColumnConstraint::ContentWidth,
            Soft(_) => ColumnConstraint::LowerBoundary(Width::Fixed(NARROWEST.min(width))),
        });
    }
    table.trim_fmt() + "\n"
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
}
