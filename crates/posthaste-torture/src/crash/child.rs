//! What a child process does.
//!
//! | setting of its relay | value | why |
//! |---|---|---|
//! | `lease`, `lane_lease` | 1.2 s, 1 s | whoever comes after a crash waits for them |
//! | the same of one that only relays | 3 s | it is to lose them when it is stopped, not because the machine is busy |
//! | `timeout` | three quarters of the lease | shorter than that |
//! | `poll_interval` | 50 ms | to see soon that a lease has ended |
//! | `retention`, `purge_interval` | 100 ms, 100 ms | what is delivered goes while the child looks on |
//! | `dead_retention` | 100 ms, but for a queue that keeps what is delivered | there dead events are looked at in the end |
//! | `retry` | 20 ms, 8 attempts | more than two children spend |
//! | the same of one whose event is doomed | 3 attempts | all of them are spent |
//!
//! A whole child writes events of each kind, before its relay runs and while it does, and ends when all are delivered or
//! dead, and the last of them is purged. A child that only relays does so until its input ends. One whose event is doomed
//! relays until that has died; its dead event stays, whatever its table is.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use posthaste::relay::RelayBuilder;
use posthaste::sink::Delivery;
use posthaste::{Backoff, Failure};
use tokio::time::Instant;

use super::producer::{Draft, Producer, headers};
use super::site::Site;
use super::temper::Temper;
use super::{Scenario, TABLE};
use crate::history::{self, Answer, Ending, Record, Writer, now};

/// The argument by which this program is told to be one.
pub const ARGUMENT: &str = "crash-child";

/// Most attempts at an event.
pub const MAX_ATTEMPTS: u32 = 8;

/// The same where it is doomed.
pub const FEW_ATTEMPTS: u32 = 3;

/// How long an event is a relay's.
pub const LEASE: Duration = Duration::from_millis(1200);

/// The same, and of its lanes, where it only relays and takes no longer over each event.
const PATIENT: Duration = Duration::from_secs(3);

/// The aggregates that events are of.
pub const AGGREGATES: [&str; 8] = ["calm", "flaky", "slow", "poison", "hot", "late", "last", "doomed"];

/// How long a slow event takes: longer than a third of the lease, so that that is renewed.
const SLOW: Duration = Duration::from_millis(700);

/// How long everything may take that a whole child waits for.
const PATIENCE: Duration = Duration::from_secs(40);

/// How a child is started.
#[derive(Debug, Clone)]
pub struct Order {
    pub url: String,
    pub scenario: Scenario,
    /// Where the history is.
    pub directory: PathBuf,
    /// What its history is called.
    pub name: String,
    pub role: Role,
}

/// What a child is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It does everything.
    Whole,
    /// It relays, and takes this long over each event.
    Relay(Duration),
    /// It relays the one event that is there, which fails each time, until that is dead.
    Doomed,
}

impl Order {
    /// As a program's arguments.
    pub fn arguments(&self) -> Vec<String> {
        let role = match self.role {
            Role::Whole => "whole".to_owned(),
            Role::Relay(takes) => takes.as_millis().to_string(),
            Role::Doomed => "doomed".to_owned(),
        };
        let directory = self.directory.display().to_string();
        vec![self.url.clone(), self.scenario.name().to_owned(), directory, self.name.clone(), role]
    }

    /// From a program's arguments.
    pub fn read(arguments: &[String]) -> Result<Self> {
        let [url, scenario, directory, name, role] = arguments else {
            bail!("a child wants a URL, a scenario, a directory, a name and a role");
        };
        let role = match role.as_str() {
            "whole" => Role::Whole,
            "doomed" => Role::Doomed,
            millis => Role::Relay(Duration::from_millis(
                millis.parse().context("a role is `whole`, `doomed` or milliseconds")?,
            )),
        };
        let directory = Path::new(directory).to_owned();
        Ok(Self { url: url.clone(), scenario: scenario.parse()?, directory, name: name.clone(), role })
    }
}

/// Runs a child to its end. On one thread: where that stands still, all of the child does.
pub fn run(arguments: &[String]) -> Result<()> {
    let order = Order::read(arguments)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let site = Site::open(&order.url).await?;
        let writer = Arc::new(Writer::open(&order.directory, &order.name)?);
        match order.role {
            Role::Whole => whole(&order, &site, &writer).await?,
            Role::Relay(takes) => {
                let relay = settings(site.relay(), order.scenario, order.role);
                let relay = relay.handler(handler(&writer, &order.name, takes)).start().await?;
                tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
                relay.stop().await;
            }
            Role::Doomed => {
                let relay = settings(site.relay(), order.scenario, order.role);
                let relay = relay.handler(handler(&writer, &order.name, Duration::ZERO)).start().await?;
                until("the event is dead", async || Ok(site.number(DEAD).await? == 1)).await?;
                relay.stop().await;
            }
        }
        site.close().await;
        Ok(())
    })
}

async fn whole(order: &Order, site: &Site, writer: &Arc<Writer>) -> Result<()> {
    site.migrate(order.scenario.mode()?).await?;
    let producer = Producer { site, writer, name: &order.name };
    use Ending::{Committed, RolledBack};
    producer.write(Draft::new("calm", Temper::Calm), Committed).await?;
    producer.write(Draft::new("calm", Temper::Calm), RolledBack).await?;
    producer.write(Draft { twice: true, ..Draft::new("calm", Temper::Calm) }, Committed).await?;
    producer.write(Draft::new("flaky", Temper::Flaky), Committed).await?;
    producer.write(Draft::new("flaky", Temper::Calm), Committed).await?;
    producer.write(Draft::new("slow", Temper::Slow), Committed).await?;
    producer.write(Draft::new("poison", Temper::Poison), Committed).await?;

    let relay = settings(site.relay(), order.scenario, order.role);
    let relay = relay.handler(handler(writer, &order.name, Duration::ZERO)).start().await?;
    let hot = Draft { hot: true, ..Draft::new("hot", Temper::Calm) };
    producer.write(hot, Committed).await?;
    producer.write(hot, RolledBack).await?;
    producer.write(hot, Committed).await?;
    // One that is written before another and commits after it. SQLite lets in one who writes at a time.
    if !matches!(site, Site::Sqlite(_)) {
        let late = producer.begin(Draft::new("late", Temper::Calm)).await?;
        producer.write(Draft::new("calm", Temper::Calm), Committed).await?;
        let open = format!("{OPEN} AND aggregate_id = 'calm'");
        until("what was written later is delivered", async || Ok(site.number(&open).await? == 0)).await?;
        producer.end(late, Committed).await?;
    }
    until("everything is delivered", async || Ok(site.number(OPEN).await? == 0)).await?;
    if order.scenario != Scenario::Queue {
        until("what is dead is purged", async || Ok(site.number(DEAD).await? == 0)).await?;
    }
    // What was parked may stay for longer: one that surely was not is waited for.
    let last = producer.write(Draft::new("last", Temper::Calm), Committed).await?;
    let there = format!("SELECT count(*) FROM {TABLE}_status WHERE id = '{last}'");
    until("what is delivered is purged", async || Ok(site.number(&there).await? == 0)).await?;
    relay.stop().await;
    Ok(())
}

/// How many events are to be delivered.
pub const OPEN: &str = "SELECT count(*) FROM outbox_status WHERE status IN ('pending', 'processing')";

/// How many have died.
const DEAD: &str = "SELECT count(*) FROM outbox_status WHERE status = 'dead'";

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await? {
        if Instant::now() >= deadline {
            bail!("waited {PATIENCE:?}, and it is not so that {what}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn settings(relay: RelayBuilder, scenario: Scenario, role: Role) -> RelayBuilder {
    let millis = Duration::from_millis;
    let (lease, lanes) = match role {
        Role::Whole | Role::Doomed => (LEASE, millis(1000)),
        Role::Relay(takes) => (PATIENT.max(takes * 2), PATIENT),
    };
    let attempts = if role == Role::Doomed { FEW_ATTEMPTS } else { MAX_ATTEMPTS };
    let relay = relay
        .lease(lease)
        .lane_lease(lanes)
        .timeout(lease * 3 / 4)
        .poll_interval(millis(50))
        .purge_interval(millis(100))
        .retry(Backoff::exponential(millis(20), millis(40)).max_attempts(attempts));
    let relay = match scenario {
        Scenario::Queue | Scenario::Stream => relay.retention(millis(100)),
        Scenario::Brief => relay.retention(Duration::ZERO),
    };
    match scenario {
        Scenario::Brief | Scenario::Stream if role != Role::Doomed => relay.dead_retention(millis(100)),
        _ => relay,
    }
}

/// What the handlers of all children are called.
pub const SINK: &str = "handler";

/// Writes down what it is given, and what it makes of it.
fn handler(
    writer: &Arc<Writer>,
    name: &str,
    takes: Duration,
) -> impl Fn(Delivery) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send + Sync + 'static
{
    let (writer, by) = (Arc::clone(writer), name.to_owned());
    move |delivery: Delivery| {
        let (writer, by) = (Arc::clone(&writer), by.clone());
        Box::pin(async move {
            let temper = Temper::of(delivery.event.payload().bytes());
            let takes = if temper == Temper::Slow { SLOW } else { takes };
            let (answer, made) = match temper {
                Temper::Flaky if delivery.attempt == 1 => (Answer::Failed, Err(Failure::retry("not yet"))),
                Temper::Doomed => (Answer::Failed, Err(Failure::retry("not now"))),
                Temper::Poison => (Answer::Rejected, Err(Failure::reject("never"))),
                _ => (Answer::Accepted, Ok(())),
            };
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            let event = &delivery.event;
            let record = Record::Delivery(history::Delivery {
                at: now(),
                by,
                sink: SINK.to_owned(),
                event: event.id(),
                payload: String::from_utf8_lossy(event.payload().bytes()).into_owned(),
                headers: headers(event),
                answer,
            });
            // What is not written down did not happen.
            writer.write(&record).map_err(Failure::retry)?;
            made
        })
    }
}
