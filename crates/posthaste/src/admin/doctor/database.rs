//! The database itself: whether it answers and can be written to, whether it cleans up, and what the clocks say.

use std::time::Duration;

use time::OffsetDateTime;

use super::finding::{at_most, length, many, sentence};
use super::{Check, Finding, Limits, Look, Verdict};
use crate::error::ErrorKind;
use crate::store::Difference;
use crate::store::health::{Access, Cleaning, Client, Pin, PinKind, TableLock};

/// Of many findings of a kind, so many are told one by one.
const MOST: usize = 5;

impl Look<'_> {
    /// Whether the table can be asked for more.
    pub(super) async fn access(&self, round_trip: Duration, findings: &mut Vec<Finding>) -> bool {
        let answers = |server: &str| format!("{server} answers in {}", length(round_trip));
        let Some(health) = self.admin.store.health() else {
            findings.push(Finding::ok(Check::Database, answers("the database")));
            return true;
        };
        let access = match self.in_time(health.access()).await {
            Ok(access) => access,
            Err(error) => {
                findings.push(self.failed(Check::Database, &error));
                return true;
            }
        };
        findings.push(match read_only(&access) {
            Some(finding) => finding,
            None => Finding::ok(Check::Database, answers(&access.server)),
        });
        if !access.denied.is_empty() {
            let denied = access.denied.join(", ");
            let role = access.account.as_deref().unwrap_or("it");
            findings.push(
                Finding::new(
                    Check::Database,
                    Verdict::Warning,
                    format!("this role may not {denied} on table {}", self.admin.store.table()),
                    format!(
                        "If a relay runs under it: GRANT {denied} ON {} TO {role}.",
                        self.admin.store.table().quoted('"')
                    ),
                )
                .page("operate/tables"),
            );
        }
        match access.locked {
            Some(lock) if lock.by.lasting.is_none_or(|lasting| lasting >= self.limits.locked) => {
                findings.push(self.locked(&lock));
                false
            }
            _ => true,
        }
    }

    fn locked(&self, lock: &TableLock) -> Finding {
        let table = self.admin.store.table();
        let by = client(&lock.by);
        let found = match &lock.behind[..] {
            [] => format!("the table {table} is locked as a whole: {by}"),
            behind => format!(
                "somebody waits to lock table {table} as a whole, and everybody else behind: {by}; it waits for {}",
                behind.join(", ")
            ),
        };
        let advice = match &lock.remedy {
            Some(remedy) => format!("Let it come to its end, or end it: {remedy}"),
            None => "Find the program that has begun to write and does not commit, and end it: \
                     `fuser` or `lsof` on the file names who has it open."
                .to_owned(),
        };
        Finding::new(Check::Lock, Verdict::Fault, found, advice)
            .page("operate/why-nothing-moves#the-table-is-locked")
    }

    /// Whether there is a table to look at.
    pub(super) async fn migrations(&self, findings: &mut Vec<Finding>) -> bool {
        let store = &self.admin.store;
        let (table, validated) = (store.table(), self.in_time(store.validate()).await);
        let states = self.in_time(store.migrations()).await;
        let (differences, states) = match (validated, states) {
            (Ok(differences), Ok(states)) => (differences, states),
            (Err(error), _) | (_, Err(error)) if *error.kind() == ErrorKind::SchemaMismatch => {
                findings.push(Finding::of_error(Check::Migrations, &error).page("operate/migrations"));
                return false;
            }
            (Err(error), _) | (_, Err(error)) => {
                findings.push(self.failed(Check::Migrations, &error));
                return true;
            }
        };
        if differences.is_empty() {
            let newest = states.iter().map(|state| state.version).max();
            let at = newest.map_or_else(String::new, |newest| format!(" ({newest})"));
            findings.push(Finding::ok(Check::Migrations, format!("migrations are current{at}")));
            return true;
        }
        let kind = schema_kind(&differences, states.iter().filter(|s| s.known).map(|s| s.version).max());
        let found = match &kind {
            ErrorKind::TableMissing => format!("table {table} does not exist"),
            _ if is_foreign(&differences) => {
                format!("table {table} exists and is no outbox: it has no columns {}, …", TELLING.join(", "))
            }
            _ => {
                let told: Vec<_> = differences.iter().take(MOST).map(ToString::to_string).collect();
                let more = differences.len().saturating_sub(MOST);
                let more = if more > 0 { format!(", and {more} more") } else { String::new() };
                format!("table {table} is not as its migrations make it: {}{more}", told.join(", "))
            }
        };
        let made = kind != ErrorKind::TableMissing;
        let advice = match &kind {
            ErrorKind::SchemaMismatch if is_foreign(&differences) => {
                "Name the outbox table instead (`--table`, or the configuration): no migration makes one of this.".to_owned()
            }
            ErrorKind::SchemaMismatch => drift_advice(&differences),
            kind => sentence(kind.advice()),
        };
        findings.push(Finding {
            error: Some(kind),
            ..Finding::new(Check::Migrations, Verdict::Fault, found, advice).page("operate/migrations")
        });
        made
    }

    /// What keeps old row versions.
    pub(super) async fn old_transactions(&self, findings: &mut Vec<Finding>) {
        let Some(health) = self.admin.store.health() else { return };
        let pins = match self.in_time(health.pins()).await {
            Ok(Some(pins)) => pins,
            Ok(None) => return,
            Err(error) => return findings.push(self.failed(Check::OldTransactions, &error)),
        };
        let judged: Vec<Finding> = pins.iter().filter_map(|pin| judge(pin, self.limits)).collect();
        if judged.is_empty() {
            findings.push(young(&pins));
        }
        findings.append(&mut at_most(MOST, judged));
    }

    /// Whether the database cleans up after itself.
    pub(super) async fn cleanup(&self, findings: &mut Vec<Finding>) {
        let Some(health) = self.admin.store.health() else { return };
        let cleaning = match self.in_time(health.cleaning()).await {
            Ok(cleaning) => cleaning,
            Err(error) => return findings.push(self.failed(Check::Cleanup, &error)),
        };
        let mut judged: Vec<Finding> = cleaning.iter().filter_map(|c| untidy(c, self.limits)).collect();
        // A server's setting is the same for every table.
        judged.dedup();
        if judged.is_empty() {
            findings.extend(cleaning.first().map(|first| Finding::ok(Check::Cleanup, tidy(first))));
        }
        findings.append(&mut judged);
    }
}

fn read_only(access: &Access) -> Option<Finding> {
    let why = access.read_only.as_ref()?;
    let found = format!("the database cannot be written to: {why}");
    let advice = "Connect to the server that takes the writes, or make this one take them.";
    Some(Finding {
        error: Some(ErrorKind::ReadOnly),
        ..Finding::new(Check::Database, Verdict::Fault, found, advice)
    })
}

/// What the differences come to.
fn schema_kind(differences: &[Difference], known: Option<u32>) -> ErrorKind {
    let newer = differences.iter().filter_map(|difference| match difference {
        Difference::NewerMigration { version } => Some(*version),
        _ => None,
    });
    match (differences, newer.max()) {
        ([Difference::Table], _) => ErrorKind::TableMissing,
        (_, Some(found)) => ErrorKind::SchemaTooNew { found, known: known.unwrap_or(0) },
        _ => ErrorKind::SchemaMismatch,
    }
}

/// Columns that no other kind of table is likely to have all of.
const TELLING: [&str; 3] = ["topic", "event_type", "available_at"];

/// Whether the table is one of somebody else's.
fn is_foreign(differences: &[Difference]) -> bool {
    let lacks = |name: &str| {
        differences
            .iter()
            .any(|found| matches!(found, Difference::MissingColumn { column } if column == name))
    };
    TELLING.into_iter().all(lacks)
}

/// What to do about a table that is not as its migrations make it.
fn drift_advice(differences: &[Difference]) -> String {
    let older = differences.iter().any(|difference| matches!(difference, Difference::Migration { .. }));
    let first = match older {
        true => "Bring it up with `posthaste migrate up`.",
        false => "Make what is missing again, with the statement that `posthaste migrate print` has for it.",
    };
    let slow = differences
        .iter()
        .any(|difference| matches!(difference, Difference::MissingIndex { .. } | Difference::Index { .. }));
    let why = if slow { " Without its index every claim reads the table." } else { "" };
    format!("{first}{why}")
}

/// Nothing is known to be old; whether that is because its age may not be seen.
fn young(pins: &[Pin]) -> Finding {
    let check = Check::OldTransactions;
    let transactions =
        || pins.iter().filter(|pin| matches!(pin.kind, PinKind::Transaction | PinKind::Prepared));
    let hidden = transactions().filter(|pin| pin.holder.lasting.is_none()).count();
    let oldest = transactions().filter_map(|pin| pin.holder.lasting).max();
    if hidden > 0 {
        let found = format!("how old {} is may not be seen", many(hidden as u64, "open transaction"));
        let advice = "Look again as a role that may: GRANT pg_read_all_stats on PostgreSQL.";
        return Finding::new(check, Verdict::Note, found, advice).page("operate/pinned-xmin");
    }
    let oldest = oldest
        .map_or_else(|| "none is open".to_owned(), |oldest| format!("the oldest is {}", length(oldest)));
    Finding::ok(check, format!("no old transactions ({oldest})"))
}

/// Whether something keeps too much, or for too long.
fn judge(pin: &Pin, limits: &Limits) -> Option<Finding> {
    let held = pin.transactions.unwrap_or(0);
    let verdict = match pin.kind {
        PinKind::Transaction | PinKind::Prepared => match pin.holder.lasting {
            Some(lasting) if lasting < limits.old_transaction => return None,
            // Who does nothing needs nothing; who works for long is only worth a word.
            Some(_) if pin.holder.idle || held >= limits.held_back => Verdict::Fault,
            Some(_) => Verdict::Warning,
            None if held >= limits.held_back => Verdict::Fault,
            None => return None,
        },
        PinKind::Slot if held >= limits.held_back => Verdict::Fault,
        PinKind::Slot | PinKind::CatalogSlot if pin.holder.idle => Verdict::Warning,
        PinKind::Standby | PinKind::CatalogSlot if held >= limits.held_back => Verdict::Warning,
        PinKind::Slot | PinKind::CatalogSlot | PinKind::Standby => return None,
    };
    let what = match pin.kind {
        PinKind::Transaction => "an old transaction holds back cleanup",
        PinKind::Prepared => "a prepared transaction that nobody ends holds back cleanup",
        PinKind::Slot => "a replication slot holds back cleanup",
        PinKind::CatalogSlot => {
            "a replication slot keeps the log, and the system's tables from being cleaned up"
        }
        PinKind::Standby => "a standby holds back cleanup",
    };
    let by = client(&pin.holder);
    let held = match pin.transactions {
        Some(held) => format!(", {} held back", many(held, "transaction")),
        None => String::new(),
    };
    let advice = match pin.kind {
        PinKind::Transaction if pin.holder.lasting.is_none() => format!(
            "End it if it should not be there: {} (to see how old it is, the role needs pg_read_all_stats)",
            pin.remedy
        ),
        PinKind::Transaction => format!("End it if it should not be there: {}", pin.remedy),
        PinKind::Prepared => format!("Ask who prepared it, and end it: {}", pin.remedy),
        PinKind::Slot | PinKind::CatalogSlot => {
            format!("Start its consumer, or drop it if it has none any more: {}", pin.remedy)
        }
        PinKind::Standby => {
            "End the long query on the standby, or switch hot_standby_feedback off there.".to_owned()
        }
    };
    Some(
        Finding::new(Check::OldTransactions, verdict, format!("{what}: {by}{held}"), advice)
            .page("operate/pinned-xmin"),
    )
}

/// Somebody, in the words of the database.
fn client(client: &Client) -> String {
    let mut text = client.name.clone();
    if let Some(state) = &client.state {
        text.push_str(&format!(", \"{state}\""));
    }
    if let Some(lasting) = client.lasting {
        text.push_str(&format!(" for {}", length(lasting)));
    }
    if let Some(application) = &client.application {
        text.push_str(&format!(" (app={application})"));
    }
    text
}

/// What is the matter with how the database cleans up, if anything is.
fn untidy(cleaning: &Cleaning, limits: &Limits) -> Option<Finding> {
    let finding = |verdict, found, advice: String| Finding::new(Check::Cleanup, verdict, found, advice);
    match cleaning {
        Cleaning::Vacuum { off: Some((off, remedy)), .. } => Some(
            finding(
                Verdict::Fault,
                format!("autovacuum does not clean up: {off}"),
                format!("Switch it on: {remedy}"),
            )
            .page("operate/pinned-xmin"),
        ),
        Cleaning::Vacuum { table, dead, live, begins_at, last, .. } => {
            if *dead < limits.dead_rows || *dead < begins_at.saturating_mul(5) {
                return None;
            }
            let last = match last {
                Some(last) => format!("was last vacuumed {} ago", length(*last)),
                None => "was never vacuumed".to_owned(),
            };
            let found = format!(
                "table {table} has {} beside {}, and {last}",
                many(dead, "dead row version"),
                many(live, "row")
            );
            let advice = format!(
                "If something above holds back cleanup, end that first; then VACUUM {table}. If nothing does, give autovacuum more to work with (autovacuum_max_workers, autovacuum_vacuum_cost_limit)."
            );
            Some(finding(Verdict::Warning, found, advice).page("operate/pinned-xmin"))
        }
        Cleaning::Purge { history } if *history >= limits.history => {
            let found =
                format!("{} await InnoDB's purge: old row versions pile up", many(history, "transaction"));
            let advice =
                "End the oldest transaction, if one is named above; if none is, raise innodb_purge_threads.";
            Some(finding(Verdict::Warning, found, advice.to_owned()).page("operate/pinned-xmin"))
        }
        Cleaning::Journal { mode, remedy, .. } if mode != "wal" => {
            let found = format!("the journal mode is {mode}: readers and the writer wait for each other");
            Some(
                finding(Verdict::Warning, found, format!("Change it, which lasts: {remedy}"))
                    .page("operate/tables"),
            )
        }
        Cleaning::Journal { bytes, remedy, .. } if *bytes >= limits.log_bytes => {
            let found = format!(
                "the write-ahead log has {} MiB: a reader does not come to its end, or once did not",
                bytes >> 20
            );
            let advice =
                format!("Empty it: {remedy} If that answers with 1 first, somebody still reads: end it.");
            Some(finding(Verdict::Warning, found, advice).page("operate/pinned-xmin"))
        }
        Cleaning::Purge { .. } | Cleaning::Journal { .. } => None,
    }
}

/// A database that cleans up.
fn tidy(cleaning: &Cleaning) -> String {
    match cleaning {
        Cleaning::Vacuum { dead, .. } => {
            format!("autovacuum is on ({})", many(dead, "dead row version"))
        }
        Cleaning::Purge { history } => format!("InnoDB's purge keeps up ({history} waiting)"),
        Cleaning::Journal { bytes, .. } => format!("the write-ahead log is small ({} KiB)", bytes >> 10),
    }
}

/// How far the database's clock is from this machine's: it was read at some time between two looks at ours.
pub(super) fn clock(
    before: OffsetDateTime,
    theirs: OffsetDateTime,
    after: OffsetDateTime,
    limits: &Limits,
) -> Finding {
    let round_trip = (after - before).max(time::Duration::ZERO);
    let half = round_trip / 2_i32;
    let skew: time::Duration = theirs - (before + half);
    // What the way there and back may account for is no difference.
    let surely: time::Duration = (skew.abs() - half).max(time::Duration::ZERO);
    let (size, surely) = (skew.abs().unsigned_abs(), surely.unsigned_abs());
    let verdict = match surely {
        surely if surely >= limits.wrong_clock => Verdict::Fault,
        surely if surely >= limits.skew => Verdict::Warning,
        _ => return Finding::ok(Check::Clock, format!("clock skew {}", length(size))),
    };
    let way = if skew.is_positive() { "ahead of" } else { "behind" };
    Finding::new(
        Check::Clock,
        verdict,
        format!(
            "the database's clock is {} {way} this machine's (± {})",
            length(size),
            length(half.unsigned_abs())
        ),
        "Let both follow the same time servers (chrony, systemd-timesyncd). Delays and leases go by the database's \
         clock; times that a producer sets, latencies and signatures of webhooks go by the machine's.",
    )
    .page("operate/why-nothing-moves#the-clocks-differ")
}

#[cfg(test)]
mod tests;
