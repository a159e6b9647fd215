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

use anyhow::{Context, Result};

use crate::envfile::EnvFile;
use crate::layout::Layout;
use crate::{engine, install, server};

/// Makes sure that all of them run, and says so; returns the lines of `services.env`.
///
/// The names of those that had not been up before go to `started`, also when another one fails.
pub fn up(layout: &Layout, started: &mut Vec<&'static str>) -> Result<EnvFile> {
    let _lock = lock(layout)?;
    let containers = install::ensure(layout)?;
    let mut env = EnvFile::default();
    for engine in engine::all() {
        let name = engine.name();
        let begin = Instant::now();
        let up = server::up(layout, engine, containers.contains(&name))?;
        let url = engine.url(up.port);
        env.push(&engine.variable("URL"), &url)?;
        if let Some(home) = &up.home {
            let (programs, account) = (engine.programs()?, engine.account()?);
            env.push(&engine.variable("CREATE"), programs.create.display())?;
            env.push(&engine.variable("SERVE"), programs.serve.display())?;
            env.push(&engine.variable("ACCOUNT"), format!("{}:{}", account.uid, account.gid))?;
            env.push(&engine.variable("HOME"), home.0.display())?;
        }
        if up.started {
            started.push(name);
            let seconds = begin.elapsed().as_secs_f32();
            println!("{name:<9} started in {seconds:.1} s  {url}");
        } else {
            println!("{name:<9} is up  {url}");
        }
    }
    env.write(&layout.env_file())?;
    Ok(env)
}

/// Stops all of them, and removes their data if `wipe`.
pub fn down(layout: &Layout, wipe: bool) -> Result<()> {
    let _lock = lock(layout)?;
    for engine in engine::all() {
        let stopped = server::down(layout, engine, wipe)?;
        let state = if stopped { "stopped" } else { "was down" };
        let data = if wipe { ", data removed" } else { "" };
        println!("{:<9} {state}{data}", engine.name());
    }
    if wipe && layout.env_file().exists() {
        std::fs::remove_file(layout.env_file()).context("cannot remove services.env")?;
    }
    Ok(())
}

/// Prints one line per server.
pub fn status(layout: &Layout) -> Result<()> {
    for engine in engine::all() {
        println!("{}", server::status(layout, engine)?);
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
    pub fn leave(self, layout: &Layout, started: &[&str]) -> Result<()> {
        drop(self.0);
        if started.is_empty() {
            return Ok(());
        }
        let _lock = lock(layout)?;
        // Whoever comes now waits for the lock above in `up`, and starts them again.
        let users = File::create(layout.services.join("users"))?;
        if users.try_lock().is_err() {
            println!("another test run uses the servers: they stay up");
            return Ok(());
        }
        drop(users);
        for engine in engine::all() {
            if started.contains(&engine.name()) {
                server::down(layout, engine, false)?;
                println!("{:<9} stopped", engine.name());
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
