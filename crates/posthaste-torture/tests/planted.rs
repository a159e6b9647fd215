//! Each bug that can be planted is found, by the rule that is there for it; and the same run without it is found to be right.
//!
//! What a bug needs to do harm is brought about, not waited for: a process is stopped at a failpoint until another has what
//! it had, a transaction commits after one that began later. So a run takes some seconds, and finds the bug every time.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use posthaste::planted::{self, Bug};
use posthaste_torture::checker::{self, Rules, Violation};
use posthaste_torture::crash::case::{Rig, child, rules};
use posthaste_torture::crash::child::{OPEN, Order, Role, SINK};
use posthaste_torture::crash::ground::Ground;
use posthaste_torture::crash::producer::{Draft, Producer};
use posthaste_torture::crash::site::{Site, Tx};
use posthaste_torture::crash::temper::Temper;
use posthaste_torture::crash::{Scenario, TABLE};
use posthaste_torture::history::{Ending, Fault, History, Micros, Record, Writer, now};
use posthaste_torture::plan::Database;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::Instant;
use uuid::Uuid;

use crate::servers;

/// How long a process stands still at a failpoint: long enough to be stopped there.
const STALL: Duration = Duration::from_secs(3);
/// How long another takes over an event: long enough for the first one to go on meanwhile.
const LONG: Duration = Duration::from_secs(4);
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

const STALLED: &str = "stalled";
const OTHER: &str = "other";

/// A database, processes with a bug or without, and what they write down.
struct Stage {
    scenario: Scenario,
    bug: Option<Bug>,
    rig: Rig,
    ground: Ground,
    directory: PathBuf,
    writer: Writer,
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

impl Stage {
    async fn new(scenario: Scenario, bug: Option<Bug>) -> Self {
        let alone = crate::ALONE.lock().await;
        let name = format!("planted-{}", Uuid::now_v7().simple());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let rig = Rig {
            program: env!("CARGO_BIN_EXE_posthaste-torture").into(),
            server: servers::url(Database::Postgres),
            directory: directory.clone(),
        };
        let ground = Ground::make(Database::Postgres, &rig.server, &directory).await.unwrap();
        ground.migrate(scenario).await.unwrap();
        let writer = Writer::open(&directory, "stage").unwrap();
        Self { scenario, bug, rig, ground, directory, writer, _alone: alone }
    }

    /// A process of this name, in which this happens at a failpoint.
    fn start(&self, name: &str, role: Role, failpoint: Option<&str>) -> Child {
        let order = Order {
            url: self.ground.url(name).unwrap(),
            scenario: self.scenario,
            directory: self.directory.clone(),
            name: name.to_owned(),
            role,
        };
        let mut command = child(&self.rig, &order);
        command.stdin(Stdio::piped()).stderr(Stdio::inherit());
        if let Some(bug) = self.bug {
            command.env(planted::VARIABLE, bug.name());
        }
        if let Some(what) = failpoint {
            command.env(posthaste::failpoint::VARIABLE, what);
        }
        command.spawn().unwrap()
    }

    /// A process that does everything, to its end.
    async fn whole(&self) {
        let ended = self.start("child", Role::Whole, None).wait().await.unwrap();
        assert!(ended.success(), "{ended}");
    }

    async fn site(&self) -> Site {
        Site::open(&self.ground.url("producer").unwrap()).await.unwrap()
    }

    /// Commits an event for each of these aggregates.
    async fn write(&self, site: &Site, aggregates: &[&'static str]) {
        let producer = Producer { site, writer: &self.writer, name: "producer" };
        for aggregate in aggregates {
            producer.write(Draft::new(aggregate, Temper::Calm), Ending::Committed).await.unwrap();
        }
    }

    /// How many events this process was given so far.
    fn given_to(&self, name: &str) -> usize {
        let history = History::read(&self.directory).unwrap();
        let is_its = |record: &&Record| matches!(record, Record::Delivery(delivery) if delivery.by == name);
        history.records.iter().filter(is_its).count()
    }

    /// What was found. What there is to look at stays where something else was found than was to be.
    async fn found(self) -> Found {
        self.ground.write_down(self.scenario, &self.writer).await.unwrap();
        self.ground.remove().await.unwrap();
        let history = History::read(&self.directory).unwrap();
        let rules = Rules {
            lease: Micros::try_from((LONG * 2).as_micros()).unwrap(),
            prompt: vec![SINK.to_owned()],
            ..rules(self.scenario)
        };
        Found { violations: checker::check(&history, &rules), directory: self.directory }
    }
}

struct Found {
    violations: Vec<Violation>,
    directory: PathBuf,
}

impl Found {
    /// Asserts that each of these rules was broken; none at all if none is named.
    fn assert(self, rules: &[&str]) {
        let Self { violations, directory } = self;
        let shown: Vec<String> = violations.iter().map(Violation::to_string).collect();
        let is_broken = |rule: &&str| violations.iter().any(|violation| violation.rule == *rule);
        let right = rules.iter().all(is_broken) && (!rules.is_empty() || violations.is_empty());
        assert!(right, "{rules:?} in {}, not:\n{}", directory.display(), shown.join("\n"));
        std::fs::remove_dir_all(&directory).ok();
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "it is not so that {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn signal(child: &Child, signal: Signal) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    kill_process(id.unwrap(), signal).unwrap();
}

/// The input of these ends, and they with it.
async fn stop(children: impl IntoIterator<Item = Child>) {
    for mut child in children {
        drop(child.stdin.take());
        let ended = child.wait().await.unwrap();
        assert!(ended.success(), "{ended}");
    }
}

/// A process that does everything, which has the bug or has not.
async fn by_itself(scenario: Scenario, bug: Option<Bug>) -> Found {
    let stage = Stage::new(scenario, bug).await;
    stage.whole().await;
    stage.found().await
}

/// A process is stopped at a failpoint with an event delivered and not settled, until another has it in hand.
async fn overtaken(scenario: Scenario, failpoint: &str, bug: Option<Bug>) -> Found {
    let stage = Stage::new(scenario, bug).await;
    let site = stage.site().await;
    stage.write(&site, &["calm"]).await;
    let stall = format!("{failpoint}=1*sleep({})", STALL.as_millis());
    let from = now();
    let stalled = stage.start(STALLED, Role::Relay(Duration::ZERO), Some(&stall));
    until("it has delivered the event", async || stage.given_to(STALLED) == 1).await;
    signal(&stalled, Signal::STOP);
    let other = stage.start(OTHER, Role::Relay(LONG), None);
    let taken = match scenario {
        Scenario::Stream => format!("SELECT count(*) FROM {TABLE}_parked WHERE claimed IS NOT NULL"),
        Scenario::Queue | Scenario::Brief => format!("SELECT count(*) FROM {TABLE} WHERE attempts = 2"),
    };
    until("the other one has it in hand", async || site.number(&taken).await.unwrap() == 1).await;
    signal(&stalled, Signal::CONT);
    until("the other one has delivered it, too", async || stage.given_to(OTHER) > 0).await;
    let fault = Fault { kind: "stop".to_owned(), whom: STALLED.to_owned(), from, until: now() };
    stage.writer.write(&Record::Fault(fault)).unwrap();
    until("the event is settled", async || site.number(OPEN).await.unwrap() == 0).await;
    stop([stalled, other]).await;
    site.close().await;
    stage.found().await
}

/// How many wait for what somebody else has locked of the outbox.
const WAITING: &str = "
SELECT count(DISTINCT application_name) FROM pg_stat_activity AS a
 WHERE wait_event_type = 'Lock'
   AND EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = a.pid AND l.relation = 'outbox'::regclass)";

/// Two relays that want the same event while somebody has it locked, and still do when he lets go of it. A claim that locks
/// what it finds waits for nobody.
async fn at_once(bug: Option<Bug>) -> Found {
    let stage = Stage::new(Scenario::Queue, bug).await;
    let site = stage.site().await;
    stage.write(&site, &["calm"]).await;
    let Tx::Postgres(mut tx) = site.begin().await.unwrap() else { panic!("PostgreSQL") };
    sqlx::query("SELECT FROM outbox FOR UPDATE").execute(&mut *tx).await.unwrap();
    let takes = Duration::from_millis(400);
    let relays = [STALLED, OTHER].map(|name| stage.start(name, Role::Relay(takes), None));
    if bug.is_some() {
        until("both wait for the event", async || site.number(WAITING).await.unwrap() == 2).await;
    }
    tx.commit().await.unwrap();
    until("the event is settled", async || site.number(OPEN).await.unwrap() == 0).await;
    stop(relays).await;
    site.close().await;
    stage.found().await
}

#[tokio::test]
async fn pr2_settling_without_fencing_is_found() {
    let run = |bug| overtaken(Scenario::Queue, "settle.gathered", bug);
    run(Some(Bug::SettleWithoutFencing)).await.assert(&["held"]);
    run(None).await.assert(&[]);
}

#[tokio::test]
async fn pr2_an_acknowledgement_before_the_publish_is_found() {
    by_itself(Scenario::Queue, Some(Bug::AckBeforePublish)).await.assert(&["lost", "early"]);
    by_itself(Scenario::Queue, None).await.assert(&[]);
}

#[tokio::test]
async fn pr2_a_claim_without_a_lock_is_found() {
    at_once(Some(Bug::ClaimWithoutLock)).await.assert(&["held"]);
    at_once(None).await.assert(&[]);
}

#[tokio::test]
async fn pr2_a_second_delivery_without_a_claim_is_found() {
    by_itself(Scenario::Queue, Some(Bug::DeliverTwice)).await.assert(&["duplicate"]);
    by_itself(Scenario::Stream, Some(Bug::DeliverTwice)).await.assert(&["duplicate"]);
}

#[tokio::test]
async fn pr2_an_event_outside_its_transaction_is_found() {
    by_itself(Scenario::Queue, Some(Bug::EnqueueOutsideTransaction)).await.assert(&["invented"]);
}

#[tokio::test]
async fn pr2_a_stream_that_is_read_by_bare_sequence_is_found() {
    by_itself(Scenario::Stream, Some(Bug::CursorByBareSequence)).await.assert(&["lost"]);
    by_itself(Scenario::Stream, None).await.assert(&[]);
}

#[tokio::test]
async fn pr2_a_lane_that_is_written_without_its_fence_is_found() {
    let run = |bug| overtaken(Scenario::Stream, "place.due", bug);
    run(Some(Bug::LaneWrittenWithoutItsFence)).await.assert(&["lane"]);
    run(None).await.assert(&[]);
}
