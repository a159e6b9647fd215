//! Breaks things, as the seed says.
//!
//! What is broken when is known before the run begins: a schedule of two lanes, one for processes and one for what they
//! talk to. The faults of a lane follow each other, those of two lanes overlap. Each is written down with its
//! beginning and end.

mod schedule;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::history::{Fault, Record, Writer, now};
use crate::plan::{Kind, Plan};
use crate::proxy::State;
use crate::recorder::Mood;
pub use schedule::{Strike, schedule};

/// Does all that the schedule says; in the end nothing is broken any more.
pub async fn rage(plan: &Plan, cluster: &Cluster, directory: &Path) -> Result<()> {
    let history = Writer::open(directory, "nemesis")?;
    let began = Instant::now();
    let [processes, surroundings] = schedule(plan);
    let lane = |strikes: Vec<Strike>| {
        let history = &history;
        async move {
            for strike in strikes {
                tokio::time::sleep(strike.at.saturating_sub(began.elapsed())).await;
                let from = now();
                apply(&strike, cluster)
                    .await
                    .with_context(|| format!("{} of {}", strike.kind.name(), strike.whom))?;
                history.write(&Record::Fault(Fault {
                    kind: strike.kind.name().to_owned(),
                    whom: strike.whom,
                    from,
                    until: now(),
                }))?;
            }
            anyhow::Ok(())
        }
    };
    tokio::try_join!(lane(processes), lane(surroundings))?;
    Ok(())
}

/// Breaks something and mends it.
async fn apply(strike: &Strike, cluster: &Cluster) -> Result<()> {
    let Strike { kind, whom, lasts, seed, .. } = strike;
    let mut random = fastrand::Rng::with_seed(*seed);
    match kind {
        Kind::Kill | Kind::KillProducer => cluster.kill(whom, *lasts).await?,
        Kind::Stop => cluster.stop(whom, *lasts).await?,
        Kind::Terminate => drop(cluster.terminate(&mut random).await?),
        Kind::Restart => cluster.restart(*lasts).await?,
        Kind::Broker => cluster.restart_broker(*lasts).await?,
        Kind::Cut => cluster.disturb(whom, State::Cut, *lasts).await?,
        Kind::Hole => cluster.disturb(whom, State::Hole, *lasts).await?,
        Kind::Slow => {
            let wait = std::time::Duration::from_millis(random.u64(5..60));
            cluster.disturb(whom, State::Slow(wait), *lasts).await?;
        }
        Kind::SinkSlow => {
            // Within the time that a relay waits for an answer.
            let wait = std::time::Duration::from_millis(random.u64(50..600));
            cluster.annoy(whom, Mood::Slow(wait), *lasts).await;
        }
        Kind::SinkFailing => {
            let mood = if random.bool() { Mood::Down } else { Mood::Failing };
            cluster.annoy(whom, mood, *lasts).await;
        }
        Kind::SinkLying => {
            let wait = std::time::Duration::from_millis(random.u64(50..600));
            cluster.annoy(whom, Mood::Lying { wait, silent: random.bool() }, *lasts).await;
        }
        Kind::Fill => cluster.fill(whom, random.u64(500..2000), *seed).await?,
    }
    Ok(())
}
