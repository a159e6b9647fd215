//! What a relay with nothing to do costs. All of them do nothing at the same time, each in a process and a database of
//! its own.

use std::time::Duration;

use anyhow::Result;

use super::{Bench, Scenario};
use crate::child::Relay;
use crate::meter;
use crate::report::{Better, Measured};
use crate::server::Database;

/// After this, everybody has started.
const START: Duration = Duration::from_secs(3);

// Without what asks for it.
const STATEMENTS: &str = "
SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements s
  JOIN pg_database d ON d.oid = s.dbid
 WHERE d.datname = current_database() AND query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE '%pg_stat_activity%'";

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
        before.push(readings(database, relay).await);
    }
    tokio::time::sleep(time).await;
    for ((contender, database, relay), before) in idle.into_iter().zip(before) {
        let measured = match (before, readings(&database, &relay).await) {
            (Ok(before), Ok(after)) => Ok(measured(before, after, time)),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        bench.note(Scenario::Idle, contender, measured);
        // One that does not end by itself is killed.
        relay.end().await.ok();
        bench.server.drop(database).await?;
    }
    Ok(())
}

/// What was read at one time: statements, and seconds of server and relay.
type Readings = (f64, f64, f64);

fn measured(before: Readings, after: Readings, time: Duration) -> Measured {
    let per_minute = 60.0 / time.as_secs_f64();
    Measured {
        case: "nothing to do".to_owned(),
        unit: "statements/min",
        better: Better::Less,
        value: (after.0 - before.0) * per_minute,
        more: vec![
            ("server, % of a core", (after.1 - before.1) * 100.0 / time.as_secs_f64()),
            ("relay, % of a core", (after.2 - before.2) * 100.0 / time.as_secs_f64()),
        ],
    }
}

async fn readings(database: &Database, relay: &Relay) -> Result<Readings> {
    let client = database.client().await?;
    let statements: f64 = client.query_one(STATEMENTS, &[]).await?.try_get(0)?;
    let mut server = Duration::ZERO;
    for row in client.query(CONNECTIONS, &[]).await? {
        let process: i32 = row.try_get(0)?;
        server += meter::time_of(process.unsigned_abs()).unwrap_or_default();
    }
    Ok((statements, server.as_secs_f64(), relay.time()?.as_secs_f64()))
}
