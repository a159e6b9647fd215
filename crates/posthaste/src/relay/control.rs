//! What the relay is to do now: work, rest, or come to an end. Every part watches it.

use tokio::sync::watch;

/// The state that decides whether events are claimed and dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    /// An operator said so.
    pub(super) paused: bool,
    /// Nobody else is to work on this table, or anybody may.
    pub(super) leading: bool,
    /// The end has begun.
    pub(super) stopping: bool,
}

impl State {
    /// Whether events are claimed and dispatched.
    pub(super) fn works(self) -> bool {
        self.leading && !self.paused && !self.stopping
    }
}

/// The state, with everybody who waits for it to change.
#[derive(Debug)]
pub(super) struct Control(watch::Sender<State>);

impl Control {
    pub(super) fn new(paused: bool, leading: bool) -> Self {
        Self(watch::Sender::new(State { paused, leading, stopping: false }))
    }

    pub(super) fn now(&self) -> State {
        *self.0.borrow()
    }

    /// Changes it; whether that made a difference.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) -> bool {
        self.0.send_if_modified(|state| {
            let before = *state;
            change(state);
            *state != before
        })
    }

    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.0.subscribe()
    }

    /// Waits until the end has begun.
    pub(super) async fn stopping(&self) {
        // The sender is `self`: it cannot be gone.
        let _ = self.0.subscribe().wait_for(|state| state.stopping).await;
    }

    /// Waits this long, or until the end has begun; whether it goes on.
    pub(super) async fn sleep(&self, long: std::time::Duration) -> bool {
        tokio::select! {
            () = self.stopping() => false,
            () = tokio::time::sleep(long) => true,
        }
    }
}
