//! The survey: everything that is asked about the table now and then, in one statement where the database can. It gives the gauges of
//! the table and of the relay's queues, at a cost that does not grow with the table, and the difference of the clocks; it
//! tells the other parts whose session is gone, and that there is nothing to claim, so that they need not ask.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `stats_interval` | 5 s | at least as often as anybody scrapes |

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

use super::engine::Engine;
use super::outage::Doing;
use crate::error::Result;
use crate::store::Survey;
use crate::telemetry;

/// Rows counted at most: beyond it a gauge stays at it.
const CAP: u32 = 10_000;
/// The database's clock in an answer that took longer is asked for by itself.
const PRECISE: Duration = Duration::from_millis(20);

/// What other parts want to know of a survey.
#[derive(Debug, Default)]
pub(super) struct Surveyed {
    /// Who holds leases and has no session.
    pub(super) absent: Vec<String>,
    /// Whether others hold leases.
    pub(super) others: bool,
}

/// Looks now and then until the relay stops.
pub(super) async fn run(engine: Arc<Engine>) {
    loop {
        let began = Instant::now();
        match look(&engine).await {
            Ok(()) => engine.outage.over(Doing::Measuring),
            Err(error) => engine.outage.say(Doing::Measuring, &error),
        }
        // By the clock, so that it comes just before the poll whose place it takes.
        let every = engine.settings.stats_every;
        if !engine.control.sleep(every.saturating_sub(began.elapsed()).max(every / 2)).await {
            return;
        }
    }
}

async fn look(engine: &Engine) -> Result<()> {
    let depths = [
        ("hot", &engine.depths.hot),
        ("claimed", &engine.depths.claimed),
        ("running", &engine.depths.running),
        ("settling", &engine.depths.settling),
    ];
    for (queue, depth) in depths {
        telemetry::depth(&engine.table, queue, depth.load(Ordering::Relaxed));
    }
    let (before, asked) = (OffsetDateTime::now_utc(), Instant::now());
    let survey = engine.in_time(engine.store.survey(CAP, &engine.worker())).await?;
    match asked.elapsed() {
        took if took <= PRECISE => engine.set_skew(survey.now - (before + took / 2)),
        _ => measure_skew(engine).await?,
    }
    telemetry::state(&engine.table, &survey.stats);
    if let Some(feed) = engine.feed().await?.stream() {
        telemetry::lag(&engine.table, &survey.lags, &feed.lanes());
    }
    tell(engine, asked, survey);
    Ok(())
}

fn tell(engine: &Engine, asked: Instant, survey: Survey) {
    match survey.present {
        Some(true) => engine.presence.confirm(asked),
        Some(false) => engine.presence.doubt(),
        None => {}
    }
    // A stream's claimer has more to look after than what can be counted.
    if survey.stats.oldest_age.is_none() && (!engine.is_stream() || engine.lull.is_quiet()) {
        engine.see_lull(asked);
    }
    let leases = survey.stats.processing;
    let others = leases.capped || leases.n > engine.leases.count() as u64;
    engine.surveyed.send_replace(Surveyed { absent: survey.absent, others });
}

/// How far the database's clock is from this process's, half a round trip allowed for.
pub(super) async fn measure_skew(engine: &Engine) -> Result<()> {
    let before = OffsetDateTime::now_utc();
    let theirs = engine.in_time(engine.store.now()).await?;
    let ours = before + (OffsetDateTime::now_utc() - before) / 2;
    engine.set_skew(theirs - ours);
    Ok(())
}
