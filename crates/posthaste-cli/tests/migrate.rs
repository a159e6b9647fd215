//! `migrate`: eight at once, printed SQL in the databases' own clients, comparing, and reverting.
//!
//! Rows of the contract: OP4, ST3.

use crate::support::{Answer, Db, Kind, answer, server_url};

on_databases!(
    st3_eight_processes_migrate_once,
    st3_printed_sql_makes_the_table,
    sm1_printed_sql_makes_a_stream,
    st3_status_and_validate_follow_the_table,
    op4_dropping_shows_what_goes_and_needs_consent,
    sm1_a_table_becomes_a_stream_and_stays_one,
    sm1_validate_sees_the_tables_beside_a_stream,
    op1_another_mode_is_refused_with_what_can_be_done_instead,
);
on_servers!(op4_a_database_elsewhere_needs_the_name_repeated);

/// The name of the database's SQL, as the command line has it.
fn dialect(kind: Kind) -> &'static str {
    match kind {
        Kind::Postgres => "postgres",
        Kind::MySql => "mysql",
        Kind::MariaDb => "mariadb",
        Kind::Sqlite => "sqlite",
    }
}

fn st3_eight_processes_migrate_once(kind: Kind) {
    let db = Db::new(kind);
    let children: Vec<_> = (0..8).map(|_| db.spawn(["migrate", "up"])).collect();
    let answers: Vec<Answer> = children.into_iter().map(|child| answer(child).exits(0)).collect();
    let applied = answers.iter().filter(|a| a.out.contains("applied migration 1")).count();
    let current = answers.iter().filter(|a| a.out.contains("is up to date")).count();
    assert_eq!((applied, current), (1, 7), "{answers:?}");
    db.run(["migrate", "validate"]).exits(0);
    assert_eq!(db.sql(&format!("SELECT count(*) FROM {}", db.ledger())), "1");
}

fn st3_printed_sql_makes_the_table(kind: Kind) {
    let dialect = dialect(kind);
    let db = Db::new(kind);
    let derived = db.run(["migrate", "print"]).exits(0);
    let named = db.run(["migrate", "print", "--dialect", dialect]).exits(0);
    assert_eq!(derived.out, named.out);
    // A URL of MySQL may lead to MariaDB, which only a connection could tell.
    let hint = match kind {
        Kind::MySql => "printed for MySQL; MariaDB has other collations: --dialect mariadb\n",
        _ => "",
    };
    assert_eq!((derived.err.as_str(), named.err.as_str()), (hint, ""));
    db.sql(&named.out);

    let valid = db.run(["migrate", "validate"]).exits(0);
    assert!(valid.out.contains("is as its migrations make it"), "{valid:?}");
    let states = db.run(["migrate", "status", "--json"]).exits(0).json();
    assert!(states["migrations"].as_array().unwrap().iter().all(|s| s["applied_at"].is_string()), "{states}");
    let up = db.run(["migrate", "up"]).exits(0);
    assert!(up.out.contains("is up to date"), "{up:?}");
    db.run(["enqueue", "a", "1"]).exits(0);
}

#[test]
fn st3_printing_for_mysql_says_that_mariadb_differs() {
    let db = Db::new(Kind::MariaDb);
    let url = server_url(Kind::MariaDb).replace("mariadb://", "mysql://");
    let printed = db.run(["--database", &url, "migrate", "print"]).exits(0);
    assert!(
        printed.err.contains("--dialect mariadb") && printed.out.contains("utf8mb4_0900_bin"),
        "{printed:?}"
    );
}

#[test]
fn st3_printing_needs_no_database_and_leaves_out_what_is_there() {
    let db = Db::new(Kind::Sqlite);
    let unreachable = ["--database", "postgres://u:p@127.0.0.1:1/x", "migrate", "print"];
    for dialect in ["postgres", "mysql", "mariadb", "sqlite"] {
        let all = db.run(unreachable.into_iter().chain(["--dialect", dialect])).exits(0);
        let rest = db.run(unreachable.into_iter().chain(["--dialect", dialect, "--from", "1"])).exits(0);
        assert!(all.out.contains("CREATE TABLE") && all.out.contains("posthaste 0001"), "{all:?}");
        assert!(!rest.out.contains("posthaste 0001"), "{rest:?}");
    }
    assert!(db.dir.is_empty());
}

fn st3_status_and_validate_follow_the_table(kind: Kind) {
    let db = Db::new(kind);
    if kind != Kind::Sqlite {
        let before = db.run(["migrate", "status"]).exits(0);
        assert!(before.out.contains("not applied"), "{before:?}");
        let missing = db.run(["migrate", "validate"]).exits(5);
        assert!(missing.out.contains("the table does not exist"), "{missing:?}");
    }
    db.run(["migrate", "up"]).exits(0);
    let after = db.run(["migrate", "status"]).exits(0);
    assert!(after.out.contains("UTC") && !after.out.contains("not applied"), "{after:?}");
    assert!(after.out.contains(&format!("table {} is a queue\n", db.table())), "{after:?}");
    db.run(["migrate", "validate"]).exits(0);

    let view = format!("{}_status", db.table());
    db.sql(&format!("DROP VIEW {view}; ALTER TABLE {} DROP COLUMN last_error", db.table()));
    let differs = db.run(["migrate", "validate"]).exits(1);
    assert!(differs.out.contains("column last_error is missing"), "{differs:?}");
    assert!(differs.out.contains(&format!("view {view} is missing")), "{differs:?}");
    let json = db.run(["migrate", "validate", "--json"]).exits(1).json();
    assert_eq!(json["differences"].as_array().unwrap().len(), 2, "{json}");
}

fn op4_dropping_shows_what_goes_and_needs_consent(kind: Kind) {
    let db = Db::new(kind);
    db.run(["migrate", "up"]).exits(0);
    db.run(["enqueue", "a", "1"]).exits(0);
    let count = format!("SELECT count(*) FROM {}", db.table());

    let refused = db.run(["migrate", "down", "--to", "0"]).exits(6);
    assert!(refused.err.contains("1 pending, 0 processing, 0 dead"), "{refused:?}");
    assert!(refused.err.contains("posthaste: nobody can be asked"), "{refused:?}");
    let misnamed = db.run(["migrate", "down", "--yes", "--confirm", "other"]).exits(6);
    assert!(misnamed.err.contains("--confirm names \"other\""), "{misnamed:?}");
    assert_eq!(db.sql(&count), "1");

    let same = db.run(["migrate", "down", "--to", "1", "--yes"]).exits(0);
    assert!(same.out.contains("nothing to revert, it is at migration 1"), "{same:?}");
    let dropped = db.run(["migrate", "down", "--yes"]).exits(0);
    assert!(dropped.out.contains("is dropped"), "{dropped:?}");
    db.run(["migrate", "validate"]).exits(5);
    let nothing = db.run(["migrate", "down", "--yes"]).exits(0);
    assert!(nothing.out.contains("nothing to revert"), "{nothing:?}");
    db.run(["migrate", "up"]).exits(0);
    assert_eq!(db.sql(&count), "0");
}

fn op4_a_database_elsewhere_needs_the_name_repeated(kind: Kind) {
    let db = Db::new(kind);
    db.run(["migrate", "up"]).exits(0);
    // Leads to this machine, but does not say so.
    let url = db.url().replace("127.0.0.1", "0.0.0.0");
    let down = ["--database", &url, "migrate", "down", "--yes"];
    let refused = db.run(down).exits(6);
    assert!(refused.err.contains(&format!("--confirm {}", db.table())), "{refused:?}");
    db.run(["migrate", "validate"]).exits(0);

    let unanswered = db.run(["--database", &url, "migrate", "down", "--confirm", &db.table()]).exits(6);
    assert!(unanswered.err.contains("--yes"), "{unanswered:?}");
    db.run(["migrate", "validate"]).exits(0);

    db.run(down.into_iter().chain(["--confirm", &db.table()])).exits(0);
    db.run(["migrate", "validate"]).exits(5);
}

#[test]
fn op4_on_a_terminal_it_asks() {
    let db = Db::new(Kind::Sqlite);
    let database = ["--database", "sqlite://outbox.db"];
    let down = || database.into_iter().chain(["migrate", "down"]);
    db.run(["migrate", "up"]).exits(0);
    for no in ["n\n", "\n", "drop\n", "\x04"] {
        let asked = db.dir.run_on_terminal(down(), no).exits(6);
        assert!(
            asked.err.contains("Proceed? [y/N]") && asked.err.contains("nothing was changed"),
            "{asked:?}"
        );
        db.run(["migrate", "validate"]).exits(0);
    }
    let asked = db.dir.run_on_terminal(down(), "y\n").exits(0);
    assert!(asked.err.contains("Would drop table outbox"), "{asked:?}");
    db.run(["migrate", "validate"]).exits(5);
}

#[test]
fn st3_a_table_dropped_by_hand_can_be_made_again() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    db.sql("DROP VIEW outbox_status; DROP TABLE outbox");
    let down = db.run(["migrate", "down", "--yes"]).exits(0);
    assert!(down.err.contains("it is gone already"), "{down:?}");
    db.run(["migrate", "up"]).exits(0);
    db.run(["migrate", "validate"]).exits(0);
}

fn sm1_a_table_becomes_a_stream_and_stays_one(kind: Kind) {
    let db = Db::new(kind);
    let table = db.table();
    let stream = ["migrate", "up", "--mode", "stream", "--lanes", "8"];
    let made = db.run(stream).exits(0);
    assert_eq!(made.out, format!("table {table}: applied migration 1\n"));
    for up in [&stream[..], &["migrate", "up"]] {
        let again = db.run(up.iter().copied()).exits(0);
        assert_eq!(again.out, format!("table {table} is up to date\n"));
    }

    let status = db.run(["migrate", "status"]).exits(0);
    let lines: Vec<&str> = status.out.lines().collect();
    assert_eq!(lines[0], format!("table {table} is a stream with 8 lanes"));
    assert!(lines[2].starts_with("1        stream  ") && lines[2].ends_with("UTC"), "{status:?}");
    let json = db.run(["migrate", "status", "--json"]).exits(0).json();
    assert_eq!((json["table"].as_str(), json["mode"].as_str()), (Some(&*table), Some("stream")), "{json}");
    assert_eq!((json["lanes"].as_u64(), &json["migrations"][0]["name"]), (Some(8), &"stream".into()));
    db.run(["migrate", "validate"]).exits(0);

    db.run(["enqueue", "a", "1", "--aggregate", "order/42"]).exits(0);
    let lane = db.sql(&format!("SELECT lane FROM {table}")).parse::<u16>().unwrap();
    assert!(lane < 8, "{lane}");

    for (asked, named) in [
        (&["--mode", "queue"][..], "a queue"),
        (&["--mode", "stream"], "a stream with 1 lane"),
        (&["--mode", "stream", "--lanes", "4"], "a stream with 4 lanes"),
    ] {
        let words =
            format!("table {table} is a stream with 8 lanes, not {named}: the mode of a table is fixed");
        db.run(["migrate", "up"].into_iter().chain(asked.iter().copied())).fails(5, &words);
    }

    let dropped = db.run(["migrate", "down", "--yes"]).exits(0);
    assert!(dropped.out.contains("is dropped"), "{dropped:?}");
    db.run(["migrate", "validate"]).exits(5);
    let none = db.run(["migrate", "status", "--json"]).exits(0).json();
    assert!(none["mode"].is_null() && none["lanes"].is_null(), "{none}");
    db.run(["migrate", "up"]).exits(0);
    let refused = db.run(stream).fails(5, &format!("table {table} is a queue, not a stream with 8 lanes"));
    // The table may be no setting of who reads it.
    let down = format!("`posthaste migrate down --table {table} --to 0`");
    assert!(refused.err.contains(&down), "{refused:?}");
}

fn sm1_validate_sees_the_tables_beside_a_stream(kind: Kind) {
    let db = Db::new(kind);
    db.run(["migrate", "up", "--mode", "stream"]).exits(0);
    db.sql(&format!("DROP TABLE {}_relays", db.table()));
    let differs = db.run(["migrate", "validate"]).exits(1);
    assert!(differs.out.contains(&format!("table {}_relays is missing", db.table())), "{differs:?}");
}

fn sm1_printed_sql_makes_a_stream(kind: Kind) {
    let dialect = dialect(kind);
    let db = Db::new(kind);
    let print = ["migrate", "print", "--dialect", dialect, "--mode", "stream", "--lanes", "4"];
    db.sql(&db.run(print).exits(0).out);
    db.run(["migrate", "validate"]).exits(0);
    let json = db.run(["migrate", "status", "--json"]).exits(0).json();
    assert_eq!((json["mode"].as_str(), json["lanes"].as_u64()), (Some("stream"), Some(4)), "{json}");
    let queue = db.run(["migrate", "print", "--dialect", dialect]).exits(0);
    assert_eq!(queue.out, db.run(["migrate", "print", "--dialect", dialect, "--mode", "queue"]).exits(0).out);
}

#[test]
fn sm1_modes_that_cannot_be_are_refused() {
    let db = Db::new(Kind::Sqlite);
    for command in ["up", "print"] {
        let run =
            |asked: &[&'static str]| db.run(["migrate", command].into_iter().chain(asked.iter().copied()));
        for lanes in ["0", "12", "512"] {
            let words =
                format!("a stream cannot have {lanes} lanes: their number is a power of two up to 256");
            run(&["--mode", "stream", "--lanes", lanes]).fails(3, &words);
        }
        run(&["--mode", "queue", "--lanes", "4"]).fails(3, "a queue has no lanes");
        for usage in [
            &["--lanes", "4"][..],
            &["--mode", "log"],
            &["--mode", "stream", "--lanes", "many"],
            &["--mode", "stream", "--lanes", "-1"],
            &["--mode", "stream", "--lanes", "70000"],
        ] {
            run(usage).exits(2);
        }
    }
    assert!(db.dir.is_empty(), "nothing was made");
}

#[test]
fn op1_inserts_wake_relays_where_that_is_switched_on() {
    let db = Db::new(Kind::Postgres);
    let triggers = || {
        let name = format!("'{}'::regclass", db.table());
        db.sql(&format!("SELECT count(*) FROM pg_trigger WHERE tgrelid = {name} AND NOT tgisinternal"))
    };
    let up = |state| db.run(["migrate", "up", "--notify-on-insert", state]);
    for _ in 0..2 {
        let on = up("on").exits(0);
        assert!(on.out.ends_with("an insert wakes relays by itself\n"), "{on:?}");
        assert_eq!(triggers(), "1");
    }
    db.run(["migrate", "up"]).exits(0);
    assert_eq!(triggers(), "1", "what is not said stays as it is");
    let off = up("off").exits(0);
    assert!(off.out.ends_with("an insert does not wake relays by itself\n"), "{off:?}");
    assert_eq!(triggers(), "0");

    up("maybe").exits(2);
    for kind in [Kind::MySql, Kind::Sqlite] {
        let db = Db::new(kind);
        db.run(["migrate", "up", "--notify-on-insert", "on"]).fails(3, "only PostgreSQL has notifications");
        assert!(kind != Kind::Sqlite || db.dir.is_empty(), "nothing was made");
    }
}

fn op1_another_mode_is_refused_with_what_can_be_done_instead(kind: Kind) {
    let db = Db::with_table(kind, "stream");
    let table = db.table();
    for (mode, again) in
        [(&["queue"][..], "--mode queue"), (&["stream", "--lanes", "4"], "--mode stream --lanes 4")]
    {
        let refused = db.run(["migrate", "up", "--mode"].into_iter().chain(mode.iter().copied()));
        let refused = refused.fails(5, "leave --mode away to bring it up as it is, or make another table");
        assert!(
            refused.err.contains(&format!("`posthaste migrate up --table {table}_2 {again}`")),
            "{refused:?}"
        );
    }
    db.run(["migrate", "up"]).exits(0);
    db.run(["migrate", "up", "--mode", "stream"]).exits(0);
}
