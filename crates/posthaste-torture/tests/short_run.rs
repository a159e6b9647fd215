//! Short runs with everything in them, on each database.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use posthaste_torture::nemesis::schedule;
use posthaste_torture::plan::{Calm, Database, Kind, Plan};
use posthaste_torture::run::run;

/// Runs a plan, and demands that nothing was lost, invented, out of order or stuck. The history of one that fails is kept.
async fn survives(plan: Plan) {
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("torture-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&directory).unwrap();
    let _alone = crate::ALONE.lock().await;
    let planned: HashSet<Kind> = schedule(&plan).concat().iter().map(|strike| strike.kind).collect();
    assert_eq!(
        planned,
        plan.possible_faults().into_iter().collect(),
        "seed {} has every kind of fault",
        plan.seed
    );
    let told = format!("seed {}, history in {}", plan.seed, directory.display());
    println!("{told}");
    let verdict = run(&plan, &directory, &|line| println!("{line}")).await.expect(&told);
    println!("{}", verdict.report);
    let wrong = [&verdict.complaints[..], &verdict.violations[..]].concat();
    assert!(wrong.is_empty(), "{told}: {wrong:#?}");
    let report = &verdict.report;
    assert!(report.committed > 1000 && report.fault_count() >= 10, "nothing much has happened: {report}");
    std::fs::remove_dir_all(directory).unwrap();
}

fn plan(database: Database, seed: u64, seconds: u64) -> Plan {
    let mut plan = Plan::new(database, seed, Duration::from_secs(seconds));
    // Everything is several times slower than in earnest.
    plan.events_per_second = 80;
    // Twice as long as a fault is felt, nearly: some deliveries have no excuse at all.
    plan.calm = Calm { every: Duration::from_secs(30), lasts: Duration::from_secs(14) };
    // One that is stuck says so before it is ended.
    plan.patience = Duration::from_secs(60);
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn pr2_nothing_is_lost_under_fire_on_postgres() {
    survives(plan(Database::Postgres, 3, 46)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pr2_nothing_is_lost_under_fire_on_mysql() {
    survives(plan(Database::MySql, 6, 46)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pr2_nothing_is_lost_under_fire_on_mariadb() {
    survives(plan(Database::MariaDb, 4, 46)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pr2_nothing_is_lost_under_fire_on_sqlite() {
    survives(plan(Database::Sqlite, 5, 46)).await;
}
