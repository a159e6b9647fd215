//! A sink that keeps what it is given, for tests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Delivery, Outcome, Sink};

/// What it answers for a delivery.
type Answer = Box<dyn FnMut(&Delivery) -> Outcome + Send>;

/// Keeps every delivery in memory and answers as told; clones share it.
#[derive(Clone, Default)]
pub struct MemorySink {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    delivered: Vec<Delivery>,
    refused: Vec<Delivery>,
    answer: Option<Answer>,
}

impl MemorySink {
    /// A sink that accepts everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// A sink that answers each delivery with what this function says.
    ///
    /// ```
    /// use posthaste::sink::{MemorySink, Outcome};
    ///
    /// let sink = MemorySink::answering(|delivery| match delivery.attempt {
    ///     1 => Outcome::Retry { after: None, error: "not yet".into() },
    ///     _ => Outcome::Delivered,
    /// });
    /// # let _ = sink;
    /// ```
    pub fn answering(answer: impl FnMut(&Delivery) -> Outcome + Send + 'static) -> Self {
        let sink = Self::new();
        sink.lock().answer = Some(Box::new(answer));
        sink
    }

    /// What it has accepted, in order.
    pub fn delivered(&self) -> Vec<Delivery> {
        self.lock().delivered.clone()
    }

    /// What it has answered with anything but success, in order.
    pub fn refused(&self) -> Vec<Delivery> {
        self.lock().refused.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for MemorySink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemorySink").field("delivered", &self.lock().delivered.len()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Sink for MemorySink {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut state = self.lock();
        let State { delivered, refused, answer } = &mut *state;
        let mut outcomes = Vec::with_capacity(batch.len());
        for delivery in batch {
            let outcome = answer.as_mut().map_or(Outcome::Delivered, |answer| answer(delivery));
            let kept = if outcome == Outcome::Delivered { &mut *delivered } else { &mut *refused };
            kept.push(delivery.clone());
            outcomes.push(outcome);
        }
        outcomes
    }
}
