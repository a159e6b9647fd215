//! The figures of a run, counted in its history.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::history::{Answer, Ending, Fault, History, Micros, Record};
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
    /// Committed events that no sink was ever given.
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
    /// From the end of a fault to the next delivery on each table that it could have touched, from short to long.
    pub recoveries: Vec<Duration>,
}

/// What was seen of an event.
#[derive(Default)]
struct Seen {
    given: bool,
    taken: u32,
}

impl Report {
    pub fn new(plan: &Plan, history: &History) -> Self {
        let mut report = Self::default();
        let mut events: HashMap<Uuid, Seen> = HashMap::new();
        let mut tables: HashMap<Uuid, &str> = HashMap::new();
        let mut deliveries: Vec<(Micros, Uuid)> = Vec::new();
        let mut faults: Vec<&Fault> = Vec::new();
        for record in &history.records {
            match record {
                Record::Intent(intent) => {
                    tables.insert(intent.event, &intent.table);
                    report.repeated += u64::from(intent.duplicate);
                }
                Record::Outcome { how, .. } => match how {
                    Some(Ending::RolledBack) => report.rolled_back += 1,
                    Some(Ending::Committed) => {}
                    None => report.unknown += 1,
                },
                Record::Delivery(delivery) => {
                    report.deliveries += 1;
                    let seen = events.entry(delivery.event).or_default();
                    seen.given = true;
                    if matches!(delivery.answer, Answer::Accepted | Answer::Lied) {
                        report.duplicates += u64::from(seen.taken > 0);
                        seen.taken += 1;
                        deliveries.push((delivery.at, delivery.event));
                    }
                }
                Record::Fault(fault) => faults.push(fault),
                Record::Row(row) => report.dead += u64::from(row.outcome.as_deref() == Some("dead")),
                Record::Business { .. } | Record::Change(_) => {}
            }
        }
        for record in &history.records {
            if let Record::Business { event, table, .. } = record {
                report.committed += 1;
                *report.by_table.entry(table.clone()).or_default() += 1;
                report.losses += u64::from(!events.get(event).is_some_and(|seen| seen.given));
            }
        }
        let times = by_table(deliveries, &tables);
        for fault in faults {
            let of_kind = report.faults.entry(fault.kind.clone()).or_default();
            of_kind.count += 1;
            for table in touched(plan, fault) {
                of_kind.recoveries.extend(times.get(table).and_then(|times| next_after(times, fault.until)));
            }
        }
        for of_kind in report.faults.values_mut() {
            of_kind.recoveries.sort();
        }
        report
    }

    pub fn fault_count(&self) -> u64 {
        self.faults.values().map(|of_kind| of_kind.count).sum()
    }
}

/// When each table's events were taken, in order.
fn by_table<'a>(
    deliveries: Vec<(Micros, Uuid)>,
    tables: &HashMap<Uuid, &'a str>,
) -> HashMap<&'a str, Vec<Micros>> {
    let mut times: HashMap<&str, Vec<Micros>> = HashMap::new();
    for (at, event) in deliveries {
        if let Some(table) = tables.get(&event) {
            times.entry(table).or_default().push(at);
        }
    }
    for times in times.values_mut() {
        times.sort_unstable();
    }
    times
}

/// The tables that a fault can hold up.
fn touched<'a>(plan: &'a Plan, fault: &Fault) -> Vec<&'a str> {
    let of_sink = |name: &str| plan.tables.iter().any(|table| table.name == name);
    let touches = |table: &&crate::plan::Table| match fault.kind.as_str() {
        "broker" => table.sink == Sink::Nats,
        _ if of_sink(&fault.whom) => table.name == fault.whom,
        _ => true,
    };
    plan.tables.iter().filter(touches).map(|table| table.name.as_str()).collect()
}

fn next_after(times: &[Micros], end: Micros) -> Option<Duration> {
    let next = times.get(times.partition_point(|at| *at < end))?;
    Some(Duration::from_micros(u64::try_from(next - end).ok()?))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables: Vec<String> =
            self.by_table.iter().map(|(name, count)| format!("{count} {name}")).collect();
        writeln!(f, "events committed       {:>9}  ({})", self.committed, tables.join(", "))?;
        writeln!(f, "  rolled back          {:>9}", self.rolled_back)?;
        writeln!(f, "  end never learned    {:>9}", self.unknown)?;
        writeln!(f, "  enqueued once more   {:>9}", self.repeated)?;
        writeln!(f, "deliveries             {:>9}", self.deliveries)?;
        writeln!(f, "  duplicates           {:>9}", self.duplicates)?;
        writeln!(f, "dead                   {:>9}", self.dead)?;
        writeln!(f, "losses                 {:>9}", self.losses)?;
        writeln!(
            f,
            "faults                 {:>9}  from a fault's end to the next delivery",
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
    use crate::history::{Delivery, Intent};
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

    #[test]
    fn it_counts_what_was_lost_and_what_came_twice() {
        let plan = Plan::new(Database::Postgres, 1, Duration::from_secs(1));
        let fault = Fault { kind: "kill".to_owned(), whom: "relay-1".to_owned(), from: 10, until: 20 };
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
            Record::Fault(fault),
        ];
        let report = Report::new(&plan, &History { records });
        assert_eq!((report.committed, report.losses, report.duplicates, report.deliveries), (3, 1, 1, 4));
        assert_eq!(report.by_table["kept"], 2);
        let kills = &report.faults["kill"];
        assert_eq!(kills.count, 1);
        assert_eq!(kills.recoveries, [Duration::from_micros(10), Duration::from_micros(500)]);
    }

    #[test]
    fn a_fault_of_a_sink_is_a_matter_of_its_table() {
        let plan = Plan::new(Database::Postgres, 1, Duration::from_secs(1));
        let fault = |kind: &str, whom: &str| Fault {
            kind: kind.to_owned(),
            whom: whom.to_owned(),
            from: 0,
            until: 0,
        };
        assert_eq!(touched(&plan, &fault("sink_slow", "ordered")), ["ordered"]);
        assert_eq!(touched(&plan, &fault("broker", "NATS")), ["brokered"]);
        assert_eq!(touched(&plan, &fault("kill", "relay-1")).len(), 4);
    }
}
