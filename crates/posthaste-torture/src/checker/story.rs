//! A made-up history, for the rules' tests. Each thing that happens takes a millisecond.

use uuid::Uuid;

use super::{Rules, Violation, check};
use crate::history::{
    Answer, Change, Delivery, Ending, Fault, History, Intent, Leased, Micros, Record, Row, State,
};

pub(super) const MILLI: Micros = 1000;
pub(super) const SECOND: Micros = 1000 * MILLI;
/// How long leases last.
pub(super) const LEASE: Micros = 10 * SECOND;

/// A history that is being told.
pub(super) struct Story {
    records: Vec<Record>,
    now: Micros,
    events: u128,
    changes: i64,
    rules: Rules,
}

/// The rules of a run with a table `stream` that is one, and a sink `http`.
pub(super) fn rules() -> Rules {
    Rules {
        max_attempts: 5,
        lease: LEASE,
        slack: 2 * SECOND,
        streams: vec!["stream".to_owned()],
        blocks: true,
        prompt: vec!["http".to_owned()],
        audited: Vec::new(),
        marked: Vec::new(),
        sinks: Vec::new(),
        servers: vec!["postgres".to_owned()],
    }
}

/// A lease of this holder.
pub(super) fn held(holder: &str, until: Micros, attempts: i64) -> State {
    State { holder: Some(holder.to_owned()), until: Some(until), attempts, ..State::default() }
}

/// Nobody's, with this outcome.
pub(super) fn settled(outcome: &str, attempts: i64) -> State {
    State { outcome: Some(outcome.to_owned()), ..free(attempts) }
}

/// Nobody's, to be claimed.
pub(super) fn free(attempts: i64) -> State {
    State { attempts, ..State::default() }
}

/// No row any more, or not yet.
pub(super) fn gone() -> State {
    State { gone: true, ..State::default() }
}

impl Story {
    pub(super) fn new() -> Self {
        Self { records: Vec::new(), now: 1_000_000 * SECOND, events: 0, changes: 0, rules: rules() }
    }

    pub(super) fn with_rules(change: impl FnOnce(&mut Rules)) -> Self {
        let mut story = Self::new();
        change(&mut story.rules);
        story
    }

    pub(super) fn history(&self) -> History {
        History { records: self.records.clone() }
    }

    pub(super) fn violations(&self) -> Vec<Violation> {
        check(&self.history(), &self.rules)
    }

    /// What one of the rules finds.
    pub(super) fn violations_of(&self, rule: &str) -> Vec<Violation> {
        self.violations().into_iter().filter(|violation| violation.rule == rule).collect()
    }

    /// A rule finds as many violations as there are words, in this order, and says them.
    pub(super) fn assert_found(&self, rule: &str, words: &[&str]) {
        let found = self.violations_of(rule);
        let fits = found.len() == words.len() && found.iter().zip(words).all(|(v, w)| v.what.contains(w));
        assert!(fits, "{rule} should have found {words:?}, not {found:#?}");
    }

    pub(super) fn now(&self) -> Micros {
        self.now
    }

    pub(super) fn wait(&mut self, time: Micros) {
        self.now += time;
    }

    fn tick(&mut self) -> Micros {
        self.now += MILLI;
        self.now
    }

    pub(super) fn write(&mut self, record: Record) {
        self.records.push(record);
    }

    /// A producer is about to end a transaction.
    pub(super) fn intend(&mut self, table: &str, aggregate: &str, number: i64) -> Uuid {
        self.intend_with(table, aggregate, number, |_| {})
    }

    pub(super) fn intend_with(
        &mut self,
        table: &str,
        aggregate: &str,
        number: i64,
        change: impl FnOnce(&mut Intent),
    ) -> Uuid {
        self.events += 1;
        let mut intent = Intent {
            at: self.tick(),
            producer: "producer-1".to_owned(),
            table: table.to_owned(),
            event: Uuid::from_u128(self.events),
            aggregate: aggregate.to_owned(),
            number,
            payload: format!("{{\"aggregate\":\"{aggregate}\",\"number\":{number}}}"),
            headers: vec![("x-number".to_owned(), number.to_string())],
            poison: false,
            duplicate: false,
        };
        change(&mut intent);
        let event = intent.event;
        self.write(Record::Intent(intent));
        event
    }

    pub(super) fn end(&mut self, event: Uuid, how: Option<Ending>) {
        let at = self.tick();
        self.write(Record::Outcome { at, event, how });
    }

    pub(super) fn roll_back(&mut self, event: Uuid) {
        self.end(event, Some(Ending::RolledBack));
    }

    /// The business row of an event.
    pub(super) fn business(&mut self, event: Uuid) {
        let intent = self.intent(event);
        let (table, aggregate, number) = (intent.table.clone(), intent.aggregate.clone(), intent.number);
        self.write(Record::Business { event, table, aggregate, number });
    }

    /// An event whose transaction has committed.
    pub(super) fn commit(&mut self, table: &str, aggregate: &str, number: i64) -> Uuid {
        self.commit_with(table, aggregate, number, |_| {})
    }

    pub(super) fn commit_with(
        &mut self,
        table: &str,
        aggregate: &str,
        number: i64,
        change: impl FnOnce(&mut Intent),
    ) -> Uuid {
        let event = self.intend_with(table, aggregate, number, change);
        self.end(event, Some(Ending::Committed));
        self.business(event);
        event
    }

    /// A committed event that the sink rejects for good.
    pub(super) fn poison(&mut self, table: &str, aggregate: &str, number: i64) -> Uuid {
        self.commit_with(table, aggregate, number, |intent| intent.poison = true)
    }

    /// A committed event that is delivered once.
    pub(super) fn whole_life(&mut self, table: &str, aggregate: &str, number: i64) -> Uuid {
        let event = self.commit(table, aggregate, number);
        if !self.rules.is_stream(table) {
            let lease = held("one#1", self.now + LEASE, 1);
            self.change(event, "relay-1", free(0), lease.clone());
            self.deliver(event, Answer::Accepted);
            self.change(event, "relay-1", lease, settled("delivered", 1));
            self.row(event, "delivered");
        } else {
            // Only what is parked has attempts.
            self.deliver(event, Answer::Accepted);
            self.row_with(event, "delivered", 0);
        }
        event
    }

    fn intent(&self, event: Uuid) -> &Intent {
        let intents = self.records.iter().rev().filter_map(|record| match record {
            Record::Intent(intent) => Some(intent),
            _ => None,
        });
        let mut of_it = intents.filter(|intent| intent.event == event);
        let Some(intent) = of_it.next() else { unreachable!("nobody wrote {event}") };
        intent
    }

    /// The sink `http` is given an event as it was written. Answers with the time.
    pub(super) fn deliver(&mut self, event: Uuid, answer: Answer) -> Micros {
        self.deliver_as(event, answer, |_| {})
    }

    pub(super) fn deliver_as(
        &mut self,
        event: Uuid,
        answer: Answer,
        change: impl FnOnce(&mut Delivery),
    ) -> Micros {
        let at = self.tick();
        let intent = self.intent(event);
        let mut delivery = Delivery {
            at,
            sink: "http".to_owned(),
            by: "relay-1".to_owned(),
            event,
            payload: intent.payload.clone(),
            headers: intent.headers.clone(),
            answer,
        };
        change(&mut delivery);
        self.write(Record::Delivery(delivery));
        at
    }

    /// What is broken from now on for a second.
    pub(super) fn fault(&mut self, kind: &str, whom: &str) {
        let from = self.tick();
        self.wait(SECOND);
        let (kind, whom) = (kind.to_owned(), whom.to_owned());
        self.write(Record::Fault(Fault { kind, whom, from, until: self.now }));
    }

    /// An event's row at the end, with this outcome; `open` is none.
    pub(super) fn row(&mut self, event: Uuid, outcome: &str) {
        self.row_with(event, outcome, 1);
    }

    pub(super) fn row_with(&mut self, event: Uuid, outcome: &str, attempts: i64) {
        let table = self.intent(event).table.clone();
        let outcome = (outcome != "open").then(|| outcome.to_owned());
        self.write(Record::Row(Row { table, event, attempts, outcome }));
    }

    /// A change of an event in the table it was meant for.
    pub(super) fn change(&mut self, event: Uuid, session: &str, before: State, after: State) -> Micros {
        let table = self.intent(event).table.clone();
        self.change_of(&table, Leased::Event(event), session, before, after)
    }

    pub(super) fn change_of(
        &mut self,
        table: &str,
        of: Leased,
        session: &str,
        before: State,
        after: State,
    ) -> Micros {
        let at = self.tick();
        self.changes += 1;
        let (table, session) = (table.to_owned(), session.to_owned());
        self.write(Record::Change(Change { at, number: self.changes, table, of, session, before, after }));
        at
    }
}
