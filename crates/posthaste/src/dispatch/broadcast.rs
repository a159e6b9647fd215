//! Broadcast: several subscribers of one event, as one handler.

use async_trait::async_trait;
use futures_util::future::join_all;

use super::{Failure, Handler, caught, panic_text};
use crate::error::{Error, ErrorKind, Result};
use crate::sink::{Delivery, Outcome};

/// Hands each event to several named subscribers at once; it is handled when all of them have handled it.
///
/// ```
/// use posthaste::sink::Delivery;
/// use posthaste::{Broadcast, Failure, Router};
///
/// async fn mail(_: Delivery) -> Result<(), Failure> { Ok(()) }
/// async fn stock(_: Delivery) -> Result<(), Failure> { Ok(()) }
///
/// let placed = Broadcast::new().subscribe("mail", mail).subscribe("stock", stock);
/// Router::new().topic("order.placed.v1", placed).check()?;
/// # Ok::<_, posthaste::Error>(())
/// ```
///
/// The event is one row with one fate, so whenever it is tried again **all** subscribers are called again,
/// those that had succeeded too, and with each probe while one of them is unavailable likewise: each must
/// be idempotent. Subscribers whose fates must not hang together want an event each.
///
/// One that fails or panics does not keep the others from finishing. What they say is joined
/// (`mail: no such address; stock: timed out`), and what is done about it is what suits all that failed:
///
/// | they say | the event is |
/// |---|---|
/// | all of them rejected | rejected |
/// | all of them unavailable | given back without spending an attempt |
/// | anything else | tried again, after the longest time any of them asked for |
#[derive(Default)]
#[must_use = "a broadcast does nothing until a router or a relay has it"]
pub struct Broadcast {
    subscribers: Vec<(String, Box<dyn Handler>)>,
    /// The first one made.
    mistake: Option<String>,
}

impl Broadcast {
    /// A broadcast without subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a subscriber; the name stands before what it says went wrong. A name taken twice is a mistake
    /// that keeps the relay from starting.
    pub fn subscribe(mut self, name: impl Into<String>, handler: impl Handler) -> Self {
        let name = name.into();
        let mistake = match handler.check() {
            Err(error) => Some(format!("the subscriber {name:?} cannot work: {}", error.message())),
            Ok(()) if self.subscribers.iter().any(|(taken, _)| *taken == name) => {
                Some(format!("two subscribers of a broadcast are named {name:?}"))
            }
            Ok(()) => None,
        };
        self.mistake = self.mistake.take().or(mistake);
        self.subscribers.push((name, Box::new(handler)));
        self
    }
}

impl std::fmt::Debug for Broadcast {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.subscribers.iter().map(|(name, _)| name)).finish()
    }
}

#[async_trait]
impl Handler for Broadcast {
    async fn handle(&self, delivery: &Delivery) -> Result<(), Failure> {
        // The relay asks `check` first; an event must not count as handled by nobody all the same.
        if self.subscribers.is_empty() {
            return Err(Failure::reject(NOBODY));
        }
        let calls = self.subscribers.iter().map(|(name, handler)| async move {
            let failure = match caught(async { handler.handle(delivery).await }).await {
                Ok(Ok(())) => return None,
                Ok(Err(failure)) => failure,
                Err(panic) => Failure::retry(panic_text(&*panic)),
            };
            Some((name.as_str(), failure))
        });
        let failures: Vec<(&str, Failure)> = join_all(calls).await.into_iter().flatten().collect();
        if failures.is_empty() { Ok(()) } else { Err(joined(failures)) }
    }

    fn check(&self) -> Result<()> {
        let mistake = match &self.mistake {
            Some(mistake) => mistake,
            None if self.subscribers.is_empty() => NOBODY,
            None => return Ok(()),
        };
        Err(Error::new(ErrorKind::InvalidSetting, mistake))
    }
}

const NOBODY: &str = "the broadcast has no subscriber";

/// One failure that says what each of them says.
fn joined(failures: Vec<(&str, Failure)>) -> Failure {
    let text: Vec<String> =
        failures.iter().map(|(name, failure)| format!("{name}: {}", failure.message())).collect();
    let text = text.join("; ");
    let outcomes: Vec<Outcome> = failures.into_iter().map(|(_, failure)| failure.into_outcome()).collect();
    if outcomes.iter().all(|outcome| matches!(outcome, Outcome::Reject { .. })) {
        return Failure::reject(text);
    }
    if outcomes.iter().all(|outcome| matches!(outcome, Outcome::Unavailable { .. })) {
        return Failure::unavailable(text);
    }
    let asked_for = |outcome: &Outcome| match outcome {
        Outcome::Retry { after, .. } => *after,
        _ => None,
    };
    match outcomes.iter().filter_map(asked_for).max() {
        Some(after) => Failure::retry_after(after, text),
        None => Failure::retry(text),
    }
}
