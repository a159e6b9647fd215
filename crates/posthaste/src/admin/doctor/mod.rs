//! Why nothing moves: every cause that can be looked at, each with a sentence on what to do.
//!
//! | file | what is in it |
//! |---|---|
//! | `finding.rs` | a finding, its verdict, and what was looked at |
//! | `database.rs` | whether the database answers, cleans up, and what the clocks say |
//! | `delivery.rs` | whether somebody delivers: relays, leases, lanes, dead letters, blocked aggregates |
//! | `destination.rs` | sinks, and what a relay says of itself |
//!
//! Looking costs a bounded amount whatever the table's size, and every look has a limit of time. Nothing is written. A
//! look that fails is a finding, too, and does not keep the others from being made.

mod database;
mod delivery;
mod destination;
mod finding;

use std::time::Duration;

use time::OffsetDateTime;

use super::Admin;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Dialect, Mode, TableName};

pub use destination::{relay, sink};
pub use finding::{Check, Finding, Verdict};

/// How often the database is asked for its time.
const QUESTIONS: u32 = 5;

/// This machine's clock before, the database's, and this machine's after that was read.
type Clocks = (OffsetDateTime, OffsetDateTime, OffsetDateTime);

/// From when on something is worth a word.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// A transaction that has been open so long is old. 5 minutes: a service's are over in seconds, and what piles up
    /// behind one in that time a vacuum clears away in seconds.
    pub old_transaction: Duration,
    /// So many transactions held back are a fault, whoever does it. 1 000 000: claims have become slower by then.
    pub held_back: u64,
    /// So many dead row versions, and five times as many as autovacuum begins at, are too many. 100 000.
    pub dead_rows: u64,
    /// So many transactions that await InnoDB's purge are too many. 1 000 000.
    pub history: u64,
    /// A write-ahead log of SQLite of so many bytes is too large. 64 MiB: it is emptied at 4 MiB where nobody hinders it.
    pub log_bytes: u64,
    /// An event that has been due so long and is held by nobody is overdue. 30 s: a relay looks every second, and a
    /// sink that rests is probed that often.
    pub overdue: Duration,
    /// Where the oldest due event is so old, deliveries are behind although somebody works. 5 minutes.
    pub behind: Duration,
    /// A lease that ended so long ago and was not taken again is orphaned. 1 minute: a relay takes it within seconds.
    pub orphaned: Duration,
    /// A lock on the whole table that lasts so long holds everything up. 2 s.
    pub locked: Duration,
    /// Clocks that differ so much are worth a warning. 1 s.
    pub skew: Duration,
    /// Clocks that differ so much are a fault. 1 minute: delays are off by as much, and receivers of signed webhooks
    /// refuse what is five minutes off.
    pub wrong_clock: Duration,
    /// How long one look may take. 10 s.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            old_transaction: Duration::from_secs(300),
            held_back: 1_000_000,
            dead_rows: 100_000,
            history: 1_000_000,
            log_bytes: 64 << 20,
            overdue: Duration::from_secs(30),
            behind: Duration::from_secs(300),
            orphaned: Duration::from_secs(60),
            locked: Duration::from_secs(2),
            skew: Duration::from_secs(1),
            wrong_clock: Duration::from_secs(60),
            patience: Duration::from_secs(10),
        }
    }
}

/// What was found at one table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The table.
    pub table: TableName,
    /// The kind of database it is in.
    pub dialect: Dialect,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Of these findings, the worst first; what is equally bad stays in its order.
    pub fn new(table: TableName, dialect: Dialect, findings: Vec<Finding>) -> Self {
        let mut report = Self { table, dialect, findings };
        report.sort();
        report
    }

    /// Adds what was found elsewhere: of sinks, of a running relay.
    pub fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
        self.sort();
    }

    /// The worst verdict.
    pub fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// Whether nothing is at fault; there may be warnings.
    pub fn is_healthy(&self) -> bool {
        self.verdict() < Verdict::Fault
    }

    /// What was found by this check; several where several things are the matter.
    pub fn of<'a>(&'a self, check: &'a Check) -> impl Iterator<Item = &'a Finding> {
        self.findings.iter().filter(move |finding| finding.check == *check)
    }

    fn sort(&mut self) {
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    }
}

impl Admin {
    /// Looks for every known reason why nothing moves.
    ///
    /// ```
    /// # use posthaste::testing;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let outbox = testing::outbox();
    /// let report = outbox.admin().doctor().await;
    /// for finding in &report.findings {
    ///     println!("{:<8} {}: {}", finding.verdict, finding.check, finding.found);
    /// }
    /// assert!(report.is_healthy());
    /// # }
    /// ```
    pub async fn doctor(&self) -> Report {
        self.doctor_with(&Limits::default()).await
    }

    /// The same with other limits.
    pub async fn doctor_with(&self, limits: &Limits) -> Report {
        let look = Look { admin: self, limits };
        Report::new(self.store.table().clone(), self.store.dialect(), look.all().await)
    }
}

/// One visit.
struct Look<'a> {
    admin: &'a Admin,
    limits: &'a Limits,
}

impl Look<'_> {
    async fn all(&self) -> Vec<Finding> {
        let (before, theirs, after) = match self.clocks().await {
            Ok(clocks) => clocks,
            Err(error) => return vec![Finding::of_error(Check::Database, &error)],
        };
        let mut findings = Vec::new();
        let usable = self.access(Duration::try_from(after - before).unwrap_or_default(), &mut findings).await;
        // Who asks more of a table that is locked as a whole waits with the others.
        let usable = usable && self.migrations(&mut findings).await;
        self.old_transactions(&mut findings).await;
        self.cleanup(&mut findings).await;
        if usable {
            match self.in_time(self.admin.store.mode()).await {
                Ok(Some(Mode::Stream(_))) => self.stream(&mut findings).await,
                Ok(_) => self.queue(&mut findings).await,
                Err(error) => findings.push(self.failed(Check::Relay, &error)),
            }
            self.dead_letters(&mut findings).await;
        }
        findings.push(database::clock(before, theirs, after, self.limits));
        findings
    }

    /// The clocks, as the one of some questions tells that was answered soonest: another may have had to connect first.
    async fn clocks(&self) -> Result<Clocks> {
        let mut soonest = self.ask_clocks().await?;
        for _ in 1..QUESTIONS {
            let clocks = self.ask_clocks().await?;
            if clocks.2 - clocks.0 < soonest.2 - soonest.0 {
                soonest = clocks;
            }
        }
        Ok(soonest)
    }

    async fn ask_clocks(&self) -> Result<Clocks> {
        let before = OffsetDateTime::now_utc();
        let theirs = self.in_time(self.admin.store.now()).await?;
        Ok((before, theirs, OffsetDateTime::now_utc()))
    }

    /// Waits for an answer, but not for ever.
    async fn in_time<A>(&self, asking: impl Future<Output = Result<A>>) -> Result<A> {
        let silence = |_| {
            let message = format!(
                "the database of table {} has not answered within {}",
                self.admin.store.table(),
                finding::length(self.limits.patience)
            );
            Err(Error::new(ErrorKind::Unreachable, message))
        };
        tokio::time::timeout(self.limits.patience, asking).await.unwrap_or_else(silence)
    }

    /// A look that could not be made: what is looked at may be in order. Not so where the database answers, and this look alone
    /// gets no answer: what does not answer a look does not answer a relay.
    fn failed(&self, check: Check, error: &Error) -> Finding {
        let found = format!("this could not be looked at: {}", error.message());
        let advice = match error.kind() {
            ErrorKind::Unreachable => {
                "Look again; if it stays so, somebody has locked what is asked for.".to_owned()
            }
            ErrorKind::AccessDenied | ErrorKind::Database => {
                "Let the role see it: GRANT pg_monitor on PostgreSQL, GRANT PROCESS on MySQL and MariaDB."
                    .to_owned()
            }
            kind => finding::sentence(kind.advice()),
        };
        let verdict = if *error.kind() == ErrorKind::Unreachable { Verdict::Fault } else { Verdict::Warning };
        Finding { error: Some(error.kind().clone()), ..Finding::new(check, verdict, found, advice) }
    }
}
