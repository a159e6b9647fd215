//! An event that fails, or whose process dies, at every attempt, until it has none left: it is dead then, with as many
//! attempts as are allowed and not one more.
//!
//! What a process was given that died before it could settle it counts as an attempt like any other. So whoever comes next
//! may find an event that is neither settled nor to be tried again.

use anyhow::{Context, Result, bail, ensure};

use super::Scenario;
use super::case::{End, Rig, child, end_at, outcome, rules};
use super::child::{FEW_ATTEMPTS, Order, Role};
use super::ground::Ground;
use super::producer::{Draft, Producer};
use super::site::Site;
use super::temper::Temper;
use crate::checker::Rules;
use crate::history::{Ending, History, Writer};
use crate::plan::Database;

/// More crashes than it takes.
const MOST_CRASHES: u32 = 2 * FEW_ATTEMPTS;

/// One event's life.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    pub database: Database,
    pub scenario: Scenario,
    /// Where each process dies that is given the event; if none does, it fails.
    pub point: Option<&'static str>,
}

/// What happened to it.
#[derive(Debug)]
pub struct Life {
    pub history: History,
    /// How many processes died.
    pub crashes: u32,
}

impl Limit {
    /// What is promised.
    pub fn rules(&self) -> Rules {
        Rules { max_attempts: FEW_ATTEMPTS.into(), ..rules(self.scenario) }
    }

    /// Writes the event, and lets processes try it until it is dead.
    pub async fn run(&self, rig: &Rig) -> Result<Life> {
        let Self { database, scenario, point } = self;
        let name = format!("{}-{}-limit-{}", database.name(), scenario.name(), point.unwrap_or("failing"));
        let directory = rig.directory.join(name);
        if directory.exists() {
            std::fs::remove_dir_all(&directory)?;
        }
        std::fs::create_dir_all(&directory)?;
        let ground = Ground::make(*database, &rig.server, &directory).await?;
        ground.migrate(*scenario).await?;
        let writer = Writer::open(&directory, "case")?;
        let site = Site::open(&ground.url("producer")?).await?;
        let producer = Producer { site: &site, writer: &writer, name: "producer" };
        producer.write(Draft::new("doomed", Temper::Doomed), Ending::Committed).await?;
        site.close().await;
        let order = Order {
            url: ground.url("child")?,
            scenario: *scenario,
            directory: directory.clone(),
            name: "child".to_owned(),
            role: Role::Doomed,
        };
        let mut crashes = 0;
        if let Some(point) = point {
            while end_at(rig, &order, point, 1, &writer).await? == End::Died {
                crashes += 1;
                ensure!(crashes < MOST_CRASHES, "it is tried again and again");
            }
        } else {
            let done = outcome(&mut child(rig, &order)).await?;
            if !done.status.success() {
                bail!("{} {}", done.status, String::from_utf8_lossy(&done.stderr));
            }
        }
        ground.write_down(*scenario, &writer).await?;
        ground.remove().await?;
        let history = History::read(&directory).context("the history cannot be read")?;
        std::fs::remove_dir_all(&directory).ok();
        Ok(Life { history, crashes })
    }
}
