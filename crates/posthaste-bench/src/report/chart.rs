//! The report as charts in SVG: a bar for each contender with its spread, by case. Written by hand, so that a page can
//! hold them without any program that draws.

use std::fmt::Write as _;

use super::table::number;
use super::{Better, Figure, Ratios, Report};
use crate::contender::Class;
use crate::scenario::Scenario;

const NAME: f64 = 230.0;
const BAR: f64 = 480.0;
const NUMBERS: f64 = 190.0;
const LINE: f64 = 22.0;

/// A chart for each scenario that was measured, with its file's name.
pub(crate) fn charts(report: &Report, order: &[&str]) -> Vec<(String, String)> {
    let mut scenarios: Vec<Scenario> = report.cases().iter().map(|case| case.0).collect();
    scenarios.dedup();
    let file = |scenario: Scenario| format!("{}.svg", scenario.title().replace(' ', "-"));
    scenarios.into_iter().map(|scenario| (file(scenario), chart(report, scenario, order))).collect()
}

fn chart(report: &Report, scenario: Scenario, order: &[&str]) -> String {
    let mut body = String::new();
    let mut top = 14.0;
    let title = format!("{}: {}, {}", report.command, report.date, report.machine);
    for case in report.cases().into_iter().filter(|case| case.0 == scenario) {
        let figures = report.figures_of(case, order);
        top = group(&mut body, &format!("{}: {}", scenario.title(), case.1), &figures, top);
    }
    writeln!(body, r#"<text class="small" x="0" y="{:.0}">{}</text>"#, top + 4.0, escaped(&title)).ok();
    let (width, height) = (NAME + BAR + NUMBERS, top + 14.0);
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="{}">
<style>
text {{ font: 13px system-ui, sans-serif; fill: #333 }}
.title {{ font-weight: 600 }}
.small {{ font-size: 11px; fill: #777 }}
.name {{ text-anchor: end }}
.posthaste {{ fill: #c2410c }}
.limit {{ fill: #a8a29e }}
.peer {{ fill: #3b82f6 }}
.spread {{ stroke: #111; stroke-width: 1.5 }}
</style>
<rect width="100%" height="100%" fill="white"/>
{body}</svg>
"#,
        escaped(scenario.title())
    )
}

/// One case; where the next may begin.
fn group(body: &mut String, title: &str, figures: &[&Figure], top: f64) -> f64 {
    let Some(first) = figures.first() else { return top };
    let better = match first.better {
        Better::More => "more is better",
        Better::Less => "less is better",
    };
    let title = escaped(&format!("{title} ({}, {better})", first.unit));
    writeln!(body, r#"<text class="title" x="0" y="{:.0}">{title}</text>"#, top + 4.0).ok();
    let highest = figures.iter().map(|figure| figure.spread().1).fold(f64::MIN_POSITIVE, f64::max);
    let width = |value: f64| (value / highest * BAR).max(1.0);
    let mut y = top + LINE;
    for figure in figures {
        let class = match figure.class {
            Class::Posthaste => "posthaste",
            Class::Limit => "limit",
            Class::Peer => "peer",
        };
        let name = escaped(&figure.contender);
        let (lowest, most) = figure.spread();
        let ratios = Ratios::of(figure, figures);
        let mut said = number(figure.median());
        if figure.class == Class::Posthaste {
            let ratio = |name: &str, ratio: Option<f64>| {
                ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} of {name}"))
            };
            said += &ratio("limit", ratios.limit);
            said += &ratio("best peer", ratios.peer);
        }
        writeln!(body, r#"<text class="name" x="{:.0}" y="{:.1}">{name}</text>"#, NAME - 8.0, y + 4.0).ok();
        writeln!(
            body,
            r#"<rect class="{class}" x="{NAME:.0}" y="{:.1}" width="{:.1}" height="14"/>"#,
            y - 7.0,
            width(figure.median())
        )
        .ok();
        let (left, right) = (NAME + width(lowest), NAME + width(most));
        writeln!(body, r#"<line class="spread" x1="{left:.1}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}"/>"#)
            .ok();
        let after = NAME + width(most).max(width(figure.median())) + 6.0;
        writeln!(body, r#"<text class="small" x="{after:.1}" y="{:.1}">{said}</text>"#, y + 4.0).ok();
        y += LINE;
    }
    y + LINE
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::contender::Way;

    #[test]
    fn a_chart_has_a_bar_for_each_and_its_ratio() {
        let figure = |contender: &str, class, values: &[f64]| Figure {
            scenario: Scenario::Drain,
            case: "1 worker".to_owned(),
            contender: contender.to_owned(),
            class,
            way: Way::Cursor,
            unit: "events/s",
            better: Better::More,
            values: values.to_vec(),
            more: BTreeMap::new(),
        };
        let report = Report {
            command: String::new(),
            date: "2026-01-01".to_owned(),
            machine: "2 × a & b".to_owned(),
            versions: Vec::new(),
            runs: 3,
            figures: vec![
                figure("limit window", Class::Limit, &[200.0]),
                figure("posthaste stream", Class::Posthaste, &[100.0, 90.0, 120.0]),
            ],
            left_out: Vec::new(),
        };
        let charts = charts(&report, &["posthaste stream"]);
        let [(file, svg)] = &charts[..] else { panic!("one chart: {charts:?}") };
        assert_eq!(file, "drain.svg");
        assert_eq!(svg.matches("<rect class=").count(), 2);
        assert!(svg.contains("100, 0.50 of limit"), "{svg}");
        assert!(svg.contains(r#"width="240.0""#), "half of the widest: {svg}");
        assert!(svg.contains("2 × a &amp; b"), "{svg}");
        assert!(svg.find("posthaste stream") < svg.find("limit window"), "in the order that was asked for");
    }
}
