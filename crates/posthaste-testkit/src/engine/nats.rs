//! NATS with JetStream: how it is started.
//!
//! It writes to the operating system, which outlives a killed server, and does not wait for the disk; that is its
//! default, and only a loss of power makes a difference.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::account::Account;
use crate::engine::{Engine, Installation, Profile, WORD};
use crate::home::Home;
use crate::{process, program};

/// How long a server that has accepted a connection may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// NATS.
#[derive(Debug)]
pub struct Nats;

impl Engine for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn prefix(&self) -> &'static str {
        "POSTHASTE_TEST_NATS"
    }

    fn scheme(&self) -> &'static str {
        "nats"
    }

    /// Root only where the package made no user `nats`.
    fn account(&self) -> Result<Account> {
        match Account::of_service("nats")? {
            Some(account) => Ok(account),
            None => Account::current(),
        }
    }

    /// The server fills an empty directory by itself.
    fn installed(&self) -> Result<Installation> {
        let create = program::require("mkdir")?;
        let serve = program::require("nats-server")?;
        Ok(Installation { create, serve, account: self.account()? })
    }

    fn create(&self, installation: &Installation, _profile: Profile, home: &Home) -> Result<Command> {
        let mut command = installation.account.command(&installation.create);
        command.arg(home.unfinished());
        Ok(command)
    }

    fn serve(
        &self,
        installation: &Installation,
        profile: Profile,
        home: &Home,
        port: u16,
    ) -> Result<Command> {
        let mut command = installation.account.command(&installation.serve);
        command
            // Reachable from this machine only.
            .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
            .args(["--jetstream", "--store_dir", &self.argument(home)])
            .arg("--pid")
            .arg(self.pid_file(home));
        if profile == Profile::Shared {
            command.args(["--user", WORD, "--pass", WORD]);
        }
        Ok(command)
    }

    fn argument(&self, home: &Home) -> String {
        home.data().display().to_string()
    }

    fn pid_file(&self, home: &Home) -> PathBuf {
        home.0.join("server.pid")
    }

    /// NATS replaces a stale pid file by itself.
    fn clear_stale(&self, _home: &Home) -> Result<()> {
        Ok(())
    }

    fn signals(&self) -> (&'static str, &'static str) {
        ("TERM", "KILL")
    }

    /// The server introduces itself.
    fn is_ready(&self, port: u16) -> bool {
        process::first_bytes(port, &[]).is_some_and(|bytes| bytes.starts_with(b"INFO "))
    }

    /// By the protocol itself, since Debian has no client: the server introduces itself, gets user and password, and
    /// answers a `PING`.
    fn login(&self, port: u16) -> Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).context("nothing listens")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut answer = || lines.next().context("it hung up")?.context("it does not answer");
        let introduction = answer()?;
        if !introduction.contains("\"jetstream\":true") {
            bail!("it is not NATS with JetStream: {introduction}");
        }
        write!(stream, "CONNECT {{\"verbose\":false,\"user\":\"{WORD}\",\"pass\":\"{WORD}\"}}\r\nPING\r\n")?;
        match answer()?.as_str() {
            "PONG" => Ok(()),
            other => bail!("it answers {other:?}"),
        }
    }

    fn url(&self, port: u16) -> String {
        format!("{}://{WORD}:{WORD}@127.0.0.1:{port}", self.scheme())
    }

    fn private_url(&self, port: u16, _database: &str) -> String {
        format!("nats://127.0.0.1:{port}")
    }

    /// A server of NATS has no databases.
    fn first_database(&self) -> &'static str {
        ""
    }
}
