//! Running the binary, fresh databases, and the databases' own clients.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// What the binary said and how it ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("ended by a signal"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Answer {
    /// Demands this exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Demands an expected error: this exit code, one line with these words and no answer.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &str) -> Self {
        let lines: Vec<&str> = self.err.lines().collect();
        let one = lines.len() == 1 || lines.len() == 2 && lines[1].starts_with("  because: ");
        let fits = one && lines[0].starts_with("posthaste: ") && lines[0].contains("; ");
        assert!(fits && self.err.contains(words) && self.out.is_empty(), "not {words:?}: {self:?}");
        self.exits(code)
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A directory that is gone at the end.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        Self::under(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// One in this directory.
    pub(crate) fn under(parent: &Path) -> Self {
        let path = parent.join(unique());
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.0.join(name), bytes).unwrap();
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).unwrap().next().is_none()
    }

    /// The binary in this directory, with nothing of the environment's settings.
    pub(crate) fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.current_dir(&self.0).stdin(Stdio::null());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OUTBOX_"))
        {
            command.env_remove(name);
        }
        add(&mut command, arguments);
        command
            .env_remove("CI")
            .env_remove("NO_COLOR")
            .env_remove("CLICOLOR")
            .env_remove("CLICOLOR_FORCE")
            .env("TERM", "xterm");
        command
    }

    pub(crate) fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Answer {
        self.command(arguments).output().unwrap().into()
    }

    pub(crate) fn run_with_input<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
        input: &[u8],
    ) -> Answer {
        feed(
            self.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()),
            input,
        )
        .into()
    }

    /// Runs it with somebody at the terminal who types this; the answer's errors are what the terminal showed.
    pub(crate) fn run_on_terminal<'a>(
        &self,
        arguments: impl IntoIterator<Item = &'a str>,
        typed: &str,
    ) -> Answer {
        let (mut master, terminal) = screen(200);
        master.write_all(typed.as_bytes()).unwrap();
        let mut command = self.command(arguments);
        command.stdin(terminal.try_clone().unwrap()).stderr(terminal);
        let mut answer = Answer::from(command.output().unwrap());
        drop(command);
        // Everything that was shown, up to the error that says that nobody has the terminal open any more.
        let mut shown = Vec::new();
        let _ = master.read_to_end(&mut shown);
        answer.err = String::from_utf8(shown).unwrap().replace("\r\n", "\n");
        answer
    }
}

impl Dir {
    /// Runs a command on a terminal so wide; the answer is what it showed, errors among it.
    pub(crate) fn run_on_screen(mut command: Command, columns: u16) -> Answer {
        let (mut master, terminal) = screen(columns);
        command.stdout(terminal.try_clone().unwrap()).stderr(terminal);
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut shown = Vec::new();
        let _ = master.read_to_end(&mut shown);
        let code = child.wait().unwrap().code().expect("ended by a signal");
        Answer { code, out: String::from_utf8(shown).unwrap().replace("\r\n", "\n"), err: String::new() }
    }
}

/// A terminal so wide: what somebody sees of it, and what a program has of it.
pub(crate) fn screen(columns: u16) -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = File::from(rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap());
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    (File::from(master), terminal)
}

/// Ctrl-C.
pub(crate) fn interrupt(child: &Child) {
    let pid = Pid::from_child(child);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Gives a command its arguments; what serves something serves it on a port of its own.
fn add<'a>(command: &mut Command, arguments: impl IntoIterator<Item = &'a str>) {
    for argument in arguments {
        command.arg(argument);
        if matches!(argument, "relay" | "demo") {
            command.env("OUTBOX_HTTP_LISTEN", "127.0.0.1:0");
        }
    }
}

/// Starts a command and gives it this input.
fn feed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.spawn().unwrap();
    // A command that refuses its arguments has gone before it reads.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

pub(crate) fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    format!("t_{:x}_{nanos:x}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Makes a test of each function on every database: `fn(Kind)`.
macro_rules! on_databases {
    ($($test:ident),* $(,)?) => {
        $(databases!($test: postgres Postgres, mysql MySql, mariadb MariaDb, sqlite Sqlite);)*
    };
}

/// Makes a test of each function on every database that is a server: `fn(Kind)`.
macro_rules! on_servers {
    ($($test:ident),* $(,)?) => {
        $(databases!($test: postgres Postgres, mysql MySql, mariadb MariaDb);)*
    };
}

/// Makes a test of each function on MySQL and on MariaDB: `fn(Kind)`.
macro_rules! on_mysql_and_mariadb {
    ($($test:ident),* $(,)?) => {
        $(databases!($test: mysql MySql, mariadb MariaDb);)*
    };
}

/// Makes a test of each function in both modes on every database: `fn(Kind, mode: &str)`.
macro_rules! in_both_modes {
    ($($test:ident),* $(,)?) => {
        $(databases!(@modes $test: postgres Postgres, mysql MySql, mariadb MariaDb, sqlite Sqlite);)*
    };
}

/// Makes a test of each function in both modes on every database that is a server: `fn(Kind, mode: &str)`.
macro_rules! in_both_modes_on_servers {
    ($($test:ident),* $(,)?) => {
        $(databases!(@modes $test: postgres Postgres, mysql MySql, mariadb MariaDb);)*
    };
}

macro_rules! databases {
    ($test:ident: $($name:ident $kind:ident),*) => {
        mod $test {
            $(
                #[test]
                fn $name() {
                    super::$test($crate::support::Kind::$kind);
                }
            )*
        }
    };
    (@modes $test:ident: $($name:ident $kind:ident),*) => {
        mod $test {
            mod queue {
                $(
                    #[test]
                    fn $name() {
                        super::super::$test($crate::support::Kind::$kind, "queue");
                    }
                )*
            }
            mod stream {
                $(
                    #[test]
                    fn $name() {
                        super::super::$test($crate::support::Kind::$kind, "stream");
                    }
                )*
            }
        }
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    MySql,
    MariaDb,
    Sqlite,
}

impl Kind {
    /// `true` for MySQL and MariaDB, which speak one protocol and are asked by one client.
    pub(crate) fn is_mysql(self) -> bool {
        matches!(self, Self::MySql | Self::MariaDb)
    }
}

/// A fresh schema, database or file, gone at the end.
pub(crate) struct Db {
    pub(crate) kind: Kind,
    pub(crate) dir: Dir,
    /// The schema's or the database's name.
    space: String,
}

impl Db {
    /// A table on this database, and in this mode.
    pub(crate) fn with_table(kind: Kind, mode: &str) -> Self {
        let db = Self::new(kind);
        db.run(["migrate", "up", "--mode", mode]).exits(0);
        db
    }

    /// Writes an event with an empty payload; its id.
    pub(crate) fn enqueue(&self, topic: &str, aggregate: &str) -> String {
        let written = self.run(["enqueue", topic, "{}", "--aggregate", aggregate, "--json"]).exits(0).json();
        written["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn new(kind: Kind) -> Self {
        let db = Self { kind, dir: Dir::new(), space: unique() };
        match kind {
            Kind::Postgres => drop(db.server_sql(&format!("CREATE SCHEMA {}", db.space))),
            Kind::MySql | Kind::MariaDb => drop(db.server_sql(&format!("CREATE DATABASE {}", db.space))),
            Kind::Sqlite => {}
        }
        db
    }

    pub(crate) fn url(&self) -> String {
        match self.kind {
            Kind::Postgres => server_url(Kind::Postgres),
            Kind::MySql | Kind::MariaDb => {
                let url = server_url(self.kind);
                let (server, _) = url.rsplit_once('/').unwrap();
                format!("{server}/{}", self.space)
            }
            Kind::Sqlite => "sqlite://outbox.db".to_owned(),
        }
    }

    /// A URL that is the same from every directory.
    pub(crate) fn server(&self) -> String {
        match self.kind {
            Kind::Postgres | Kind::MySql | Kind::MariaDb => self.url(),
            Kind::Sqlite => format!("sqlite://{}", self.dir.path().join("outbox.db").display()),
        }
    }

    pub(crate) fn table(&self) -> String {
        match self.kind {
            Kind::Postgres => format!("{}.outbox", self.space),
            Kind::MySql | Kind::MariaDb | Kind::Sqlite => "outbox".to_owned(),
        }
    }

    /// The ledger of migrations, as SQL names it.
    pub(crate) fn ledger(&self) -> String {
        self.table().replace("outbox", "posthaste_migrations")
    }

    /// The binary on this database.
    pub(crate) fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.dir.command([]);
        command.env("OUTBOX_DATABASE_URL", self.url()).env("OUTBOX_TABLE", self.table());
        add(&mut command, arguments);
        command
    }

    pub(crate) fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Answer {
        self.command(arguments).output().unwrap().into()
    }

    /// Starts it, to be waited for with [`answer`].
    pub(crate) fn spawn<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// What the database's own client says to this SQL, as text without decoration.
    pub(crate) fn sql(&self, sql: &str) -> String {
        match self.kind {
            Kind::Postgres | Kind::MySql | Kind::MariaDb => self.server_sql(sql),
            Kind::Sqlite => {
                client(&["sqlite3", "-bail", "-cmd", ".timeout 30000", "outbox.db"], &self.dir, "", sql)
            }
        }
    }

    fn server_sql(&self, sql: &str) -> String {
        let url = server_url(self.kind);
        if self.kind == Kind::Postgres {
            return client(&["psql", &url, "-qAtX", "-v", "ON_ERROR_STOP=1"], &self.dir, "", sql);
        }
        let (_, rest) = url.split_once("://").unwrap();
        let (user, rest) = rest.split_once('@').unwrap();
        let (user, password) = user.split_once(':').unwrap();
        let (server, _) = rest.split_once('/').unwrap();
        let (host, port) = server.split_once(':').unwrap();
        let host = format!("--host={host}");
        let port = format!("--port={port}");
        let user = format!("--user={user}");
        let mut arguments = vec!["mariadb", "--no-defaults", "--protocol=tcp", "-BN", &host, &port, &user];
        // The first statement makes the database, the last one drops it.
        if !sql.contains("DATABASE ") {
            arguments.push(&self.space);
        }
        client(&arguments, &self.dir, password, sql)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        match self.kind {
            Kind::Postgres => drop(self.server_sql(&format!("DROP SCHEMA {} CASCADE", self.space))),
            Kind::MySql | Kind::MariaDb => drop(self.server_sql(&format!("DROP DATABASE {}", self.space))),
            Kind::Sqlite => {}
        }
    }
}

/// Waits for what [`Db::spawn`] started.
pub(crate) fn answer(child: Child) -> Answer {
    child.wait_with_output().unwrap().into()
}

fn client(arguments: &[&str], dir: &Dir, password: &str, sql: &str) -> String {
    let mut command = Command::new(arguments[0]);
    command.args(&arguments[1..]).current_dir(dir.path()).env("MYSQL_PWD", password);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let answer = Answer::from(feed(&mut command, sql.as_bytes()));
    assert_eq!(answer.code, 0, "{} on {sql}: {answer:?}", arguments[0]);
    answer.out.trim().to_owned()
}

/// The URL of a server, with the scheme of its kind: from the environment, or from where `cargo xtask services up` has
/// written it.
pub(crate) fn server_url(kind: Kind) -> String {
    let (variable, scheme) = match kind {
        Kind::Postgres => return service("POSTHASTE_TEST_POSTGRES_URL"),
        Kind::MySql => ("POSTHASTE_TEST_MYSQL_URL", "mysql"),
        Kind::MariaDb => ("POSTHASTE_TEST_MARIADB_URL", "mariadb"),
        Kind::Sqlite => unreachable!("SQLite has no server"),
    };
    let url = service(variable);
    let (_, rest) = url.split_once("://").unwrap();
    format!("{scheme}://{rest}")
}

/// The URL of the broker.
pub(crate) fn nats_url() -> String {
    service("POSTHASTE_TEST_NATS_URL")
}

pub(crate) fn service(variable: &str) -> String {
    posthaste_testkit::environment::setting(variable).unwrap()
}
