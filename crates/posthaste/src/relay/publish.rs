//! One publish: leases that last, a sink, a timeout.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::outage::Doing;
use super::renew::Held;
use crate::dispatch::{caught, panic_text, unanswered};
use crate::planted::{self, Bug};
use crate::sink::{Delivery, Outcome, Sink};

/// What became of each event of a publish, in order; or what became of the whole.
pub(super) type Answers = Result<Vec<Answer>, Broken>;

/// What became of one event.
pub(super) enum Answer {
    Said(Outcome),
    /// Its lease was lost before it began, or could not be renewed.
    NotStarted,
}

/// A publish that came to no answers.
pub(super) enum Broken {
    Panicked(String),
    TimedOut(Duration),
}

impl Broken {
    /// What happened, as an error's text.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Panicked(said) => said.clone(),
            Self::TimedOut(after) => format!("timed out after {after:?}"),
        }
    }
}

/// Publishes a batch within the timeout, if its leases last that long.
pub(super) async fn publish(
    engine: Arc<Engine>,
    way: usize,
    mut deliveries: Vec<Delivery>,
    held: Vec<Held>,
    probing: bool,
) -> Answers {
    let timeout = engine.settings.timeout;
    let started = startable(&engine, &held, timeout).await;
    let mut at = started.iter();
    deliveries.retain(|_| at.next().copied().unwrap_or(false));
    let mut said = match deliveries.is_empty() {
        true => Vec::new(),
        false if planted::is(Bug::AckBeforePublish) => answered_unheard(&engine, way, &deliveries),
        false => {
            failpoint!("publish.leased");
            let answers = answers_of(&*engine.ways[way].route.sink, &deliveries, timeout, probing);
            let answers = caught(answers).await;
            if planted::is(Bug::DeliverTwice)
                && let Ok(Ok(said)) = &answers
            {
                given_again(&*engine.ways[way].route.sink, &deliveries, said).await;
            }
            failpoint!("publish.answered");
            answers.unwrap_or_else(|panic| Err(Broken::Panicked(panic_text(&*panic))))?
        }
    }
    .into_iter();
    let answers = started
        .into_iter()
        .map(|started| match started {
            false => Answer::NotStarted,
            true => Answer::Said(said.next().unwrap_or_else(unanswered)),
        })
        .collect();
    Ok(answers)
}

/// Which of these leases outlast the timeout, after renewing those that would not.
async fn startable(engine: &Arc<Engine>, held: &[Held], timeout: Duration) -> Vec<bool> {
    let lasting = engine.leases.lasting(timeout);
    let short: Vec<Held> = held.iter().filter(|held| !lasting(held)).cloned().collect();
    if !short.is_empty() {
        // A task of its own: a statement is not to be cut off when the dispatch is.
        let engine = Arc::clone(engine);
        let renewed = tokio::spawn(async move {
            match engine.leases.extend(&engine, &short).await {
                Ok(()) => engine.outage.over(Doing::Renewing),
                Err(error) => engine.outage.say(Doing::Renewing, &error),
            }
        });
        let _ = renewed.await;
    }
    let may = engine.may_dispatch();
    let lasting = engine.leases.lasting(timeout);
    held.iter().map(|held| may && lasting(held) && !held.is_lost()).collect()
}

async fn answers_of(
    sink: &dyn Sink,
    batch: &[Delivery],
    timeout: Duration,
    probing: bool,
) -> Result<Vec<Outcome>, Broken> {
    let publish = async {
        if probing && let Err(error) = sink.probe().await {
            return vec![Outcome::Unavailable { error }; batch.len()];
        }
        sink.publish(batch).await
    };
    match tokio::time::timeout(timeout, publish).await {
        Ok(outcomes) => Ok(outcomes),
        // Where it was unavailable before, silence is no sign that it is back.
        Err(_) if probing => {
            Ok(vec![Outcome::Unavailable { error: Broken::TimedOut(timeout).text() }; batch.len()])
        }
        Err(_) => Err(Broken::TimedOut(timeout)),
    }
}

/// A planted bug: what the sink has accepted is given to it once more, whatever it says to that.
async fn given_again(sink: &dyn Sink, batch: &[Delivery], said: &[Outcome]) {
    let accepted = batch.iter().zip(said).filter(|(_, outcome)| matches!(outcome, Outcome::Delivered));
    let accepted: Vec<Delivery> = accepted.map(|(delivery, _)| delivery.clone()).collect();
    if !accepted.is_empty() {
        drop(sink.publish(&accepted).await);
    }
}

/// A planted bug: what the sink says later is nobody's business.
fn answered_unheard(engine: &Arc<Engine>, way: usize, batch: &[Delivery]) -> Vec<Outcome> {
    let (engine, deliveries) = (Arc::clone(engine), batch.to_vec());
    tokio::spawn(async move { engine.ways[way].route.sink.publish(&deliveries).await });
    vec![Outcome::Delivered; batch.len()]
}
