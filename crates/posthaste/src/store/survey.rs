//! A survey: what a relay asks about its table now and then, all at once. A relay with nothing to do asks little else.

use time::OffsetDateTime;

use super::stream::LaneLag;
use super::{Stats, Store, Stream};
use crate::error::Result;

/// How a table stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// The database's clock.
    pub now: OffsetDateTime,
    /// How many events wait, are under way and are dead. Without an oldest one nothing was to be claimed.
    pub stats: Stats,
    /// Of a stream, how far each lane is behind.
    pub lags: Vec<LaneLag>,
    /// Of a queue, who holds leases and has no session, as [`absent_workers`](Store::absent_workers) says.
    pub absent: Vec<String>,
    /// Whether the database knows a session of who asks; `None` where it was not asked or cannot tell.
    pub present: Option<bool>,
}

impl Survey {
    /// Of a table of which nothing else is known.
    pub fn new(now: OffsetDateTime, stats: Stats) -> Self {
        Self { now, stats, lags: Vec::new(), absent: Vec::new(), present: None }
    }

    /// Whether anybody holds a lease.
    pub(crate) fn has_leases(&self) -> bool {
        self.stats.processing.n > 0 || self.stats.processing.capped
    }
}

/// One question after the other, where the database is not asked all at once. A stream is to be named.
pub(crate) async fn piece_by_piece<S: Store + ?Sized>(
    store: &S,
    stream: Option<&dyn Stream>,
    cap: u32,
) -> Result<Survey> {
    let mut survey = Survey::new(store.now().await?, store.stats(cap).await?);
    match stream {
        Some(stream) => survey.lags = stream.lag(cap).await?,
        None if survey.has_leases() => survey.absent = store.absent_workers().await?,
        None => {}
    }
    Ok(survey)
}
