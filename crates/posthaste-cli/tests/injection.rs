//! Names of tables are the only text that is put into SQL: whichever way they come in, one that could do harm is refused
//! before a statement is made, and what is in the database stays as it is.
//!
//! Rows of the contract: OP3, OP5, ST2.

use std::thread;

use crate::http::client::start;
use crate::support::{Db, Kind};

on_databases!(st2_no_command_harms_a_table_that_is_no_outbox, st2_no_name_and_no_value_does_harm_over_http,);

/// Names that end a quotation, a statement or a comment, or lead elsewhere. A variable or argument cannot hold a zero.
const HOSTILE: [&str; 22] = [
    " ",
    ".",
    "..",
    "a.",
    ".a",
    "a.b.c",
    "../outbox",
    "outbox; DROP TABLE canary",
    "outbox\"; DROP TABLE canary; --",
    "outbox`; DROP TABLE canary; -- ",
    "outbox'; DROP TABLE canary; --",
    "outbox) AS x; DELETE FROM canary; --",
    "canary--",
    "canary/**/",
    "canary#",
    "outbox\n",
    "outbox\u{a0}",
    "оutbox",
    "outbox\u{200b}",
    "{table}",
    "$1",
    "x\"\"y",
];

/// A database with a table that nobody has any business with.
fn with_canary(kind: Kind) -> Db {
    let db = Db::with_table(kind, "queue");
    db.sql(&format!("CREATE TABLE {} (id INTEGER)", canary(&db)));
    db.sql(&format!("INSERT INTO {} VALUES (7)", canary(&db)));
    db.enqueue("order.placed", "order/1");
    db
}

fn canary(db: &Db) -> String {
    db.table().replace("outbox", "canary")
}

/// Demands that it is as [`with_canary`] left it.
#[track_caller]
fn is_as_it_was(db: &Db) {
    assert_eq!(db.sql(&format!("SELECT id FROM {}", canary(db))), "7");
    assert_eq!(db.sql(&format!("SELECT topic FROM {}", db.table())), "order.placed");
    db.run(["migrate", "validate"]).exits(0);
}

/// The commands of the binary, from its own help, with the arguments that they cannot do without.
fn commands(db: &Db) -> Vec<Vec<String>> {
    fn leaves(db: &Db, path: &[String], found: &mut Vec<Vec<String>>) {
        let help = db.run(path.iter().map(String::as_str).chain(["--help"])).exits(0).out;
        let Some((_, listed)) = help.split_once("\nCommands:\n") else { return found.push(path.to_vec()) };
        let names = listed.lines().take_while(|line| !line.trim().is_empty());
        // A line that is further in goes on with what the one before it says.
        let names = names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        for name in names.filter(|name| !name.is_empty() && *name != "help") {
            leaves(db, &[path, &[name.to_owned()]].concat(), found);
        }
    }
    let mut found = Vec::new();
    leaves(db, &[], &mut found);
    let id = "01563e3a-b5d3-d676-4c61-efb99302bd5b";
    for command in &mut found {
        let rest: &[&str] = match command.join(" ").as_str() {
            "enqueue" => &["a", "1"],
            "events show" | "dead show" => &[id],
            "dead replay" | "dead discard" => &["--all", "--yes"],
            "purge" => &["--dead", "--older-than", "0s", "--yes"],
            "migrate down" => &["--yes"],
            _ => &[],
        };
        command.extend(rest.iter().map(|argument| (*argument).to_owned()));
    }
    found
}

/// Commands that have nothing to do with a table.
fn is_about_no_table(command: &[String]) -> bool {
    matches!(command[0].as_str(), "completions" | "man" | "demo")
        || command[0] == "config" && matches!(command[1].as_str(), "keys" | "print")
}

/// Every command, by every way in which a table can be named; what most of them share is tried with few names.
#[test]
fn st2_no_command_takes_a_hostile_name() {
    let db = with_canary(Kind::Sqlite);
    let commands: Vec<Vec<String>> =
        commands(&db).into_iter().filter(|command| !is_about_no_table(command)).collect();
    assert!(commands.len() >= 18, "{commands:?}");
    let (listed, names) = (&commands, [HOSTILE[8], HOSTILE[9], HOSTILE[5]]);
    thread::scope(|scope| {
        for name in names {
            let db = &db;
            scope.spawn(move || {
                for command in listed {
                    let refused = |arguments: &[&str], variable: Option<(&str, &str)>, file: Option<&str>| {
                        let mut all: Vec<&str> = arguments.to_vec();
                        let file = file.map(|text| {
                            let file = format!("{}.toml", crate::support::unique());
                            db.dir.write(&file, text);
                            file
                        });
                        if let Some(file) = &file {
                            all.extend(["--config", file]);
                        }
                        all.extend(command.iter().map(String::as_str));
                        let mut run = db.dir.command(all.iter().copied());
                        run.env("OUTBOX_DATABASE_URL", db.url());
                        if let Some((variable, value)) = variable {
                            run.env(variable, value);
                        }
                        let answer = crate::support::Answer::from(run.output().unwrap());
                        assert_eq!(answer.code, 3, "{all:?} {variable:?}: {answer:?}");
                    };
                    refused(&["--table", name], None, None);
                    refused(&["--set", &format!("database.table={name}")], None, None);
                    refused(&[], Some(("OUTBOX_TABLE", name)), None);
                    refused(&[], None, Some(&format!("[database]\ntable = {}", toml_text(name))));
                    if command[0] == "relay" {
                        for key in ["relay.tables", "cleaner.tables"] {
                            refused(&["--set", &format!("{key}={name}")], None, None);
                        }
                        refused(&[], Some(("OUTBOX_RELAY_TABLES", name)), None);
                        refused(&[], None, Some(&format!("[tables.{}]\nbatch = 1", toml_text(name))));
                        refused(
                            &[],
                            None,
                            Some(&format!("[[routes]]\nsink = \"stdout\"\ntables = {}", toml_text(name))),
                        );
                    }
                }
            });
        }
    });
    is_as_it_was(&db);
}

fn toml_text(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// Every hostile name, on every database, with one or the other command that changes something.
#[test]
fn st2_no_hostile_name_is_taken_on_any_database() {
    const COMMANDS: [&[&str]; 3] = [
        &["migrate", "up"],
        &["migrate", "down", "--yes"],
        &["purge", "--dead", "--older-than", "0s", "--yes"],
    ];
    let long = "x".repeat(41);
    thread::scope(|scope| {
        // A name is refused before a connection is made, so MySQL would show no more than MariaDB does.
        for kind in [Kind::Postgres, Kind::MariaDb, Kind::Sqlite] {
            let long = long.as_str();
            scope.spawn(move || {
                let db = with_canary(kind);
                for (name, command) in HOSTILE.into_iter().chain(["", long]).zip(COMMANDS.iter().cycle()) {
                    let answer = db.run(["--table", name].into_iter().chain(command.iter().copied()));
                    answer.fails(3, "is not the name of a table");
                }
                is_as_it_was(&db);
            });
        }
    });
}

/// A table that is no outbox has a name like any other.
fn st2_no_command_harms_a_table_that_is_no_outbox(kind: Kind) {
    let db = with_canary(kind);
    let name = canary(&db);
    let commands = commands(&db).into_iter().filter(|command| !is_about_no_table(command));
    // One that is relayed is not given up on while it may still be made; it is waited for elsewhere.
    let ends = |command: &Vec<String>| !matches!(command.join(" ").as_str(), "relay" | "events tail");
    for command in commands.filter(ends) {
        let mut all = vec!["--table", name.as_str()];
        all.extend(command.iter().map(String::as_str));
        // Whether it is refused, or says what it found: nothing of it is changed.
        let answer = db.run(all.iter().copied());
        assert!(!answer.err.contains("panicked"), "{answer:?}");
        assert_eq!(db.sql(&format!("SELECT id FROM {name}")), "7", "{all:?}: {answer:?}");
    }
    is_as_it_was(&db);
}

/// Over HTTP a name only says which of the daemon's tables is meant, and every value is bound.
fn st2_no_name_and_no_value_does_harm_over_http(kind: Kind) {
    let db = with_canary(kind);
    let (daemon, client) = start(&db);
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    for name in HOSTILE.into_iter().chain(["\0", "canary", "outbox\0"]) {
        let name = encoded(name);
        for (method, path) in
            client.operations(&name, &name).into_iter().filter(|(_, path)| path.contains(&name))
        {
            let body = "{\"all\":true}";
            let answer = client.send(&format!(
                    "{method} {path} HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
                     content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    crate::http::client::TOKEN,
                    body.len()
                ));
            assert!(matches!(answer.code, 400 | 404), "{method} {path}: {answer:?}");
        }
        for field in ["topic", "event_type", "tenant", "namespace", "aggregate"] {
            let value = if field == "aggregate" { format!("{name}/{name}") } else { name.clone() };
            let table = db.table();
            let answer = client.send(&format!(
                    "GET /api/v1/tables/{table}/events?{field}={value} HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\n\r\n"
                ));
            let found = answer.json()["events"].as_array().map_or(0, Vec::len);
            assert!(matches!(answer.code, 200 | 400) && found == 0, "{field}={value}: {answer:?}");
        }
    }
    daemon.stop();
    is_as_it_was(&db);
}
