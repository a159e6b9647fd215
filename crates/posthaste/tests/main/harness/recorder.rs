//! A handler that writes down what it is given, and a way to wait for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use posthaste::sink::Delivery;
use posthaste::{Failure, Handler};
use tokio::sync::watch;
use uuid::Uuid;

/// What it answers for a delivery.
type Answer = Arc<dyn Fn(&Delivery) -> Result<(), Failure> + Send + Sync>;

/// Records deliveries; clones share what they record.
#[derive(Clone)]
pub struct Recorder {
    state: Arc<Mutex<State>>,
    delivered: Arc<watch::Sender<usize>>,
    answer: Answer,
    takes: Duration,
    /// Whether it only counts, in constant memory.
    counts: bool,
}

#[derive(Default)]
struct State {
    by_event: HashMap<Uuid, usize>,
    under_way: HashMap<Uuid, usize>,
    overlaps: usize,
    order: Vec<(Uuid, u32)>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::answering(|_| Ok(()))
    }
}

impl Recorder {
    pub fn answering(answer: impl Fn(&Delivery) -> Result<(), Failure> + Send + Sync + 'static) -> Self {
        Self {
            state: Arc::default(),
            delivered: Arc::new(watch::Sender::new(0)),
            answer: Arc::new(answer),
            takes: Duration::ZERO,
            counts: false,
        }
    }

    /// One that only counts deliveries.
    pub fn counting() -> Self {
        Self { counts: true, ..Self::default() }
    }

    /// Each event takes this long.
    pub fn taking(mut self, takes: Duration) -> Self {
        self.takes = takes;
        self
    }

    /// Waits until this many different events have been delivered.
    pub async fn wait_for(&self, events: usize) {
        let mut delivered = self.delivered.subscribe();
        let all = delivered.wait_for(|delivered| *delivered >= events);
        if tokio::time::timeout(Duration::from_secs(120), all).await.is_err() {
            panic!("{} of {events} events were delivered", self.events());
        }
    }

    /// How many different events were delivered.
    pub fn events(&self) -> usize {
        self.state.lock().unwrap().by_event.len()
    }

    /// How many deliveries there were beyond the first of each event.
    pub fn repeats(&self) -> usize {
        self.state.lock().unwrap().by_event.values().map(|times| times - 1).sum()
    }

    /// How often an event was begun while it was under way already.
    pub fn overlaps(&self) -> usize {
        self.state.lock().unwrap().overlaps
    }

    /// Every delivery that was begun, with its attempt.
    pub fn begun(&self) -> Vec<(Uuid, u32)> {
        self.state.lock().unwrap().order.clone()
    }
}

#[async_trait]
impl Handler for Recorder {
    async fn handle(&self, delivery: &Delivery) -> Result<(), Failure> {
        if self.counts {
            self.delivered.send_modify(|delivered| *delivered += 1);
            return Ok(());
        }
        let id = delivery.event.id();
        {
            let mut state = self.state.lock().unwrap();
            state.order.push((id, delivery.attempt));
            let under_way = state.under_way.entry(id).or_default();
            *under_way += 1;
            if *under_way > 1 {
                state.overlaps += 1;
            }
        }
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        let answer = (self.answer)(delivery);
        let mut state = self.state.lock().unwrap();
        *state.under_way.entry(id).or_default() -= 1;
        if answer.is_ok() {
            *state.by_event.entry(id).or_default() += 1;
            self.delivered.send_replace(state.by_event.len());
        }
        answer
    }
}
