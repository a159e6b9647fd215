//! Producer hooks: they see events on their way in, and may change or stop them before they are written.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventRules};

/// What a hook may fail with.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// Code around every write of an outbox. Each method does nothing unless implemented.
///
/// A hook runs inside the producer's transaction, so it must not block. One that fails in `before_write`
/// fails the enqueue, and nothing is written; one that fails or panics later is logged and never breaks the
/// transaction.
///
/// ```
/// use posthaste::event::EventRules;
/// use posthaste::{Event, Hook};
/// use posthaste::produce::HookError;
///
/// struct StampSource;
///
/// impl Hook for StampSource {
///     fn before_write(&self, events: Vec<Event>, rules: &EventRules) -> Result<Vec<Event>, HookError> {
///         let stamp = |event: Event| Ok(event.to_builder().header("source", "shop").build_by(rules)?);
///         events.into_iter().map(stamp).collect()
///     }
/// }
/// ```
pub trait Hook: Send + Sync + 'static {
    /// Before the write: answers with the events to write, changed, fewer or more. What it changes must follow
    /// the outbox's rules.
    fn before_write(&self, events: Vec<Event>, _rules: &EventRules) -> Result<Vec<Event>, HookError> {
        Ok(events)
    }

    /// After the write, before the transaction's end: the events that were written, duplicates not among them.
    fn after_write(&self, _events: &[Event]) -> Result<(), HookError> {
        Ok(())
    }

    /// After the commit, of transactions that know theirs: those of [`Outbox::begin`](super::Outbox::begin),
    /// also in memory. What a savepoint has undone may be among the events.
    fn after_commit(&self, _events: &[Event]) -> Result<(), HookError> {
        Ok(())
    }

    /// After the rollback, of transactions that know theirs: those of [`Outbox::begin`](super::Outbox::begin),
    /// also in memory. A commit that failed counts as one, though it may have succeeded where the connection
    /// broke.
    fn after_rollback(&self, _events: &[Event]) -> Result<(), HookError> {
        Ok(())
    }
}

/// A shared hook is a hook.
impl<H: Hook + ?Sized> Hook for Arc<H> {
    fn before_write(&self, events: Vec<Event>, rules: &EventRules) -> Result<Vec<Event>, HookError> {
        (**self).before_write(events, rules)
    }

    fn after_write(&self, events: &[Event]) -> Result<(), HookError> {
        (**self).after_write(events)
    }

    fn after_commit(&self, events: &[Event]) -> Result<(), HookError> {
        (**self).after_commit(events)
    }

    fn after_rollback(&self, events: &[Event]) -> Result<(), HookError> {
        (**self).after_rollback(events)
    }
}

/// The hooks of an outbox, in the order they were added.
#[derive(Clone, Default)]
pub struct Hooks(Vec<Arc<dyn Hook>>);

impl Hooks {
    pub(super) fn push(&mut self, hook: Arc<dyn Hook>) {
        self.0.push(hook);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn before_write(&self, events: Vec<Event>, rules: &EventRules) -> Result<Vec<Event>> {
        self.0.iter().try_fold(events, |events, hook| {
            hook.before_write(events, rules).map_err(|cause| {
                Error::new(ErrorKind::Hook, format!("a producer hook refused the events ({cause})"))
                    .because(cause)
            })
        })
    }

    pub(super) fn after_write(&self, events: &[Event]) {
        self.after("after_write", events, |hook| hook.after_write(events));
    }

    pub(super) fn after_commit(&self, events: &[Event]) {
        self.after("after_commit", events, |hook| hook.after_commit(events));
    }

    pub(super) fn after_rollback(&self, events: &[Event]) {
        self.after("after_rollback", events, |hook| hook.after_rollback(events));
    }

    fn after(
        &self,
        stage: &'static str,
        events: &[Event],
        call: impl Fn(&dyn Hook) -> Result<(), HookError>,
    ) {
        if events.is_empty() {
            return;
        }
        for hook in &self.0 {
            match catch_unwind(AssertUnwindSafe(|| call(&**hook))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::error!(stage, events = events.len(), %error, "a producer hook failed; the events stand as they are")
                }
                Err(_) => tracing::error!(
                    stage,
                    events = events.len(),
                    "a producer hook panicked; the events stand as they are"
                ),
            }
        }
    }
}

/// What hooks are told when a transaction ends: that it has rolled back, unless it is said to have committed.
#[derive(Default)]
pub(super) struct AtEnd(Vec<(Hooks, Vec<Event>)>);

impl AtEnd {
    pub(super) fn push(&mut self, hooks: &Hooks, events: &[Event]) {
        self.0.push((hooks.clone(), events.to_vec()));
    }

    pub(super) fn committed(mut self) {
        for (hooks, events) in self.0.drain(..) {
            hooks.after_commit(&events);
        }
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        for (hooks, events) in self.0.drain(..) {
            hooks.after_rollback(&events);
        }
    }
}
