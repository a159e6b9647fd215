//! What a relay holds in memory while it delivers a backlog: the most that its process has had at once.

use std::time::Duration;

use anyhow::Result;

use super::{Bench, Scenario};
use crate::child::Relay;
use crate::report::{Better, Measured};

/// Who takes longer is left out.
const PATIENCE: Duration = Duration::from_secs(180);
/// And if it is to be quick.
const LITTLE: Duration = Duration::from_secs(5);

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let backlogs: &[u64] = bench.pick(&[10_000], &[100_000, 1_000_000]);
    for &backlog in backlogs {
        for contender in bench.order(Scenario::Memory, 0) {
            let measured = one(bench, contender, backlog).await;
            bench.note(Scenario::Memory, contender, measured);
        }
    }
    Ok(())
}

async fn one(bench: &Bench, contender: usize, backlog: u64) -> Result<Measured> {
    let database = bench.filled(contender, backlog).await?;
    let relay = Relay::start(bench.contenders[contender].name(), &database, Some(backlog))?;
    let bytes = relay.delivered(bench.patience(contender, LITTLE, PATIENCE)).await;
    bench.server.drop(database).await?;
    Ok(Measured {
        case: format!("a backlog of {backlog}"),
        unit: "MB",
        better: Better::Less,
        value: bytes? as f64 / 1e6,
        more: Vec::new(),
    })
}
