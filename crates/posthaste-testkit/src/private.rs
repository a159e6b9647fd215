//! Servers of a test's own, which it may crash, shut down and start again.
//!
//! * [`Site`] is a directory with data and the commands around it, for a program that runs the process itself;
//!   [`PrivateServer`] is a site with its process.
//! * Programs, account and directory are those that `cargo xtask services up` has found for the shared servers, see
//!   [`crate::environment`].
//! * Data are made once per target directory and kept as a template, of which each server gets a copy: `initdb` takes a second,
//!   `mysqld --initialize` four. A template belongs to one version of the server and to one command that makes the data.
//! * Of several processes that need the same template one makes it, and the others wait for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::engine::{Engine, Installation, Profile, run};
use crate::home::Home;
use crate::layout::fnv1a;
use crate::process;

/// Longest time until a server accepts clients: recovery after a crash on a slow disk needs some.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Pause between two looks at a server that starts.
const POLL: Duration = Duration::from_millis(10);

/// Data of one private server, removed with this, and the commands around them.
#[derive(Debug)]
pub struct Site {
    engine: &'static dyn Engine,
    installation: Installation,
    profile: Profile,
    home: Home,
    port: u16,
    settings: Vec<String>,
}

impl Site {
    /// A site with new data, a port of its own, and these settings beside those of the profile.
    pub fn new(engine: &'static dyn Engine, profile: Profile, settings: &[&str]) -> Result<Self> {
        let (installation, homes) = Installation::from_variables(engine)?;
        let template = template(engine, &installation, profile, &homes)?;
        let home = Home(homes.join(format!("private-{:016x}", process::unique())));
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        // From here on the directory is removed whatever happens.
        let site = Self { engine, installation, profile, home, port: process::private_port()?, settings };
        make_dir(&site.home.0, &site.installation)?;
        copy(&template.data(), &site.home.data())?;
        Ok(site)
    }

    /// The kind of the server.
    pub fn engine(&self) -> &'static dyn Engine {
        self.engine
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL of a database, as the superuser; of NATS, the URL of the server.
    pub fn url(&self, database: &str) -> String {
        self.engine.private_url(self.port, database)
    }

    /// URL of the database that is always there.
    pub fn first_url(&self) -> String {
        self.url(self.engine.first_database())
    }

    /// The command that is the server.
    pub fn serve(&self) -> Result<Command> {
        let mut command = self.engine.serve(&self.installation, self.profile, &self.home, self.port)?;
        command.args(&self.settings);
        Ok(command)
    }

    /// `true` if the server accepts clients.
    pub fn is_ready(&self) -> bool {
        self.engine.is_ready(self.port)
    }

    /// The signal that leaves the data clean.
    pub fn shutdown(&self) -> &'static str {
        self.engine.signals().0
    }

    /// The signal on which the server dies at once.
    pub fn death(&self) -> &'static str {
        self.engine.signals().1
    }

    /// A file for the output of the server.
    pub fn log(&self) -> PathBuf {
        self.home.log()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.home.0).ok();
    }
}

/// A running server, or one that is down for a while. It ends with this, in the process group of the program.
#[derive(Debug)]
pub struct PrivateServer {
    process: Child,
    site: Site,
}

impl PrivateServer {
    /// Starts a new one for a test.
    pub fn start(engine: &'static dyn Engine) -> Result<Self> {
        Self::start_with(engine, Profile::Private, &[])
    }

    /// Starts a new one with the settings of a profile, and with these.
    pub fn start_with(engine: &'static dyn Engine, profile: Profile, settings: &[&str]) -> Result<Self> {
        let site = Site::new(engine, profile, settings)?;
        let process = spawn(&site)?;
        let mut server = Self { process, site };
        server.wait()?;
        Ok(server)
    }

    /// The kind of the server.
    pub fn engine(&self) -> &'static dyn Engine {
        self.site.engine
    }

    /// The port of the server, the same after a restart.
    pub fn port(&self) -> u16 {
        self.site.port
    }

    /// The number of the server's first process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// URL of a database, as the superuser; of NATS, the URL of the server.
    pub fn url(&self, database: &str) -> String {
        self.site.url(database)
    }

    /// URL of the database that is always there.
    pub fn first_url(&self) -> String {
        self.site.first_url()
    }

    /// Ends the server as a crash does: no client hears of it, and the next start recovers.
    pub fn crash(&mut self) {
        self.end(self.site.death());
    }

    /// Ends the server as an operator does.
    pub fn shut_down(&mut self) {
        self.end(self.site.shutdown());
    }

    /// Starts the server again, with its data and on its port.
    pub fn start_again(&mut self) -> Result<()> {
        self.process = spawn(&self.site)?;
        self.wait()
    }

    /// The last lines that the server has written.
    pub fn log(&self) -> String {
        process::tail(&self.site.log())
    }

    /// Status of a server that has ended.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    fn wait(&mut self) -> Result<()> {
        let name = self.site.engine.name();
        let began = Instant::now();
        loop {
            let is_ready = self.site.is_ready();
            // After the answer: one that has ended may have left its port to another server, which answers.
            if let Some(status) = self.ended() {
                bail!("{name} ended with {status}; the end of its log:\n{}", self.log());
            }
            if is_ready {
                return Ok(());
            }
            if began.elapsed() > DEADLINE {
                bail!("{name} was not ready within {DEADLINE:?}; the end of its log:\n{}", self.log());
            }
            std::thread::sleep(POLL);
        }
    }

    fn end(&mut self, signal: &str) {
        if self.ended().is_none() {
            // The number is still this server's: its end has not been waited for.
            process::signal(self.process.id(), signal);
            self.process.wait().ok();
        }
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the end of the log of {}:\n{}", self.site.engine.name(), self.log());
        }
        self.crash();
    }
}

fn spawn(site: &Site) -> Result<Child> {
    let log = File::options().create(true).append(true).open(site.log())?;
    let mut command = site.serve()?;
    let child = command.stdout(log.try_clone()?).stderr(log).spawn();
    child.with_context(|| format!("cannot run {}", command.get_program().display()))
}

/// The template of these data, made if need be.
fn template(
    engine: &'static dyn Engine,
    installation: &Installation,
    profile: Profile,
    homes: &Path,
) -> Result<Home> {
    let command = engine.create(installation, profile, &Home(homes.join("template")))?;
    let recipe = format!("{} {command:?} {}", installation.version()?, installation.account);
    let template = Home(homes.join(format!("template-{:016x}", fnv1a(recipe.as_bytes()))));
    if template.data().is_dir() {
        return Ok(template);
    }
    // The lock spares the work of making it twice; that data appear under their name only when they are complete is what makes
    // an interrupted run harmless.
    let path = template.0.with_extension("lock");
    let lock = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    make_dir(&template.0, installation)?;
    template.fill(engine, installation, profile)?;
    Ok(template)
}

/// Makes a directory that the account of the server can write to.
fn make_dir(dir: &Path, installation: &Installation) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let account = &installation.account;
    std::os::unix::fs::chown(dir, Some(account.uid), Some(account.gid))
        .with_context(|| format!("cannot give {} away", dir.display()))
}

/// Copies data with their owners and permissions.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.args(["-R", "-p"]).arg(from).arg(to);
    run(command, "")
}
