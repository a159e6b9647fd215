//! What a relay with nothing to do costs. All of them do nothing at the same time, each in a process and a database of
//! its own.

use std::time::Duration;

use anyhow::Result;

use super::{Bench, Scenario, progress};
use crate::child::Relay;
use crate::meter;
use crate::report::{Better, Measured};
use crate::server::Database;

/// After this, everybody has started.
const START: Duration = Duration::from_secs(3);

// Without what asks for it.
const STATEMENTS: &str = "
SELECT calls::float8, query FROM pg_stat_statements s
  JOIN pg_database d ON d.oid = s.dbid
 WHERE d.datname = current_database() AND query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE '%pg_stat_activity%'
 ORDER BY calls DESC";

const RESET: &str =
    "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)";

const CONNECTIONS: &str =
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let time = bench.pick(Duration::from_secs(10), Duration::from_secs(60));
    let mut idle = Vec::new();
    for contender in bench.order(Scenario::Idle, 0) {
        let database = bench.server.create().await?;
        match bench.contenders[contender].set_up(&database).await {
            Ok(installed) => {
                installed.close().await;
                let relay = Relay::start(bench.contenders[contender].name(), &database, None)?;
                idle.push((contender, database, relay));
            }
            Err(error) => bench.note(Scenario::Idle, contender, Err(error)),
        }
    }
    tokio::time::sleep(START).await;
    let mut before = Vec::new();
    for (_, database, relay) in &idle {
        database.client().await?.batch_execute(RESET).await?;
        before.push(times(database, relay).await);
    }
    tokio::time::sleep(time).await;
    for ((contender, database, relay), before) in idle.into_iter().zip(before) {
        let measured = match (before, times(&database, &relay).await) {
            (Ok(before), Ok(after)) => {
                let name = bench.contenders[contender].name();
                statements(&database, name, time).await.map(|count| measured(count, before, after, time))
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        bench.note(Scenario::Idle, contender, measured);
        // One that does not end by itself is killed.
        relay.end().await.ok();
        bench.server.drop(database).await?;
    }
    Ok(())
}

/// Seconds of processors so far, of the server and of the relay.
type Times = (f64, f64);

fn measured(statements: f64, before: Times, after: Times, time: Duration) -> Measured {
    let seconds = time.as_secs_f64();
    Measured {
        case: "nothing to do".to_owned(),
        unit: "statements/min",
        better: Better::Less,
        value: statements * 60.0 / seconds,
        more: vec![
            ("server, % of a core", (after.0 - before.0) * 100.0 / seconds),
            ("relay, % of a core", (after.1 - before.1) * 100.0 / seconds),
        ],
    }
}

/// How many there were; which, is told to who looks on.
async fn statements(database: &Database, name: &str, time: Duration) -> Result<f64> {
    let mut count = 0.0;
    for row in database.client().await?.query(STATEMENTS, &[]).await? {
        let (calls, text): (f64, &str) = (row.try_get(0)?, row.try_get(1)?);
        count += calls;
        let text: Vec<&str> = text.split_whitespace().take(16).collect();
        progress(&format!("  {name}, in {time:?}: {calls:.0} × {}", text.join(" ")));
    }
    Ok(count)
}

async fn times(database: &Database, relay: &Relay) -> Result<Times> {
    let client = database.client().await?;
    let mut server = Duration::ZERO;
    for row in client.query(CONNECTIONS, &[]).await? {
        let process: i32 = row.try_get(0)?;
        server += meter::time_of(process.unsigned_abs()).unwrap_or_default();
    }
    Ok((server.as_secs_f64(), relay.time()?.as_secs_f64()))
}
