//! Pages: what a reader reads at once.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Hold, Seen};
use crate::error::Result;
use crate::event::Event;
use crate::store::Keep;

/// An event as it is read from a lane.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Row {
    /// Its lane, and the right to it.
    pub hold: Hold,
    /// Its place in the table.
    pub sequence: i64,
    /// Its id.
    pub id: Uuid,
    /// When it was written, by the database's clock.
    pub created_at: OffsetDateTime,
    /// Whether it was to be delivered later than it was read.
    pub delayed: bool,
    /// Whether the lane's owner before had it under way when it ended uncleanly.
    pub suspect: bool,
    /// The event, unless it cannot be read.
    pub event: std::result::Result<Arc<Event>, Unreadable>,
}

impl Row {
    /// Its topic, as far as it can be read.
    pub fn topic(&self) -> &str {
        match &self.event {
            Ok(event) => event.topic(),
            Err(unreadable) => &unreadable.topic,
        }
    }
}

/// What is known of an event that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreadable {
    /// Its topic, as far as it can be read.
    pub topic: String,
    /// Why it cannot be read.
    pub reason: String,
}

/// Rows of some lanes in the order they are to be delivered.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Page {
    /// By which number the reader knows it; empty pages have none.
    pub number: u64,
    /// What is in it.
    pub rows: Vec<Row>,
    /// Lanes that turned out to be somebody else's; nothing of them is in the page.
    pub lost: Vec<u16>,
    /// Whether there may be more at once.
    pub more: bool,
}

/// Reads lanes in order, from where they were left. It remembers what is under way: nothing is read twice by the same
/// reader.
#[async_trait]
pub trait Reader: Send {
    /// Begins to read these lanes.
    async fn open(&mut self, holds: &[Hold]) -> Result<()>;

    /// Whether something is still to be read of this lane that its owner before had under way when it ended uncleanly.
    fn has_suspects(&self, _lane: u16) -> bool {
        false
    }

    /// How far it is, if all of its lanes are at the same place and nothing is under way, nor anything else to be done: then
    /// [a beat](super::Stream::beat) can tell whether reading on is worth a statement.
    async fn seen(&mut self) -> Option<Seen> {
        None
    }

    /// Reads no more of these, but remembers what is under way.
    fn leave(&mut self, lanes: &[u16]);

    /// Says that nothing of these lanes is under way, whatever of the pages it was in.
    fn finished(&mut self, lanes: &[u16]);

    /// Reads these no more; what was under way of them is forgotten.
    fn close(&mut self, lanes: &[u16]);

    /// What is to be carried out while nobody asks the reader for anything, such as asking for the next page. Whoever reads sees to that, or
    /// it waits until somebody needs it. Who drops it gives up what the reader knows.
    fn errand(&mut self) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// The end of waiting for a page that the database was asked for before its turn, if it has not answered yet. Whoever
    /// waits for that before reading leaves the reader to others meanwhile.
    fn coming(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// The next rows, at most so many, with a note in the database that they are under way.
    async fn read(&mut self, limit: u32) -> Result<Page>;

    /// Says that these rows of pages were delivered, and which pages have nothing under way any more: all of their
    /// rows were delivered or parked. Answers with the lanes that were refused because their fence is no longer the
    /// holder's; where it is written with the next page, that page or [`flush`](Self::flush) says so. Saying it twice does no harm.
    async fn settle(&mut self, delivered: &[(Hold, i64)], pages: &[u64], keep: Keep) -> Result<Vec<u16>>;

    /// Writes what was settled while a page was on its way, if that has come and nobody has [read](Self::read) it: it would be
    /// written by its note. Answers with the lanes that were refused.
    async fn catch_up(&mut self) -> Result<Vec<u16>> {
        Ok(Vec::new())
    }

    /// Writes down how far everything is, so that nothing that is done would be repeated. Answers with the lanes that
    /// were refused.
    async fn flush(&mut self) -> Result<Vec<u16>>;
}
