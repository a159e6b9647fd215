//! Where events go: whether a sink can be reached, and what a running relay says of itself.

use std::time::{Duration, Instant};

use super::finding::length;
use super::{Check, Finding, Verdict};
use crate::relay::RelayStatus;
use crate::sink::Sink;

/// How long a destination may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

const SINKS: &str = "guides/builtin-sinks";

/// Asks a sink whether its destination can be reached now.
///
/// ```
/// use posthaste::admin::doctor;
/// use posthaste::sink::MemorySink;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let finding = doctor::sink("memory", &MemorySink::new()).await;
/// assert_eq!(finding.verdict, doctor::Verdict::Ok);
/// # }
/// ```
pub async fn sink(name: &str, sink: &dyn Sink) -> Finding {
    let check = Check::Sink(name.to_owned());
    let asked = Instant::now();
    let answer = tokio::time::timeout(PATIENCE, sink.probe()).await;
    let why = match answer {
        Ok(Ok(())) => {
            return Finding::ok(check, format!("sink {name} is reachable ({})", length(asked.elapsed())));
        }
        Ok(Err(why)) => why,
        Err(_) => format!("no answer within {}", length(PATIENCE)),
    };
    let advice = "Is the destination up, its address right, and does it let this machine in? The relay probes it by \
                  itself and goes on as soon as it answers; no event is lost and no attempt is spent meanwhile.";
    Finding::new(check, Verdict::Fault, format!("sink {name} cannot be reached: {why}"), advice).page(SINKS)
}

/// What a relay says of itself: whether it runs, is paused, stands by, cannot work with its database, or waits for a
/// sink that rests or is paused. A relay of which nothing is the matter is one finding that says so.
///
/// ```
/// use posthaste::admin::doctor;
/// # use posthaste::{Delivery, testing};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
/// # let outbox = testing::outbox();
/// # let handler = |_: Delivery| async { Ok::<_, posthaste::Failure>(()) };
/// let relay = outbox.relay().handler(handler).start().await?;
/// relay.pause();
/// let findings = doctor::relay(&relay.status());
/// assert!(findings[0].found.contains("paused"));
/// # relay.stop().await;
/// # Ok(()) }
/// ```
pub fn relay(status: &RelayStatus) -> Vec<Finding> {
    let worker = status.worker.as_deref().map_or_else(String::new, |worker| format!(" {worker}"));
    let who = format!("the relay{worker} of table {}", status.table);
    let page = "operate/why-nothing-moves#2-look-at-the-relay";
    let of_relay = |verdict, what: &str, advice: &str| {
        Finding::new(Check::Relay, verdict, format!("{who} {what}"), advice).page(page)
    };
    let resume = |of: &str| {
        let path = format!("/api/v1/relays/{}{of}/resume", status.table);
        format!(
            "Resume it, once whoever paused it agrees: POST {path} with the daemon's token, or by the library."
        )
    };
    let mut findings = Vec::new();
    if !status.running {
        findings.push(of_relay(Verdict::Fault, "does not run", "Start it; its log says why it has stopped."));
    } else if status.paused {
        findings.push(of_relay(Verdict::Fault, "is paused", &resume("")));
    } else if !status.leading {
        findings.push(of_relay(
            Verdict::Note,
            "stands by",
            "Nothing is to be done if another one is active: with `single_active` one works at a time.",
        ));
    }
    if let Some(said) = &status.database {
        let what = format!("cannot work with its database: {said}");
        findings.push(of_relay(Verdict::Fault, &what, "Mend the database; the relay tries again by itself."));
    }
    for route in status.routes.iter().filter(|route| route.paused) {
        let found = format!("sink {} is paused: its events wait", route.name);
        let advice = resume(&format!("/sinks/{}", route.name));
        findings.push(
            Finding::new(Check::Sink(route.name.to_string()), Verdict::Fault, found, advice).page(page),
        );
    }
    for route in &status.routes {
        let Some((since, why)) = &route.resting else { continue };
        let found = format!("sink {} rests since {}: {why}", route.name, length(*since));
        let advice = "Mend its destination: it is probed at least every 30 seconds, and its events go on as soon as it \
                      answers; none is lost and no attempt is spent meanwhile.";
        let finding = Finding::new(Check::Sink(route.name.to_string()), Verdict::Fault, found, advice);
        findings.push(finding.page("operate/why-nothing-moves#a-sink-rests"));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(Check::Relay, format!("{who} works")));
    }
    findings
}
