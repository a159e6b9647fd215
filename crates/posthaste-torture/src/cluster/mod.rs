//! Everything that runs in a run: servers, relays, producers, sinks, and the ways between them.

mod client;
mod database;
pub mod guard;
mod process;
mod producer;
mod relay;
mod server;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use posthaste_testkit::engine::nats::Nats;
use rustix::process::Signal;
use tokio::sync::Mutex;

use crate::plan::{Plan, Sink, Table, Way};
use crate::producer::{Orders, Pace};
use crate::proxy::{Proxy, State};
use crate::recorder::{Mood, Recorder};
use crate::subscriber;
use database::Database;
use guard::Guard;
use producer::Producer;
use relay::{Places, Relay};
use server::Server;

/// How long a relay or producer may take to end when it is asked to.
const GOODBYE: Duration = Duration::from_secs(20);

/// All that runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    plan: Plan,
    directory: PathBuf,
    // In this order: clients before what they talk to.
    relays: BTreeMap<String, Mutex<Relay>>,
    producers: BTreeMap<String, Mutex<Producer>>,
    /// The ways to the database, of all clients.
    proxies: BTreeMap<String, Proxy>,
    /// The ways to the sinks, of relays.
    ways: BTreeMap<String, Vec<Proxy>>,
    recorder: Recorder,
    broker: Option<Mutex<Server>>,
    database: Database,
    guard: Arc<Guard>,
    /// How often tables were filled.
    rushes: AtomicU32,
    /// What happened that must not.
    complaints: std::sync::Mutex<Vec<String>>,
}

impl Cluster {
    /// Servers, tables and sinks; relays and producers are not started yet.
    pub async fn prepare(plan: &Plan, directory: &Path) -> Result<Self> {
        let guard = Arc::new(Guard::start()?);
        let mut clients = plan.relay_names();
        clients.extend(plan.producer_names());
        let database = Database::start(plan, &clients, directory, &guard).await?;
        let recorder = Recorder::start(directory).await?;
        let mut broker = None;
        if plan.tables.iter().any(|table| table.sink == Sink::Nats) {
            let server = Server::start(&Nats, directory, &guard).await?;
            subscriber::create(&server.url("")).await?;
            broker = Some(server);
        }
        let mut proxies = BTreeMap::new();
        let mut ways = BTreeMap::new();
        let mut relays = BTreeMap::new();
        for name in plan.relay_names() {
            let proxy = database.proxy().await?;
            let url = database.url(&name, proxy.as_ref())?;
            let mut to_sinks = vec![Proxy::start(recorder.port()).await?];
            if let Some(broker) = &broker {
                to_sinks.push(Proxy::start(broker.port()).await?);
            }
            let [recorder, broker] = [to_sinks.first(), to_sinks.get(1)].map(|way| way.map(Proxy::port));
            let places = Places { database: &url, recorder, broker };
            let relay = Relay::new(&name, plan, &places, directory, &guard)?;
            proxies.extend(proxy.map(|proxy| (name.clone(), proxy)));
            ways.insert(name.clone(), to_sinks);
            relays.insert(name, Mutex::new(relay));
        }
        let broker = broker.map(Mutex::new);
        for name in plan.producer_names() {
            proxies.extend(database.proxy().await?.map(|proxy| (name, proxy)));
        }
        let mut cluster = Self {
            plan: plan.clone(),
            directory: directory.to_owned(),
            relays,
            producers: BTreeMap::new(),
            proxies,
            ways,
            recorder,
            broker,
            database,
            guard,
            rushes: AtomicU32::new(0),
            complaints: std::sync::Mutex::default(),
        };
        let rate = f64::from(plan.events_per_second) / plan.producers.len().max(1) as f64;
        for (number, (name, way)) in plan.producer_names().into_iter().zip(&plan.producers).enumerate() {
            let seed = plan.seed.wrapping_add(1 + number as u64);
            let orders = cluster.orders(&name, &name, *way, seed, Pace::Steady(rate))?;
            let producer = Producer::new(&orders, &plan.producer_env, directory, &cluster.guard)?;
            cluster.producers.insert(name, Mutex::new(producer));
        }
        Ok(cluster)
    }

    /// What a producer of this name is told, which goes to the database by this client's way.
    fn orders(&self, name: &str, client: &str, way: Way, seed: u64, pace: Pace) -> Result<Orders> {
        Ok(Orders {
            name: name.to_owned(),
            seed,
            way,
            database: self.plan.database,
            url: self.database.url(client, self.proxies.get(client))?,
            directory: self.directory.clone(),
            tables: self.plan.tables.clone(),
            mix: self.plan.mix,
            settings: self.plan.settings,
            recorder: self.recorder.port(),
            pace,
        })
    }

    pub async fn start_relays(&self) -> Result<()> {
        for relay in self.relays.values() {
            relay.lock().await.start()?;
        }
        Ok(())
    }

    pub async fn start_producers(&self) -> Result<()> {
        for producer in self.producers.values() {
            producer.lock().await.start()?;
        }
        Ok(())
    }

    /// A relay or producer dies, and is started again after so long.
    pub async fn kill(&self, name: &str, down: Duration) -> Result<()> {
        if let Some(relay) = self.relays.get(name) {
            let mut relay = relay.lock().await;
            self.complain(relay.has_failed());
            if let Some(mut process) = relay.process.take() {
                process.end(Signal::KILL).await?;
            }
            tokio::time::sleep(down).await;
            return relay.start();
        }
        let mut producer = self.producers.get(name).context("nobody of that name")?.lock().await;
        self.complain(producer.has_failed());
        if let Some(mut process) = producer.process.take() {
            process.end(Signal::KILL).await?;
        }
        tokio::time::sleep(down).await;
        producer.start()
    }

    /// A relay is stopped for so long.
    pub async fn stop(&self, name: &str, length: Duration) -> Result<()> {
        let mut relay = self.relays.get(name).context("no relay of that name")?.lock().await;
        self.complain(relay.has_failed());
        relay.start()?;
        if let Some(process) = &mut relay.process {
            process.signal(Signal::STOP);
            tokio::time::sleep(length).await;
            process.signal(Signal::CONT);
        }
        Ok(())
    }

    /// The server ends some of the clients' connections; whose.
    pub async fn terminate(&self, random: &mut fastrand::Rng) -> Result<Vec<String>> {
        self.database.terminate(3, random).await
    }

    /// The database's server is down for so long.
    pub async fn restart(&self, down: Duration) -> Result<()> {
        self.database.crash().await?;
        tokio::time::sleep(down).await;
        self.database.start_again().await
    }

    /// The broker is down for so long.
    pub async fn restart_broker(&self, down: Duration) -> Result<()> {
        let Some(broker) = &self.broker else { return Ok(()) };
        let mut broker = broker.lock().await;
        broker.crash().await?;
        tokio::time::sleep(down).await;
        broker.start_again().await
    }

    /// A client's way to the database is like this for so long.
    pub async fn disturb(&self, client: &str, state: State, length: Duration) -> Result<()> {
        let proxy = self.proxies.get(client).context("no proxy of that name")?;
        proxy.set(state);
        tokio::time::sleep(length).await;
        proxy.set(State::Open);
        Ok(())
    }

    /// A relay's ways to its sinks are like this for so long.
    pub async fn disturb_sinks(&self, relay: &str, state: State, length: Duration) -> Result<()> {
        let ways = self.ways.get(relay).context("no relay of that name")?;
        ways.iter().for_each(|way| way.set(state));
        tokio::time::sleep(length).await;
        ways.iter().for_each(|way| way.set(State::Open));
        Ok(())
    }

    /// A table's sink is in this mood for so long.
    pub async fn annoy(&self, table: &str, mood: Mood, length: Duration) {
        self.recorder.set(table, mood);
        tokio::time::sleep(length).await;
        self.recorder.set(table, Mood::Normal);
    }

    /// Very many events at once, by a process of its own that goes the way of this producer; whether it wrote all of them.
    pub async fn fill(&self, client: &str, events: u64, seed: u64) -> Result<bool> {
        let number = self.rushes.fetch_add(1, Ordering::Relaxed);
        let name = format!("filler-{number}");
        let orders = self.orders(&name, client, Way::Library, seed, Pace::Rush(events))?;
        let mut filler = Producer::new(&orders, &self.plan.producer_env, &self.directory, &self.guard)?;
        filler.start()?;
        let Some(mut process) = filler.process.take() else { return Ok(false) };
        let Ok(ended) = tokio::time::timeout(GOODBYE, process.wait()).await else {
            process.end_within(Signal::TERM, GOODBYE).await?;
            return Ok(false);
        };
        Ok(ended?.success())
    }

    /// Starts again what has ended by itself, and remembers that it did.
    pub async fn look_after(&self) -> Result<()> {
        // Who is being struck is not looked at.
        for relay in self.relays.values() {
            if let Ok(mut relay) = relay.try_lock()
                && let Some(complaint) = relay.has_failed()
            {
                self.complain(Some(complaint));
                relay.start()?;
            }
        }
        for producer in self.producers.values() {
            if let Ok(mut producer) = producer.try_lock()
                && let Some(complaint) = producer.has_failed()
            {
                self.complain(Some(complaint));
                producer.start()?;
            }
        }
        Ok(())
    }

    fn complain(&self, complaint: Option<String>) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).extend(complaint);
    }

    /// What happened that must not.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Producers write nothing more: each finishes what it has begun.
    pub async fn stop_producers(&self) -> Result<()> {
        for (name, producer) in &self.producers {
            let mut producer = producer.lock().await;
            self.complain(producer.has_failed());
            if let Some(mut process) = producer.process.take() {
                self.part(name, process.end_within(Signal::TERM, GOODBYE).await?);
            }
        }
        Ok(())
    }

    pub async fn stop_relays(&self) -> Result<()> {
        for (name, relay) in &self.relays {
            let mut relay = relay.lock().await;
            self.complain(relay.has_failed());
            if let Some(mut process) = relay.process.take() {
                self.part(name, process.end_within(Signal::TERM, GOODBYE).await?);
            }
        }
        Ok(())
    }

    fn part(&self, name: &str, status: Option<std::process::ExitStatus>) {
        match status {
            Some(status) if status.success() => {}
            Some(status) => self.complain(Some(format!("{name} was asked to end, and did so with {status}"))),
            None => self.complain(Some(format!("{name} was asked to end, and had not after {GOODBYE:?}"))),
        }
    }

    /// Waits until everything is delivered or given up; what is left of which table if that takes too long.
    pub async fn drain(&self) -> Result<Duration> {
        let began = Instant::now();
        for table in &self.plan.tables {
            while self.database.backlog(table).await? > 0 {
                if began.elapsed() > self.plan.patience {
                    self.complain(Some(self.stall(table).await?));
                    break;
                }
                self.look_after().await?;
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        }
        Ok(began.elapsed())
    }

    async fn stall(&self, table: &Table) -> Result<String> {
        let left = self.database.backlog(table).await?;
        let shown = self.database.leftovers(table).await?.join("\n  ");
        Ok(format!(
            "{left} events of {} are not delivered {:?} after the last fault, among them:\n  {shown}",
            table.name, self.plan.patience
        ))
    }

    /// Ends what still runs.
    pub async fn end(self) -> Result<()> {
        self.database.crash().await?;
        if let Some(broker) = &self.broker {
            broker.lock().await.crash().await?;
        }
        Ok(())
    }

    /// Where the run itself finds the database.
    pub async fn database_url(&self) -> String {
        self.database.own_url().await
    }

    /// Where the broker is, if there is one.
    pub async fn broker_url(&self) -> Option<String> {
        Some(self.broker.as_ref()?.lock().await.url(""))
    }
}
