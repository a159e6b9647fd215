//! Breaks things, as the seed says.
//!
//! What is broken when is known before the run begins: a schedule of three lanes, one for processes, one for the ways between
//! them and what they talk to, and one for that. The faults of a lane follow each other, those of two lanes overlap. Each is
//! written down with its beginning and end, if it broke something. What would be late and reach into a calm is left out.
//!
//! The machine itself may stop for a while, which nobody planned: that is written down, too.

mod schedule;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::history::{Fault, Micros, Record, SEPARATOR, Writer, now};
use crate::plan::{Kind, Plan};
use crate::proxy::State;
use crate::recorder::Mood;
pub use schedule::{Strike, schedule};

/// Whom it befalls when everything stood still.
pub const MACHINE: &str = "machine";

/// A clock that is so much late has stood still.
const STALL: Duration = Duration::from_millis(500);

/// Does all that the schedule says; in the end nothing is broken any more.
pub async fn rage(plan: &Plan, cluster: &Cluster, directory: &Path) -> Result<()> {
    let history = Writer::open(directory, "nemesis")?;
    let began = Instant::now();
    let [processes, ways, surroundings] = schedule(plan);
    let lane = |strikes: Vec<Strike>| {
        let history = &history;
        async move {
            for strike in strikes {
                tokio::time::sleep(strike.at.saturating_sub(began.elapsed())).await;
                if !schedule::is_before_the_calm(plan, began.elapsed(), strike.lasts) {
                    continue;
                }
                let (kind, from) = (strike.kind.name().to_owned(), now());
                let befell =
                    apply(&strike, cluster).await.with_context(|| format!("{kind} of {}", strike.whom))?;
                if let Some(whom) = befell {
                    history.write(&Record::Fault(Fault { kind, whom, from, until: now() }))?;
                }
            }
            anyhow::Ok(())
        }
    };
    tokio::try_join!(lane(processes), lane(ways), lane(surroundings))?;
    Ok(())
}

/// Writes down when everything stands still, for ever.
pub async fn watch(directory: PathBuf) -> Result<()> {
    let history = Writer::open(&directory, "machine")?;
    let mut before = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let late = before.elapsed();
        before = Instant::now();
        if late > STALL {
            let (until, late) = (now(), Micros::try_from(late.as_micros())?);
            let (kind, whom) = ("stall".to_owned(), MACHINE.to_owned());
            history.write(&Record::Fault(Fault { kind, whom, from: until - late, until }))?;
        }
    }
}

/// Breaks something and mends it; whom that befell, if anybody.
async fn apply(strike: &Strike, cluster: &Cluster) -> Result<Option<String>> {
    let Strike { kind, whom, lasts, seed, .. } = strike;
    let mut random = fastrand::Rng::with_seed(*seed);
    match kind {
        Kind::Kill | Kind::KillProducer => cluster.kill(whom, *lasts).await?,
        Kind::Stop => cluster.stop(whom, *lasts).await?,
        Kind::Terminate => {
            let names = cluster.terminate(&mut random).await?;
            return Ok((!names.is_empty()).then(|| names.join(SEPARATOR)));
        }
        Kind::Restart => cluster.restart(*lasts).await?,
        Kind::Broker => cluster.restart_broker(*lasts).await?,
        Kind::Cut => cluster.disturb(whom, State::Cut, *lasts).await?,
        Kind::Hole => cluster.disturb(whom, State::Hole, *lasts).await?,
        Kind::Slow => {
            let wait = Duration::from_millis(random.u64(5..60));
            cluster.disturb(whom, State::Slow(wait), *lasts).await?;
        }
        Kind::SinkSlow => {
            // Within the time that a relay waits for an answer.
            let wait = Duration::from_millis(random.u64(50..600));
            cluster.annoy(whom, Mood::Slow(wait), *lasts).await;
        }
        Kind::SinkFailing => {
            let mood = if random.bool() { Mood::Down } else { Mood::Failing };
            cluster.annoy(whom, mood, *lasts).await;
        }
        Kind::SinkLying => {
            let wait = Duration::from_millis(random.u64(50..600));
            cluster.annoy(whom, Mood::Lying { wait, silent: random.bool() }, *lasts).await;
        }
        Kind::WayCut => cluster.disturb_sinks(whom, State::Cut, *lasts).await?,
        Kind::WayHole => cluster.disturb_sinks(whom, State::Hole, *lasts).await?,
        Kind::Fill => {
            let filled = cluster.fill(whom, random.u64(500..2000), *seed).await?;
            return Ok(filled.then(|| whom.clone()));
        }
    }
    Ok(Some(whom.clone()))
}
