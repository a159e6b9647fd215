//! The history by event, by what is leased and by time, made once for all rules.

use std::collections::HashMap;

use uuid::Uuid;

use super::Rules;
use super::faults::Faults;
use super::sessions::Sessions;
use crate::history::{Answer, Change, Delivery, Ending, History, Intent, Leased, Micros, Record, Row};

/// The history, indexed.
pub(super) struct Index<'a> {
    pub(super) rules: &'a Rules,
    pub(super) events: HashMap<Uuid, Event<'a>>,
    pub(super) faults: Faults<'a>,
    pub(super) sessions: Sessions<'a>,
    /// The changes of each event and lane, in their order.
    changes: HashMap<(&'a str, Leased), Vec<&'a Change>>,
    /// When lanes got a new fence, by table and in the order of time.
    fences: HashMap<&'a str, Vec<Micros>>,
    /// The first event of an aggregate that the others of it wait behind for ever.
    blocked: HashMap<(&'a str, &'a str), i64>,
}

/// A business row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Business<'a> {
    pub(super) table: &'a str,
    pub(super) aggregate: &'a str,
    pub(super) number: i64,
}

/// All that is known of an event but for its changes.
#[derive(Debug, Default)]
pub(super) struct Event<'a> {
    /// What its producer wrote; the first time, if it tried several times.
    pub(super) intent: Option<&'a Intent>,
    /// How its transaction ended, as far as its producer knows.
    pub(super) ending: Option<Ending>,
    pub(super) business: Option<Business<'a>>,
    pub(super) row: Option<&'a Row>,
    /// In the order of time.
    pub(super) deliveries: Vec<&'a Delivery>,
    /// Whether it was dead at some time.
    pub(super) died: bool,
}

impl<'a> Index<'a> {
    pub(super) fn of(history: &'a History, rules: &'a Rules) -> Self {
        let mut index = Self {
            rules,
            events: HashMap::new(),
            faults: Faults::of(history, rules),
            sessions: Sessions::default(),
            changes: HashMap::new(),
            fences: HashMap::new(),
            blocked: HashMap::new(),
        };
        history.records.iter().for_each(|record| index.add(record));
        index.changes.values_mut().for_each(|changes| changes.sort_by_key(|change| change.number));
        index.fences.values_mut().for_each(|times| times.sort_unstable());
        index.events.values_mut().for_each(|event| event.deliveries.sort_by_key(|delivery| delivery.at));
        if rules.blocks {
            index.block();
        }
        index
    }

    fn add(&mut self, record: &'a Record) {
        match record {
            Record::Intent(intent) => self.event(intent.event).intend(intent),
            Record::Outcome { event, how, .. } => self.event(*event).end(*how),
            Record::Delivery(delivery) => self.event(delivery.event).deliveries.push(delivery),
            Record::Row(row) => {
                let event = self.event(row.event);
                event.died |= is_dead(row.outcome.as_deref());
                event.row = Some(row);
            }
            Record::Business { event, table, aggregate, number } => {
                self.event(*event).business = Some(Business { table, aggregate, number: *number });
            }
            Record::Change(change) => {
                self.sessions.learn(change);
                if let Leased::Event(event) = change.of
                    && is_dead(change.after.outcome.as_deref())
                {
                    self.event(event).died = true;
                }
                if matches!(change.of, Leased::Lane(_)) && change.after.fence > change.before.fence {
                    self.fences.entry(&change.table).or_default().push(change.at);
                }
                self.changes.entry((&change.table, change.of)).or_default().push(change);
            }
            Record::Fault(_) => {}
        }
    }

    fn event(&mut self, event: Uuid) -> &mut Event<'a> {
        self.events.entry(event).or_default()
    }

    fn block(&mut self) {
        let poison = self.events.values().filter(|event| event.is_meant());
        let poison = poison.filter_map(|event| event.intent.filter(|intent| intent.poison));
        for intent in poison.filter(|intent| self.rules.is_stream(&intent.table)) {
            let first = self.blocked.entry((&intent.table, &intent.aggregate)).or_insert(intent.number);
            *first = intent.number.min(*first);
        }
    }

    /// Whether an event waits for ever behind one that the sink rejected.
    pub(super) fn is_behind(&self, intent: &Intent) -> bool {
        let first = self.blocked.get(&(intent.table.as_str(), intent.aggregate.as_str()));
        first.is_some_and(|first| intent.number > *first)
    }

    /// The changes of an event in their order.
    pub(super) fn changes_of(&self, table: &'a str, event: Uuid) -> &[&'a Change] {
        self.changes.get(&(table, Leased::Event(event))).map_or(&[], Vec::as_slice)
    }

    /// Whether a lane of a table got a new fence from one moment to another.
    pub(super) fn is_fenced_between(&self, table: &str, from: Micros, until: Micros) -> bool {
        let times = self.fences.get(table).map_or(&[][..], Vec::as_slice);
        times.get(times.partition_point(|at| *at < from)).is_some_and(|at| *at <= until)
    }

    /// The changes of each event, in their order; those of streams, or those of queues.
    pub(super) fn events_changed(&self, streams: bool) -> impl Iterator<Item = (Uuid, &str, &[&'a Change])> {
        self.changes.iter().filter_map(move |((table, of), changes)| match of {
            Leased::Event(event) if self.rules.is_stream(table) == streams => {
                Some((*event, *table, &changes[..]))
            }
            _ => None,
        })
    }

    /// The changes of each lane, in their order.
    pub(super) fn lanes_changed(&self) -> impl Iterator<Item = (i64, &str, &[&'a Change])> {
        self.changes.iter().filter_map(|((table, of), changes)| match of {
            Leased::Lane(lane) => Some((*lane, *table, &changes[..])),
            Leased::Event(_) => None,
        })
    }
}

impl<'a> Event<'a> {
    fn intend(&mut self, intent: &'a Intent) {
        let is_better = |known: &Intent| (intent.duplicate, intent.at) < (known.duplicate, known.at);
        if self.intent.is_none_or(is_better) {
            self.intent = Some(intent);
        }
    }

    /// Of several tries one has committed, or else all that is known was rolled back.
    fn end(&mut self, how: Option<Ending>) {
        if self.ending != Some(Ending::Committed) {
            self.ending = how.or(self.ending);
        }
    }

    /// Whether its transaction has committed: its producer says so, or its business row does.
    pub(super) fn is_committed(&self) -> bool {
        self.business.is_some() || self.ending == Some(Ending::Committed)
    }

    /// Whether it is to be delivered, as far as its transaction is concerned.
    pub(super) fn is_meant(&self) -> bool {
        self.is_committed() && self.intent.is_some_and(|intent| !intent.duplicate)
    }

    /// The deliveries after which a sink had it.
    pub(super) fn accepted(&self) -> impl DoubleEndedIterator<Item = &'a Delivery> + '_ {
        self.deliveries.iter().copied().filter(|delivery| has_it(delivery.answer))
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.accepted().next().is_some()
    }

    pub(super) fn is_rejected(&self) -> bool {
        self.deliveries.iter().any(|delivery| delivery.answer == Answer::Rejected)
    }

    /// Where it is or was meant to be; empty if nobody knows.
    pub(super) fn table(&self) -> &'a str {
        let intent = self.intent.map(|intent| intent.table.as_str());
        let row = || self.row.map(|row| row.table.as_str());
        let business = || self.business.map(|business| business.table);
        intent.or_else(row).or_else(business).unwrap_or_default()
    }

    /// About when it was written.
    pub(super) fn at(&self) -> Micros {
        let intent = self.intent.map(|intent| intent.at);
        intent.or_else(|| Some(self.deliveries.first()?.at)).unwrap_or_default()
    }
}

/// Whether a sink that answers so has the event.
pub(super) fn has_it(answer: Answer) -> bool {
    matches!(answer, Answer::Accepted | Answer::Lied)
}

pub(super) fn is_dead(outcome: Option<&str>) -> bool {
    outcome == Some("dead")
}

pub(super) fn is_delivered(outcome: Option<&str>) -> bool {
    outcome == Some("delivered")
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, rules};
    use super::*;

    #[test]
    fn pr2_an_unknown_end_is_a_commit_where_the_business_row_is_there() {
        let mut story = Story::new();
        let [with, without] = [1, 2].map(|number| story.intend("queue", "a", number));
        story.business(with);
        let (history, rules) = (story.history(), rules());
        let index = Index::of(&history, &rules);
        assert!(index.events[&with].is_committed());
        assert!(!index.events[&without].is_committed());
    }

    #[test]
    fn pr2_of_several_tries_one_has_committed() {
        let mut story = Story::new();
        let event = story.intend("queue", "a", 1);
        story.end(event, Some(Ending::Committed));
        story.end(event, None);
        story.end(event, Some(Ending::RolledBack));
        let (history, rules) = (story.history(), rules());
        assert!(Index::of(&history, &rules).events[&event].is_committed());
    }
}
