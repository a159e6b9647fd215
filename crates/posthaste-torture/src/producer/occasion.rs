//! What a transaction is about: chosen by chance, from the producer's seed.

use std::time::Duration;

use uuid::Uuid;

use super::transaction::Known;
use super::{Orders, Pace};
use crate::plan::{Mix, Sink, Table};

/// Events of one transaction of a producer in a rush.
const RUSH: usize = 100;

/// Characters that escape easily: in JSON, in headers, in SQL.
const AWKWARD: [char; 12] = ['"', '\\', '\'', '%', '$', '{', '}', 'é', 'ß', '→', '𝄞', ' '];

/// A transaction to be.
#[derive(Debug, Clone)]
pub(super) struct Occasion {
    pub(super) aggregate: String,
    pub(super) events: Vec<Draft>,
    /// Enqueued once more, under this id, with the same key for deduplication.
    pub(super) twice: Option<Twice>,
    pub(super) rolls_back: bool,
    pub(super) stays_open: Option<Duration>,
    /// Whether its events are enqueued in one statement.
    pub(super) at_once: bool,
}

/// An event to be; its number comes from the aggregate.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) id: Uuid,
    pub(super) pad: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) poison: bool,
    pub(super) dedupe_key: Option<String>,
}

/// Which event is enqueued a second time.
#[derive(Debug, Clone)]
pub(super) enum Twice {
    /// The first of this transaction.
    Here(Uuid),
    /// One that has committed before: its key, aggregate and number.
    Again(Uuid, String, String, i64),
}

/// An endless supply.
pub(super) struct Occasions {
    random: fastrand::Rng,
    mix: Mix,
    rush: bool,
}

impl Occasions {
    pub(super) fn new(orders: &Orders, worker: u64) -> Self {
        let seed = orders.seed ^ worker.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self {
            random: fastrand::Rng::with_seed(seed),
            mix: orders.mix,
            rush: matches!(orders.pace, Pace::Rush(_)),
        }
    }

    /// Which of so many tables.
    pub(super) fn table(&mut self, tables: usize) -> usize {
        self.random.usize(..tables)
    }

    pub(super) fn next(&mut self, table: &Table, known: &Known) -> Occasion {
        let most = if self.rush { RUSH } else { self.mix.most_events };
        let count = if self.rush { most } else { self.random.usize(1..=most) };
        let twice = self.happens(self.mix.duplicate);
        let mut events: Vec<Draft> = (0..count).map(|_| self.draft(table)).collect();
        let twice = twice.then(|| self.twice(table, known, &mut events[0]));
        Occasion {
            aggregate: self.aggregate(table),
            events,
            twice,
            rolls_back: self.happens(self.mix.roll_back),
            stays_open: self.happens(self.mix.stay_open).then(|| self.length()),
            at_once: self.rush || self.random.bool(),
        }
    }

    /// Some aggregates have most of the events.
    fn aggregate(&mut self, table: &Table) -> String {
        let number = self.random.usize(..table.aggregates).min(self.random.usize(..table.aggregates));
        table.aggregate(number)
    }

    fn twice(&mut self, table: &Table, known: &Known, first: &mut Draft) -> Twice {
        match known.of(&table.name) {
            // Where delivered rows are deleted, the key is free again.
            Some((key, aggregate, number)) if table.keeps() && self.random.bool() => {
                Twice::Again(Uuid::now_v7(), key.clone(), aggregate.clone(), *number)
            }
            _ => {
                first.dedupe_key = Some(format!("key-{}", first.id));
                first.poison = false;
                Twice::Here(Uuid::now_v7())
            }
        }
    }

    fn draft(&mut self, table: &Table) -> Draft {
        let id = Uuid::now_v7();
        let poison = table.sink == Sink::Http && self.happens(self.mix.poison);
        let keyed = !poison && self.random.u32(..4) == 0;
        let headers = vec![
            ("x-event".to_owned(), id.to_string()),
            ("x-note".to_owned(), self.text(12).trim().to_owned() + "."),
        ];
        Draft { id, pad: self.text(60), headers, poison, dedupe_key: keyed.then(|| format!("key-{id}")) }
    }

    fn text(&mut self, most: usize) -> String {
        let length = self.random.usize(..=most);
        let random = &mut self.random;
        let one = || match random.u8(..5) {
            0 => AWKWARD[random.usize(..AWKWARD.len())],
            _ => random.alphanumeric(),
        };
        std::iter::repeat_with(one).take(length).collect()
    }

    fn length(&mut self) -> Duration {
        self.mix.open_for.mul_f64(self.random.f64())
    }

    fn happens(&mut self, of_hundred: u32) -> bool {
        self.random.u32(..100) < of_hundred
    }
}
