//! A server of a run's own: its data are made for it and removed with it, its port is nobody else's.
//!
//! Processes die in a run, the machine does not: a server writes what is committed to the operating system, and does
//! not wait for the disk. Where its programs are, and the account it runs as, is said by `cargo xtask`.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use sqlx::{Connection, MySqlConnection, PgConnection};
use uuid::Uuid;

use super::guard::Guard;
use super::process::{Process, tail};
use crate::program::setting;

/// Every client of a run has several connections, and relays have some for each table.
const CONNECTIONS: u32 = 400;

const POSTGRES: [&str; 6] = [
    "-clisten_addresses=127.0.0.1",
    "-cunix_socket_directories=",
    "-cfsync=off",
    "-cfull_page_writes=off",
    "-cshared_buffers=64MB",
    "-ctimezone=UTC",
];

const MARIADB: [&str; 9] = [
    "--bind-address=127.0.0.1",
    "--socket=server.sock",
    "--skip-log-bin",
    "--skip-name-resolve",
    "--default-time-zone=+00:00",
    "--character-set-server=utf8mb4",
    // A commit is written to the operating system.
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-doublewrite=0",
    "--innodb-buffer-pool-size=64M",
];

/// How long a server may take to let somebody in.
const PATIENCE: Duration = Duration::from_secs(60);

/// What it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    Postgres,
    MariaDb,
    Nats,
}

impl Engine {
    /// What its settings are called by.
    fn word(self) -> &'static str {
        match self {
            Self::Postgres => "POSTGRES",
            Self::MariaDb => "MARIADB",
            Self::Nats => "NATS",
        }
    }

    /// The signal on which it dies at once. The children of a PostgreSQL that was killed would outlive it for a moment,
    /// and keep the next from starting; told to quit, it ends them without writing anything: an immediate shutdown.
    fn death(self) -> Signal {
        match self {
            Self::Postgres => Signal::QUIT,
            Self::MariaDb | Self::Nats => Signal::KILL,
        }
    }
}

/// A server that runs, or is down for a while.
#[derive(Debug)]
pub(super) struct Server {
    engine: Engine,
    /// Before its data: it ends before they are removed.
    process: Option<Process>,
    home: Home,
    account: (u32, u32),
    port: u16,
    log: PathBuf,
    guard: Arc<Guard>,
}

/// A directory that is gone in the end.
#[derive(Debug)]
struct Home(PathBuf);

impl Drop for Home {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

impl Server {
    /// A new one, running; its log is in this directory.
    pub(super) async fn start(engine: Engine, directory: &Path, guard: &Arc<Guard>) -> Result<Self> {
        let account = setting(engine.word(), "ACCOUNT")?;
        let (uid, gid) = account.split_once(':').context("an account is UID:GID")?;
        let account = (uid.parse()?, gid.parse()?);
        let home = PathBuf::from(setting(engine.word(), "HOME")?)
            .join(format!("torture-{}", Uuid::now_v7().simple()));
        std::fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        let home = Home(home);
        std::os::unix::fs::chown(&home.0, Some(account.0), Some(account.1))?;
        let guard = Arc::clone(guard);
        let log = directory.join(format!("{}.log", engine.word().to_lowercase()));
        let mut server = Self { engine, process: None, home, account, port: free_port()?, log, guard };
        server.create()?;
        server.start_again().await?;
        Ok(server)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Where a user who may do everything finds this database of it; of NATS, where it is.
    pub(super) fn url(&self, database: &str) -> String {
        let port = self.port;
        match self.engine {
            Engine::Postgres => format!("postgres://posthaste@127.0.0.1:{port}/{database}"),
            Engine::MariaDb => format!("mysql://root@127.0.0.1:{port}/{database}"),
            Engine::Nats => format!("nats://127.0.0.1:{port}"),
        }
    }

    /// It dies without a word to anybody.
    pub(super) async fn crash(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            if let Some(status) = process.ended() {
                bail!("{:?} ended by itself with {status}: {}", self.engine, self.last_words());
            }
            process.end(self.engine.death()).await?;
        }
        Ok(())
    }

    /// It comes back with what was committed.
    pub(super) async fn start_again(&mut self) -> Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        let command = self.serve()?;
        self.process = Some(Process::start(command, &self.log, &self.guard)?);
        let began = Instant::now();
        while !self.answers().await {
            let ended = self.process.as_mut().and_then(Process::ended);
            if let Some(status) = ended {
                bail!("{:?} ended with {status}: {}", self.engine, self.last_words());
            }
            if began.elapsed() > PATIENCE {
                bail!("{:?} does not get ready: {}", self.engine, self.last_words());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn answers(&self) -> bool {
        match self.engine {
            Engine::Postgres => PgConnection::connect(&self.url("postgres")).await.is_ok(),
            Engine::MariaDb => MySqlConnection::connect(&self.url("mysql")).await.is_ok(),
            Engine::Nats => TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok(),
        }
    }

    fn data(&self) -> PathBuf {
        self.home.0.join("data")
    }

    /// Makes its data.
    fn create(&self) -> Result<()> {
        let mut command = match self.engine {
            Engine::Nats => return Ok(()),
            Engine::Postgres | Engine::MariaDb => self.command("CREATE")?,
        };
        if self.engine == Engine::Postgres {
            command
                .args(["--username=posthaste", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"])
                .arg("--pgdata")
                .arg(self.data());
        } else {
            command
                .args(["--no-defaults", "--auth-root-authentication-method=normal"])
                .args(["--skip-test-db", "--skip-name-resolve"])
                // Whoever starts removes what others have made in the directory that all share.
                .env("TMPDIR", &self.home.0)
                .arg(format!("--datadir={}", self.data().display()))
                .args(self.user());
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        ensure!(command.status()?.success(), "{:?} made no data: {}", self.engine, self.last_words());
        Ok(())
    }

    /// The command that is the server.
    fn serve(&self) -> Result<Command> {
        let mut command = self.command("SERVE")?;
        match self.engine {
            Engine::Postgres => {
                command.arg("-D").arg(self.data()).arg(format!("-p{}", self.port)).args(POSTGRES);
                command.arg(format!("-cmax_connections={CONNECTIONS}"));
            }
            Engine::MariaDb => {
                command
                    .arg("--no-defaults")
                    .arg(format!("--datadir={}", self.data().display()))
                    .arg(format!("--tmpdir={}", self.home.0.display()))
                    .arg(format!("--port={}", self.port))
                    .args(self.user())
                    .args(MARIADB)
                    .arg(format!("--max-connections={CONNECTIONS}"));
            }
            Engine::Nats => {
                command.args(["--addr", "127.0.0.1", "--port", &self.port.to_string()]);
                command.args(["--jetstream", "--store_dir"]).arg(self.data());
            }
        }
        Ok(command)
    }

    /// A program that runs as the server's account.
    fn command(&self, program: &str) -> Result<Command> {
        let mut command = Command::new(setting(self.engine.word(), program)?);
        command
            .uid(self.account.0)
            .gid(self.account.1)
            .current_dir("/")
            .env("HOME", "/")
            .env_remove("TMPDIR");
        Ok(command)
    }

    /// MariaDB wants to be told that it may run as root.
    fn user(&self) -> Option<&'static str> {
        (self.account.0 == 0).then_some("--user=root")
    }

    /// The last lines it has written.
    fn last_words(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of a run that failed: its data are removed, so nobody may write to them any more, and the children of a
        // PostgreSQL that is killed would.
        if let Some(process) = &mut self.process {
            process.signal(self.engine.death());
            let began = Instant::now();
            while process.ended().is_none() && began.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// A port that nothing listens on, and that no client is given as its own while the server is down: below those
/// which systems hand out.
fn free_port() -> Result<u16> {
    let candidate = || 15_000 + fastrand::u16(..15_000);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    std::iter::repeat_with(candidate).take(1000).find(is_free).context("no port is free")
}
