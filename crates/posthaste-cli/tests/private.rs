//! Servers of a test's own, which it may kill and start again.
//!
//! Programs, accounts and directories are those that `cargo xtask services up` has found for the shared servers.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::daemon::wait_for;
use crate::support::{service, unique};

/// A running server. It ends with the test, and its data with it.
pub(crate) struct Server {
    /// How its settings are called.
    prefix: &'static str,
    home: PathBuf,
    port: u16,
    process: Child,
}

impl Server {
    pub(crate) fn postgres() -> Self {
        let server = Self::new("POSTHASTE_TEST_POSTGRES");
        let wait = "no answer from PostgreSQL";
        wait_for(wait, || server.psql("SELECT 1").ok());
        server
    }

    pub(crate) fn nats() -> Self {
        Self::new("POSTHASTE_TEST_NATS")
    }

    fn new(prefix: &'static str) -> Self {
        let home = PathBuf::from(service(&format!("{prefix}_HOME"))).join(format!("private-{}", unique()));
        std::fs::create_dir(&home).unwrap();
        let (uid, gid) = account(prefix);
        std::os::unix::fs::chown(&home, Some(uid), Some(gid)).unwrap();
        if prefix.ends_with("POSTGRES") {
            let mut create = command(prefix, "CREATE", &home);
            create.args([
                "--username=posthaste",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ]);
            assert!(create.arg("--pgdata").arg(home.join("data")).status().unwrap().success());
        }
        let port = free_port();
        let process = serve(prefix, &home, port);
        Self { prefix, home, port, process }.ready()
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        match self.prefix {
            "POSTHASTE_TEST_POSTGRES" => format!("postgres://posthaste@127.0.0.1:{}/postgres", self.port),
            _ => format!("nats://127.0.0.1:{}", self.port),
        }
    }

    /// It dies without a word to anybody. The children of a PostgreSQL that was killed would outlive it, so that one is told to
    /// leave everything as it is.
    pub(crate) fn kill(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            let signal = if self.prefix.ends_with("POSTGRES") { "QUIT" } else { "KILL" };
            let kill = ["-c", "kill -s \"$1\" \"$2\"", "sh", signal];
            Command::new("sh").args(kill).arg(self.process.id().to_string()).status().unwrap();
            self.process.wait().unwrap();
        }
    }

    /// It comes back with its data.
    pub(crate) fn start_again(&mut self) {
        self.process = serve(self.prefix, &self.home, self.port);
        self.wait();
    }

    /// What PostgreSQL's own client answers to these statements, or what it says against them.
    pub(crate) fn psql(&self, sql: &str) -> Result<String, String> {
        let mut psql = Command::new("psql");
        psql.args([&self.url(), "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", sql]).current_dir("/");
        let output = psql.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn ready(self) -> Self {
        self.wait();
        self
    }

    fn wait(&self) {
        wait_for("server", || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.home).ok();
    }
}

/// Starts the server, in the process group of the test.
fn serve(prefix: &str, home: &Path, port: u16) -> Child {
    let mut command = command(prefix, "SERVE", home);
    if prefix.ends_with("POSTGRES") {
        command.arg("-D").arg(home.join("data")).arg(format!("-p{port}"));
        command.args(["-clisten_addresses=127.0.0.1", "-cunix_socket_directories=", "-cshared_buffers=16MB"]);
    } else {
        command
            .args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream", "--store_dir"])
            .arg(home);
    }
    command.spawn().unwrap()
}

/// A program that runs as the server's account and writes to its log.
fn command(prefix: &str, program: &str, home: &Path) -> Command {
    let log = File::options().create(true).append(true).open(home.join("server.log")).unwrap();
    let (uid, gid) = account(prefix);
    let mut command = Command::new(service(&format!("{prefix}_{program}")));
    command.uid(uid).gid(gid).current_dir("/").env("HOME", "/").env_remove("TMPDIR");
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command
}

fn account(prefix: &str) -> (u32, u32) {
    let account = service(&format!("{prefix}_ACCOUNT"));
    let (uid, gid) = account.split_once(':').unwrap();
    (uid.parse().unwrap(), gid.parse().unwrap())
}

/// A port that nothing listens on, and that no client is given as its own while the server is down: below those which
/// systems hand out.
fn free_port() -> u16 {
    let seed = std::process::id();
    let candidates = (0..15_000).map(|n| 15_000 + ((seed.wrapping_mul(7919) + n * 37) % 15_000) as u16);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    candidates.into_iter().find(is_free).unwrap()
}
