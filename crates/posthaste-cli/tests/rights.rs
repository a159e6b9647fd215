//! What is said to who may not read or write: which file or table, which right, and what to do.
//!
//! Rows of the contract: OP1.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Answer, Db, Dir, Kind, server_url};

/// An account with no rights of its own.
const NOBODY: u32 = 65534;

/// Runs it as somebody who owns nothing here; whoever runs the tests as themselves is bound by the modes anyway.
fn run_as_stranger(mut command: Command) -> Answer {
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.output().unwrap().into()
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn op1_a_directory_that_cannot_be_written_to_is_named() {
    let dir = Dir::new();
    allow(dir.path(), 0o555);
    for command in [&["enqueue", "a", "1"][..], &["migrate", "up"]] {
        let answer = run_as_stranger(dir.command(command.iter().copied()))
            .fails(4, "cannot create the database file posthaste.db: this user may not write to directory ");
        assert!(answer.err.contains(&dir.path().file_name().unwrap().to_string_lossy()[..]), "{answer:?}");
        assert!(answer.err.contains("--database sqlite:///"), "{answer:?}");
    }
    let relay = run_as_stranger(dir.command(["relay"])).exits(4);
    assert!(relay.err.contains("this user may not write to directory"), "{relay:?}");
    allow(dir.path(), 0o755);
    assert!(dir.is_empty());
}

#[test]
fn op1_a_file_that_cannot_be_written_to_is_named() {
    let dir = Dir::new();
    dir.run(["enqueue", "a", "1"]).exits(0);
    let file = dir.path().join("posthaste.db");
    allow(dir.path(), 0o777);
    allow(&file, 0o444);
    let only_read = "cannot write to the database file posthaste.db: this user may only read it";
    run_as_stranger(dir.command(["enqueue", "a", "1"])).fails(4, only_read);
    run_as_stranger(dir.command(["events", "list"])).exits(0);
    // It does not begin to work on what it could never settle.
    let relay = run_as_stranger(dir.command(["relay"])).exits(4);
    assert!(relay.err.contains(only_read) && !relay.err.contains("ready"), "{relay:?}");

    allow(&file, 0o000);
    for command in [&["enqueue", "a", "1"][..], &["events", "list"]] {
        run_as_stranger(dir.command(command.iter().copied()))
            .fails(4, "cannot open the database file posthaste.db: this user may not read it");
    }
    allow(&file, 0o644);
    for beside in ["posthaste.db-wal", "posthaste.db-shm"] {
        let _ = fs::remove_file(dir.path().join(beside));
    }
    allow(dir.path(), 0o555);
    run_as_stranger(dir.command(["events", "list"])).fails(4, "SQLite keeps files beside it");
    allow(dir.path(), 0o755);
}

/// A user of the server that may do nothing yet, gone at the end.
struct User<'a> {
    db: &'a Db,
    name: String,
}

impl<'a> User<'a> {
    fn new(db: &'a Db) -> Self {
        let name = format!("u{}", &crate::support::unique()[1..]).replace('-', "_");
        let name = name[..name.len().min(40)].to_owned();
        db.sql(&match db.kind {
            Kind::Postgres => format!("CREATE ROLE {name} LOGIN PASSWORD 'x'"),
            Kind::MariaDb | Kind::Sqlite => format!("CREATE USER {name} IDENTIFIED BY 'x'"),
        });
        Self { db, name }
    }

    /// The binary under this user.
    fn command<'b>(&self, arguments: impl IntoIterator<Item = &'b str>) -> Command {
        let url = match self.db.kind {
            Kind::Postgres => server_url(Kind::Postgres),
            Kind::MariaDb | Kind::Sqlite => self.db.url(),
        };
        let (scheme, rest) = url.split_once("://").unwrap();
        let (_, server) = rest.split_once('@').unwrap();
        let mut command = self.db.command(arguments);
        command.env("OUTBOX_DATABASE_URL", format!("{scheme}://{}:x@{server}", self.name));
        command
    }

    fn run<'b>(&self, arguments: impl IntoIterator<Item = &'b str>) -> Answer {
        self.command(arguments).output().unwrap().into()
    }

    /// Runs the statement that the answer says.
    #[track_caller]
    fn follow(&self, answer: &Answer) {
        let (_, statement) = answer.err.split_once("GRANT ").unwrap_or_else(|| panic!("{answer:?}"));
        self.db.sql(&format!("GRANT {}", statement.trim()));
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        let name = &self.name;
        self.db.sql(&match self.db.kind {
            Kind::Postgres => format!("DROP OWNED BY {name}; DROP ROLE {name}"),
            Kind::MariaDb | Kind::Sqlite => format!("DROP USER {name}"),
        });
    }
}

/// Does what it is told to, until it works; how often it was told.
#[track_caller]
fn follow_until_it_works(user: &User<'_>, command: &[&str]) -> usize {
    for told in 0..6 {
        let answer = user.run(command.iter().copied());
        if answer.code == 0 {
            return told;
        }
        let answer = answer.fails(4, &format!("user {} may not use table", user.name));
        assert!(!answer.err.contains(":x@"), "{answer:?}");
        user.follow(&answer);
    }
    panic!("{command:?} is told of ever more rights");
}

#[test]
fn op1_the_rights_that_are_lacking_are_named_with_the_statement_that_grants_them() {
    for kind in [Kind::Postgres, Kind::MariaDb] {
        for mode in ["queue", "stream"] {
            let db = Db::with_table(kind, mode);
            let user = User::new(&db);
            let told = follow_until_it_works(&user, &["enqueue", "a", "1"]);
            assert!((1..=2).contains(&told), "{kind:?} {mode}: {told}");
            assert!(follow_until_it_works(&user, &["events", "list"]) <= 3);
            follow_until_it_works(&user, &["status"]);
            // It may write and look now, and nothing else.
            let table = db.table();
            if kind == Kind::Postgres {
                user.run(["migrate", "down", "--yes", "--confirm", &table]).exits(4);
            }
        }
    }
}

#[test]
fn op1_a_migration_by_who_may_not_names_the_owner_or_the_right() {
    let db = Db::with_table(Kind::Postgres, "queue");
    let user = User::new(&db);
    let up = user.run(["migrate", "up"]);
    let up = up.fails(4, "run the migration as who owns the tables, or GRANT USAGE, CREATE ON SCHEMA ");
    user.follow(&up);
    let up = user.run(["migrate", "up"]).fails(4, "making tables takes ALL on");
    user.follow(&up);
    let down = user.run(["migrate", "down", "--yes"]);
    assert!(down.code == 4 && down.err.contains("user "), "{down:?}");

    let db = Db::with_table(Kind::MariaDb, "queue");
    let user = User::new(&db);
    let up = user.run(["migrate", "up"]).fails(4, "GRANT ALL ON ");
    user.follow(&up);
    user.run(["migrate", "up"]).exits(0);
}

#[test]
fn op1_a_relay_that_may_not_settle_does_not_start() {
    let db = Db::with_table(Kind::Postgres, "queue");
    let user = User::new(&db);
    follow_until_it_works(&user, &["enqueue", "a", "1"]);
    follow_until_it_works(&user, &["status"]);
    let relay = user.run(["relay"]).exits(4);
    let table = db.table();
    let words = format!(
        "it lacks UPDATE, DELETE; as somebody who may: GRANT UPDATE, DELETE ON {table} TO {}",
        user.name
    );
    assert!(relay.err.contains(&words) && !relay.err.contains("ready"), "{relay:?}");
}

#[test]
fn op1_a_table_that_is_no_outbox_is_not_to_be_migrated() {
    for kind in [Kind::Postgres, Kind::MariaDb, Kind::Sqlite] {
        let db = Db::with_table(kind, "queue");
        let orders = db.table().replace("outbox", "orders");
        db.sql(&format!("CREATE TABLE {orders} (id INTEGER PRIMARY KEY)"));
        for command in [&["enqueue", "a", "1"][..], &["status"], &["events", "list"], &["migrate", "up"]] {
            db.run(["--table", &orders].into_iter().chain(command.iter().copied()))
                .fails(5, &format!("table {orders} exists and is no outbox"));
        }
        let doctor = db.run(["--table", &orders, "doctor"]);
        assert!(doctor.code == 1 && doctor.out.contains("exists and is no outbox"), "{doctor:?}");
        assert!(!doctor.out.contains("migrate up"), "{doctor:?}");
        let relay = db.run(["--table", &orders, "relay"]).exits(5);
        assert!(relay.err.contains("is no outbox"), "{relay:?}");
    }
}
