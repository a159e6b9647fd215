//! PostgreSQL: a stream that is dumped and restored into another cluster, whose transactions have other numbers.
//!
//! Rows of the contract: SM3.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use posthaste::store::Mode;

use super::fleet::Fleet;
use super::history::History;
use super::producers::{self, Plan, prepare};
use super::{SECOND, done};
use crate::harness::servers::{setting, target};
use crate::harness::{Db, Kind, MINUTE, PrivateServer, Setup, log};

/// Runs a program that is installed beside the server.
fn beside_the_server(program: &str, arguments: &[&str], file: &Path) {
    let server = PathBuf::from(setting("POSTHASTE_TEST_POSTGRES_SERVE"));
    let mut command = Command::new(server.with_file_name(program));
    command.args(arguments).arg("--file").arg(file);
    let done = tokio::task::block_in_place(|| command.output()).unwrap();
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sm3_a_stream_that_is_moved_to_another_cluster_loses_nothing() {
    let history = History::default();
    let plan = |seed, events| Plan { seed, events, writers: 4, rest: SECOND / 1000, long: 0 };
    let dump = target().join("tmp").join(format!("moved-{}.sql", uuid::Uuid::now_v7().simple()));

    let server = PrivateServer::start(Kind::Postgres).await;
    let setup = Setup { mode: Some(Mode::stream(4).unwrap()), ..Setup::default() };
    let db = Arc::new(Db::on_with(&server, setup).await);
    prepare(&db).await;
    let burn = "DO $$ BEGIN FOR i IN 1..20000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    db.execute(burn).await.unwrap();
    let fleet = Fleet::start(&db, &history, 2).await;
    producers::run(&db, &history, plan(1, 1000)).await;
    history.wait_for(history.commits(), MINUTE).await;
    fleet.stop().await;
    producers::run(&db, &history, plan(2, 500)).await;
    let [delivered, undelivered] = [history.deliveries(), history.commits() - history.deliveries()];
    let then = db.number("SELECT pg_current_xact_id()::text::bigint").await;
    beside_the_server("pg_dump", &["--dbname", &server.url(), "--schema", db.place()], &dump);
    let place = db.place().to_owned();
    done(db).await;
    drop(server);

    let server = PrivateServer::start(Kind::Postgres).await;
    beside_the_server("psql", &["--dbname", &server.url(), "--set", "ON_ERROR_STOP=1", "--quiet"], &dump);
    let db = Arc::new(Db::moved(&server, &place).await);
    let now = db.number("SELECT pg_current_xact_id()::text::bigint").await;
    assert!(now < then, "{now} transactions here, {then} there");
    producers::run(&db, &history, plan(3, 300)).await;
    let said = log::watch("outbox");
    let fleet = Fleet::start(&db, &history, 2).await;
    producers::run(&db, &history, plan(4, 300)).await;
    history.wait_for(history.commits(), MINUTE).await;
    fleet.stop().await;
    println!("{delivered} delivered and {undelivered} not when it was moved");
    let verdict = history.assert_clean();
    assert!(verdict.repeats <= 100, "{verdict}");
    assert!(said.lines().iter().any(|line| line.contains("anchor")), "nothing was said of it");

    // From then on it is like any other.
    let fleet = Fleet::start(&db, &history, 1).await;
    producers::run(&db, &history, plan(5, 300)).await;
    history.wait_for(history.commits(), MINUTE).await;
    fleet.stop().await;
    let repeats = verdict.repeats;
    let verdict = history.assert_clean();
    assert_eq!(verdict.repeats, repeats);
    done(db).await;
    std::fs::remove_file(dump).ok();
}
