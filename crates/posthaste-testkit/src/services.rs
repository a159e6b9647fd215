//! All servers together: `cargo xtask services up|down|status`.
//!
//! * `up` and `down` take turns by a lock on `target/services/lock`, so two at once start one
//!   server and not two on the same data.
//! * A test run holds a shared lock on `target/services/users` while it needs the servers, so that
//!   another run that started them does not stop them under it.
//! * `up` writes `target/services/services.env` with the URLs, and with what a test needs that runs
//!   a server of its own: the programs, the account, and a directory for its data. It stays after
//!   `down`: the ports are used again if they are free. `down --wipe` removes it with the data.
//!
//! `cargo clean` removes the data of running servers; `down` first.

use std::fs::File;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::choice::{Choice, Source, Versions};
use crate::envfile::EnvFile;
use crate::home::Home;
use crate::layout::Layout;
use crate::record::Record;
use crate::{install, server};

/// Makes sure that these versions of all of them run, and says so; returns the lines of `services.env`.
///
/// A server whose URL is in the environment is not started. The names of those that had not been up before go to `started`, also
/// when another one fails.
pub fn up(layout: &Layout, versions: &Versions, started: &mut Vec<String>) -> Result<EnvFile> {
    let _lock = lock(layout)?;
    let mut given = Vec::new();
    let mut needed = Vec::new();
    for choice in versions.choices() {
        let url = given_url(layout, &choice)?;
        // The login needs MySQL's client, which comes with the server.
        if url.is_none() && (choice.version.is_none() || choice.engine.name() == "mysql") {
            needed.push(choice.engine.name());
        }
        given.push((choice, url));
    }
    let containers = install::ensure(layout, &needed)?;
    let mut env = EnvFile::default();
    for (choice, url) in given {
        let (engine, name) = (choice.engine, choice.name());
        if let Some(url) = url {
            if let Some(version) = &choice.version {
                bail!(
                    "version {version} of {} is asked for, and {} names a server of another: unset it, or leave the version out",
                    engine.name(),
                    engine.variable("URL")
                );
            }
            env.push(&engine.variable("URL"), &url)?;
            push_programs(layout, &choice, &mut env)?;
            println!("{name:<9} is the one of {}", engine.variable("URL"));
            continue;
        }
        let begin = Instant::now();
        let in_container = choice.version.is_none() && containers.contains(&engine.name());
        let source = if in_container { Source::Container } else { choice.source(layout)? };
        let up = server::up(layout, &choice, &source)?;
        let url = engine.url(up.port);
        env.push(&engine.variable("URL"), &url)?;
        if let Some((installation, home)) = &up.place {
            for (variable, value) in installation.variables(engine, home) {
                env.push(&variable, value)?;
            }
        }
        if up.started {
            started.push(name.clone());
            let seconds = begin.elapsed().as_secs_f32();
            println!("{name:<9} started in {seconds:.1} s  {url}");
        } else {
            println!("{name:<9} is up  {url}");
        }
    }
    env.write(&layout.env_file())?;
    Ok(env)
}

/// URL of a server of the user's own, from the environment. The URL of the shared server itself, which a shell has that has read
/// `services.env`, is none.
fn given_url(layout: &Layout, choice: &Choice) -> Result<Option<String>> {
    let Ok(url) = std::env::var(choice.engine.variable("URL")) else {
        return Ok(None);
    };
    for known in Choice::known(layout)? {
        let record = Record::read(layout, &known.name())?;
        if record.is_some_and(|record| known.engine.url(record.port) == url) {
            return Ok(None);
        }
    }
    Ok(Some(url))
}

/// Adds the programs for private servers beside a server of the user's own, where this machine has them.
fn push_programs(layout: &Layout, choice: &Choice, env: &mut EnvFile) -> Result<()> {
    if let Ok(Source::Programs(installation)) = choice.source(layout) {
        let record = Record::read(layout, &choice.name())?;
        let home = Home::choose(layout, &choice.name(), record.as_ref(), &installation.account)?;
        for (variable, value) in installation.variables(choice.engine, &home) {
            env.push(&variable, value)?;
        }
    }
    Ok(())
}

/// Stops all of them, of every version, and removes their data if `wipe`.
pub fn down(layout: &Layout, wipe: bool) -> Result<()> {
    let _lock = lock(layout)?;
    for choice in Choice::known(layout)? {
        let stopped = server::down(layout, &choice, wipe)?;
        let state = if stopped { "stopped" } else { "was down" };
        let data = if wipe { ", data removed" } else { "" };
        println!("{:<9} {state}{data}", choice.name());
    }
    if wipe && layout.env_file().exists() {
        std::fs::remove_file(layout.env_file()).context("cannot remove services.env")?;
    }
    Ok(())
}

/// Prints one line per server.
pub fn status(layout: &Layout) -> Result<()> {
    for choice in Choice::known(layout)? {
        println!("{}", server::status(layout, &choice)?);
    }
    Ok(())
}

/// A test run that needs the servers; other runs can see that it is there.
#[derive(Debug)]
pub struct User(File);

impl User {
    /// Announces a run, to be done before [`up`].
    pub fn announce(layout: &Layout) -> Result<Self> {
        let file = File::create(layout.services.join("users"))?;
        file.lock_shared().context("cannot lock `users`")?;
        Ok(Self(file))
    }

    /// Ends the run and stops the servers it had started, unless another run uses them.
    pub fn leave(self, layout: &Layout, started: &[String]) -> Result<()> {
        drop(self.0);
        if started.is_empty() {
            return Ok(());
        }
        let _lock = lock(layout)?;
        // A run that begins now waits for the lock above in `up`, and starts them again.
        let users = File::create(layout.services.join("users"))?;
        if users.try_lock().is_err() {
            println!("another test run uses the servers: they stay up");
            return Ok(());
        }
        drop(users);
        for choice in Choice::known(layout)? {
            if started.contains(&choice.name()) {
                server::down(layout, &choice, false)?;
                println!("{:<9} stopped", choice.name());
            }
        }
        Ok(())
    }
}

fn lock(layout: &Layout) -> Result<File> {
    let path = layout.services.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}
