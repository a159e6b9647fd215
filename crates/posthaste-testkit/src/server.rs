//! The life of one server, whichever it is: start it, find it again, stop it.
//!
//! * A server is started as a child in a process group of its own, so that Ctrl-C in the terminal
//!   ends the run and not the server.
//! * It is ready when the user of the tests can log in, within `DEADLINE`. When it is not, or
//!   ends by itself, the error has the end of its log.
//!
//! Promise: [`up`] on a running server changes nothing, and after any crash it leads to a running
//! one; [`down`] ends only the process that [`up`] started.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::choice::{Choice, Source};
use crate::engine::{Engine, Installation, Profile, read_pid};
use crate::home::{Home, clear_copy};
use crate::layout::Layout;
use crate::record::{How, Record};
use crate::{compose, process};

/// How long a server may take to be ready: recovery after a crash on a slow disk needs some.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long a living server may take to answer before it is taken for stuck and restarted.
const PATIENCE: Duration = Duration::from_secs(10);

/// What [`up`] found or did.
#[derive(Debug, Clone)]
pub struct Up {
    /// The port of the server.
    pub port: u16,
    /// Whether it was started just now.
    pub started: bool,
    /// Its programs, and its directory, which its account can write to; none in a container.
    pub place: Option<(Installation, Home)>,
}

/// Makes sure that a server runs.
pub fn up(layout: &Layout, choice: &Choice, source: &Source) -> Result<Up> {
    let (engine, name) = (choice.engine, &choice.name());
    clear_copy(layout, name)?;
    let record = Record::read(layout, name)?;
    if let Some(record) = &record
        && is_running(engine, record)
        && process::wait(PATIENCE, || match record.how {
            How::Process { .. } => engine.login(record.port).is_ok(),
            How::Container => engine.is_ready(record.port),
        })
    {
        let place = match (&record.how, source) {
            (How::Process { home, .. }, Source::Programs(installation)) => {
                Some((installation.clone(), Home(home.clone())))
            }
            _ => None,
        };
        let port = record.port;
        return Ok(Up { port, started: false, place });
    }
    let wanted = record.as_ref().map(|record| record.port);
    let (port, place) = match source {
        Source::Container => {
            let port = process::free_port(wanted)?;
            let how = How::Container;
            Record { port, how }.write(layout, name)?;
            // The image makes the user and the database, and its check of health logs in: the machine may have no client.
            compose::up(layout, choice, port)?;
            (port, None)
        }
        Source::Programs(installation) => {
            let home = Home::choose(layout, name, record.as_ref(), &installation.account)?;
            stop(engine, &home, record.as_ref())?;
            home.fill(engine, installation, Profile::Shared)?;
            let port = start(layout, choice, installation, &home, wanted).with_context(|| {
                format!("{name} does not start (`cargo xtask services down --wipe` drops its data)")
            })?;
            (port, Some((installation.clone(), home)))
        }
    };
    Ok(Up { port, started: true, place })
}

/// Stops a server if it runs, and removes its data if `wipe`; whether there was one to stop.
pub fn down(layout: &Layout, choice: &Choice, wipe: bool) -> Result<bool> {
    let (engine, name) = (choice.engine, &choice.name());
    let record = Record::read(layout, name)?;
    if let Some(record) = &record
        && record.how == How::Container
    {
        let stopped = process::answers(record.port);
        compose::down(layout, choice, record.port, wipe)?;
        if wipe {
            Record::remove(layout, name)?;
        }
        return Ok(stopped);
    }
    let home = Home::known(layout, name, record.as_ref());
    let stopped = stop(engine, &home, record.as_ref())?;
    if wipe {
        clear_copy(layout, name)?;
        home.remove()?;
        Record::remove(layout, name)?;
        // Of the directories above, only the one outside the workspace is there for this alone;
        // it is empty, and goes, with the last server.
        if let Some(above) = home.0.parent().filter(|dir| dir.ends_with(layout.tag())) {
            let _ = fs::remove_dir(above);
        }
    }
    Ok(stopped)
}

/// One line about a server.
pub fn status(layout: &Layout, choice: &Choice) -> Result<String> {
    let (engine, name) = (choice.engine, &choice.name());
    let Some(record) = Record::read(layout, name)? else {
        return Ok(format!("{name:<9} down  (never started)"));
    };
    let state = match (is_running(engine, &record), process::answers(record.port)) {
        (true, true) => "up",
        (true, false) => "up, but does not answer",
        (false, _) => return Ok(format!("{name:<9} down")),
    };
    let process = match &record.how {
        How::Process { pid, .. } => format!("pid {pid}"),
        How::Container => "container".to_owned(),
    };
    let url = engine.url(record.port);
    Ok(format!("{name:<9} {state}  {process}  {url}"))
}

fn is_running(engine: &dyn Engine, record: &Record) -> bool {
    match &record.how {
        How::Process { pid, home } => process::is_ours(*pid, &engine.argument(&Home(home.clone()))),
        How::Container => process::answers(record.port),
    }
}

/// Ends the process of a server, known by the record or by the file that the server itself wrote;
/// whether there was one.
fn stop(engine: &dyn Engine, home: &Home, record: Option<&Record>) -> Result<bool> {
    let recorded = match record.map(|record| &record.how) {
        Some(How::Process { pid, .. }) => Some(*pid),
        _ => None,
    };
    let argument = engine.argument(home);
    let (gentle, hard) = engine.signals();
    let mut stopped = false;
    for pid in [recorded, read_pid(&engine.pid_file(home))].into_iter().flatten() {
        if process::is_ours(pid, &argument) {
            process::stop(pid, &argument, gentle, hard)?;
            stopped = true;
        }
    }
    Ok(stopped)
}

/// Starts the server and returns its port once it is ready.
fn start(
    layout: &Layout,
    choice: &Choice,
    installation: &Installation,
    home: &Home,
    mut wanted: Option<u16>,
) -> Result<u16> {
    let engine = choice.engine;
    let begin = Instant::now();
    loop {
        let port = process::free_port(wanted)?;
        engine.clear_stale(home)?;
        let log = File::create(home.log()).context("cannot make the log")?;
        let mut child = engine
            .serve(installation, Profile::Shared, home, port)?
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("cannot run the server")?;
        let how = How::Process { pid: child.id(), home: home.0.clone() };
        // Before it is ready, so that `down` finds it whatever happens now.
        Record { port, how }.write(layout, &choice.name())?;
        let mut ended = None;
        let mut answer = Ok(());
        process::wait(DEADLINE.saturating_sub(begin.elapsed()), || {
            ended = child.try_wait().ok().flatten();
            // A client is a process: it is not started before the server would answer it.
            answer =
                if engine.is_ready(port) { engine.login(port) } else { Err(anyhow!("it does not answer")) };
            ended.is_some() || answer.is_ok()
        });
        let log = process::tail(&home.log());
        let Some(status) = ended else {
            if let Err(error) = answer {
                let (gentle, hard) = engine.signals();
                process::stop(child.id(), &engine.argument(home), gentle, hard)?;
                bail!("not ready within {DEADLINE:?}: {error:#}\n{log}");
            }
            return Ok(port);
        };
        // Two reasons are gone at the next try: another program took the port between the look and the
        // start, and the last children of a killed PostgreSQL have not ended yet.
        let taken = process::free_port(Some(port))? != port;
        if !(taken || log.contains("still in use")) || begin.elapsed() >= DEADLINE {
            bail!("it ended with {status}; the end of its log:\n{log}");
        }
        wanted = (!taken).then_some(port);
        std::thread::sleep(Duration::from_millis(500));
    }
}
