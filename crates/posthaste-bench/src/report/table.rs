//! The report as tables for a terminal.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Figure, Ratios, Report, median};

/// Where and when it was measured, and a table for each case, in the order of these contenders' names.
pub(crate) fn text(report: &Report, order: &[&str]) -> String {
    let Report { command, date, machine, versions, runs, .. } = report;
    let median = if *runs == 1 { "one run".to_owned() } else { format!("medians of {runs} runs") };
    let mut text = format!("{command}\n{date}, {machine}, {median}\n{}\n\n", versions.join(", "));
    for case in report.cases() {
        let figures = report.figures_of(case, order);
        text.push_str(&table(&format!("{}: {}", case.0.title(), case.1), &figures));
        text.push('\n');
    }
    if !report.left_out.is_empty() {
        text.push_str("Left out:\n");
        for line in &report.left_out {
            writeln!(text, "  {line}").ok();
        }
    }
    text
}

fn table(title: &str, figures: &[&Figure]) -> String {
    let more: BTreeSet<&str> = figures.iter().flat_map(|figure| figure.more.keys().copied()).collect();
    let unit = figures.first().map_or("", |figure| figure.unit);
    let mut rows = vec![vec![
        title.to_owned(),
        unit.to_owned(),
        "lowest–highest".to_owned(),
        "of limit".to_owned(),
        "of best peer".to_owned(),
        "of best lease".to_owned(),
    ]];
    rows[0].extend(more.iter().map(|&name| name.to_owned()));
    for figure in figures {
        let ratios = Ratios::of(figure, figures);
        let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        let (lowest, highest) = figure.spread();
        let mut row = vec![
            figure.contender.clone(),
            number(figure.median()),
            format!("{}–{}", number(lowest), number(highest)),
            ratio(ratios.limit),
            ratio(ratios.peer),
            ratio(ratios.lease_peer),
        ];
        row.extend(
            more.iter()
                .map(|name| figure.more.get(name).map_or_else(String::new, |values| number(median(values)))),
        );
        rows.push(row);
    }
    // A column that says nothing is left out.
    let used = |column: &usize| rows[1..].iter().any(|row| !row[*column].is_empty());
    let columns: Vec<usize> = (0..rows[0].len()).filter(used).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = columns.iter().map(|column| width(*column)).collect();
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        let cells = columns.iter().zip(&widths).enumerate().map(|(place, (column, width))| {
            if place == 0 { format!("{:<width$}", row[*column]) } else { format!("{:>width$}", row[*column]) }
        });
        writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end()).ok();
        if at == 0 {
            let rule = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            writeln!(text, "{}", "─".repeat(rule)).ok();
        }
    }
    text
}

/// As many digits as say something, with a space between thousands.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value.abs() < 100.0 {
        let digits = if value.abs() < 1.0 { 3 } else { 2 };
        return format!("{value:.digits$}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::contender::{Class, Way};
    use crate::report::Better;
    use crate::scenario::Scenario;

    #[test]
    fn numbers_have_the_digits_that_matter() {
        let expected = [
            (0.1234, "0.123"),
            (12.345, "12.35"),
            (100.4, "100"),
            (1234.5, "1 234"),
            (1_234_567.0, "1 234 567"),
            (-1234.0, "-1 234"),
            (f64::NAN, "–"),
        ];
        for (value, text) in expected {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_table_has_ratios_and_no_empty_column() {
        let figure = |contender: &str, class, way, values: &[f64]| Figure {
            scenario: Scenario::Drain,
            case: "1 worker".to_owned(),
            contender: contender.to_owned(),
            class,
            way,
            unit: "events/s",
            better: Better::More,
            values: values.to_vec(),
            more: BTreeMap::from([("log bytes/event", vec![10.0])]),
        };
        let report = Report {
            command: "cargo xtask bench drain".to_owned(),
            date: "2026-01-01".to_owned(),
            machine: "2 × x".to_owned(),
            versions: vec!["a 1".to_owned(), "b 2".to_owned()],
            runs: 3,
            figures: vec![
                figure("posthaste stream", Class::Posthaste, Way::Cursor, &[900.0, 800.0, 1000.0]),
                figure("limit window", Class::Limit, Way::Cursor, &[1000.0]),
            ],
            left_out: vec!["peer: no reason".to_owned()],
        };
        let expected = "\
cargo xtask bench drain
2026-01-01, 2 × x, medians of 3 runs
a 1, b 2

drain: 1 worker   events/s  lowest–highest  of limit  log bytes/event
─────────────────────────────────────────────────────────────────────
limit window         1 000     1 000–1 000      1.00            10.00
posthaste stream       900       800–1 000      0.90            10.00

Left out:
  peer: no reason
";
        assert_eq!(text(&report, &["limit window", "posthaste stream"]), expected);
    }
}
