//! A crash at each failpoint in turn, and what is there after it. The matrix is `crash/points.rs`.
//!
//! All cases of a queue or a stream of a database are one test: they wait for leases most of their time, and do so together.

use std::path::Path;
use std::sync::Arc;

use posthaste_torture::checker;
use posthaste_torture::crash::Scenario;
use posthaste_torture::crash::case::{Case, Rig, rules};
use posthaste_torture::crash::child::FEW_ATTEMPTS;
use posthaste_torture::crash::limit::{Life, Limit};
use posthaste_torture::crash::points::cases;
use posthaste_torture::history::Record;
use posthaste_torture::plan::Database;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::servers;

/// Most cases at once: each waits for leases most of its time.
const AT_ONCE: usize = 10;

fn rig(database: Database) -> Rig {
    Rig {
        program: env!("CARGO_BIN_EXE_posthaste-torture").into(),
        server: servers::url(database),
        directory: Path::new(env!("CARGO_TARGET_TMPDIR")).join("crash"),
    }
}

async fn pr2_a_queue_whose_process_dies_between_any_two_steps_loses_and_invents_nothing(database: Database) {
    crash_everywhere(database, &[Scenario::Queue, Scenario::Brief]).await;
}

async fn pr2_a_stream_whose_process_dies_between_any_two_steps_loses_and_invents_nothing(database: Database) {
    crash_everywhere(database, &[Scenario::Stream]).await;
}

/// Crashes at every failpoint that these scenarios get to.
async fn crash_everywhere(database: Database, scenarios: &[Scenario]) {
    let _alone = crate::ALONE.lock().await;
    let rig = Arc::new(rig(database));
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for case in cases(database).into_iter().filter(|case| scenarios.contains(&case.scenario)) {
        let (rig, room) = (Arc::clone(&rig), Arc::clone(&room));
        running.spawn(async move {
            let _turn = room.acquire().await;
            judge(&case, &rig).await
        });
    }
    let broken: Vec<String> = running.join_all().await.into_iter().flatten().collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// An event that fails each time, or ends each process before or after it was tried, dies with all its attempts and no
/// more. It is missed, of course, and dead without having been rejected: nothing else is wrong.
async fn pr2_no_attempt_is_made_or_counted_beyond_the_limit(database: Database) {
    let _alone = crate::ALONE.lock().await;
    let rig = Arc::new(rig(database));
    let mut running = JoinSet::new();
    for scenario in Scenario::ALL {
        for point in [None, Some("publish.leased"), Some("publish.answered")] {
            let (rig, limit) = (Arc::clone(&rig), Limit { database, scenario, point });
            running.spawn(async move { (limit, limit.run(&rig).await) });
        }
    }
    for (limit, life) in running.join_all().await {
        let Life { history, crashes } = life.unwrap_or_else(|error| panic!("{limit:?}: {error:#}"));
        let rows = history.records.iter().filter_map(|record| match record {
            Record::Row(row) => Some((row.attempts, row.outcome.as_deref())),
            _ => None,
        });
        assert_eq!(rows.collect::<Vec<_>>(), [(FEW_ATTEMPTS.into(), Some("dead"))], "{limit:?}");
        let found = checker::check(&history, &limit.rules());
        let rules: Vec<&str> = found.iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, ["lost", "dead"], "{limit:?}: {found:#?}");
        // What a stream reads of a page is tried there before anything is counted.
        let uncounted = u32::from(limit.scenario == Scenario::Stream);
        let most = if limit.point.is_some() { FEW_ATTEMPTS + uncounted } else { 0 };
        assert_eq!(crashes, most, "{limit:?}");
    }
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
    ($($test:ident,)+) => {
        $(mod $test {
            use super::*;

            #[tokio::test]
            async fn postgres() {
                super::$test(Database::Postgres).await;
            }

            #[tokio::test]
            async fn mysql() {
                super::$test(Database::MySql).await;
            }

            #[tokio::test]
            async fn mariadb() {
                super::$test(Database::MariaDb).await;
            }

            #[tokio::test]
            async fn sqlite() {
                super::$test(Database::Sqlite).await;
            }
        })+
    };
}

on_each_database!(
    pr2_a_queue_whose_process_dies_between_any_two_steps_loses_and_invents_nothing,
    pr2_a_stream_whose_process_dies_between_any_two_steps_loses_and_invents_nothing,
    pr2_no_attempt_is_made_or_counted_beyond_the_limit,
);
