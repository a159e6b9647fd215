//! What is under `deploy/`: the dashboard and the alert rules read metrics that the library records, with labels that they
//! have; every metric is on the dashboard; every alert has its words and its place in the book.
//!
//! Rows of the contract: OP8.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::promql::{self, Expression};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Labels that Prometheus gives to whatever it scrapes.
const TARGET_LABELS: [&str; 2] = ["instance", "job"];

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A metric as the library records it.
struct Metric {
    kind: &'static str,
    labels: BTreeSet<String>,
    /// The values that its page names.
    values: BTreeSet<String>,
}

/// The metrics of `telemetry.rs`. Which of them has which label is read off their page, which the library's own tests hold
/// to be complete; that there is such a label, off the source.
fn metrics() -> BTreeMap<String, Metric> {
    let source = read("crates/posthaste/src/telemetry.rs");
    let page = read("docs/src/reference/metrics.md");
    // A call may be broken into lines.
    let flat: String = source.split_whitespace().collect();
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let mut metrics = BTreeMap::new();
    for (constant, name) in
        source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": &str = "))
    {
        let name = name.trim_matches(['"', ';']);
        let described = |kind: &&str| flat.contains(&format!("describe_{kind}!({constant},"));
        let kind = ["counter", "gauge", "histogram"].into_iter().find(described);
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("{name} is not on its page"));
        let columns: Vec<&str> = row.split(" | ").collect();
        let metric = Metric {
            kind: kind.unwrap_or_else(|| panic!("{constant} is not described")),
            labels: quoted(columns[2]),
            values: quoted(columns[3]),
        };
        for label in &metric.labels {
            let recorded =
                source.contains(&format!("\"{label}\" =>")) || source.contains(&format!("(\"{label}\", "));
            assert!(recorded, "{name} is said to have the label {label}, which telemetry.rs does not know");
        }
        metrics.insert(name.to_owned(), metric);
    }
    assert!(metrics.len() >= 15, "telemetry.rs is read wrongly: correct this test");
    metrics
}

/// The metric behind a name in an expression, and whether the name is that of a histogram's buckets.
fn metric_of<'a>(metrics: &'a BTreeMap<String, Metric>, name: &str) -> Option<(String, &'a Metric, bool)> {
    if let Some(metric) = metrics.get(name) {
        // Without a suffix a histogram has no samples.
        return (metric.kind != "histogram").then(|| (name.to_owned(), metric, false));
    }
    let (base, part) =
        ["_bucket", "_sum", "_count"].iter().find_map(|part| Some((name.strip_suffix(part)?, *part)))?;
    let metric = metrics.get(base).filter(|metric| metric.kind == "histogram")?;
    Some((base.to_owned(), metric, part == "_bucket"))
}

/// Checks an expression against the metrics; answers with those that it reads and the labels that its answer has.
fn check(
    metrics: &BTreeMap<String, Metric>,
    place: &str,
    text: &str,
) -> (BTreeSet<String>, BTreeSet<String>) {
    let Expression { selectors, grouped_by } =
        promql::read(text).unwrap_or_else(|error| panic!("{place}: {error}: {text}"));
    assert!(!selectors.is_empty(), "{place} reads nothing: {text}");
    let (mut read, mut labels) = (BTreeSet::new(), BTreeSet::from(TARGET_LABELS.map(str::to_owned)));
    for selector in selectors {
        let name = &selector.metric;
        let mut known = BTreeSet::from(TARGET_LABELS.map(str::to_owned));
        if name != "up" {
            let (base, metric, buckets) = metric_of(metrics, name)
                .unwrap_or_else(|| panic!("{place}: there is no metric {name}: {text}"));
            let rises = metric.kind != "gauge";
            assert!(
                !rises || selector.over_time,
                "{place}: {name} only rises, and is read without a time: {text}"
            );
            known.extend(metric.labels.iter().cloned());
            known.extend(buckets.then(|| "le".to_owned()));
            for (label, value) in
                selector.matchers.iter().filter(|(label, _)| matches!(label.as_str(), "result" | "queue"))
            {
                for value in value.split('|').filter(|value| !value.starts_with('$')) {
                    assert!(metric.values.contains(value), "{place}: {name} has no {label} {value}: {text}");
                }
            }
            read.insert(base);
        }
        for (label, _) in &selector.matchers {
            assert!(known.contains(label), "{place}: {name} has no label {label}: {text}");
        }
        labels.extend(known);
    }
    for label in &grouped_by {
        assert!(labels.contains(label), "{place}: nothing has the label {label}: {text}");
    }
    (read, if grouped_by.is_empty() { labels } else { grouped_by })
}

/// The names in `{{ … }}`, of which only the part behind this prefix counts.
fn templates<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let inside = text.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.trim()));
    inside.filter_map(|name| name.strip_prefix(prefix)).collect()
}

#[test]
fn op8_the_dashboard_reads_metrics_that_there_are_and_shows_all_of_them() {
    let metrics = metrics();
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/posthaste.json")).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let mut names = BTreeSet::from(["__rate_interval".to_owned()]);
    for variable in variables {
        names.insert(variable["name"].as_str().unwrap().to_owned());
        if variable["type"] == "query" {
            let query = variable["query"]["query"].as_str().unwrap();
            assert_eq!(variable["definition"], query);
            let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
            let (selector, label) = inside.rsplit_once(", ").unwrap();
            let [selector] = promql::read(selector).unwrap().selectors.try_into().unwrap();
            let (_, metric, _) = metric_of(&metrics, &selector.metric).unwrap();
            assert!(metric.labels.contains(label), "{query}");
        }
    }

    let (mut shown, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has the id of another panel");
        if panel["type"] == "row" {
            continue;
        }
        assert!(
            panel["description"].as_str().is_some_and(|text| !text.is_empty()),
            "{title} is not described"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let (read, labels) = check(&metrics, title, expression);
            shown.extend(read);
            for label in templates(target["legendFormat"].as_str().unwrap(), "") {
                assert!(labels.contains(label), "{title}: the legend names {label}: {expression}");
            }
            for variable in expression.split('$').skip(1) {
                let end = variable
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                    .unwrap_or(variable.len());
                assert!(names.contains(&variable[..end]), "{title}: there is no variable of ${variable}");
            }
        }
    }
    let all: BTreeSet<String> = metrics.into_keys().collect();
    assert_eq!(shown, all, "left: on the dashboard, right: in telemetry.rs");
}

/// An alert rule: its keys and their values.
type Rule = BTreeMap<String, String>;

/// The rules of `alerts.yml`, which has one key a line and longer values in blocks below it.
fn rules() -> Vec<Rule> {
    let text = read("deploy/prometheus/alerts.yml");
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut rules: Vec<Rule> = Vec::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with('#')).peekable();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("- alert: ") {
            rules.push(Rule::new());
        }
        let (Some(rule), Some((key, value))) =
            (rules.last_mut(), trimmed.trim_start_matches("- ").split_once(':'))
        else {
            continue;
        };
        let mut value = value.trim().to_owned();
        if matches!(value.as_str(), "|" | ">-") {
            value.clear();
            while let Some(more) = lines.next_if(|more| more.trim().is_empty() || indent(more) > indent(line))
            {
                value = format!("{value} {}", more.trim());
            }
        }
        rule.insert(key.to_owned(), value.trim().to_owned());
    }
    assert!(rules.len() >= 10, "alerts.yml is read wrongly: correct this test");
    rules
}

#[test]
fn op8_alerts_read_metrics_that_there_are() {
    let metrics = metrics();
    for rule in rules() {
        let alert = &rule["alert"];
        let (_, labels) = check(&metrics, alert, &rule["expr"]);
        for text in [&rule["summary"], &rule["description"]] {
            assert!(!text.is_empty(), "{alert} does not say what it means");
            for label in templates(text, "$labels.") {
                assert!(
                    labels.contains(label),
                    "{alert} names the label {label}, which its expression does not have"
                );
            }
        }
        assert!(["info", "warning", "critical"].contains(&rule["severity"].as_str()), "{alert}");
    }
}

/// Whoever is woken by an alert finds its name on the page that it links to.
#[test]
fn op8_every_alert_has_its_place_in_the_book() {
    const PAGE: &str = "docs/src/operate/overview.md";
    let page = read(PAGE);
    let told: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("### Outbox").map(|_| &line[4..])).collect();
    let rules = rules();
    let alerts: BTreeSet<&str> = rules.iter().map(|rule| rule["alert"].as_str()).collect();
    assert_eq!(alerts.len(), rules.len(), "two alerts have the same name");
    assert_eq!(told, alerts, "left: {PAGE}, right: deploy/prometheus/alerts.yml");
    for rule in &rules {
        assert_eq!(rule["runbook_url"], format!("{PAGE}#{}", rule["alert"].to_lowercase()));
    }
}
