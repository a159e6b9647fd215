//! `posthaste doctor`: why nothing moves.
//!
//! Faults come first, each with what to do about it; what is in order has a line of its own; the last line is the
//! verdict. On a terminal lines begin with a sign, elsewhere with the verdict's name, which is the same in every
//! character set and easy to search for.

mod daemon;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use posthaste::admin::doctor::{self, Check, Finding, Limits, Report, Verdict};
use posthaste::sink::Sink;
use posthaste::{Admin, ErrorKind};
use serde_json::{Value, json};

use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::table::visible;
use crate::target::Target;
use crate::{json, tone};

/// Looks at everything and says what is the matter: with each table, with the sinks, with the configuration.
pub(super) async fn run(
    targets: &[Target],
    config: &Config,
    old_transaction: Duration,
    json: bool,
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    let mut limits = Limits::default();
    limits.old_transaction = old_transaction;
    let elsewhere = destinations(config).await;
    let mut reports = Vec::new();
    for target in targets {
        let mut report = examine(target, &limits).await?;
        report.add(elsewhere.clone());
        if let Ok(settings) = config.settings() {
            report.add(daemon::relay(&settings.http, &target.table().to_string()).await);
        }
        reports.push(report);
    }
    match reports.as_slice() {
        [one] if json => json::write(out, &report_json(one))?,
        several if json => json::write(out, &several.iter().map(report_json).collect::<Vec<_>>())?,
        _ => {
            let style = Style::chosen();
            let texts: Vec<String> = reports.iter().map(|report| shown(report, style)).collect();
            write!(out, "{}", texts.join("\n"))?;
        }
    }
    let exits = reports.iter().map(exit);
    Ok(exits.filter(|exit| *exit != Exit::Ok).max_by_key(|exit| *exit as u8).unwrap_or(Exit::Ok))
}

/// What a daemon with this configuration would deliver to; that it would not start is a finding, too.
async fn destinations(config: &Config) -> Vec<Finding> {
    if !config.has_sinks() {
        return Vec::new();
    }
    let settings = match config.settings() {
        Ok(settings) => settings,
        Err(mistakes) => {
            let found = format!(
                "the configuration has mistakes ({}): a relay does not start with it",
                mistakes.len()
            );
            let advice = "See them with `posthaste config check`.";
            return vec![Finding::new(Check::Relay, Verdict::Fault, found, advice).page("reference/config")];
        }
    };
    let mut findings = Vec::new();
    let mut built = Vec::new();
    for (name, sink) in &settings.sinks {
        match crate::daemon::probed(sink).await {
            Ok(Some(sink)) => built.push((name.clone(), sink)),
            Ok(None) => {}
            Err(why) => {
                let found = format!("sink {name} cannot be made: {why}");
                let advice = "Mend its section of the configuration.";
                let finding = Finding::new(Check::Sink(name.clone()), Verdict::Fault, found, advice);
                findings.push(finding.page("reference/config"));
            }
        }
    }
    findings.extend(sinks(&built).await);
    findings
}

/// The database and the table; that they are not there is a finding, too.
async fn examine(target: &Target, limits: &Limits) -> Result<Report, Failure> {
    let alone = |finding| Report::new(target.table().clone(), target.dialect(), vec![finding]);
    if let Some(file) = target.missing_file() {
        let found = format!("there is no database file {}", file.display());
        let advice = "Create it with `posthaste migrate up` and the same --database.";
        let mut finding = Finding::new(Check::Database, Verdict::Fault, found, advice);
        finding.error = Some(ErrorKind::TableMissing);
        return Ok(alone(finding));
    }
    match target.open().await {
        Ok(store) => Ok(Admin::new(store).doctor_with(limits).await),
        Err(Failure::Library(error)) if Exit::from(error.kind()) == Exit::Database => {
            Ok(alone(Finding::of_error(Check::Database, &error)))
        }
        Err(failure) => Err(failure),
    }
}

/// The sinks of these names, all asked at once. A paused sink is known to its relay alone.
async fn sinks(sinks: &[(String, Arc<dyn Sink>)]) -> Vec<Finding> {
    let mut asking = tokio::task::JoinSet::new();
    for (at, (name, sink)) in sinks.iter().enumerate() {
        let (name, sink) = (name.clone(), Arc::clone(sink));
        asking.spawn(async move { (at, doctor::sink(&name, &*sink).await) });
    }
    let mut answers = asking.join_all().await;
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, finding)| finding).collect()
}

/// As documented: that the database or the table is not there has a code of its own.
fn exit(report: &Report) -> Exit {
    if report.is_healthy() {
        return Exit::Ok;
    }
    let faults = report.findings.iter().filter(|finding| finding.verdict == Verdict::Fault);
    let exits = faults.filter_map(|finding| match finding.error.as_ref()? {
        // As for `migrate validate`.
        ErrorKind::SchemaMismatch => Some(Exit::Failed),
        kind => Some(Exit::from(kind)),
    });
    exits.into_iter().find(|exit| matches!(exit, Exit::Database | Exit::Table)).unwrap_or(Exit::Failed)
}

/// How a line begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Words,
    Signs,
    Colours,
}

impl Style {
    fn chosen() -> Self {
        match (io::stdout().is_terminal(), tone::is_coloured()) {
            (_, true) => Self::Colours,
            (true, false) => Self::Signs,
            (false, false) => Self::Words,
        }
    }

    fn mark(self, verdict: Verdict) -> String {
        let (sign, colour) = match verdict {
            Verdict::Fault => ("✗", "31"),
            Verdict::Warning => ("!", "33"),
            Verdict::Note => ("-", "36"),
            _ => ("✓", "32"),
        };
        match self {
            Self::Words => format!("{verdict:<8}"),
            Self::Signs => format!("{sign} "),
            Self::Colours => format!("\x1b[{colour}m{sign}\x1b[0m "),
        }
    }

    fn margin(self) -> &'static str {
        if self == Self::Words { "        " } else { "  " }
    }
}

/// The report for people. What others call themselves may be in it: control characters are shown, not obeyed.
fn shown(report: &Report, style: Style) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        text.push_str(&format!("{}{}\n", style.mark(finding.verdict), visible(&finding.found, false)));
        let Some(advice) = &finding.advice else { continue };
        let page = finding.page.map_or_else(String::new, |page| format!(" (docs: {page})"));
        text.push_str(&format!("{}{}{page}\n", style.margin(), visible(advice, false)));
    }
    let count = |verdict| report.findings.iter().filter(|finding| finding.verdict == verdict).count();
    let many = |n: usize, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    let (table, warnings) = (&report.table, count(Verdict::Warning));
    let warned = many(warnings, "warning");
    let verdict = match (count(Verdict::Fault), warnings) {
        (0, 0) => "healthy".to_owned(),
        (0, _) => format!("healthy, with {warned}"),
        (faults, 0) => format!("not healthy: {}", many(faults, "fault")),
        (faults, _) => format!("not healthy: {}, {warned}", many(faults, "fault")),
    };
    text.push_str(&format!("table {table} is {verdict}\n"));
    text
}

fn report_json(report: &Report) -> Value {
    let finding = |finding: &Finding| {
        let sink = match &finding.check {
            Check::Sink(name) => Some(name.as_str()),
            _ => None,
        };
        json!({
            "check": finding.check.as_str(),
            "sink": sink,
            "verdict": finding.verdict.as_str(),
            "found": finding.found,
            "advice": finding.advice,
            "page": finding.page,
        })
    };
    json!({
        "table": report.table.to_string(),
        "database": report.dialect.as_str(),
        "healthy": report.is_healthy(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use posthaste::Delivery;
    use posthaste::sink::Outcome;
    use posthaste::store::Dialect;

    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        Report::new("shop.outbox".parse().unwrap_or_default(), Dialect::Postgres, findings)
    }

    fn example() -> Report {
        let old = "an old transaction holds back cleanup: pid 4242, \"idle in transaction\" for 3h 12m (app=re\x1b[2Jport)";
        report(vec![
            Finding::ok(Check::Migrations, "migrations are current (1)"),
            Finding::new(Check::Relay, Verdict::Note, "no relay is connected", "Start one."),
            Finding::new(Check::OldTransactions, Verdict::Fault, old, "End it.").page("operate/pinned-xmin"),
            Finding::new(Check::DeadLetters, Verdict::Warning, "2 dead letters", "Replay them."),
        ])
    }

    #[test]
    fn op10_faults_come_first_and_the_verdict_last() {
        let words = "\
fault   an old transaction holds back cleanup: pid 4242, \"idle in transaction\" for 3h 12m (app=re\\u{1b}[2Jport)
        End it. (docs: operate/pinned-xmin)
warning 2 dead letters
        Replay them.
note    no relay is connected
        Start one.
ok      migrations are current (1)
table shop.outbox is not healthy: 1 fault, 1 warning
";
        assert_eq!(shown(&example(), Style::Words), words);
        let signs = shown(&example(), Style::Signs);
        assert!(
            signs.starts_with("✗ an old transaction") && signs.contains("\n✓ migrations are current (1)\n")
        );
        assert!(signs.contains("\n! 2 dead letters\n  Replay them.\n- no relay"), "{signs}");
        let colours = shown(&example(), Style::Colours);
        assert!(colours.starts_with("\x1b[31m✗\x1b[0m an old"), "{colours}");
    }

    #[test]
    fn op10_exit_codes_say_what_is_missing() {
        let exit_of = |kind: Option<ErrorKind>, verdict| {
            let mut finding = Finding::new(Check::Database, verdict, "", "");
            finding.error = kind;
            exit(&report(vec![Finding::ok(Check::Clock, ""), finding]))
        };
        assert_eq!(exit_of(None, Verdict::Fault), Exit::Failed);
        assert_eq!(exit_of(None, Verdict::Warning), Exit::Ok);
        assert_eq!(exit_of(Some(ErrorKind::Unreachable), Verdict::Warning), Exit::Ok);
        assert_eq!(exit_of(Some(ErrorKind::Unreachable), Verdict::Fault), Exit::Database);
        assert_eq!(exit_of(Some(ErrorKind::ReadOnly), Verdict::Fault), Exit::Database);
        assert_eq!(exit_of(Some(ErrorKind::TableMissing), Verdict::Fault), Exit::Table);
        assert_eq!(
            exit_of(Some(ErrorKind::SchemaTooNew { found: 2, known: 1 }), Verdict::Fault),
            Exit::Table
        );
        assert_eq!(exit_of(Some(ErrorKind::SchemaMismatch), Verdict::Fault), Exit::Failed);
    }

    struct Door(Result<(), String>);

    #[async_trait]
    impl Sink for Door {
        async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
            vec![Outcome::Delivered; batch.len()]
        }

        async fn probe(&self) -> Result<(), String> {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn op10_every_sink_is_asked() {
        let door = |name: &str, answer| (name.to_owned(), Arc::new(Door(answer)) as Arc<dyn Sink>);
        let found = sinks(&[door("mail", Err("refused".to_owned())), door("nats", Ok(()))]).await;
        let found: Vec<_> = found.iter().map(|finding| (finding.verdict, &*finding.found)).collect();
        assert_eq!(found[0], (Verdict::Fault, "sink mail cannot be reached: refused"));
        assert!(found[1].0 == Verdict::Ok && found[1].1.starts_with("sink nats is reachable ("), "{found:?}");
    }
}
