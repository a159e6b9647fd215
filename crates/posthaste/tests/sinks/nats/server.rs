//! A NATS server of a test's own, which it may stop, start again and freeze.
//!
//! Program, account and directory are those that `cargo xtask services up` has found for the shared server.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{self, Context};
use posthaste_testkit::environment;
use posthaste_testkit::process::private_port;
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::destination::MINUTE;

/// What makes it a server with JetStream.
pub const JETSTREAM: &str = "jetstream { store_dir: \"HOME\" }";

/// A running server. It ends with the test, and its data with it.
pub struct Server {
    home: PathBuf,
    account: (u32, u32),
    port: u16,
    /// Its configuration beside address and port.
    config: String,
    process: Child,
}

impl Server {
    pub async fn start() -> Self {
        Self::configured(JETSTREAM).await
    }

    /// One with this configuration, in which `HOME` stands for a directory of its own.
    pub async fn configured(config: &str) -> Self {
        let mut server = Self::made(config, Vec::new());
        server.is_ready().await;
        server
    }

    /// One that speaks TLS only, with this certificate and its key.
    pub async fn secured(certificate: &str, key: &str) -> Self {
        let config =
            format!("{JETSTREAM}\ntls {{ cert_file: \"HOME/cert.pem\", key_file: \"HOME/key.pem\" }}");
        let files = vec![("cert.pem", certificate.to_owned()), ("key.pem", key.to_owned())];
        let mut server = Self::made(&config, files);
        server.is_ready().await;
        server
    }

    fn made(config: &str, files: Vec<(&'static str, String)>) -> Self {
        let account = setting("ACCOUNT");
        let (uid, gid) = account.split_once(':').unwrap();
        let account = (uid.parse().unwrap(), gid.parse().unwrap());
        let home = PathBuf::from(setting("HOME")).join(format!("private-{}", Uuid::now_v7().simple()));
        std::fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(account.0), Some(account.1)).unwrap();
        let config = config.replace("HOME", &home.display().to_string());
        let port = private_port().unwrap();
        for (name, text) in &files {
            std::fs::write(home.join(name), text).unwrap();
        }
        let process = serve(&home, account, port, &config);
        Self { home, account, port, config, process }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// A client of the test's own.
    pub async fn jetstream(&self) -> Context {
        jetstream::new(async_nats::connect(self.url()).await.unwrap())
    }

    pub async fn stream(&self, name: &str) -> Option<Stream> {
        self.jetstream().await.get_stream(name).await.ok()
    }

    /// It dies without a word to anybody.
    pub fn stop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            self.signal("KILL");
            tokio::task::block_in_place(|| self.process.wait()).ok();
        }
    }

    pub async fn start_again(&mut self) {
        self.process = serve(&self.home, self.account, self.port, &self.config);
        self.is_ready().await;
    }

    /// It no longer runs. Its threads stop one after the other, so that is waited for.
    pub async fn freeze(&self) {
        self.signal("STOP");
        let stopped = async {
            while !self.is_frozen() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(MINUTE, stopped).await.expect("it does not stop");
    }

    /// Whether all of its threads are stopped; yes where the system does not tell.
    fn is_frozen(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.process.id())) else { return true };
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The state follows the name, which is in brackets and may hold anything.
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        })
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        // The shell's own `kill`, because a small machine may lack the program of that name.
        let kill = ["-c", "kill -s \"$1\" \"$2\"", "sh", signal];
        Command::new("sh").args(kill).arg(self.process.id().to_string()).status().unwrap();
    }

    /// Waits until it lets a client in; one with TLS, until it listens.
    async fn is_ready(&mut self) {
        let secured = self.config.contains("tls {");
        let asking = async {
            loop {
                let answers = match secured {
                    true => TcpStream::connect(("127.0.0.1", self.port)).await.is_ok(),
                    false => async_nats::connect(self.url()).await.is_ok(),
                };
                if answers {
                    return;
                }
                if let Some(status) = self.process.try_wait().unwrap() {
                    panic!("the server ended with {status}: {}", self.log());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(MINUTE, asking).await.is_err() {
            panic!("the server does not get ready: {}", self.log());
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.join("server.log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("KILL");
        self.process.wait().ok();
        std::fs::remove_dir_all(&self.home).ok();
    }
}

fn serve(home: &Path, account: (u32, u32), port: u16, config: &str) -> Child {
    let log = File::options().create(true).append(true).open(home.join("server.log")).unwrap();
    let file = home.join("server.conf");
    std::fs::write(&file, config).unwrap();
    Command::new(setting("SERVE"))
        .arg("--config")
        .arg(file)
        .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
        .uid(account.0)
        .gid(account.1)
        .current_dir("/")
        .env("HOME", "/")
        .env_remove("TMPDIR")
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Returns a variable about the server.
fn setting(what: &str) -> String {
    environment::setting(&format!("POSTHASTE_TEST_NATS_{what}")).unwrap()
}
