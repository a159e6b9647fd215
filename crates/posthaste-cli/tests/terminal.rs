//! Listings on terminals: as wide as those are, and with colours only where somebody wants them.
//!
//! Rows of the contract: OP1.

use std::io::{BufRead, BufReader};
use std::process::Command;

use crate::snapshot::looks;
use crate::support::{Db, Dir, Kind, interrupt, screen};

const LONG: &str = "warehouse.shelf.emptied.because.of.a.very.long.name.v1";

fn with_long_names() -> Db {
    let db = Db::with_table(Kind::Sqlite, "queue");
    db.enqueue(LONG, "warehouse/0123456789-0123456789-0123456789");
    db
}

/// The text without what switches colours on and off.
fn plain(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut plain = parts.next().unwrap().to_owned();
    for part in parts {
        plain += part.split_once('m').unwrap().1;
    }
    plain
}

#[test]
fn op1_a_listing_fits_the_terminal_and_is_whole_in_a_pipe() {
    let db = with_long_names();
    for columns in [66, 70, 80, 90, 120] {
        let seen = plain(&Dir::run_on_screen(db.command(["events", "list"]), columns).exits(0).out);
        assert_eq!(seen.lines().count(), 2, "a line for each event: {seen}");
        assert!(seen.lines().all(|line| line.chars().count() <= columns.into()), "{columns}: {seen}");
        assert!(seen.contains('…') && !seen.contains(LONG), "{columns}: {seen}");
    }
    let wide = plain(&Dir::run_on_screen(db.command(["events", "list"]), 250).exits(0).out);
    assert!(wide.contains(LONG) && !wide.contains('…'), "{wide}");
    let piped = db.run(["events", "list"]).exits(0).out;
    assert!(piped.contains(LONG) && piped.contains("0123456789-0123456789-0123456789"), "{piped}");
}

#[test]
fn op1_colours_are_used_where_they_are_wanted() {
    let db = with_long_names();
    let list = |more: &[&'static str]| db.command(["events", "list"].into_iter().chain(more.iter().copied()));
    let seen = |more: &[&'static str], variables: &[(&str, &str)]| {
        let mut command = list(more);
        command.envs(variables.iter().copied());
        Dir::run_on_screen(command, 200).exits(0).out.contains('\x1b')
    };
    let piped = |more: &[&'static str], variables: &[(&str, &str)]| {
        let output = list(more).envs(variables.iter().copied()).output().unwrap();
        output.stdout.contains(&0x1b)
    };
    assert!(seen(&[], &[]) && !piped(&[], &[]));
    assert!(!seen(&[], &[("NO_COLOR", "1")]));
    assert!(!seen(&[], &[("TERM", "dumb")]) && !seen(&[], &[("TERM", "dumb"), ("CI", "true")]));
    assert!(seen(&[], &[("TERM", "dumb"), ("CLICOLOR_FORCE", "1")]));
    assert!(piped(&[], &[("CLICOLOR_FORCE", "1")]));
    assert!(!seen(&["--color", "never"], &[]) && !seen(&["--color", "never"], &[("CLICOLOR_FORCE", "1")]));
    assert!(piped(&["--color", "always"], &[]) && seen(&["--color", "always"], &[("NO_COLOR", "1")]));
    db.run(["events", "list", "--color", "sometimes"]).exits(2);

    let coloured = db.run(["events", "list", "--color", "always"]).exits(0).out;
    assert!(coloured.contains("\x1b[1mSTATUS"), "{coloured:?}");
    // But for its age, which is another each time.
    let without_age = |text: &str| text.rsplit_once("  ").unwrap().0.to_owned();
    assert_eq!(without_age(&plain(&coloured)), without_age(&db.run(["events", "list"]).exits(0).out));
    let pending = coloured.split("pending").next().unwrap();
    assert!(pending.ends_with('m'), "{coloured:?}");
}

/// A table with a dead event whose error is long.
fn with_a_dead_one() -> Db {
    let db = Db::with_table(Kind::Sqlite, "queue");
    db.enqueue("order.placed.v1", "order/1");
    db.sql(
        "UPDATE outbox SET outcome = 'dead', settled_at = created_at, attempts = 25, \
         last_error = 'the shop answered 422 Unprocessable Entity: the field customer is missing'",
    );
    db
}

#[test]
fn op1_a_dead_events_error_is_whole_on_a_narrow_terminal() {
    let db = with_a_dead_one();
    let error = "the shop answered 422 Unprocessable Entity: the field customer is missing";
    let seen = plain(&Dir::run_on_screen(db.command(["dead", "list"]), 80).exits(0).out);
    assert!(seen.lines().all(|line| line.chars().count() <= 80), "{seen}");
    assert_eq!(seen.lines().nth(2), Some(&*format!("  {error}")), "{seen}");
    assert_eq!(seen.lines().count(), 3, "{seen}");
    looks(&db, "dead_list_at_80", &seen);
    // Where there is room for it, and where nobody looks, it is one line.
    let wide = plain(&Dir::run_on_screen(db.command(["dead", "list"]), 170).exits(0).out);
    assert!(wide.lines().count() == 2 && wide.contains(error), "{wide}");
    let piped = db.run(["dead", "list"]).exits(0).out;
    assert!(piped.lines().count() == 2 && piped.contains(error), "{piped}");
}

#[test]
fn op1_a_status_has_one_line_for_a_table_however_narrow_the_terminal() {
    let db = with_a_dead_one();
    for (columns, gone) in [
        (100, &["NOTHING"][..]),
        (80, &["SCHEMA", "SKEW"]),
        (60, &["RELAYS", "DELIVERED/S"]),
        (45, &["PROCESSING"]),
    ] {
        let seen = plain(&Dir::run_on_screen(db.command(["status"]), columns).exits(0).out);
        assert_eq!(seen.lines().count(), 2, "{columns}: {seen}");
        assert!(seen.lines().all(|line| line.chars().count() <= columns.into()), "{columns}: {seen}");
        assert!(
            ["TABLE", "PENDING", "DEAD", "BLOCKED"].iter().all(|name| seen.contains(name)),
            "{columns}: {seen}"
        );
        assert!(!gone.iter().any(|name| seen.contains(name)), "{columns}: {seen}");
    }
    let piped = db.run(["status"]).exits(0).out;
    assert!(piped.contains("SCHEMA") && piped.contains("RELAYS") && piped.contains("DELIVERED/S"), "{piped}");
}

/// What a command shows until a second line of it has come; then it is stopped.
fn two_lines(mut command: Command, columns: u16) -> String {
    let (master, terminal) = screen(columns);
    command.stdout(terminal.try_clone().unwrap()).stderr(terminal);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut shown = BufReader::new(master);
    let mut text = String::new();
    while text.lines().count() < 3 && shown.read_line(&mut text).is_ok_and(|read| read > 0) {}
    interrupt(&child);
    child.wait().unwrap();
    text
}

#[test]
fn op1_a_terminal_that_can_do_nothing_is_written_to_line_by_line() {
    let db = with_a_dead_one();
    let mut watch = db.command(["status", "--watch", "100ms"]);
    watch.env("TERM", "dumb");
    let text = two_lines(watch, 200);
    assert!(!text.contains('\x1b') && text.contains("outbox: 0 pending"), "{text:?}");
    let drawn = two_lines(db.command(["status", "--watch", "0.1"]), 200);
    assert!(drawn.contains("PENDING"), "{drawn:?}");

    let dir = Dir::new();
    let mut demo = dir.command(["demo", "--for", "3s"]);
    demo.env("TERM", "dumb");
    let text = Dir::run_on_screen(demo, 60).exits(0).out;
    assert!(!text.contains('\x1b') && text.contains("orders: "), "{text:?}");
}

#[test]
fn op1_the_live_line_of_the_demo_fits_the_terminal() {
    let dir = Dir::new();
    let text = Dir::run_on_screen(dir.command(["demo", "--for", "3s"]), 60).exits(0).out;
    let live = |line: &&str| line.contains("orders: ") && line.contains("committed,");
    // Drawn in place: what is between two movements of the cursor is one picture of the line.
    let pictures: Vec<String> = text.split(['\r', '\n']).map(plain_of_moves).collect();
    let lines: Vec<&str> = pictures.iter().map(String::as_str).filter(live).collect();
    assert!(!lines.is_empty(), "{text:?}");
    assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:?}");
}

/// The text without anything that moves the cursor or changes colours.
fn plain_of_moves(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut plain = parts.next().unwrap().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain += &part[end..];
    }
    plain
}
