//! A run from its beginning to its verdict.
//!
//! Servers and sinks come up, then relays, then producers; the nemesis rages for as long as the plan says. Then nothing is
//! broken any more: producers finish, relays deliver the rest, and end. What the database and the broker have written
//! down joins the history, and the checker reads it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::audit;
use crate::checker::{self, Rules};
use crate::cluster::Cluster;
use crate::coverage;
use crate::history::{History, Micros, Writer};
use crate::nemesis;
use crate::plan::{Database, Plan, Sink, Table};
use crate::report::Report;
use crate::subscriber;

/// How long a fault may be felt beyond a lease: connections time out, sinks rest, a busy machine catches up.
const SLACK: Duration = Duration::from_secs(5);

/// Where the plan is, in the directory of the history.
const PLAN: &str = "plan.json";

/// The part of the history that is the database's own record.
const DATABASE: &str = "database";

/// How a run went.
#[derive(Debug)]
pub struct Verdict {
    pub report: Report,
    /// Promises that were not kept, by the history.
    pub violations: Vec<String>,
    /// What else happened that must not, or did not and should have: processes that ended by themselves, events that nobody
    /// delivers, faults that never struck.
    pub complaints: Vec<String>,
    /// Where the history is.
    pub directory: PathBuf,
}

impl Verdict {
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.complaints.is_empty()
    }
}

/// Runs all of it; the history goes to this directory, which must be there and empty. What happens meanwhile is told.
pub async fn run(plan: &Plan, directory: &Path, tell: &dyn Fn(String)) -> Result<Verdict> {
    std::fs::write(directory.join(PLAN), serde_json::to_vec_pretty(plan)?)?;
    let cluster = Cluster::prepare(plan, directory).await?;
    // Until it is dropped.
    let mut watching = tokio::task::JoinSet::new();
    watching.spawn(nemesis::watch(directory.to_owned()));
    cluster.start_relays().await?;
    cluster.start_producers().await?;
    tell(format!("everything is up; producers write for {:?}", plan.length));
    fire(plan, &cluster, directory, tell).await?;
    tell("nothing is broken any more".to_owned());
    cluster.stop_producers().await?;
    let drained = cluster.drain().await?;
    tell(format!("the rest took {drained:.1?}"));
    cluster.stop_relays().await?;
    collect(plan, &cluster, directory).await?;
    let complaints = cluster.complaints();
    // The checker has the machine for itself.
    cluster.end().await?;
    tell("checking the history".to_owned());
    let mut verdict = judge(plan, directory)?;
    verdict.complaints.extend(complaints);
    Ok(verdict)
}

/// The plan of a run whose history was kept.
pub fn planned(directory: &Path) -> Result<Plan> {
    let shown = directory.display();
    let text =
        std::fs::read(directory.join(PLAN)).with_context(|| format!("{shown} is no history of a run"))?;
    // It is written in the end.
    ensure!(
        directory.join(format!("{DATABASE}.jsonl")).exists(),
        "the run of {shown} did not come to its end: it cannot be judged"
    );
    Ok(serde_json::from_slice(&text)?)
}

/// What a history comes to.
pub fn judge(plan: &Plan, directory: &Path) -> Result<Verdict> {
    let history = History::read(directory)?;
    let violations = checker::check(&history, &rules(plan));
    Ok(Verdict {
        report: Report::new(plan, &history, &violations),
        violations: violations.iter().map(ToString::to_string).collect(),
        complaints: coverage::missing(plan, &history),
        directory: directory.to_owned(),
    })
}

/// The part of a run in which things break.
async fn fire(plan: &Plan, cluster: &Cluster, directory: &Path, tell: &dyn Fn(String)) -> Result<()> {
    let began = Instant::now();
    let mut rage = Box::pin(nemesis::rage(plan, cluster, directory));
    let mut rages = true;
    let mut told = Instant::now();
    while rages || began.elapsed() < plan.length {
        tokio::select! {
            raged = &mut rage, if rages => {
                raged?;
                rages = false;
            }
            () = tokio::time::sleep(Duration::from_millis(500)) => cluster.look_after().await?,
        }
        if told.elapsed() > Duration::from_secs(30) {
            told = Instant::now();
            tell(format!("{:.0?} of {:?}", began.elapsed(), plan.length));
        }
    }
    Ok(())
}

/// Adds what the database and the broker know.
async fn collect(plan: &Plan, cluster: &Cluster, directory: &Path) -> Result<()> {
    let writer = Writer::open(directory, DATABASE)?;
    audit::collect(&cluster.database_url().await, &plan.audited(), &writer)
        .await
        .context("the database's record")?;
    if let Some(url) = cluster.broker_url().await {
        let writer = Writer::open(directory, "broker")?;
        subscriber::collect(&url, &writer).await.context("the broker's record")?;
    }
    Ok(())
}

/// What the history calls a table's sink: the recorder calls it by the table.
fn sink_of(table: &Table) -> String {
    match table.sink {
        Sink::Http => table.name.clone(),
        Sink::Nats => subscriber::STREAM.to_owned(),
    }
}

fn rules(plan: &Plan) -> Rules {
    let micros = |duration: Duration| Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX);
    let names = |which: fn(&Table) -> bool| {
        let tables = plan.tables.iter().filter(|table| which(table));
        tables.map(|table| table.name.clone()).collect::<Vec<_>>()
    };
    Rules {
        max_attempts: i64::from(plan.settings.max_attempts),
        lease: micros(plan.settings.lease),
        slack: micros(SLACK),
        streams: names(Table::is_stream),
        // Nobody is there to decide what to do about an event that was rejected: its aggregate goes on.
        blocks: false,
        // The recorder calls each sink by its table.
        prompt: names(|table| table.sink == Sink::Http),
        audited: names(|_| true),
        // PostgreSQL writes no row of a stream.
        marked: if plan.database == Database::Postgres { Vec::new() } else { names(Table::is_stream) },
        sinks: plan.tables.iter().map(|table| (table.name.clone(), sink_of(table))).collect(),
        servers: vec![plan.database.name().to_owned(), nemesis::MACHINE.to_owned()],
    }
}
