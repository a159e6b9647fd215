//! The trace an event belongs to: W3C `traceparent` and `tracestate`, put into its headers.

#[cfg(feature = "opentelemetry-0_33")]
mod opentelemetry;

use std::sync::Arc;

use crate::event::Event;

/// Header names of the W3C Trace Context.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// The current trace, as the W3C Trace Context writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// `00-<trace id>-<span id>-<flags>`.
    pub traceparent: String,
    /// What vendors add; empty for nothing.
    pub tracestate: String,
}

/// Where to ask for the current trace.
#[derive(Clone)]
pub(super) struct Source(Option<Arc<dyn Fn() -> Option<TraceContext> + Send + Sync>>);

impl Source {
    pub(super) fn new(current: impl Fn() -> Option<TraceContext> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(current)))
    }

    /// Adds the current trace to events that have none of their own; whether it changed any.
    pub(super) fn add_to(&self, events: &mut [Event]) -> bool {
        let Some(current) = &self.0 else { return false };
        let mut bare = events.iter_mut().filter(|event| !event.headers.contains_key(TRACEPARENT)).peekable();
        if bare.peek().is_none() {
            return false;
        }
        let Some(context) = current() else { return false };
        for event in bare {
            event.headers.insert(TRACEPARENT.to_owned(), context.traceparent.clone());
            if context.tracestate.is_empty() {
                event.headers.remove(TRACESTATE);
            } else {
                event.headers.insert(TRACESTATE.to_owned(), context.tracestate.clone());
            }
        }
        true
    }
}

/// OpenTelemetry's current span, where that feature is on.
impl Default for Source {
    #[cfg(feature = "opentelemetry-0_33")]
    fn default() -> Self {
        Self::new(opentelemetry::current)
    }

    #[cfg(not(feature = "opentelemetry-0_33"))]
    fn default() -> Self {
        Self(None)
    }
}
