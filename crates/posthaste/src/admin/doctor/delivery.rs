//! Whether somebody delivers: what is due, who holds it, and what waits for an operator.

use super::finding::{at_most, length, many};
use super::{Check, Finding, Look, Verdict};
use crate::admin::CAP;
use crate::error::ErrorKind;
use crate::store::health::{Fleet, Holder, LaneOwner, Work};
use crate::store::stream::BlockedAggregate;
use crate::store::{Filter, Page, Stats};

/// Of many findings of a kind, so many are told one by one.
const MOST: usize = 3;

/// Characters of an event's error that are repeated.
const WORDS: usize = 160;

const START: &str = "Start a relay on this database and table, or look at the one that runs: is it paused, does it \
                     stand by, does its sink rest?";

impl Look<'_> {
    /// A queue: who takes what is due, and whose leases nobody ends.
    pub(super) async fn queue(&self, findings: &mut Vec<Finding>) {
        let Some(health) = self.admin.store.health() else { return };
        let work = match self.in_time(health.work()).await {
            Ok(work) => work,
            // What is wrong with the table is said already.
            Err(error) if *error.kind() == ErrorKind::SchemaMismatch => return,
            Err(error) => return findings.push(self.failed(Check::Relay, &error)),
        };
        findings.push(self.takes(&work));
        let orphaned: Vec<Finding> =
            work.holders.iter().filter_map(|holder| self.orphaned(holder, &work)).collect();
        if orphaned.is_empty() {
            let leased: u64 = work.holders.iter().map(|holder| holder.leased).sum();
            findings.push(Finding::ok(Check::Leases, format!("no orphaned leases ({leased} held)")));
        }
        findings.append(&mut at_most(MOST, orphaned));
    }

    /// Whether somebody takes what is due.
    fn takes(&self, work: &Work) -> Finding {
        let page = "operate/why-nothing-moves#nobody-delivers";
        let due = work.due;
        let connected = match work.relays {
            None => String::new(),
            Some(0) => "; no relay is connected to this database".to_owned(),
            Some(relays) => format!("; {} connected to this database", many(relays, "relay")),
        };
        let Some(oldest) = work.oldest_due.filter(|_| due.n > 0) else {
            return match work.relays {
                Some(0) => Finding::new(
                    Check::Relay,
                    Verdict::Note,
                    "no relay is connected to this database; nothing is due",
                    "Start one before events are.",
                )
                .page(page),
                _ => Finding::ok(Check::Relay, format!("nothing is due{connected}")),
            };
        };
        let waits =
            format!("{} due and held by nobody, the oldest for {}", are(due, "event"), length(oldest));
        let works = work.holders.iter().any(|holder| holder.leased > 0 && holder.present != Some(false));
        if oldest < self.limits.overdue || works && oldest < self.limits.behind {
            return Finding::ok(Check::Relay, format!("{waits}{connected}"));
        }
        if works {
            let found = format!("deliveries are behind: {waits}{connected}");
            let advice = "Let more be delivered at once (`concurrency`, `batch`), start another relay, or see why the \
                          destination is slow.";
            return Finding::new(Check::Relay, Verdict::Warning, found, advice)
                .page("operate/why-nothing-moves#it-moves-but-too-slowly");
        }
        let found = format!("nobody delivers: {waits}{connected}");
        Finding::new(Check::Relay, Verdict::Fault, found, START).page(page)
    }

    /// What this worker has left behind, if it has.
    fn orphaned(&self, holder: &Holder, work: &Work) -> Option<Finding> {
        let page = "operate/why-nothing-moves#leases-of-a-dead-relay";
        let worker = &holder.worker;
        if let Some(ago) = holder.ended_for.filter(|ago| holder.ended > 0 && *ago >= self.limits.orphaned) {
            let found = format!(
                "orphaned leases: worker {worker} had {} leased, the first lease ended {} ago, and nobody has taken them since",
                many(holder.ended, "event"),
                length(ago)
            );
            return Some(Finding::new(Check::Leases, Verdict::Fault, found, START).page(page));
        }
        if holder.leased == 0 || holder.present != Some(false) {
            return None;
        }
        // Any relay that lives ends them within ten seconds.
        let alive = match work.relays {
            Some(relays) => relays > 0,
            None => work.holders.iter().any(|other| other.leased > 0 && other.present == Some(true)),
        };
        let found = format!(
            "orphaned leases: worker {worker} holds {} and is not connected any more",
            many(holder.leased, "event")
        );
        Some(match alive {
            true => Finding::new(
                Check::Leases,
                Verdict::Warning,
                found,
                "Wait: a relay that lives takes them over within about ten seconds.",
            ),
            false => Finding::new(
                Check::Leases,
                Verdict::Fault,
                found,
                "Start a relay: it takes them over within about ten seconds. Without one they stay leased until \
                 their leases end, and then wait.",
            ),
        }
        .page(page))
    }

    /// A stream: who owns its lanes, and what they wait for.
    pub(super) async fn stream(&self, findings: &mut Vec<Finding>) {
        let Some(health) = self.admin.store.health() else { return };
        let fleet = self.in_time(health.fleet()).await;
        let stats = self.in_time(self.admin.store.stats(CAP)).await;
        match (fleet, stats) {
            (Ok(fleet), Ok(stats)) => {
                findings.push(self.reads(&fleet, &stats));
                findings.push(self.owned(&fleet, &stats));
            }
            (Err(error), _) | (_, Err(error)) if *error.kind() == ErrorKind::SchemaMismatch => return,
            (Err(error), _) | (_, Err(error)) => findings.push(self.failed(Check::Lanes, &error)),
        }
        match self.in_time(self.admin.blocked(MOST as u32 + 1)).await {
            Ok(blocked) => findings.extend(blocked_aggregates(&blocked)),
            Err(error) => findings.push(self.failed(Check::Blocked, &error)),
        }
    }

    /// Whether somebody reads the lanes.
    fn reads(&self, fleet: &Fleet, stats: &Stats) -> Finding {
        let page = "operate/why-nothing-moves#nobody-delivers";
        let waiting = stats.oldest_age.map_or_else(
            || "nothing is due".to_owned(),
            |oldest| format!("{} waiting, the oldest for {}", are(stats.pending, "event"), length(oldest)),
        );
        let oldest = stats.oldest_age.unwrap_or_default();
        let alive = fleet.relays.len();
        if alive == 0 && oldest >= self.limits.overdue {
            let found = format!("nobody delivers: no relay of this stream lives; {waiting}");
            return Finding::new(Check::Relay, Verdict::Fault, found, START).page(page);
        }
        if alive == 0 {
            let found = format!("no relay of this stream lives; {waiting}");
            return Finding::new(Check::Relay, Verdict::Note, found, "Start one before events are late.")
                .page(page);
        }
        let found = format!("{} of this stream; {waiting}", many(alive, "relay"));
        if oldest >= self.limits.behind {
            let advice = "See `posthaste lanes` and `posthaste blocked`: which lane is behind, and is it its relay, its \
                          sink, or an aggregate that is tried again and again?";
            return Finding::new(
                Check::Relay,
                Verdict::Warning,
                format!("deliveries are behind: {found}"),
                advice,
            )
            .page("operate/why-nothing-moves#it-moves-but-too-slowly");
        }
        Finding::ok(Check::Relay, found)
    }

    /// Whether every lane belongs to somebody who lives.
    fn owned(&self, fleet: &Fleet, stats: &Stats) -> Finding {
        let late = |lane: &LaneOwner| lane.ended_for.is_some_and(|ago| ago >= self.limits.orphaned);
        let orphaned: Vec<&LaneOwner> = fleet
            .lanes
            .iter()
            .filter(|lane| lane.owner.is_some() && (late(lane) || lane.present == Some(false)))
            .collect();
        let free = fleet.lanes.iter().filter(|lane| lane.owner.is_none()).count();
        let all = fleet.lanes.len();
        if let Some(first) = orphaned.first() {
            let owner = first.owner.as_deref().unwrap_or_default();
            let since = match first.ended_for.filter(|_| late(first)) {
                Some(ago) => format!("whose lease ended {} ago", length(ago)),
                None => "who is not connected any more".to_owned(),
            };
            let found = format!(
                "{} of {} without a living owner: lane {} is {owner}'s, {since}",
                orphaned.len(),
                many(all, "lane"),
                first.lane
            );
            let waits = stats.oldest_age.is_some_and(|oldest| oldest >= self.limits.overdue);
            let verdict = if waits && fleet.relays.is_empty() { Verdict::Fault } else { Verdict::Warning };
            let advice = "Start a relay: it takes them over within seconds. If one runs, look at its log: it cannot take \
                          what it does not see.";
            return Finding::new(Check::Lanes, verdict, found, advice)
                .page("operate/why-nothing-moves#leases-of-a-dead-relay");
        }
        if free > 0 && !fleet.relays.is_empty() {
            let found = format!("{free} of {} without an owner", many(all, "lane"));
            let advice = "Look again: the relays that live take them within a second. If it stays so, one of them stops \
                          and does not come to its end.";
            return Finding::new(Check::Lanes, Verdict::Warning, found, advice)
                .page("operate/why-nothing-moves#nobody-delivers");
        }
        Finding::ok(Check::Lanes, format!("{} of {} owned", all - free, many(all, "lane")))
    }

    /// What was given up.
    pub(super) async fn dead_letters(&self, findings: &mut Vec<Finding>) {
        let store = &self.admin.store;
        let stats = match self.in_time(store.stats(CAP)).await {
            Ok(stats) => stats,
            Err(error) if *error.kind() == ErrorKind::SchemaMismatch => return,
            Err(error) => return findings.push(self.failed(Check::DeadLetters, &error)),
        };
        if stats.dead.n == 0 {
            return findings.push(Finding::ok(Check::DeadLetters, "no dead letters"));
        }
        let page = Page::newest(1);
        let newest = self.in_time(self.admin.dead_letters(&Filter::dead(), page)).await.unwrap_or_default();
        let newest = newest.first().map_or_else(String::new, |record| {
            let topic = record.topic().unwrap_or("unreadable");
            let error = words(record.last_error.as_deref().unwrap_or("no error was kept"));
            format!("; the newest is {} ({topic}): {error}", record.id)
        });
        findings.push(
            Finding::new(
                Check::DeadLetters,
                Verdict::Warning,
                format!("{}{newest}", many(stats.dead, "dead letter")),
                "Mend what they died of, then replay them, or discard them: `posthaste dead list`, `dead replay --all`, `dead discard`.",
            )
            .page("guides/retries"),
        );
    }
}

/// Aggregates that wait for an operator; the last one says only that there are more.
fn blocked_aggregates(blocked: &[BlockedAggregate]) -> Vec<Finding> {
    if blocked.is_empty() {
        return vec![Finding::ok(Check::Blocked, "no aggregate is blocked")];
    }
    let finding = |blocked: &BlockedAggregate| {
        let kind = blocked.aggregate_type.as_deref().unwrap_or_default();
        // Nothing stands still where nothing waits.
        let verdict = if blocked.waiting.n > 0 { Verdict::Fault } else { Verdict::Warning };
        let found = format!(
            "aggregate {kind}/{} is blocked by its dead event {} ({}), {} behind it: {}",
            blocked.aggregate_id,
            blocked.event_id,
            blocked.topic,
            many(blocked.waiting, "event"),
            words(&blocked.reason)
        );
        let advice = "Mend what it died of and replay it, or discard it: `posthaste blocked` lists them.";
        Finding::new(Check::Blocked, verdict, found, advice).page("guides/streams")
    };
    let mut findings: Vec<Finding> = blocked.iter().take(MOST).map(finding).collect();
    if blocked.len() > MOST {
        let found = format!("more than {MOST} aggregates are blocked");
        let advice = "`posthaste blocked` lists them.";
        findings.push(Finding::new(Check::Blocked, Verdict::Warning, found, advice).page("guides/streams"));
    }
    findings
}

/// `1 event is`, `2 events are`.
fn are(count: crate::store::Count, what: &str) -> String {
    let verb = if count.n == 1 && !count.capped { "is" } else { "are" };
    format!("{} {verb}", many(count, what))
}

/// As much of an error as fits a line.
fn words(error: &str) -> String {
    let line = error.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
