//! Standard output as a sink: JSON lines, one event a line.
//!
//! A batch is written and flushed, and then it is delivered: a pipe or a terminal has it. What becomes of it there
//! nobody can acknowledge, so this is for looking, for pipelines that do their own bookkeeping, and for files that
//! the shell has opened. Where events must not be lost, take [`FileSink`](super::FileSink) or a broker.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::envelope::Envelope;
use super::{Delivery, Outcome, Sink};

/// Writes events to standard output as lines of JSON; clones share it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
/// use posthaste::sink::{Format, StdoutSink};
/// use posthaste::{Event, testing};
///
/// let outbox = testing::outbox();
/// let mut tx = outbox.begin();
/// outbox.enqueue(&mut tx, Event::json("order.placed.v1", &serde_json::json!({"total": "9.90"}))?).await?;
/// tx.commit();
/// outbox.deliver(&StdoutSink::new().envelope(Format::Payload)).await?; // {"total":"9.90"}
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct StdoutSink {
    envelope: Envelope,
    target: Arc<Mutex<Target>>,
}

struct Target {
    writer: Box<dyn Write + Send>,
    /// Whether a failure may have left half of a line behind.
    torn: bool,
}

impl Default for StdoutSink {
    fn default() -> Self {
        Self::new()
    }
}

impl StdoutSink {
    /// Standard output.
    pub fn new() -> Self {
        Self::to(io::stdout())
    }

    /// Anything else that lines can be written to, for tests and for pipes of one's own.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        let target = Target { writer: Box::new(writer), torn: false };
        Self { envelope: Envelope::default(), target: Arc::new(Mutex::new(target)) }
    }

    /// What a line is: CloudEvents in one document, unless said otherwise.
    pub fn envelope(mut self, envelope: impl Into<Envelope>) -> Self {
        self.envelope = envelope.into();
        self
    }

    async fn with_target(
        &self,
        work: impl FnOnce(&mut Target) -> io::Result<()> + Send + 'static,
    ) -> Result<(), String> {
        let target = Arc::clone(&self.target);
        // A pipe that nobody reads blocks: not on a thread of the runtime.
        let done = tokio::task::spawn_blocking(move || {
            let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut target).map_err(|error| format!("the output cannot be written to: {error}"))
        });
        done.await.unwrap_or_else(|error| Err(format!("writing did not end: {error}")))
    }
}

impl Target {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.torn {
            self.writer.write_all(b"\n")?;
        }
        self.torn = true;
        self.writer.write_all(lines)?;
        self.writer.flush()?;
        self.torn = false;
        Ok(())
    }
}

impl std::fmt::Debug for StdoutSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StdoutSink").field("envelope", &self.envelope).finish_non_exhaustive()
    }
}

#[async_trait]
impl Sink for StdoutSink {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut lines = Vec::new();
        for delivery in batch {
            self.envelope.line(delivery, &mut lines);
        }
        let outcome = match self.with_target(move |target| target.append(&lines)).await {
            Ok(()) => Outcome::Delivered,
            Err(error) => Outcome::Unavailable { error },
        };
        vec![outcome; batch.len()]
    }

    /// One writer, one batch after the other: all of it, or nothing counts.
    fn keeps_order(&self) -> bool {
        true
    }

    /// Whether it can be flushed: more cannot be asked without writing.
    async fn probe(&self) -> Result<(), String> {
        self.with_target(|target| target.writer.flush()).await
    }
}
