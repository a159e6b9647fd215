//! The figures of a run, counted in its history; what was lost is what the checker says.
//!
//! How long it took to recover from a fault is the time from its end to the next delivery of each whom it befell:
//!
//! | befell | whose next delivery |
//! |---|---|
//! | relays, and producers with relays of their own | theirs, of whatever table |
//! | a table's sink, the broker | by anybody, of the table, or of each table that goes there |
//! | the database's server, the machine | by anybody, of each table |
//! | a table that was filled, a producer that delivers nothing | nobody's |

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::checker::{LOST, Violation};
use crate::history::{Answer, Ending, Fault, History, Micros, Record, SEPARATOR};
use crate::plan::{Plan, Sink};

/// What a run came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub committed: u64,
    pub rolled_back: u64,
    /// Transactions whose end their producer never learned; whether they committed is among the committed.
    pub unknown: u64,
    /// Events enqueued a second time on purpose, which must not be written.
    pub repeated: u64,
    pub deliveries: u64,
    /// Deliveries that a sink has taken although it had taken the event before.
    pub duplicates: u64,
    /// Events that have died, all of them poison if all is well.
    pub dead: u64,
    /// Events that were lost, by the checker's rule.
    pub losses: u64,
    /// Events by table.
    pub by_table: BTreeMap<String, u64>,
    /// Faults by kind.
    pub faults: BTreeMap<String, Faults>,
}

/// The faults of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    pub count: u64,
    /// From the end of a fault to the next delivery of each whom it befell, from short to long.
    pub recoveries: Vec<Duration>,
}

impl Report {
    /// Of a plan's history, in which the checker has found this.
    pub fn new(plan: &Plan, history: &History, violations: &[Violation]) -> Self {
        let losses = violations.iter().filter(|violation| violation.rule == LOST).count();
        let mut report = Self { losses: losses as u64, ..Self::default() };
        let mut taken: HashMap<Uuid, u64> = HashMap::new();
        let mut faults: Vec<&Fault> = Vec::new();
        for record in &history.records {
            match record {
                Record::Intent(intent) => report.repeated += u64::from(intent.duplicate),
                Record::Outcome { how, .. } => match how {
                    Some(Ending::RolledBack) => report.rolled_back += 1,
                    Some(Ending::Committed) => {}
                    None => report.unknown += 1,
                },
                Record::Delivery(delivery) => {
                    report.deliveries += 1;
                    if is_taken(delivery.answer) {
                        let before = taken.entry(delivery.event).or_default();
                        report.duplicates += u64::from(*before > 0);
                        *before += 1;
                    }
                }
                Record::Fault(fault) => faults.push(fault),
                Record::Row(row) => report.dead += u64::from(row.outcome.as_deref() == Some("dead")),
                Record::Business { table, .. } => {
                    report.committed += 1;
                    *report.by_table.entry(table.clone()).or_default() += 1;
                }
                Record::Change(_) => {}
            }
        }
        let times = Times::of(history);
        for fault in faults {
            let of_kind = report.faults.entry(fault.kind.clone()).or_default();
            of_kind.count += 1;
            let next = |of: &Of<'_>| times.next_after(of, fault.until);
            of_kind.recoveries.extend(befallen(plan, fault).iter().filter_map(next));
        }
        for of_kind in report.faults.values_mut() {
            of_kind.recoveries.sort();
        }
        report
    }

    /// What the nemesis has broken: neither a rush of events nor a machine that stood still by itself.
    pub fn fault_count(&self) -> u64 {
        let broken = self.faults.iter().filter(|(kind, _)| !matches!(kind.as_str(), "fill" | "stall"));
        broken.map(|(_, of_kind)| of_kind.count).sum()
    }
}

/// Whose deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Of<'a> {
    Table(&'a str),
    /// Who gave it to the sink.
    Process(&'a str),
}

/// When events were taken, in order.
struct Times<'a>(HashMap<Of<'a>, Vec<Micros>>);

impl<'a> Times<'a> {
    fn of(history: &'a History) -> Self {
        let tables: HashMap<Uuid, &str> = history
            .records
            .iter()
            .filter_map(|record| match record {
                Record::Intent(intent) => Some((intent.event, intent.table.as_str())),
                _ => None,
            })
            .collect();
        let mut times: HashMap<Of<'_>, Vec<Micros>> = HashMap::new();
        for record in &history.records {
            let Record::Delivery(delivery) = record else { continue };
            if !is_taken(delivery.answer) {
                continue;
            }
            times.entry(Of::Process(&delivery.by)).or_default().push(delivery.at);
            if let Some(table) = tables.get(&delivery.event) {
                times.entry(Of::Table(table)).or_default().push(delivery.at);
            }
        }
        times.values_mut().for_each(|times| times.sort_unstable());
        Self(times)
    }

    fn next_after(&self, of: &Of<'_>, end: Micros) -> Option<Duration> {
        let times = self.0.get(of)?;
        let next = times.get(times.partition_point(|at| *at < end))?;
        Some(Duration::from_micros(u64::try_from(next - end).ok()?))
    }
}

/// Whether a sink that answers so has the event.
fn is_taken(answer: Answer) -> bool {
    matches!(answer, Answer::Accepted | Answer::Lied)
}

/// Whose deliveries a fault can hold up.
fn befallen<'a>(plan: &'a Plan, fault: &'a Fault) -> Vec<Of<'a>> {
    let tables = |touches: &dyn Fn(&crate::plan::Table) -> bool| {
        let touched = plan.tables.iter().filter(|table| touches(table));
        touched.map(|table| Of::Table(&table.name)).collect()
    };
    let clients = [plan.relay_names(), plan.producer_names()].concat();
    let named: Vec<&str> = fault.whom.split(SEPARATOR).collect();
    match fault.kind.as_str() {
        "fill" => Vec::new(),
        "broker" => tables(&|table| table.sink == Sink::Nats),
        kind if kind.starts_with("sink") => tables(&|table| table.name == fault.whom),
        _ if named.iter().any(|name| clients.iter().any(|client| client == name)) => {
            named.into_iter().map(Of::Process).collect()
        }
        _ => tables(&|_| true),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables: Vec<String> =
            self.by_table.iter().map(|(name, count)| format!("{count} {name}")).collect();
        writeln!(f, "events committed       {:>9}  ({})", self.committed, tables.join(", "))?;
        writeln!(f, "  rolled back          {:>9}", self.rolled_back)?;
        writeln!(f, "  end never learned    {:>9}", self.unknown)?;
        writeln!(f, "  enqueued once more   {:>9}", self.repeated)?;
        writeln!(f, "given to sinks         {:>9}", self.deliveries)?;
        writeln!(f, "  duplicates           {:>9}", self.duplicates)?;
        writeln!(f, "dead                   {:>9}", self.dead)?;
        writeln!(f, "losses                 {:>9}", self.losses)?;
        writeln!(
            f,
            "faults, without fills  {:>9}  from a fault's end to the next delivery of whom it befell",
            self.fault_count()
        )?;
        for (kind, of_kind) in &self.faults {
            write!(f, "  {kind:<20} {:>9}", of_kind.count)?;
            let all = &of_kind.recoveries;
            match (all.get(all.len() / 2), all.last()) {
                (Some(half), Some(longest)) => writeln!(
                    f,
                    "  p50 {:>6.3} s, longest {:>6.3} s",
                    half.as_secs_f64(),
                    longest.as_secs_f64()
                )?,
                _ => writeln!(f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Delivery, Intent, Leased};
    use crate::plan::Database;

    fn intent(event: u128, table: &str) -> Record {
        Record::Intent(Intent {
            at: 0,
            producer: "producer-1".to_owned(),
            table: table.to_owned(),
            event: Uuid::from_u128(event),
            aggregate: "a".to_owned(),
            number: 1,
            payload: String::new(),
            headers: Vec::new(),
            poison: false,
            duplicate: false,
        })
    }

    fn business(event: u128, table: &str) -> Record {
        let (table, aggregate) = (table.to_owned(), "a".to_owned());
        Record::Business { event: Uuid::from_u128(event), table, aggregate, number: 1 }
    }

    fn delivery(event: u128, at: Micros, answer: Answer) -> Record {
        let (sink, payload) = (String::new(), String::new());
        Record::Delivery(Delivery {
            at,
            sink,
            by: "relay-1".to_owned(),
            event: Uuid::from_u128(event),
            payload,
            headers: Vec::new(),
            answer,
        })
    }

    fn by(name: &str, event: u128, at: Micros) -> Record {
        let mut record = delivery(event, at, Answer::Accepted);
        if let Record::Delivery(delivery) = &mut record {
            delivery.by = name.to_owned();
        }
        record
    }

    fn fault(kind: &str, whom: &str, until: Micros) -> Record {
        let (kind, whom) = (kind.to_owned(), whom.to_owned());
        Record::Fault(Fault { kind, whom, from: 10, until })
    }

    fn plan() -> Plan {
        Plan::new(Database::Postgres, 1, Duration::from_secs(1))
    }

    #[test]
    fn it_counts_what_was_written_and_what_came_twice() {
        let records = vec![
            intent(1, "kept"),
            intent(2, "ordered"),
            business(1, "kept"),
            business(2, "ordered"),
            business(3, "kept"),
            delivery(1, 5, Answer::Failed),
            delivery(1, 15, Answer::Lied),
            delivery(1, 520, Answer::Accepted),
            delivery(2, 30, Answer::Accepted),
        ];
        let report = Report::new(&plan(), &History { records }, &[]);
        assert_eq!((report.committed, report.duplicates, report.deliveries), (3, 1, 4));
        assert_eq!(report.by_table["kept"], 2);
    }

    #[test]
    fn what_was_lost_is_what_the_checker_says() {
        let violation = |rule| Violation {
            rule,
            table: "kept".to_owned(),
            of: Leased::Event(Uuid::from_u128(1)),
            at: 0,
            what: String::new(),
            lines: Vec::new(),
        };
        let violations = [violation(LOST), violation("open"), violation(LOST)];
        assert_eq!(Report::new(&plan(), &History::default(), &violations).losses, 2);
        // What was poison, or was never due, is no loss because nobody has it.
        let records = vec![intent(1, "kept"), business(1, "kept")];
        assert_eq!(Report::new(&plan(), &History { records }, &[]).losses, 0);
    }

    #[test]
    fn whoever_was_struck_has_recovered_with_a_delivery_of_its_own() {
        let records = vec![
            intent(1, "kept"),
            intent(2, "ordered"),
            by("relay-1", 1, 15),
            by("relay-2", 1, 30),
            by("relay-1", 2, 120),
            by("producer-3", 1, 220),
            fault("kill", "relay-1", 20),
            fault("terminate", "relay-1, relay-2, producer-1", 20),
            fault("kill_producer", "producer-3", 20),
            fault("restart", "PostgreSQL", 20),
            fault("restart", "PostgreSQL", 40),
            fault("fill", "producer-3", 20),
        ];
        let report = Report::new(&plan(), &History { records }, &[]);
        let recoveries = |kind: &str| {
            let recoveries = report.faults[kind].recoveries.iter();
            recoveries.map(Duration::as_micros).collect::<Vec<_>>()
        };
        assert_eq!(recoveries("kill"), [100]);
        assert_eq!(recoveries("terminate"), [10, 100]);
        assert_eq!(recoveries("kill_producer"), [200]);
        // Each table for itself.
        assert_eq!(recoveries("restart"), [10, 80, 100, 180]);
        assert_eq!(report.faults["restart"].count, 2);
        assert!(recoveries("fill").is_empty());
    }

    #[test]
    fn a_fault_of_a_sink_is_a_matter_of_its_table() {
        let plan = plan();
        let of = |record: &Record| match record {
            Record::Fault(fault) => {
                befallen(&plan, fault).iter().map(|of| format!("{of:?}")).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        };
        assert_eq!(of(&fault("sink_slow", "ordered", 0)), ["Table(\"ordered\")"]);
        assert_eq!(of(&fault("broker", "NATS", 0)), ["Table(\"brokered\")"]);
        assert_eq!(of(&fault("way_cut", "relay-1", 0)), ["Process(\"relay-1\")"]);
        assert_eq!(of(&fault("stall", "machine", 0)).len(), plan.tables.len());
    }
}
