//! What something cost, beside time: bytes of the log, row versions, and time of the processors.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::server::Database;

/// The kernel counts a process's time in hundredths of a second, whatever the machine.
const TICK: Duration = Duration::from_millis(10);

// Versions that were left behind, whether or not anybody has cleaned them up since.
const COUNTERS: &str = "
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8,
       (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::float8 FROM pg_stat_user_tables),
       (SELECT coalesce(sum(n_tup_hot_upd), 0)::float8 FROM pg_stat_user_tables)";

/// Who closes a connection has its counts written at once; who keeps it, within a second.
const COUNTED: Duration = Duration::from_millis(100);

/// Readings at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meter {
    log: f64,
    dead: f64,
    hot: f64,
    server: Duration,
    client: Duration,
}

/// What lies between two readings.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Cost {
    /// Bytes of the write-ahead log.
    pub(crate) log_bytes: f64,
    /// Row versions that were replaced or deleted.
    pub(crate) dead_rows: f64,
    /// Of those, the ones that no index had to follow.
    pub(crate) hot_updates: f64,
    /// Seconds of processors on the server.
    pub(crate) server_seconds: f64,
    /// And in this process.
    pub(crate) client_seconds: f64,
}

impl Meter {
    /// Reads them now.
    pub(crate) async fn read(database: &Database) -> Result<Self> {
        tokio::time::sleep(COUNTED).await;
        let client = database.client().await?;
        let row = client.query_one(COUNTERS, &[]).await?;
        Ok(Self {
            log: row.try_get(0)?,
            dead: row.try_get(1)?,
            hot: row.try_get(2)?,
            server: server_time(database.process())?,
            client: own_time()?,
        })
    }

    /// What there was since then.
    pub(crate) fn since(&self, before: &Self) -> Cost {
        Cost {
            log_bytes: self.log - before.log,
            dead_rows: self.dead - before.dead,
            hot_updates: self.hot - before.hot,
            server_seconds: self.server.saturating_sub(before.server).as_secs_f64(),
            client_seconds: self.client.saturating_sub(before.client).as_secs_f64(),
        }
    }
}

/// The time of this process.
pub(crate) fn own_time() -> Result<Duration> {
    Ok(Times::of("self")?.own)
}

/// The time of a process.
pub(crate) fn time_of(process: u32) -> Result<Duration> {
    Ok(Times::of(&process.to_string())?.own)
}

/// The time of a server: its first process, those that it has started, and those of them that have ended.
pub(crate) fn server_time(first: u32) -> Result<Duration> {
    let times = Times::of(&first.to_string())?;
    let mut total = times.own + times.ended;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        // One that has ended meanwhile is counted the next time.
        if let Ok(times) = Times::of(name)
            && times.parent == first
        {
            total += times.own;
        }
    }
    Ok(total)
}

/// The most memory that this process has held at once.
pub(crate) fn most_memory() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).context("no VmHWM")?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}

/// What `/proc/…/stat` says of a process.
#[derive(Debug, PartialEq, Eq)]
struct Times {
    parent: u32,
    own: Duration,
    /// Of its children that have ended.
    ended: Duration,
}

impl Times {
    fn of(process: &str) -> Result<Self> {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
        Self::parse(&text).with_context(|| format!("/proc/{process}/stat cannot be read: {text}"))
    }

    fn parse(text: &str) -> Option<Self> {
        // The name of the program is in brackets and may hold anything.
        let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u32>().ok();
        Some(Self {
            parent: ticks(1)?,
            own: TICK * (ticks(11)? + ticks(12)?),
            ended: TICK * (ticks(13)? + ticks(14)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_after_the_name() {
        let text = "12 (a (b) c) S 7 12 12 0 -1 4194560 2263 0 0 0 150 50 3 1 20 0 1 0 100 0 0";
        let expected = Times { parent: 7, own: Duration::from_secs(2), ended: Duration::from_millis(40) };
        assert_eq!(Times::parse(text), Some(expected));
        assert_eq!(Times::parse("nothing"), None);
    }

    #[test]
    fn a_process_has_memory_and_time() {
        assert!(most_memory().unwrap() > 100_000);
        let own = own_time().unwrap();
        assert!(server_time(std::process::id()).unwrap() >= own);
    }
}
