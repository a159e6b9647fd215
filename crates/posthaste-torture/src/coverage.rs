//! Whether a run was one at all: a history in which nothing much happened breaks no promise, and shows nothing.
//!
//! | what is asked for | when |
//! |---|---|
//! | an event of each table that a sink has taken, and one of each producer that has committed | always |
//! | each kind of fault that the schedule has | where it has it twice |
//! | a transaction that rolled back, a deliberate duplicate, poison | where the mix has them, and enough was written |
//!
//! A fault that was planned may be left out: it would reach into a calm, or finds nobody to befall. Enough is written where so
//! many are to be expected that they are not missing by chance, which is `SURELY`.

use std::collections::{BTreeMap, HashSet};

use uuid::Uuid;

use crate::history::{Answer, Ending, Fault, History, Intent, Micros, Record};
use crate::nemesis;
use crate::plan::{Plan, Sink};

/// Of what is expected so often, none comes in one run of a million: e to the power of −14 is less than that.
const SURELY: u64 = 14;

/// What is missing, in words.
pub fn missing(plan: &Plan, history: &History) -> Vec<String> {
    let seen = Seen::of(history);
    let mut missing = Vec::new();
    for table in plan.tables.iter().filter(|table| !seen.tables.contains(&*table.name)) {
        missing.push(format!("no sink has taken an event of {}", table.name));
    }
    for producer in plan.producer_names().iter().filter(|name| !seen.producers.contains(name.as_str())) {
        missing.push(format!("{producer} has committed nothing"));
    }
    let mut planned: BTreeMap<&str, usize> = BTreeMap::new();
    for strike in nemesis::schedule(plan).concat() {
        *planned.entry(strike.kind.name()).or_default() += 1;
    }
    for (kind, times) in planned.into_iter().filter(|(kind, times)| *times > 1 && !seen.kinds.contains(kind))
    {
        missing.push(format!("{kind} was planned {times} times and never struck"));
    }
    missing.extend(missing_of_mix(plan, history, &seen));
    missing
}

/// What is in a history.
#[derive(Default)]
struct Seen<'a> {
    /// The tables of which a sink has an event.
    tables: HashSet<&'a str>,
    /// The producers that have committed something.
    producers: HashSet<&'a str>,
    kinds: HashSet<&'a str>,
    rolled_back: bool,
    duplicate: bool,
    poison: bool,
}

impl<'a> Seen<'a> {
    fn of(history: &'a History) -> Self {
        let mut seen = Self::default();
        let mut taken: HashSet<Uuid> = HashSet::new();
        let mut committed: HashSet<Uuid> = HashSet::new();
        for record in &history.records {
            match record {
                Record::Outcome { how, .. } => seen.rolled_back |= *how == Some(Ending::RolledBack),
                Record::Fault(fault) => drop(seen.kinds.insert(&fault.kind)),
                Record::Business { event, .. } => drop(committed.insert(*event)),
                Record::Delivery(delivery) if delivery.answer == Answer::Accepted => {
                    taken.insert(delivery.event);
                }
                Record::Intent(_) | Record::Delivery(_) | Record::Change(_) | Record::Row(_) => {}
            }
        }
        for intent in intents(history) {
            seen.duplicate |= intent.duplicate;
            seen.poison |= intent.poison;
            if taken.contains(&intent.event) {
                seen.tables.insert(&intent.table);
            }
            if committed.contains(&intent.event) {
                seen.producers.insert(&intent.producer);
            }
        }
        seen
    }
}

fn intents(history: &History) -> impl Iterator<Item = &Intent> {
    history.records.iter().filter_map(|record| match record {
        Record::Intent(intent) => Some(intent),
        _ => None,
    })
}

/// What the producers were to do now and then and never did.
fn missing_of_mix(plan: &Plan, history: &History, seen: &Seen<'_>) -> Vec<String> {
    let mix = plan.mix;
    // At least so many: each has as many events as there can be, and a duplicate.
    let transactions = chances(plan, history, |_| true) / (mix.most_events as u64 + 1);
    let to_http = |intent: &Intent| {
        let table = plan.tables.iter().find(|table| table.name == intent.table);
        !intent.duplicate && table.is_some_and(|table| table.sink == Sink::Http)
    };
    // The first event of a transaction that repeats it is no poison.
    let harmless = u64::from(mix.duplicate.min(100));
    let events = chances(plan, history, to_http) * (100 - harmless) / 100;
    let asked = [
        (seen.rolled_back, transactions, mix.roll_back, "no transaction was rolled back"),
        (seen.duplicate, transactions, mix.duplicate, "no event was enqueued twice on purpose"),
        (seen.poison, events, mix.poison, "there was no event that the sink rejects"),
    ];
    let surely = |chances: u64, of_hundred: u32| chances * u64::from(of_hundred) >= SURELY * 100;
    let missing = asked
        .into_iter()
        .filter(|(is_there, chances, of_hundred, _)| !is_there && surely(*chances, *of_hundred));
    missing
        .map(|(_, chances, of_hundred, what)| {
            format!("{what}, and {of_hundred} of a hundred were to be, of {chances}")
        })
        .collect()
}

/// How many events of these were written by producers in their longest lives: one that is killed begins anew with the same
/// chances, from its seed.
fn chances(plan: &Plan, history: &History, counts: impl Fn(&Intent) -> bool) -> u64 {
    let of_producer = |name: &String| {
        let is_kill = |fault: &Fault| fault.kind.starts_with("kill") && fault.befell(name);
        let mut kills: Vec<Micros> = history
            .records
            .iter()
            .filter_map(|record| match record {
                Record::Fault(fault) if is_kill(fault) => Some(fault.from),
                _ => None,
            })
            .collect();
        kills.sort_unstable();
        let mut lives = vec![0; kills.len() + 1];
        for intent in intents(history).filter(|intent| intent.producer == *name && counts(intent)) {
            lives[kills.partition_point(|at| *at < intent.at)] += 1;
        }
        lives.into_iter().max().unwrap_or(0)
    };
    plan.producer_names().iter().map(of_producer).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::history::Delivery;
    use crate::plan::{Database, Kind};

    fn plan() -> Plan {
        Plan::new(Database::Postgres, 1, Duration::from_secs(300))
    }

    /// Everything that the plan asks for, with this many events of each producer and table.
    fn whole(plan: &Plan, events: u128) -> Vec<Record> {
        let mut records = Vec::new();
        let producers = plan.producer_names();
        for (producer, of_producer) in producers.iter().zip(0..) {
            for (table, of_table) in plan.tables.iter().zip(0..) {
                for number in 0..events {
                    let event = Uuid::from_u128((of_producer * 100 + of_table) * 1_000_000 + number + 1);
                    write(&mut records, producer, &table.name, event, i64::try_from(number).unwrap_or(0));
                }
            }
        }
        for strike in nemesis::schedule(plan).concat() {
            let (kind, whom) = (strike.kind.name().to_owned(), strike.whom);
            records.push(Record::Fault(Fault { kind, whom, from: 0, until: 1 }));
        }
        let Some(Record::Intent(first)) = records.first_mut() else { unreachable!("the first is an intent") };
        (first.poison, first.duplicate) = (true, true);
        records.push(Record::Outcome { at: 0, event: Uuid::nil(), how: Some(Ending::RolledBack) });
        records
    }

    fn write(records: &mut Vec<Record>, producer: &str, table: &str, event: Uuid, at: Micros) {
        let (aggregate, number) = ("a".to_owned(), at + 1);
        records.push(Record::Intent(Intent {
            at,
            producer: producer.to_owned(),
            table: table.to_owned(),
            event,
            aggregate: aggregate.clone(),
            number,
            payload: String::new(),
            headers: Vec::new(),
            poison: false,
            duplicate: false,
        }));
        records.push(Record::Business { event, table: table.to_owned(), aggregate, number });
        records.push(Record::Delivery(Delivery {
            at,
            sink: table.to_owned(),
            by: "relay-1".to_owned(),
            event,
            payload: String::new(),
            headers: Vec::new(),
            answer: Answer::Accepted,
        }));
    }

    fn missing_of(
        plan: &Plan,
        mut records: Vec<Record>,
        keep: impl FnMut(&mut Record) -> bool,
    ) -> Vec<String> {
        records.retain_mut(keep);
        missing(plan, &History { records })
    }

    #[test]
    fn pr2_of_a_run_with_everything_in_it_nothing_is_missing() {
        let plan = plan();
        assert_eq!(missing_of(&plan, whole(&plan, 1000), |_| true), Vec::<String>::new());
        assert_eq!(missing_of(&plan, whole(&plan, 1), |_| true), Vec::<String>::new());
    }

    #[test]
    fn pr2_an_empty_run_lacks_every_table_producer_and_kind_of_fault() {
        let plan = plan();
        let found = missing(&plan, &History::default());
        let kinds: HashSet<&str> = plan.possible_faults().into_iter().map(Kind::name).collect();
        assert_eq!(found.len(), plan.tables.len() + plan.producers.len() + kinds.len(), "{found:#?}");
    }

    #[test]
    fn pr2_a_table_that_no_sink_has_an_event_of_is_missed() {
        let plan = plan();
        for answer in [Answer::Failed, Answer::Rejected] {
            let found = missing_of(&plan, whole(&plan, 2), |record| {
                if let Record::Delivery(delivery) = record
                    && delivery.sink == "swept"
                {
                    delivery.answer = answer;
                }
                true
            });
            assert_eq!(found, ["no sink has taken an event of swept"]);
        }
    }

    #[test]
    fn pr2_a_producer_whose_transactions_all_failed_is_missed() {
        let plan = plan();
        let records = whole(&plan, 2);
        let of_second = |event: &Uuid| (100_000_000..200_000_000).contains(&event.as_u128());
        let found = missing_of(
            &plan,
            records,
            |record| !matches!(record, Record::Business { event, .. } if of_second(event)),
        );
        assert_eq!(found, ["producer-2 has committed nothing"]);
    }

    #[test]
    fn pr2_a_kind_of_fault_that_was_planned_and_never_struck_is_missed() {
        let mut plan = plan();
        let no_broker = |record: &mut Record| !matches!(record, Record::Fault(f) if f.kind == "broker");
        let found = missing_of(&plan, whole(&plan, 2), no_broker);
        let fits =
            |found: &String| found.starts_with("broker was planned") && found.ends_with("never struck");
        assert!(matches!(&found[..], [one] if fits(one)), "{found:?}");
        plan.faults.retain(|kind| *kind != Kind::Broker);
        assert_eq!(missing_of(&plan, whole(&plan, 2), no_broker), Vec::<String>::new());
    }

    #[test]
    fn pr2_a_kind_of_fault_that_was_planned_once_may_be_left_out() {
        let mut plan = plan();
        plan.length = Duration::from_secs(20);
        let planned: Vec<&str> =
            nemesis::schedule(&plan).concat().iter().map(|strike| strike.kind.name()).collect();
        let is_single = |kind: &str| planned.iter().filter(|planned| **planned == kind).count() == 1;
        assert!(planned.iter().any(|kind| is_single(kind)), "{planned:?}");
        let found = missing_of(
            &plan,
            whole(&plan, 2),
            |record| !matches!(record, Record::Fault(fault) if is_single(&fault.kind)),
        );
        assert_eq!(found, Vec::<String>::new());
    }

    /// Without what the mix is to bring.
    fn plain(record: &mut Record) -> bool {
        if let Record::Intent(intent) = record {
            (intent.poison, intent.duplicate) = (false, false);
        }
        !matches!(record, Record::Outcome { .. })
    }

    #[test]
    fn pr2_what_the_mix_has_is_missed_where_it_cannot_be_chance() {
        let mut plan = plan();
        assert_eq!(missing_of(&plan, whole(&plan, 5), plain), Vec::<String>::new());
        let found = missing_of(&plan, whole(&plan, 1000), plain);
        let words = ["was rolled back", "twice on purpose", "that the sink rejects"];
        let fits = found.len() == words.len() && found.iter().zip(words).all(|(f, w)| f.contains(w));
        assert!(fits, "{found:#?}");
        (plan.mix.roll_back, plan.mix.duplicate, plan.mix.poison) = (0, 0, 0);
        assert_eq!(missing_of(&plan, whole(&plan, 1000), plain), Vec::<String>::new());
    }

    #[test]
    fn pr2_what_a_producer_wrote_before_it_was_killed_is_no_chance_more() {
        let plan = plan();
        let mut records = whole(&plan, 100);
        records.retain(|record| !matches!(record, Record::Fault(_)));
        let count = |records: &[Record]| chances(&plan, &History { records: records.to_vec() }, |_| true);
        let of_one = 100 * plan.tables.len() as u64;
        assert_eq!(count(&records), 3 * of_one);
        let (kind, whom) = ("kill_producer".to_owned(), "producer-1".to_owned());
        records.push(Record::Fault(Fault { kind, whom, from: 25, until: 30 }));
        assert_eq!(count(&records), 2 * of_one + 74 * plan.tables.len() as u64);
    }
}
