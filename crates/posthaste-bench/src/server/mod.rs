//! Private servers: their data are made for one run and removed with it, their ports are nobody else's.
//!
//! Where their programs are, and the account they run as, is said by `cargo xtask bench` in the environment.

mod mariadb;
mod postgres;

pub(crate) use mariadb::MariaDb;
pub(crate) use postgres::{Database, Postgres};

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use uuid::Uuid;

/// Where a server's programs and data are.
struct Site {
    create: PathBuf,
    serve: PathBuf,
    account: (u32, u32),
    home: PathBuf,
}

impl Site {
    /// A new directory for data, where the environment says.
    fn find(name: &str) -> Result<Self> {
        let said = |what: &str| {
            let variable = format!("POSTHASTE_BENCH_{name}_{what}");
            std::env::var(&variable)
                .with_context(|| format!("{variable} is not set: run this by `cargo xtask bench`"))
        };
        let account = said("ACCOUNT")?;
        let (uid, gid) = account.split_once(':').context("an account is UID:GID")?;
        let account = (uid.parse()?, gid.parse()?);
        let home = Path::new(&said("HOME")?).join(format!("run-{}", Uuid::now_v7().simple()));
        std::fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        std::os::unix::fs::chown(&home, Some(account.0), Some(account.1))?;
        Ok(Self { create: said("CREATE")?.into(), serve: said("SERVE")?.into(), account, home })
    }

    fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// A program that runs as the server's account and writes to its log.
    fn command(&self, program: &Path) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.home.join("server.log"))?;
        let mut command = Command::new(program);
        command
            .uid(self.account.0)
            .gid(self.account.1)
            .current_dir("/")
            .env("HOME", "/")
            .env_remove("TMPDIR")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }

    /// Makes its data with these arguments.
    fn make(&self, arguments: &[String]) -> Result<()> {
        // Whoever starts a MariaDB removes what others have made in the directory that all share.
        let made = self.command(&self.create)?.env("TMPDIR", &self.home).args(arguments).status()?;
        ensure!(made.success(), "{} made no data: {}", self.create.display(), self.log());
        Ok(())
    }

    /// The last lines it has written.
    fn log(&self) -> String {
        let text = std::fs::read(self.home.join("server.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.home).ok();
    }
}

/// A server's process, which ends with this.
struct Process {
    child: Child,
    signal: &'static str,
}

impl Process {
    /// Whether it has ended by itself.
    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            // The shell's own `kill`, because a small machine may lack the program of that name.
            let kill = ["-c", "kill -s \"$1\" \"$2\"", "sh", self.signal];
            Command::new("sh").args(kill).arg(self.child.id().to_string()).status().ok();
            self.child.wait().ok();
        }
    }
}

/// A port that nothing listens on, below those which systems hand out to clients.
fn free_port() -> Result<u16> {
    let candidate = || 15_000 + (Uuid::now_v7().as_u128() % 15_000) as u16;
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    std::iter::repeat_with(candidate).take(1000).find(is_free).context("no port is free")
}
