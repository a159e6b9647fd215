//! Interceptors: code around every dispatch.

use std::panic::resume_unwind;
use std::sync::Arc;

use async_trait::async_trait;

use super::routes::unanswered;
use super::{Failure, caught, panic_text, redact};
use crate::sink::{Delivery, Outcome, Sink};

/// Code around every dispatch. Each method does nothing unless implemented.
///
/// `before` runs in the order of registration, `after` in reverse. One that fails in `before` fails the
/// dispatch of that event, which then reaches neither the interceptors behind it nor the sink; those before
/// it still see its outcome in `after`. One that fails in `after` is logged: what became of the event stands.
/// A panic is a failure.
///
/// Both run for one event of a batch after the other, within the dispatch's timeout, so they must not wait
/// long. Where that timeout ends a dispatch, `after` is not called.
///
/// ```
/// use posthaste::sink::{Delivery, Outcome};
/// use posthaste::{Failure, Interceptor};
///
/// struct KnownTenants(Vec<String>);
///
/// #[async_trait::async_trait]
/// impl Interceptor for KnownTenants {
///     async fn before(&self, delivery: &Delivery) -> Result<(), Failure> {
///         match delivery.event.tenant_id() {
///             Some(tenant) if self.0.iter().all(|known| known != tenant) => {
///                 Err(Failure::reject("unknown tenant"))
///             }
///             _ => Ok(()),
///         }
///     }
///
///     async fn after(&self, delivery: &Delivery, outcome: &Outcome) -> Result<(), Failure> {
///         println!("{}: {}", delivery.event.id(), *outcome == Outcome::Delivered);
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait Interceptor: Send + Sync + 'static {
    /// Before the event goes to its sink; a failure is what becomes of it.
    async fn before(&self, _delivery: &Delivery) -> Result<(), Failure> {
        Ok(())
    }

    /// After it; only called where this interceptor's `before` succeeded.
    async fn after(&self, _delivery: &Delivery, _outcome: &Outcome) -> Result<(), Failure> {
        Ok(())
    }
}

/// A shared interceptor is an interceptor.
#[async_trait]
impl<I: Interceptor + ?Sized> Interceptor for Arc<I> {
    async fn before(&self, delivery: &Delivery) -> Result<(), Failure> {
        (**self).before(delivery).await
    }

    async fn after(&self, delivery: &Delivery, outcome: &Outcome) -> Result<(), Failure> {
        (**self).after(delivery, outcome).await
    }
}

/// A sink with interceptors around it.
#[derive(Clone)]
pub struct Intercepted {
    /// In the order in which their `before` runs.
    pub interceptors: Vec<Arc<dyn Interceptor>>,
    /// What they stand around.
    pub sink: Arc<dyn Sink>,
}

impl std::fmt::Debug for Intercepted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intercepted").field("interceptors", &self.interceptors.len()).finish_non_exhaustive()
    }
}

/// How far a delivery got.
struct Entry {
    /// How many interceptors let it pass.
    passed: usize,
    /// What one of them said against it.
    refused: Option<Outcome>,
}

#[async_trait]
impl Sink for Intercepted {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        if self.interceptors.is_empty() {
            return self.sink.publish(batch).await;
        }
        let mut entries = Vec::with_capacity(batch.len());
        for delivery in batch {
            entries.push(self.before(delivery).await);
        }
        let (answers, panic) = self.publish_passed(batch, &entries).await;

        let mut answers = answers.into_iter();
        let mut outcomes = Vec::with_capacity(batch.len());
        for (delivery, Entry { passed, refused }) in batch.iter().zip(entries) {
            let outcome = refused.or_else(|| answers.next()).unwrap_or_else(unanswered);
            self.after(delivery, passed, &outcome).await;
            outcomes.push(outcome);
        }
        match panic {
            Some(panic) => resume_unwind(panic),
            None => outcomes,
        }
    }

    fn batch_limit(&self) -> usize {
        self.sink.batch_limit()
    }

    async fn probe(&self) -> Result<(), String> {
        self.sink.probe().await
    }
}

type Panic = Box<dyn std::any::Any + Send>;

impl Intercepted {
    async fn before(&self, delivery: &Delivery) -> Entry {
        for (passed, interceptor) in self.interceptors.iter().enumerate() {
            let refused = match caught(async { interceptor.before(delivery).await }).await {
                Ok(Ok(())) => continue,
                Ok(Err(failure)) => failure.into_outcome(),
                Err(panic) => {
                    Failure::retry(format!("an interceptor {}", panic_text(&*panic))).into_outcome()
                }
            };
            return Entry { passed, refused: Some(refused) };
        }
        Entry { passed: self.interceptors.len(), refused: None }
    }

    /// Publishes those that nobody refused, as one batch. A panic of the sink is answered for too, so that
    /// `after` sees it, and then goes on its way to whoever deals with the sink's panics.
    async fn publish_passed(&self, batch: &[Delivery], entries: &[Entry]) -> (Vec<Outcome>, Option<Panic>) {
        let refused = entries.iter().filter(|entry| entry.refused.is_some()).count();
        if refused == batch.len() {
            return (Vec::new(), None);
        }
        let passed: Vec<Delivery>;
        let published = if refused == 0 {
            batch
        } else {
            let both = batch.iter().zip(entries);
            passed = both.filter(|(_, entry)| entry.refused.is_none()).map(|(d, _)| d.clone()).collect();
            &passed
        };
        match caught(async { self.sink.publish(published).await }).await {
            Ok(answers) => (answers, None),
            Err(panic) => {
                let outcome = Outcome::Retry { after: None, error: panic_text(&*panic) };
                (vec![outcome; published.len()], Some(panic))
            }
        }
    }

    async fn after(&self, delivery: &Delivery, passed: usize, outcome: &Outcome) {
        for interceptor in self.interceptors[..passed].iter().rev() {
            let error = match caught(async { interceptor.after(delivery, outcome).await }).await {
                Ok(Ok(())) => continue,
                Ok(Err(failure)) => failure.message().to_owned(),
                Err(panic) => panic_text(&*panic),
            };
            tracing::error!(
                table = &*delivery.table,
                topic = delivery.event.topic(),
                event_id = %delivery.event.id(),
                sequence = delivery.sequence,
                attempt = delivery.attempt,
                error = redact(&error, &delivery.event),
                "an interceptor failed after the dispatch; what became of the event stands"
            );
        }
    }
}
