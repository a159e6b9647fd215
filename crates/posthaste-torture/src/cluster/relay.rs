//! A `posthaste relay` process, with a configuration of its own.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::guard::Guard;
use super::process::Process;
use crate::plan::{Plan, Sink};
use crate::{program, recorder, subscriber};

/// A relay that runs, or is down for a while.
#[derive(Debug)]
pub(super) struct Relay {
    name: String,
    config: PathBuf,
    log: PathBuf,
    env: Vec<(String, String)>,
    guard: Arc<Guard>,
    pub(super) process: Option<Process>,
}

/// Where a relay finds what it needs.
pub(super) struct Places<'a> {
    pub(super) database: &'a str,
    /// Ports.
    pub(super) recorder: Option<u16>,
    pub(super) broker: Option<u16>,
}

impl Relay {
    /// One that is not started yet; its configuration and log are in this directory.
    pub(super) fn new(
        name: &str,
        plan: &Plan,
        places: &Places<'_>,
        directory: &Path,
        guard: &Arc<Guard>,
    ) -> Result<Self> {
        let config = directory.join(format!("{name}.toml"));
        std::fs::write(&config, configuration(name, plan, places))?;
        Ok(Self {
            name: name.to_owned(),
            config,
            log: directory.join(format!("{name}.log")),
            env: plan.relay_env.clone(),
            guard: Arc::clone(guard),
            process: None,
        })
    }

    /// Starts it, if it does not run.
    pub(super) fn start(&mut self) -> Result<()> {
        if self.process.is_none() {
            let mut command = Command::new(program::posthaste()?);
            command.arg("relay").arg("--config").arg(&self.config);
            for (name, _) in
                std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OUTBOX_"))
            {
                command.env_remove(name);
            }
            command.envs(self.env.iter().cloned());
            self.process = Some(Process::start(command, &self.log, &self.guard)?);
        }
        Ok(())
    }

    /// What is wrong with it, if it should run and does not any more.
    pub(super) fn has_failed(&mut self) -> Option<String> {
        let process = self.process.as_mut()?;
        let status = process.ended()?;
        let words = process.last_words();
        self.process = None;
        Some(format!("{} ended by itself with {status}: {words}", self.name))
    }
}

/// The file that a relay is told everything by.
fn configuration(relay: &str, plan: &Plan, places: &Places<'_>) -> String {
    let settings = &plan.settings;
    let tables: Vec<String> = plan.tables.iter().map(|table| format!("{:?}", table.name)).collect();
    let mut text = format!(
        r#"[database]
url = {database:?}

[relay]
tables = [{tables}]
lease = "{lease}"
lane_lease = "{lane_lease}"
timeout = "{timeout}"
poll_interval = "{poll}"
max_attempts = {max_attempts}
backoff_first = "{backoff_first}"
backoff_longest = "{backoff_longest}"
probe_first = "{probe_first}"
probe_longest = "{probe_longest}"
stats_interval = "2s"
drain_timeout = "4s"

[http]
enabled = false
"#,
        database = places.database,
        tables = tables.join(", "),
        lease = millis(settings.lease),
        lane_lease = millis(settings.lane_lease),
        timeout = millis(settings.timeout),
        poll = millis(settings.poll),
        max_attempts = settings.max_attempts,
        backoff_first = millis(settings.backoff.0),
        backoff_longest = millis(settings.backoff.1),
        probe_first = millis(settings.probe.0),
        probe_longest = millis(settings.probe.1),
    );
    let sink_timeout = millis(settings.sink_timeout);
    for table in &plan.tables {
        let name = &table.name;
        let retention = if table.keeps() { "24h" } else { "0s" };
        let [recorder, broker] = [places.recorder, places.broker].map(Option::unwrap_or_default);
        let (sink, destination) = match table.sink {
            Sink::Http => {
                let path = recorder::path(name, relay);
                let sink = format!(
                    "kind = \"http\"\nurl = \"http://127.0.0.1:{recorder}{path}\"\ntimeout = \"{sink_timeout}\""
                );
                (sink, "{topic}".to_owned())
            }
            Sink::Nats => {
                let stream = subscriber::STREAM;
                let sink = format!(
                    "kind = \"nats\"\nurl = \"nats://127.0.0.1:{broker}\"\nstream = {stream:?}\nack_timeout = \"{sink_timeout}\""
                );
                (sink, subscriber::destination(relay))
            }
        };
        // Writing to a text cannot fail.
        let _ = write!(
            text,
            r#"
[tables.{name}]
retention = "{retention}"

[topics."{poison}"]
on_dead = "skip"

[sinks.{name}]
{sink}
connect_timeout = "1s"

[[routes]]
tables = ["{name}"]
sink = "{name}"
destination = "{destination}"
"#,
            poison = table.topic(true)
        );
    }
    text
}

fn millis(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}
