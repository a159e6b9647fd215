//! Listings on terminals: as wide as those are, and with colours only where somebody wants them.
//!
//! Rows of the contract: OP1.

use crate::support::{Db, Dir, Kind};

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
    for columns in [80, 90, 120] {
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
    assert!(!seen(&[], &[("TERM", "dumb")]));
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
