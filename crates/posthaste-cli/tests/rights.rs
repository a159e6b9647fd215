//! What is said to who may not read or write: which file or table, which right, and what to do.
//!
//! Rows of the contract: OP1.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::daemon::Daemon;
use crate::support::{Answer, Db, Dir, Kind};

in_both_modes_on_servers!(op1_the_rights_that_are_lacking_are_named_with_the_statement_that_grants_them);
on_mysql_and_mariadb!(
    op1_a_relay_that_sees_nothing_beside_a_stream_is_told_what_to_grant,
    op1_a_queue_that_has_lost_a_column_is_no_hidden_stream,
    op1_a_migration_by_an_account_without_rights_is_told_what_to_grant,
);
on_servers!(op1_names_that_are_words_of_sql_or_have_capitals_are_quoted);
on_databases!(op1_a_table_that_is_no_outbox_is_not_to_be_migrated);

/// An account with no rights of its own.
const NOBODY: u32 = 65534;

/// A directory that others can enter, wherever the tests were built, and the binary in another one.
struct Open {
    dir: Dir,
    programs: Dir,
}

impl Open {
    fn new() -> Self {
        let open =
            Self { dir: Dir::under(&std::env::temp_dir()), programs: Dir::under(&std::env::temp_dir()) };
        fs::copy(env!("CARGO_BIN_EXE_posthaste"), open.program()).unwrap();
        for path in [open.dir.path(), open.programs.path(), &open.program()] {
            allow(path, 0o755);
        }
        open
    }

    fn program(&self) -> PathBuf {
        self.programs.path().join("posthaste")
    }

    /// Runs it as somebody who owns nothing here; whoever runs the tests as themselves is bound by the modes anyway.
    fn run_as_stranger<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Answer {
        let meant = self.dir.command(arguments);
        let mut command = Command::new(self.program());
        command.args(meant.get_args()).current_dir(self.dir.path()).stdin(Stdio::null());
        for (name, value) in meant.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output().unwrap().into()
    }
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn op1_a_directory_that_cannot_be_written_to_is_named() {
    let open = Open::new();
    let dir = &open.dir;
    allow(dir.path(), 0o555);
    for command in [&["enqueue", "a", "1"][..], &["migrate", "up"]] {
        let answer = open
            .run_as_stranger(command.iter().copied())
            .fails(4, "cannot create the database file posthaste.db: this user may not write to directory ");
        assert!(answer.err.contains(&dir.path().file_name().unwrap().to_string_lossy()[..]), "{answer:?}");
        assert!(answer.err.contains("--database sqlite:///"), "{answer:?}");
    }
    let relay = open.run_as_stranger(["relay"]).exits(4);
    assert!(relay.err.contains("this user may not write to directory"), "{relay:?}");
    allow(dir.path(), 0o755);
    assert!(dir.is_empty());
}

#[test]
fn op1_a_file_that_cannot_be_written_to_is_named() {
    let open = Open::new();
    let dir = &open.dir;
    dir.run(["enqueue", "a", "1"]).exits(0);
    let file = dir.path().join("posthaste.db");
    allow(dir.path(), 0o777);
    allow(&file, 0o444);
    let only_read = "cannot write to the database file posthaste.db: this user may only read it";
    open.run_as_stranger(["enqueue", "a", "1"]).fails(4, only_read);
    open.run_as_stranger(["events", "list"]).exits(0);
    // It does not begin to work on what it could never settle.
    let relay = open.run_as_stranger(["relay"]).exits(4);
    assert!(relay.err.contains(only_read) && !relay.err.contains("ready"), "{relay:?}");

    allow(&file, 0o000);
    for command in [&["enqueue", "a", "1"][..], &["events", "list"]] {
        open.run_as_stranger(command.iter().copied())
            .fails(4, "cannot open the database file posthaste.db: this user may not read it");
    }
    allow(&file, 0o644);
    for beside in ["posthaste.db-wal", "posthaste.db-shm"] {
        let _ = fs::remove_file(dir.path().join(beside));
    }
    allow(dir.path(), 0o555);
    open.run_as_stranger(["events", "list"]).fails(4, "SQLite keeps files beside it");
    allow(dir.path(), 0o755);
}

/// A user of the server that may do nothing yet, gone at the end.
struct User<'a> {
    db: &'a Db,
    name: String,
    /// As SQL names it. On MySQL and MariaDB it is no account of the host `%`, which a user without a host would be.
    account: String,
}

impl<'a> User<'a> {
    fn new(db: &'a Db) -> Self {
        let name = format!("U{}", &crate::support::unique()[1..]).replace('-', "_");
        let name = name[..name.len().min(40)].to_owned();
        let account = match db.kind {
            Kind::Postgres => format!("\"{name}\""),
            _ => format!("`{name}`@`%_`"),
        };
        db.sql(&match db.kind {
            Kind::Postgres => format!("CREATE ROLE {account} LOGIN PASSWORD 'x'"),
            _ => format!("CREATE USER {account} IDENTIFIED BY 'x'"),
        });
        Self { db, name, account }
    }

    fn url(&self) -> String {
        let url = self.db.url();
        let (scheme, rest) = url.split_once("://").unwrap();
        let (_, server) = rest.split_once('@').unwrap();
        format!("{scheme}://{}:x@{server}", self.name)
    }

    /// The binary under this user.
    fn command<'b>(&self, arguments: impl IntoIterator<Item = &'b str>) -> Command {
        let mut command = self.db.command(arguments);
        command.env("OUTBOX_DATABASE_URL", self.url());
        command
    }

    fn run<'b>(&self, arguments: impl IntoIterator<Item = &'b str>) -> Answer {
        self.command(arguments).output().unwrap().into()
    }

    /// What the database's own client says to this user who reads a table.
    fn reads(&self, table: &str) -> Answer {
        let (url, sql) = (self.url(), format!("SELECT count(*) FROM {table}"));
        let mut command = if self.db.kind == Kind::Postgres {
            let mut command = Command::new("psql");
            command.args([&url, "-qAtX", "-c", &sql]);
            command
        } else {
            let (server, database) = url.split_once('@').unwrap().1.split_once('/').unwrap();
            let (host, port) = server.split_once(':').unwrap();
            let mut command = Command::new("mariadb");
            command.args([
                "--no-defaults",
                "--protocol=tcp",
                "-BN",
                "-h",
                host,
                "-P",
                port,
                "-u",
                &self.name,
            ]);
            command.args([database, "-e", &sql]).env("MYSQL_PWD", "x");
            command
        };
        command.output().unwrap().into()
    }

    /// Runs the statements that the answer says.
    #[track_caller]
    fn follow(&self, answer: &Answer) {
        let line = answer.err.lines().find(|line| line.contains("as somebody who may: "));
        let line = line.unwrap_or_else(|| panic!("no statement: {answer:?}"));
        let (_, statements) = line.split_once("as somebody who may: ").unwrap();
        assert!(!statements.contains(".*"), "too much is granted: {answer:?}");
        self.db.sql(statements);
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // A failure here would hide the first one, and end the other tests.
            return;
        }
        let account = &self.account;
        self.db.sql(&match self.db.kind {
            Kind::Postgres => format!("DROP OWNED BY {account}; DROP ROLE {account}"),
            _ => format!("DROP USER {account}"),
        });
    }
}

/// Does what it is told to, until it works; how often it was told.
#[track_caller]
fn follow_until_it_works(user: &User<'_>, command: &[&str]) -> usize {
    let mut said = Vec::new();
    for told in 0..8 {
        let mut answer = user.run(command.iter().copied());
        if answer.code == 0 {
            return told;
        }
        // What a migration would do it says before it does it.
        answer.err = answer.err.lines().filter(|line| !line.starts_with("Would ")).collect();
        let answer = answer.fails(4, &format!("user {} may not use table", user.name));
        assert!(!answer.err.contains(":x@"), "{answer:?}");
        user.follow(&answer);
        said.push(answer.err);
    }
    panic!("{command:?} is told of ever more rights: {said:#?}");
}

/// A table that has nothing to do with events.
fn others_table(db: &Db) -> String {
    let orders = db.table().replace("outbox", "orders");
    db.sql(&format!("CREATE TABLE {orders} (id INTEGER PRIMARY KEY)"));
    orders
}

#[track_caller]
fn may_not_read(user: &User<'_>, table: &str) {
    let read = user.reads(table);
    assert!(read.code != 0 && read.err.to_lowercase().contains("denied"), "{read:?}");
}

fn op1_the_rights_that_are_lacking_are_named_with_the_statement_that_grants_them(kind: Kind, mode: &str) {
    let db = Db::with_table(kind, mode);
    let orders = others_table(&db);
    let user = User::new(&db);
    let told = follow_until_it_works(&user, &["enqueue", "a", "1"]);
    assert!((1..=2).contains(&told), "{kind:?} {mode}: {told}");
    assert!(follow_until_it_works(&user, &["events", "list"]) <= 3);
    follow_until_it_works(&user, &["status"]);
    // It may write and look now, and nothing else.
    assert_eq!(user.reads(&db.table()).exits(0).out.trim(), "1");
    may_not_read(&user, &orders);
    let table = db.table();
    let down = user.run(["migrate", "down", "--yes", "--confirm", &table]);
    if kind == Kind::Postgres {
        // MySQL and MariaDB hide the record of migrations from it: there is nothing that it could revert.
        down.exits(4);
    }
    assert_eq!(user.reads(&table).exits(0).out.trim(), "1");
}

fn op1_names_that_are_words_of_sql_or_have_capitals_are_quoted(kind: Kind) {
    let db = Db::new(kind);
    for name in ["Orders_Outbox", "order"] {
        let table = db.table().replace("outbox", name);
        db.run(["--table", &table, "migrate", "up"]).exits(0);
        let user = User::new(&db);
        assert!(follow_until_it_works(&user, &["--table", &table, "enqueue", "a", "1"]) >= 1);
        follow_until_it_works(&user, &["--table", &table, "events", "list"]);
    }
    if kind.is_mysql() {
        // With its database in front it is not put there twice.
        let table = format!("{}.order", db.url().rsplit_once('/').unwrap().1);
        let user = User::new(&db);
        assert!(follow_until_it_works(&user, &["--table", &table, "enqueue", "a", "1"]) >= 1);
    }
}

fn op1_a_relay_that_sees_nothing_beside_a_stream_is_told_what_to_grant(kind: Kind) {
    let db = Db::with_table(kind, "stream");
    let orders = others_table(&db);
    let user = User::new(&db);
    db.sql(&format!("GRANT SELECT, UPDATE, DELETE ON outbox TO {}", user.account));
    let relay = user.run(["relay"]).exits(4);
    assert!(relay.err.contains("it seems to be a stream"), "{relay:?}");
    user.follow(&relay);
    let daemon = Daemon::start(&mut user.command(["relay"]));
    db.enqueue("a", "order/1");
    assert_eq!(daemon.events(1)[0]["type"], "a");
    daemon.stop();
    may_not_read(&user, &orders);
}

fn op1_a_queue_that_has_lost_a_column_is_no_hidden_stream(kind: Kind) {
    let db = Db::with_table(kind, "queue");
    db.sql("DROP VIEW outbox_status; ALTER TABLE outbox DROP CONSTRAINT outbox_attempts_check, DROP COLUMN attempts");
    let listed = db.run(["events", "list"]);
    assert!(listed.code != 0 && !listed.err.contains("stream"), "{listed:?}");
    assert!(listed.err.contains("attempts"), "{listed:?}");
}

#[test]
fn op1_a_migration_by_who_may_not_names_the_owner_or_the_right() {
    let db = Db::with_table(Kind::Postgres, "queue");
    let orders = others_table(&db);
    let user = User::new(&db);
    let table = db.table();
    let schema = table.split_once('.').unwrap().0;
    let words = format!(
        "run the migration as who owns the tables or, for a new one, as somebody who may: GRANT USAGE, CREATE ON SCHEMA \
         \"{schema}\" TO {}",
        user.account
    );
    let up = user.run(["migrate", "up"]).fails(4, &words);
    db.run(["migrate", "up"]).exits(0);
    user.follow(&up);
    // A table of its own it makes and drops then.
    let own = db.table().replace("outbox", "Own");
    assert!(follow_until_it_works(&user, &["--table", &own, "migrate", "up"]) >= 1);
    user.run(["--table", &own, "enqueue", "a", "1"]).exits(0);
    user.run(["--table", &own, "migrate", "down", "--yes"]).exits(0);
    // The other one's no grant lets it drop.
    let down = user.run(["migrate", "down", "--yes"]).fails(4, "run the migration as its owner");
    assert!(!down.err.contains("GRANT"), "{down:?}");
    follow_until_it_works(&user, &["events", "list"]);
    let down = user.run(["migrate", "down", "--yes"]).exits(4);
    let words = format!(
        "belongs to somebody else (must be owner of view outbox_status); run the migration as its owner, or as somebody \
         who may: ALTER VIEW \"{schema}\".\"outbox_status\" OWNER TO {}",
        user.account
    );
    assert!(down.err.contains(&words), "{down:?}");
    assert!(follow_until_it_works(&user, &["migrate", "down", "--yes"]) >= 2);
    may_not_read(&user, &orders);
    db.run(["migrate", "up"]).exits(0);
    let down = db.run(["migrate", "down", "--yes"]).exits(0);
    assert!(down.out.contains("is dropped"), "{down:?}");
}

fn op1_a_migration_by_an_account_without_rights_is_told_what_to_grant(kind: Kind) {
    for mode in ["queue", "stream"] {
        let db = Db::new(kind);
        let orders = others_table(&db);
        let user = User::new(&db);
        let up = user.run(["migrate", "up", "--mode", mode]);
        up.fails(4, "run the migration as who may make tables, or as somebody who may: GRANT SELECT, CREATE, ALTER, DROP, INDEX ON ");
        assert!(follow_until_it_works(&user, &["migrate", "up", "--mode", mode]) <= 2);
        user.run(["migrate", "validate"]).exits(0);
        user.run(["migrate", "down", "--yes"]).exits(0);
        may_not_read(&user, &orders);
    }
}

#[test]
fn op1_a_relay_that_may_not_settle_does_not_start() {
    let db = Db::with_table(Kind::Postgres, "queue");
    let user = User::new(&db);
    follow_until_it_works(&user, &["enqueue", "a", "1"]);
    follow_until_it_works(&user, &["status"]);
    let relay = user.run(["relay"]).exits(4);
    let table = db.table().replace('.', "\".\"");
    let words = format!(
        "it lacks UPDATE, DELETE; as somebody who may: GRANT UPDATE, DELETE ON \"{table}\" TO {}",
        user.account
    );
    assert!(relay.err.contains(&words) && !relay.err.contains("ready"), "{relay:?}");
    user.follow(&relay);
    let daemon = Daemon::start(&mut user.command(["relay"]));
    assert_eq!(daemon.events(1)[0]["type"], "a");
    daemon.stop();
}

#[test]
fn op1_a_relay_that_may_change_only_what_it_changes_starts() {
    let db = Db::with_table(Kind::Postgres, "queue");
    let user = User::new(&db);
    follow_until_it_works(&user, &["enqueue", "a", "1"]);
    follow_until_it_works(&user, &["status"]);
    let changed = "available_at, locked_until, locked_by, attempts, outcome, settled_at, last_error";
    let (table, account) = (db.table(), &user.account);
    db.sql(&format!("GRANT DELETE, UPDATE ({changed}) ON {table} TO {account}"));
    let daemon = Daemon::start(&mut user.command(["relay"]));
    assert_eq!(daemon.events(1)[0]["type"], "a");
    daemon.stop();
}

/// PostgreSQL says where a row is only to who may read all of it.
#[test]
fn op1_a_relay_that_may_read_only_the_columns_of_the_outbox_delivers() {
    let db = Db::with_table(Kind::Postgres, "queue");
    let user = User::new(&db);
    follow_until_it_works(&user, &["enqueue", "a", "1"]);
    let (table, account) = (db.table(), &user.account);
    let columns = db.sql(&format!(
        "SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
          WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
    ));
    let columns = columns.trim();
    db.sql(&format!("REVOKE SELECT ON {table} FROM {account}"));
    db.sql(&format!("GRANT DELETE, SELECT ({columns}), UPDATE ({columns}) ON {table} TO {account}"));
    let daemon = Daemon::start(&mut user.command(["relay"]));
    assert_eq!(daemon.events(1)[0]["type"], "a");
    daemon.stop();
}

fn op1_a_table_that_is_no_outbox_is_not_to_be_migrated(kind: Kind) {
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
