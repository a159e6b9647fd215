//! A bug is found by a whole run, too: relays and producers that are processes of their own, connections through the proxy,
//! and faults, without which the bug would do no harm.

use std::path::Path;
use std::time::Duration;

use posthaste::planted::{self, Bug};
use posthaste_torture::nemesis::schedule;
use posthaste_torture::plan::{Database, Kind, Plan, Sink};
use posthaste_torture::run::run;

/// Queues and a stream, whose sink is the recorder.
fn plan(seed: u64, seconds: u64, faults: &[Kind]) -> Plan {
    let mut plan = Plan::new(Database::Postgres, seed, Duration::from_secs(seconds));
    plan.events_per_second = 60;
    plan.tables.retain(|table| table.sink == Sink::Http);
    plan.faults = faults.to_vec();
    let strikes = schedule(&plan).concat();
    for kind in faults {
        assert!(strikes.iter().any(|strike| strike.kind == *kind), "no {kind:?} in {strikes:?}");
    }
    plan
}

fn env(bug: Bug) -> Vec<(String, String)> {
    vec![(planted::VARIABLE.to_owned(), bug.name().to_owned())]
}

/// Runs a plan in which this process has this bug, and demands that this rule finds it.
async fn is_found(plan: Plan, bug: Bug, whose: &str, rule: &str) {
    let _alone = crate::ALONE.lock().await;
    let name = format!("planted-run-{}", uuid::Uuid::now_v7().simple());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let verdict = run(&plan, &directory, &|line| println!("{line}")).await.unwrap();
    println!("{}", verdict.report);
    let log = std::fs::read_to_string(directory.join(format!("{whose}.log"))).unwrap();
    assert!(log.contains(&bug.confession()), "{whose} was built without its bugs: build with all features");
    let found = verdict.violations.iter().any(|violation| violation.starts_with(&format!("{rule}: ")));
    let shown = verdict.violations.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(found, "no {rule} with seed {} in {}, but:\n{shown}", plan.seed, directory.display());
    std::fs::remove_dir_all(directory).unwrap();
}

/// Whatever is given to a sink that fails counts as delivered.
#[tokio::test(flavor = "multi_thread")]
async fn pr2_a_run_finds_relays_that_acknowledge_before_they_publish() {
    let mut plan = plan(1, 20, &[Kind::Kill, Kind::SinkFailing]);
    plan.relay_env = env(Bug::AckBeforePublish);
    is_found(plan, Bug::AckBeforePublish, "relay-1", "lost").await;
}

/// However many faults are near: nobody has claimed it again.
#[tokio::test(flavor = "multi_thread")]
async fn pr2_a_run_finds_relays_that_deliver_twice() {
    let mut plan = plan(2, 20, &[Kind::Kill, Kind::Stop, Kind::Cut]);
    plan.relay_env = env(Bug::DeliverTwice);
    is_found(plan, Bug::DeliverTwice, "relay-1", "duplicate").await;
}

/// Half of all transactions roll back.
#[tokio::test(flavor = "multi_thread")]
async fn pr2_a_run_finds_producers_that_enqueue_outside_their_transaction() {
    let mut plan = plan(1, 12, &[Kind::Kill, Kind::KillProducer]);
    plan.mix.roll_back = 50;
    plan.producer_env = env(Bug::EnqueueOutsideTransaction);
    is_found(plan, Bug::EnqueueOutsideTransaction, "producer-1", "invented").await;
}
