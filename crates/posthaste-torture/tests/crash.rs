//! A crash at each failpoint in turn, and what is there after it. The matrix is `crash/points.rs`.

use std::path::Path;
use std::sync::Arc;

use posthaste_torture::checker;
use posthaste_torture::crash::case::{Case, Rig, rules};
use posthaste_torture::crash::points::POINTS;
use posthaste_torture::plan::Database;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::servers;

/// Most cases at once: each waits for leases most of its time.
const AT_ONCE: usize = 4;

/// Crashes at every failpoint of these steps.
async fn crash_at(database: Database, steps: &[&str]) {
    let rig = Arc::new(Rig {
        program: env!("CARGO_BIN_EXE_posthaste-torture").into(),
        server: servers::url(database),
        directory: Path::new(env!("CARGO_TARGET_TMPDIR")).join("crash"),
    });
    let points = POINTS.iter().filter(|point| steps.contains(&point.step()) && point.is_on(database));
    let cases = points.flat_map(|point| {
        point.scenarios.iter().map(|scenario| Case { database, scenario: *scenario, point: point.name })
    });
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for case in cases {
        let (rig, room) = (Arc::clone(&rig), Arc::clone(&room));
        running.spawn(async move {
            let _turn = room.acquire().await;
            judge(&case, &rig).await
        });
    }
    assert!(!running.is_empty(), "no failpoint is of {steps:?}");
    let broken: Vec<String> = running.join_all().await.into_iter().flatten().collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// What was broken in a case, if anything: then its directory stays.
async fn judge(case: &Case, rig: &Rig) -> Option<String> {
    let directory = case.directory(rig);
    let found = match case.run(rig).await {
        Err(error) => format!("{error:#}"),
        Ok(history) => {
            let found = checker::check(&history, &rules(case.scenario));
            found.iter().map(|violation| format!("{violation}\n")).collect()
        }
    };
    if found.is_empty() {
        std::fs::remove_dir_all(&directory).ok();
        return None;
    }
    Some(format!("{case:?}, history in {}:\n{found}", directory.display()))
}

macro_rules! on_each_database {
    ($($test:ident: $steps:expr;)+) => {
        mod postgres {
            use super::*;
            $(#[tokio::test]
            async fn $test() {
                crash_at(Database::Postgres, &$steps).await;
            })+
        }
        mod mysql {
            use super::*;
            $(#[tokio::test]
            async fn $test() {
                crash_at(Database::MariaDb, &$steps).await;
            })+
        }
        mod sqlite {
            use super::*;
            $(#[tokio::test]
            async fn $test() {
                crash_at(Database::Sqlite, &$steps).await;
            })+
        }
    };
}

on_each_database! {
    pr2_a_migration_that_dies_is_gone_on_with: ["migrate"];
    pr2_a_producer_that_dies_loses_and_invents_nothing: ["enqueue", "commit"];
    pr2_a_relay_that_dies_while_it_claims_or_publishes_loses_nothing: ["claim", "publish"];
    pr2_a_relay_that_dies_while_it_renews_or_settles_loses_nothing: ["renew", "settle"];
    pr2_a_purge_that_dies_is_gone_on_with: ["purge"];
    pr2_a_relay_that_dies_while_it_owns_lanes_or_reads_them_loses_nothing: ["lanes", "page"];
    pr2_a_relay_that_dies_while_events_are_parked_loses_nothing: ["park", "parked", "place"];
}
