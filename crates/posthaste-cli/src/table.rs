//! Listings for people: columns without lines, which fit the terminal, or are as wide as they need to be
//! where the reader is a program. No colours.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use posthaste::store::{Record, Status};
use time::OffsetDateTime;

use crate::when;

/// How narrow a column may get, with the space behind it: below that, broken words are harder to read than
/// broken lines.
const NARROWEST: u16 = 12;

/// Characters below which a terminal has no room for every column.
const NARROW: u16 = 100;

/// What a column may do where the terminal is narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Keep its width.
    Rigid(&'static str),
    /// Wrap, down to [`NARROWEST`].
    Soft(&'static str),
    /// Keep its width, or vanish from a terminal that is narrower than [`NARROW`].
    Spare(&'static str),
}

use Column::{Rigid, Soft, Spare};

/// Columns below their names; the text ends with a line break.
pub(crate) fn columns<const N: usize>(
    columns: [Column; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns.map(|(Rigid(name) | Soft(name) | Spare(name))| name));
    table.add_rows(rows.into_iter().map(|row| row.map(|cell| visible(&cell, false))));
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
        let event = record.event.as_ref();
        [
            record.id.to_string(),
            record.sequence.to_string(),
            status(record, now),
            event.map_or_else(|reason| format!("({reason})"), |event| event.topic().to_owned()),
            event.ok().and_then(aggregate).unwrap_or_else(|| "-".to_owned()),
            record.attempts.to_string(),
            when::length(when::since(record.created_at, now)),
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
