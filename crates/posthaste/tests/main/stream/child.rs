//! Relays in processes of their own, which can be killed and paused.
//!
//! A child is this very program, told to run the one ignored test below. It appends a line to a file for everything
//! that happens to a delivery. All children append to the same file, so that its lines are in the order in which
//! things happened; the parent reads them into the history as they come.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use posthaste::sink::Delivery;
use posthaste::{Backoff, Failure, Relay};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::fleet::brisk;
use super::history::{Fact, History, flaky};
use super::producers::pause;
use crate::harness::servers::target;
use crate::harness::{Db, Kind, until};

const TEST: &str = "stream::child::relay_process";
const URL: &str = "POSTHASTE_TEST_CHILD_URL";
const NUMBER: &str = "POSTHASTE_TEST_CHILD_NUMBER";
const TEMPER: &str = "POSTHASTE_TEST_CHILD_TEMPER";

/// Marks what a child says of itself among what the test's runner prints.
const MARK: &str = "@ ";

/// What a child's handler is like.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Temper {
    /// Its process dies at this one.
    pub dies_at: Option<Fact>,
    /// It fails at the first attempt at this one.
    pub fails_at: Option<Fact>,
    /// It fails at the first attempts at some.
    pub flaky: bool,
    pub max_attempts: u32,
}

impl Default for Temper {
    fn default() -> Self {
        Self { dies_at: None, fails_at: None, flaky: false, max_attempts: 20 }
    }
}

/// A whole line at once, so that lines of several processes do not mix.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{MARK}{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// The relay of a child; nothing if it is not run as one. It stops when its input ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is the child process of other tests"]
async fn relay_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let number = std::env::var(NUMBER).unwrap();
    let temper: Temper = serde_json::from_str(&std::env::var(TEMPER).unwrap()).unwrap();
    let retry = Backoff::exponential(Duration::from_millis(10), Duration::from_millis(50));
    let retry = retry.max_attempts(temper.max_attempts);
    let metrics = DebuggingRecorder::new();
    let snapshotter = metrics.snapshotter();
    metrics.install().unwrap();
    std::io::stdout().write_all(b"\n").unwrap();
    let handler = {
        let number = number.clone();
        move |delivery: Delivery| {
            let (number, temper) = (number.clone(), temper.clone());
            async move {
                let fact = Fact::of(&delivery);
                let Fact { aggregate, version } = &fact;
                let event = format!("{number} {} {aggregate} {version}", delivery.event.id());
                say(&format!("begun {event} {}", delivery.attempt));
                if temper.dies_at.as_ref() == Some(&fact) {
                    std::process::abort();
                }
                pause(fastrand::u64(..1500)).await;
                if temper.fails_at.as_ref() == Some(&fact) && delivery.attempt == 1 {
                    say(&format!("failed {event}"));
                    return Err(Failure::retry_after(Duration::from_millis(200), "not yet"));
                }
                if let (true, Err(failure)) = (temper.flaky, flaky(&delivery)) {
                    say(&format!("failed {event}"));
                    return Err(failure);
                }
                say(&format!("delivered {event}"));
                Ok::<_, Failure>(())
            }
        }
    };
    let store = posthaste::store::connect(&url, "outbox").await.unwrap();
    let relay = brisk(Relay::on(Arc::clone(&store))).retry(retry).handler(handler).batch(100);
    let relay = relay.start().await.unwrap();
    say(&format!("ready {number}"));
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    relay.stop().await;
    store.close().await;
    let mut lost = 0;
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        if let (posthaste::telemetry::LEASE_LOST_TOTAL, DebugValue::Counter(count)) =
            (key.key().name(), value)
        {
            lost += count;
        }
    }
    say(&format!("lost {number} {lost}"));
}

/// The file that children write, read into a history.
pub struct Nursery {
    url: String,
    path: PathBuf,
    notes: Arc<Mutex<Vec<String>>>,
    reading: JoinHandle<()>,
}

impl Nursery {
    pub fn new(db: &Db, history: &History) -> Self {
        let path = target().join("tmp").join(format!("children-{}.log", Uuid::now_v7().simple()));
        File::create(&path).unwrap();
        let notes = Arc::default();
        let reading = tokio::spawn(read(path.clone(), history.clone(), Arc::clone(&notes)));
        Self { url: db.url(), path, notes, reading }
    }

    /// A new child that has started its relay, unless it has ended already.
    pub async fn child(&self, number: usize, temper: &Temper) -> Child {
        let out = File::options().append(true).open(&self.path).unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--ignored", "--nocapture", "--test-threads=1"])
            .env(URL, &self.url)
            .env(NUMBER, number.to_string())
            .env(TEMPER, serde_json::to_string(temper).unwrap())
            .stdin(Stdio::piped())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap();
        let is_ready = || self.notes.lock().unwrap().iter().any(|note| *note == format!("ready {number}"));
        until("a child is ready", async || is_ready() || process.try_wait().unwrap().is_some()).await;
        Child { number, process }
    }

    /// How many leases a child has lost, by its own account at its end.
    pub async fn lost_by(&self, number: usize) -> u64 {
        let prefix = format!("lost {number} ");
        let found = || {
            self.notes.lock().unwrap().iter().find_map(|note| note.strip_prefix(&prefix).map(str::to_owned))
        };
        until("it has said what it lost", async || found().is_some()).await;
        found().unwrap().parse().unwrap()
    }

    /// Ends when all children have ended.
    pub fn close(self) {
        self.reading.abort();
        std::fs::remove_file(&self.path).ok();
    }
}

/// Whether an SQLite file can be written to now.
async fn is_writable(db: &Db) -> bool {
    let options: SqliteConnectOptions = db.url().parse().unwrap();
    let mut connection = options.busy_timeout(Duration::from_millis(100)).connect().await.unwrap();
    let is_writable = connection.execute("BEGIN IMMEDIATE").await.is_ok();
    connection.close().await.unwrap();
    is_writable
}

/// Reads whole lines as they come.
async fn read(path: PathBuf, history: History, notes: Arc<Mutex<Vec<String>>>) {
    let mut file = File::open(path).unwrap();
    let mut unread = Vec::new();
    loop {
        file.read_to_end(&mut unread).unwrap();
        let whole = unread.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in String::from_utf8_lossy(&unread[..whole]).lines() {
            if let Some((_, said)) = line.rsplit_once(MARK) {
                hear(said, &history, &notes);
            } else if line.contains("panicked") {
                println!("a child says: {line}");
            }
        }
        unread.drain(..whole);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn hear(said: &str, history: &History, notes: &Mutex<Vec<String>>) {
    let words: Vec<&str> = said.split(' ').collect();
    let event = |by: &str, id: &str, aggregate: &str, version: &str| {
        let fact = Fact::new(aggregate, version.parse().unwrap());
        (by.parse::<usize>().unwrap(), id.parse::<Uuid>().unwrap(), fact)
    };
    match words[..] {
        ["begun", by, id, aggregate, version, attempt] => {
            let (by, id, fact) = event(by, id, aggregate, version);
            history.begun(id, fact, attempt.parse().unwrap(), by);
        }
        ["delivered", by, id, aggregate, version] => {
            let (by, id, fact) = event(by, id, aggregate, version);
            history.ended(id, fact, true, by);
        }
        ["failed", by, id, aggregate, version] => {
            let (by, id, fact) = event(by, id, aggregate, version);
            history.ended(id, fact, false, by);
        }
        _ => notes.lock().unwrap().push(said.to_owned()),
    }
}

/// A child process; it is killed with its parent's test.
pub struct Child {
    number: usize,
    process: std::process::Child,
}

impl Child {
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    pub fn kill(&mut self) {
        self.signal("KILL");
        tokio::task::block_in_place(|| self.process.wait()).unwrap();
    }

    /// Pauses it, but not while it has an SQLite file locked: then everybody would be paused.
    pub async fn pause(&self, db: &Db) {
        loop {
            self.signal("STOP");
            if db.kind() != Kind::Sqlite || is_writable(db).await {
                return;
            }
            self.resume();
            pause(fastrand::u64(1000..5000)).await;
        }
    }

    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// It stops its relay and ends.
    pub fn stop(mut self) {
        drop(self.process.stdin.take());
        let ended = tokio::task::block_in_place(|| self.process.wait()).unwrap();
        assert!(ended.success(), "a child ended with {ended}");
    }

    /// The shell's own `kill`, because a small machine may lack the program of that name.
    fn signal(&self, signal: &str) {
        let kill = ["-c", "kill -s \"$1\" \"$2\"", "sh", signal];
        let sent = Command::new("sh").args(kill).arg(self.process.id().to_string()).status().unwrap();
        assert!(sent.success(), "no signal {signal}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
