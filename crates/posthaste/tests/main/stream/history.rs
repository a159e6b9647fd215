//! What was committed, what was delivered, and whether the one follows from the other.
//!
//! Events are told apart by their ids; an aggregate's events have versions that count from 1 in the order of their
//! commits. A version may begin to be delivered when the one before it has been delivered, not earlier: that rules out
//! gaps, inversions and two at the same time.
//!
//! Rows of the contract: SM1.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use posthaste::sink::Delivery;
use posthaste::{Failure, Handler};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

use crate::harness::servers::target;

/// How many deliveries are shown on either side of a violation.
const CONTEXT: usize = 6;

/// The payload of every event here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fact {
    pub aggregate: String,
    pub version: u64,
}

impl Fact {
    pub fn new(aggregate: impl Into<String>, version: u64) -> Self {
        Self { aggregate: aggregate.into(), version }
    }

    pub fn of(delivery: &Delivery) -> Self {
        serde_json::from_slice(delivery.event.payload().bytes()).unwrap()
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} of {}", self.version, self.aggregate)
    }
}

/// Something that happened to a delivery, in the order in which it happened.
#[derive(Debug, Clone)]
struct Entry {
    what: What,
    id: Uuid,
    fact: Fact,
    /// Which relay.
    by: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// It was handed to the handler for the n-th time.
    Begun(u32),
    Delivered,
    Failed,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.fact)?;
        match self.what {
            What::Begun(attempt) => write!(f, "begun, attempt {attempt}")?,
            What::Delivered => f.write_str("delivered")?,
            What::Failed => f.write_str("failed")?,
        }
        write!(f, ", by relay {}", self.by)
    }
}

/// What has happened so far; clones share it.
#[derive(Clone, Default)]
pub struct History {
    state: Arc<Mutex<State>>,
    delivered: Arc<watch::Sender<usize>>,
}

#[derive(Default)]
struct State {
    committed: HashMap<Uuid, Fact>,
    committed_at: HashMap<Uuid, Instant>,
    delivered_at: HashMap<Uuid, Instant>,
    /// Events that an operator has taken out.
    discarded: HashSet<Uuid>,
    entries: Vec<Entry>,
    /// How many of each aggregate.
    commits_of: HashMap<String, usize>,
    deliveries_of: HashMap<String, usize>,
}

impl History {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// These were committed just now.
    pub fn committed(&self, events: impl IntoIterator<Item = (Uuid, Fact)>) {
        let now = Instant::now();
        let mut state = self.state();
        for (id, fact) in events {
            *state.commits_of.entry(fact.aggregate.clone()).or_default() += 1;
            state.committed.insert(id, fact);
            state.committed_at.insert(id, now);
        }
    }

    /// Nobody is to wait for this one.
    pub fn discarded(&self, id: Uuid) {
        self.state().discarded.insert(id);
    }

    pub fn begun(&self, id: Uuid, fact: Fact, attempt: u32, by: usize) {
        self.state().entries.push(Entry { what: What::Begun(attempt), id, fact, by });
    }

    pub fn ended(&self, id: Uuid, fact: Fact, well: bool, by: usize) {
        let mut state = self.state();
        if well && !state.delivered_at.contains_key(&id) {
            state.delivered_at.insert(id, Instant::now());
            *state.deliveries_of.entry(fact.aggregate.clone()).or_default() += 1;
        }
        let what = if well { What::Delivered } else { What::Failed };
        state.entries.push(Entry { what, id, fact, by });
        if well {
            let delivered = state.delivered_at.len();
            drop(state);
            self.delivered.send_modify(|most| *most = delivered.max(*most));
        }
    }

    /// How many events were committed.
    pub fn commits(&self) -> usize {
        self.state().committed.len()
    }

    /// How many of an aggregate.
    pub fn commits_of(&self, aggregate: &str) -> usize {
        self.state().commits_of.get(aggregate).copied().unwrap_or_default()
    }

    /// How many different events were delivered.
    pub fn deliveries(&self) -> usize {
        self.state().delivered_at.len()
    }

    /// Whether this one was.
    pub fn is_delivered(&self, id: Uuid) -> bool {
        self.state().delivered_at.contains_key(&id)
    }

    /// How many different events of an aggregate were delivered.
    pub fn deliveries_of(&self, aggregate: &str) -> usize {
        self.state().deliveries_of.get(aggregate).copied().unwrap_or_default()
    }

    /// How often each relay has begun a delivery.
    pub fn begun_by(&self) -> BTreeMap<usize, usize> {
        let mut begun = BTreeMap::new();
        for entry in self.state().entries.iter().filter(|entry| matches!(entry.what, What::Begun(_))) {
            *begun.entry(entry.by).or_default() += 1;
        }
        begun
    }

    /// The versions of an aggregate in the order in which they were first delivered.
    pub fn versions_of(&self, aggregate: &str) -> Vec<u64> {
        let state = self.state();
        let mut seen = HashSet::new();
        let delivered = state.entries.iter().filter(|entry| entry.what == What::Delivered);
        let of = delivered.filter(|entry| entry.fact.aggregate == aggregate && seen.insert(entry.id));
        of.map(|entry| entry.fact.version).collect()
    }

    /// The attempts at one event that have begun.
    pub fn attempts_at(&self, id: Uuid) -> Vec<u32> {
        let state = self.state();
        let begun = |entry: &Entry| match entry.what {
            What::Begun(attempt) if entry.id == id => Some(attempt),
            _ => None,
        };
        state.entries.iter().filter_map(begun).collect()
    }

    /// Waits until this many different events have been delivered, or until `within` has passed.
    pub async fn wait_for(&self, events: usize, within: Duration) {
        let mut delivered = self.delivered.subscribe();
        let all = delivered.wait_for(|delivered| *delivered >= events);
        if tokio::time::timeout(within, all).await.is_err() {
            panic!(
                "{} of {events} events were delivered within {within:?}: {}",
                self.deliveries(),
                self.verdict()
            );
        }
    }

    /// From commit to the end of the delivery, of what was committed since then by aggregates like this.
    pub fn latencies(&self, since: Instant, of: impl Fn(&str) -> bool) -> Latencies {
        let state = self.state();
        let mut all = Vec::new();
        for (id, at) in state.committed_at.iter().filter(|(_, at)| **at >= since) {
            if of(&state.committed[id].aggregate)
                && let Some(delivered) = state.delivered_at.get(id)
            {
                all.push((at.duration_since(since), delivered.saturating_duration_since(*at)));
            }
        }
        Latencies::new(all)
    }

    /// Judges it; one that is found guilty is written to a file, to be looked at.
    #[track_caller]
    pub fn assert_clean(&self) -> Verdict {
        let verdict = self.verdict();
        println!("{} events by {:?}: {verdict}", self.commits(), self.begun_by());
        if !verdict.is_clean() {
            let path = target().join("tmp").join(format!("history-{}.txt", Uuid::now_v7().simple()));
            let lines: Vec<String> = self.state().entries.iter().map(Entry::to_string).collect();
            std::fs::write(&path, lines.join("\n")).unwrap();
            panic!("{verdict}\nthe whole history: {}", path.display());
        }
        verdict
    }

    /// Judges it.
    pub fn verdict(&self) -> Verdict {
        let state = self.state();
        let mut verdict = Verdict::default();
        let mut aggregates: HashMap<&str, Progress> = HashMap::new();
        for id in &state.discarded {
            if let Some(fact) = state.committed.get(id) {
                aggregates.entry(&fact.aggregate).or_default().done.insert(fact.version);
            }
        }
        for progress in aggregates.values_mut() {
            progress.advance();
        }
        let mut begun: HashSet<Uuid> = HashSet::new();
        for (at, entry) in state.entries.iter().enumerate() {
            if !state.committed.contains_key(&entry.id) {
                if verdict.invented.insert(entry.fact.clone()) && verdict.first.is_none() {
                    let what = format!("{} was delivered and never committed", entry.fact);
                    verdict.first = Some(state.context(at, &what));
                }
                continue;
            }
            let progress = aggregates.entry(&entry.fact.aggregate).or_default();
            match entry.what {
                What::Begun(_) => {
                    verdict.repeats += usize::from(!begun.insert(entry.id));
                    if entry.fact.version > progress.expected {
                        verdict.out_of_order += 1;
                        if verdict.first.is_none() {
                            let what = format!(
                                "{} began before version {} was delivered",
                                entry.fact, progress.expected
                            );
                            verdict.first = Some(state.context(at, &what));
                        }
                    }
                }
                What::Delivered => {
                    progress.done.insert(entry.fact.version);
                    progress.advance();
                }
                What::Failed => {}
            }
        }
        for (id, fact) in &state.committed {
            if !state.delivered_at.contains_key(id) && !state.discarded.contains(id) {
                verdict.lost.insert(fact.clone());
            }
        }
        verdict
    }
}

impl State {
    /// What happened to the aggregate of an entry around it.
    fn context(&self, at: usize, what: &str) -> String {
        let aggregate = &self.entries[at].fact.aggregate;
        let of = |(_, entry): &(usize, &Entry)| entry.fact.aggregate == *aggregate;
        let around: Vec<(usize, &Entry)> = self.entries.iter().enumerate().filter(of).collect();
        let here = around.iter().position(|(index, _)| *index == at).unwrap_or(0);
        let around = &around[here.saturating_sub(CONTEXT)..around.len().min(here + CONTEXT + 1)];
        let mut text = format!("{what}; what happened to {aggregate}:");
        for (index, entry) in around {
            let mark = if *index == at { "→" } else { " " };
            text += &format!("\n {mark} {index}: {entry}");
        }
        text
    }
}

/// How far an aggregate is.
struct Progress {
    /// The lowest version that has not been delivered.
    expected: u64,
    /// Those above it that have.
    done: BTreeSet<u64>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { expected: 1, done: BTreeSet::new() }
    }
}

impl Progress {
    fn advance(&mut self) {
        while self.done.remove(&self.expected) {
            self.expected += 1;
        }
        self.done = self.done.split_off(&self.expected);
    }
}

/// What is wrong with a history.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Committed and never delivered.
    pub lost: BTreeSet<Fact>,
    /// Delivered and never committed.
    pub invented: BTreeSet<Fact>,
    /// Deliveries that began before those before them had ended.
    pub out_of_order: usize,
    /// Deliveries beyond the first of each event: allowed.
    pub repeats: usize,
    /// The first violation, in words.
    first: Option<String>,
}

impl Verdict {
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.invented.is_empty() && self.out_of_order == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, invented, out_of_order, repeats, first } = self;
        write!(f, "{} lost, {} invented, ", lost.len(), invented.len())?;
        write!(f, "{out_of_order} out of order, {repeats} repeated")?;
        if let Some(first) = first {
            write!(f, "\nfirst of all: {first}")?;
        }
        for (what, facts) in [("lost", lost), ("invented", invented)] {
            for fact in facts.iter().take(CONTEXT) {
                write!(f, "\n{what}: {fact}")?;
            }
        }
        Ok(())
    }
}

/// How long events took.
pub struct Latencies {
    /// Of all, the lowest first.
    all: Vec<Duration>,
    /// Of those that were committed in each half second, the lowest first.
    parts: Vec<Vec<Duration>>,
}

impl Latencies {
    const PART: Duration = Duration::from_millis(500);

    /// Since when each was committed, and how long it took.
    fn new(mut latencies: Vec<(Duration, Duration)>) -> Self {
        latencies.sort_by_key(|(_, took)| *took);
        let mut parts = BTreeMap::<u128, Vec<Duration>>::new();
        for (committed, took) in &latencies {
            parts.entry(committed.as_millis() / Self::PART.as_millis()).or_default().push(*took);
        }
        let all = latencies.into_iter().map(|(_, took)| took).collect();
        Self { all, parts: parts.into_values().collect() }
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Below which so many of a hundred are.
    pub fn percentile(&self, percent: usize) -> Duration {
        percentile(&self.all, percent)
    }

    /// The ninety-ninth percentile of most half seconds. The machine stands still now and then, and those who ran at that
    /// moment fare ill whatever they are beside; whoever is held up by something that is there all the time is held up in each.
    pub fn usual(&self) -> Duration {
        let mut parts: Vec<Duration> = self.parts.iter().map(|part| percentile(part, 99)).collect();
        parts.sort();
        percentile(&parts, 75)
    }

    /// That these, beside something that might hold them up, fared about as the others did without it; and, if it holds them up
    /// now and then, not for long.
    #[track_caller]
    pub fn assert_like(&self, alone: &Self, what: &str) {
        let usual = 2 * alone.usual() + Duration::from_millis(25);
        let most = 4 * alone.percentile(99) + Duration::from_millis(250);
        assert!(self.usual() <= usual && self.percentile(99) <= most, "{what}: {self}; without it: {alone}");
    }
}

/// Of sorted ones, below which so many of a hundred are.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most, all] = [50, 99, 100].map(|percent| self.percentile(percent));
        let (count, usual) = (self.count(), self.usual());
        write!(
            f,
            "{count} events: p50 {half:.1?}, p99 {most:.1?}, of most half seconds {usual:.1?}, longest {all:.1?}"
        )
    }
}

/// What a handler answers.
type Answer = Arc<dyn Fn(&Delivery) -> Result<(), Failure> + Send + Sync>;

/// A handler that writes into the history what it is given.
#[derive(Clone)]
pub struct Witness {
    history: History,
    by: usize,
    answer: Answer,
    /// Up to how many microseconds a delivery takes.
    takes: u64,
}

impl Witness {
    pub fn new(history: &History, by: usize) -> Self {
        Self { history: history.clone(), by, answer: Arc::new(|_| Ok(())), takes: 0 }
    }

    pub fn answering(
        mut self,
        answer: impl Fn(&Delivery) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Self {
        self.answer = Arc::new(answer);
        self
    }

    /// Each takes a random time, up to this long.
    pub fn taking(mut self, most: Duration) -> Self {
        self.takes = most.as_micros() as u64;
        self
    }
}

/// Fails some events, always the same, at their first attempts.
pub fn flaky(delivery: &Delivery) -> Result<(), Failure> {
    let lot = delivery.event.id().as_u128() % 100;
    match lot == 0 && delivery.attempt < 3 || lot == 1 && delivery.attempt < 2 {
        true => Err(Failure::retry("not yet")),
        false => Ok(()),
    }
}

#[async_trait]
impl Handler for Witness {
    async fn handle(&self, delivery: &Delivery) -> Result<(), Failure> {
        let (id, fact) = (delivery.event.id(), Fact::of(delivery));
        self.history.begun(id, fact.clone(), delivery.attempt, self.by);
        if self.takes > 0 {
            super::producers::pause(fastrand::u64(..=self.takes)).await;
        }
        let answer = (self.answer)(delivery);
        self.history.ended(id, fact, answer.is_ok(), self.by);
        answer
    }
}

mod tests {
    use super::*;

    /// A history in which these versions of one aggregate were committed and those were delivered.
    fn told(committed: &[u64], delivered: &[u64]) -> History {
        let history = History::default();
        let id = |version: u64| Uuid::from_u128(version.into());
        history.committed(committed.iter().map(|version| (id(*version), Fact::new("a", *version))));
        for version in delivered {
            history.begun(id(*version), Fact::new("a", *version), 1, 0);
            history.ended(id(*version), Fact::new("a", *version), true, 0);
        }
        history
    }

    #[test]
    fn sm1_the_checker_has_nothing_to_say_against_order_and_repeats() {
        let verdict = told(&[1, 2, 3, 4], &[1, 2, 3, 2, 3, 4]).assert_clean();
        assert_eq!(verdict.repeats, 2);
        assert!(
            verdict.to_string().starts_with("0 lost, 0 invented, 0 out of order, 2 repeated"),
            "{verdict}"
        );
    }

    #[test]
    fn sm1_the_checker_finds_a_lost_event() {
        let verdict = told(&[1, 2, 3], &[1, 2]).verdict();
        assert_eq!((verdict.lost, verdict.out_of_order), (BTreeSet::from([Fact::new("a", 3)]), 0));
    }

    #[test]
    fn sm1_the_checker_finds_an_inversion() {
        let verdict = told(&[1, 2, 3], &[1, 3, 2]).verdict();
        assert_eq!((verdict.lost.len(), verdict.out_of_order), (0, 1));
        let words = verdict.to_string();
        assert!(words.contains("version 3 of a began before version 2 was delivered"), "{words}");
        assert!(words.contains("→ 2: version 3 of a begun, attempt 1, by relay 0"), "{words}");
    }

    #[test]
    fn sm1_the_checker_finds_an_invented_event() {
        let verdict = told(&[1, 2], &[1, 2, 3]).verdict();
        assert_eq!(verdict.invented, BTreeSet::from([Fact::new("a", 3)]));
        assert!(
            verdict.to_string().contains("version 3 of a was delivered and never committed"),
            "{verdict}"
        );
    }

    #[test]
    fn sm1_the_checker_finds_a_gap() {
        let verdict = told(&[1, 2, 3, 4], &[1, 3, 4]).verdict();
        assert_eq!((verdict.lost, verdict.out_of_order), (BTreeSet::from([Fact::new("a", 2)]), 2));
        assert!(!told(&[1, 2, 3], &[2, 3]).verdict().is_clean(), "the first is missing");
    }

    #[test]
    fn sm1_the_checker_finds_two_at_the_same_time_and_one_behind_a_failure() {
        let history = told(&[1, 2], &[]);
        let [one, two] = [1, 2].map(|version| (Uuid::from_u128(version.into()), Fact::new("a", version)));
        history.begun(one.0, one.1.clone(), 1, 0);
        history.begun(two.0, two.1.clone(), 1, 0);
        history.ended(one.0, one.1.clone(), true, 0);
        history.ended(two.0, two.1.clone(), true, 0);
        assert_eq!(history.verdict().out_of_order, 1);

        let history = told(&[1, 2], &[]);
        history.begun(one.0, one.1.clone(), 1, 0);
        history.ended(one.0, one.1, false, 0);
        history.begun(two.0, two.1.clone(), 1, 0);
        history.ended(two.0, two.1, true, 0);
        let verdict = history.verdict();
        assert_eq!((verdict.lost.len(), verdict.out_of_order), (1, 1));
    }

    #[test]
    fn sm2_the_checker_does_not_wait_for_what_an_operator_discarded() {
        let history = told(&[1, 2, 3], &[1, 3]);
        assert!(!history.verdict().is_clean());
        history.discarded(Uuid::from_u128(2));
        history.assert_clean();
    }

    #[test]
    fn sm2_latencies_tell_who_is_held_up_from_a_moment_at_which_the_machine_stood_still() {
        let millis = Duration::from_millis;
        // For four seconds one every ten milliseconds, which takes as long as this says of it.
        let of = |takes: fn(u64) -> u64| {
            Latencies::new((0..400).map(|n| (millis(n * 10), millis(takes(n)))).collect())
        };
        let alone = of(|n| 5 + n % 7);
        let stood_still = of(|n| if n < 20 { 200 - 10 * n } else { 5 + n % 7 });
        assert!(stood_still.percentile(99) > 2 * alone.percentile(99) + millis(25));
        stood_still.assert_like(&alone, "one stall");
        let held_up = of(|n| if n % 50 == 0 { 200 } else { 5 });
        let held_up_now_and_then = of(|n| if n % 200 < 10 { 400 } else { 5 });
        for held_up in [held_up, held_up_now_and_then] {
            let assert = std::panic::AssertUnwindSafe(|| held_up.assert_like(&alone, "held up"));
            assert!(std::panic::catch_unwind(assert).is_err(), "{held_up}");
        }
    }
}
