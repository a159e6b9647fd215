//! A server of a test's own, which it may crash, restart and cut everybody off from.
//!
//! Its data are made for it and removed with it, its port is nobody else's, and it ends with the test: by its
//! number when the test succeeds or panics, and with the test's process group when that is killed. The programs
//! and the account it runs as are those that `cargo xtask services up` has found for the shared servers.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};
use uuid::Uuid;

use super::faults::process_list;
use super::servers::setting;
use super::{Kind, MINUTE};

/// The process dies, the machine does not: nothing waits for the disk.
const POSTGRES: [&str; 8] = [
    "-clisten_addresses=127.0.0.1",
    "-cunix_socket_directories=",
    "-cfsync=off",
    "-cfull_page_writes=off",
    "-cshared_buffers=16MB",
    "-cmax_connections=100",
    "-ctimezone=UTC",
    "-clog_timezone=UTC",
];

/// A commit writes to the operating system, which outlives a killed server.
const MARIADB: [&str; 8] = [
    "--bind-address=127.0.0.1",
    "--socket=server.sock",
    "--skip-log-bin",
    "--skip-name-resolve",
    "--default-time-zone=+00:00",
    "--character-set-server=utf8mb4",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-doublewrite=0",
];

const MYSQL: [&str; 9] = [
    "--bind-address=127.0.0.1",
    "--mysqlx=OFF",
    "--socket=server.sock",
    "--secure-file-priv=NULL",
    "--disable-log-bin",
    "--skip-name-resolve",
    "--default-time-zone=+00:00",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-doublewrite=OFF",
];

/// The same for MySQL, which has other names for its log.
const SMALL_MYSQL: [&str; 2] = ["--innodb-buffer-pool-size=16M", "--innodb-redo-log-capacity=16M"];

/// The data of a small server are made, copied and recovered in no time.
const SMALL: [&str; 2] = ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=16M"];

/// A running server, alone in this process: it and its test want the machine for themselves.
pub struct PrivateServer {
    site: Site,
    port: u16,
    process: Child,
    _turn: OwnedMutexGuard<()>,
}

/// What does not change when it is started again.
struct Site {
    kind: Kind,
    home: PathBuf,
    prefix: &'static str,
    account: (u32, u32),
    settings: Vec<String>,
}

impl PrivateServer {
    /// A new one.
    pub async fn start(kind: Kind) -> Self {
        Self::start_with(kind, &[]).await
    }

    /// A new one with these settings beside its own.
    pub async fn start_with(kind: Kind, settings: &[&str]) -> Self {
        static TURN: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);
        let turn = Arc::clone(&TURN).lock_owned().await;
        let site = Site::new(kind, settings);
        let port = free_port();
        let process = site.serve(port);
        let mut server = Self { site, port, process, _turn: turn };
        server.is_ready().await;
        server
    }

    pub fn kind(&self) -> Kind {
        self.site.kind
    }

    /// Where a user who may do everything finds it.
    pub fn url(&self) -> String {
        match self.site.kind {
            Kind::Postgres => self.url_of("postgres"),
            _ => self.url_of("mysql"),
        }
    }

    /// Where this database of it is.
    pub fn url_of(&self, database: &str) -> String {
        match self.site.kind {
            Kind::Postgres => format!("postgres://posthaste@127.0.0.1:{}/{database}", self.port),
            _ => format!("mysql://root@127.0.0.1:{}/{database}", self.port),
        }
    }

    /// It dies without a word to anybody.
    pub fn crash(&mut self) {
        self.end(self.site.death());
    }

    /// It is shut down as an operator does it.
    pub fn shut_down(&mut self) {
        self.end(match self.site.kind {
            Kind::Postgres => "INT",
            _ => "TERM",
        });
    }

    /// It comes back, with what was committed.
    pub async fn start_again(&mut self) {
        self.process = self.site.serve(self.port);
        self.is_ready().await;
    }

    /// Ends every connection but the one that says so; how many.
    pub async fn kill_connections(&self) -> usize {
        match self.site.kind {
            Kind::Postgres => {
                let mut own = PgConnection::connect(&self.url()).await.unwrap();
                let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                let ended: i64 = sqlx::query_scalar(others).fetch_one(&mut own).await.unwrap();
                ended as usize
            }
            _ => {
                let mut own = MySqlConnection::connect(&self.url()).await.unwrap();
                let others = format!(
                    "SELECT CAST(ID AS SIGNED) FROM {} WHERE COMMAND <> 'Daemon' AND ID <> CONNECTION_ID()",
                    process_list(self.site.kind)
                );
                let others: Vec<i64> =
                    sqlx::query_scalar(AssertSqlSafe(others)).fetch_all(&mut own).await.unwrap();
                let mut ended = 0;
                for id in others {
                    // One that has gone by itself meanwhile is an error.
                    ended += usize::from(own.execute(AssertSqlSafe(format!("KILL {id}"))).await.is_ok());
                }
                ended
            }
        }
    }

    /// Waits until it lets somebody in.
    async fn is_ready(&mut self) {
        let url = self.url();
        let asking = async {
            loop {
                if let Some(status) = self.process.try_wait().unwrap() {
                    panic!("the server ended with {status}: {}", self.site.log());
                }
                let answer = match self.site.kind {
                    Kind::Postgres => PgConnection::connect(&url).await.map(drop),
                    _ => MySqlConnection::connect(&url).await.map(drop),
                };
                if answer.is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(MINUTE, asking).await.is_err() {
            panic!("the server does not get ready: {}", self.site.log());
        }
    }

    /// Ends the process if it has not ended, and waits until it has.
    fn end(&mut self, signal: &str) {
        if let Ok(None) = self.process.try_wait() {
            // The shell's own `kill`, because a small machine may lack the program of that name.
            let kill = ["-c", "kill -s \"$1\" \"$2\"", "sh", signal];
            Command::new("sh").args(kill).arg(self.process.id().to_string()).status().ok();
            tokio::task::block_in_place(|| self.process.wait()).ok();
        }
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the end of the server's log:\n{}", self.site.log());
        }
        self.crash();
        std::fs::remove_dir_all(&self.site.home).ok();
    }
}

impl Site {
    /// A directory with new data.
    fn new(kind: Kind, settings: &[&str]) -> Self {
        let prefix = match kind {
            Kind::Postgres => "POSTHASTE_TEST_POSTGRES",
            Kind::MySql => "POSTHASTE_TEST_MYSQL",
            Kind::MariaDb => "POSTHASTE_TEST_MARIADB",
            Kind::Sqlite | Kind::Memory => panic!("no server"),
        };
        let account = setting(&format!("{prefix}_ACCOUNT"));
        let (uid, gid) = account.split_once(':').unwrap();
        let account = (uid.parse().unwrap(), gid.parse().unwrap());
        let homes = PathBuf::from(setting(&format!("{prefix}_HOME")));
        let home = homes.join(format!("private-{}", Uuid::now_v7().simple()));
        std::fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(account.0), Some(account.1)).unwrap();
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let site = Self { kind, home, prefix, account, settings };
        let made = site.create().status().unwrap();
        assert!(made.success(), "no data for a server: {}", site.log());
        site
    }

    fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// The command that makes its data.
    fn create(&self) -> Command {
        let mut command = self.command("CREATE");
        match self.kind {
            Kind::Postgres => command
                .args(["--username=posthaste", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"])
                .arg("--pgdata")
                .arg(self.data()),
            Kind::MySql => command
                .args(["--no-defaults", "--initialize-insecure", "--secure-file-priv=NULL"])
                .arg(format!("--datadir={}", self.data().display()))
                .arg(format!("--tmpdir={}", self.home.display()))
                .args(self.user())
                .args(SMALL_MYSQL),
            _ => command
                .args(["--no-defaults", "--auth-root-authentication-method=normal"])
                .args(["--skip-test-db", "--skip-name-resolve"])
                // Whoever starts removes what others have made in the directory that all share.
                .env("TMPDIR", &self.home)
                .arg(format!("--datadir={}", self.data().display()))
                .args(self.user())
                .args(SMALL),
        };
        command
    }

    /// Starts the server, in the process group of the test.
    fn serve(&self, port: u16) -> Child {
        let mut command = self.command("SERVE");
        match self.kind {
            Kind::Postgres => command.arg("-D").arg(self.data()).arg(format!("-p{port}")).args(POSTGRES),
            Kind::MySql => command
                .arg("--no-defaults")
                .arg(format!("--datadir={}", self.data().display()))
                .arg(format!("--tmpdir={}", self.home.display()))
                .arg(format!("--port={port}"))
                .arg(format!("--init-file={}", self.init_file().display()))
                .args(self.user())
                .args(MYSQL)
                .args(SMALL_MYSQL),
            _ => command
                .arg("--no-defaults")
                .arg(format!("--datadir={}", self.data().display()))
                .arg(format!("--tmpdir={}", self.home.display()))
                .arg(format!("--port={port}"))
                .args(self.user())
                .args(MARIADB)
                .args(SMALL),
        };
        command.args(&self.settings).spawn().unwrap()
    }

    /// Statements that MySQL executes when it starts: without name resolution, the `root` that it makes cannot log in.
    fn init_file(&self) -> PathBuf {
        let path = self.home.join("init.sql");
        let sql = "CREATE USER IF NOT EXISTS root@'%';\nGRANT ALL PRIVILEGES ON *.* TO root@'%' WITH GRANT OPTION;\n";
        std::fs::write(&path, sql).unwrap();
        path
    }

    /// A program that runs as the server's account and writes to its log.
    fn command(&self, program: &str) -> Command {
        let log = File::options().create(true).append(true).open(self.home.join("server.log")).unwrap();
        let mut command = Command::new(setting(&format!("{}_{program}", self.prefix)));
        command
            .uid(self.account.0)
            .gid(self.account.1)
            .current_dir("/")
            .env("HOME", "/")
            .env_remove("TMPDIR")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        command
    }

    /// MariaDB wants to be told that it may run as root.
    fn user(&self) -> Option<&'static str> {
        (self.account.0 == 0).then_some("--user=root")
    }

    /// The signal on which it dies at once. The children of a PostgreSQL that was killed would outlive it, and
    /// keep the next from starting.
    fn death(&self) -> &'static str {
        match self.kind {
            Kind::Postgres => "QUIT",
            _ => "KILL",
        }
    }

    /// The last lines it has written.
    fn log(&self) -> String {
        let text = std::fs::read(self.home.join("server.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// A port that nothing listens on, and that no client is given as its own while the server is down: below those
/// which systems hand out.
fn free_port() -> u16 {
    let candidate = || 15_000 + (Uuid::now_v7().as_u128() % 15_000) as u16;
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    std::iter::repeat_with(candidate).find(is_free).unwrap()
}
