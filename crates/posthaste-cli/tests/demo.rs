//! The demo: its figures add up, whatever was under way when it ended.
//!
//! Rows of the contract: OP1.

use rustix::process::Signal;
use serde_json::Value;

use crate::daemon::{Daemon, wait_for};
use crate::support::Dir;

/// Demands that every committed order has its event, and nothing else has one.
#[track_caller]
fn adds_up(summary: &Value) {
    let count = |name: &str| summary[name].as_u64().unwrap_or_else(|| panic!("{name}: {summary}"));
    let events = count("events_delivered") + count("events_pending") + count("events_dead");
    assert_eq!(count("orders_committed"), events, "{summary}");
    assert_eq!((count("orders_without_event"), count("events_without_order")), (0, 0), "{summary}");
    assert!(count("orders_committed") > 20 && count("orders_rolled_back") > 2, "{summary}");
    assert!(count("events_delivered") > 0 && count("times_taken") >= count("events_delivered"), "{summary}");
    assert_eq!(summary["holds"], true);
}

#[test]
fn op1_the_demo_shows_that_every_order_has_its_event() {
    let dir = Dir::new();
    let answer = dir.run(["demo", "--for", "3s"]).exits(0);
    for words in
        ["as many as committed orders: ok", "what was rolled back left none: ok", "Try next:", "relay"]
    {
        assert!(answer.out.contains(words), "{answer:?}");
    }
    assert!(!answer.out.contains("WRONG"), "{answer:?}");
    let dead = answer.out.lines().find(|line| line.starts_with("events dead")).unwrap();
    assert_ne!(dead.split_whitespace().nth(2), Some("0"), "no event died: {dead}");
    let lines =
        answer.err.lines().filter(|line| line.contains("s  orders: ") && line.contains(" delivered ("));
    assert!(lines.count() >= 2, "{answer:?}");
    assert!(dir.is_empty());
}

#[test]
fn op5_the_demo_is_served_and_gives_way_to_whoever_has_the_port() {
    let dir = Dir::new();
    let mut command = dir.command(["demo"]);
    // As somebody runs it who has configured nothing: the usual port, if nobody has it.
    let mut one = Daemon::spawn(command.env_remove("OUTBOX_HTTP_LISTEN"));
    let mut command = dir.command(["demo"]);
    let mut other = Daemon::spawn(command.env_remove("OUTBOX_HTTP_LISTEN"));
    let (one_at, other_at) = (one.said("serving http://127.0.0.1:"), other.said("serving http://127.0.0.1:"));
    assert_ne!(one_at, other_at);
    for daemon in [one, other] {
        daemon.signal(Signal::TERM);
        let mut daemon = daemon;
        assert_eq!(daemon.ends(), 0, "{:#?}", daemon.err());
    }
}

#[test]
fn op1_the_demos_figures_add_up_in_both_modes() {
    let dir = Dir::new();
    for mode in [&[][..], &["--stream"]] {
        let arguments =
            ["demo", "--for", "3s", "--rate", "150", "--json"].into_iter().chain(mode.iter().copied());
        let summary = dir.run(arguments).exits(0).json();
        adds_up(&summary);
        if !mode.is_empty() {
            assert_eq!(summary["out_of_order"], 0, "{summary}");
        }
    }
}

#[test]
fn op1_the_demos_database_can_be_kept_and_looked_at() {
    let dir = Dir::new();
    let summary =
        dir.run(["demo", "--for", "2s", "--rate", "100", "--keep", "shop", "--json"]).exits(0).json();
    adds_up(&summary);
    let database = ["--database", "sqlite://shop/posthaste.db"];
    let dead =
        dir.run(database.into_iter().chain(["events", "list", "--status", "dead", "--json"])).exits(0).json();
    assert_eq!(dead.as_array().unwrap().len() as u64, summary["events_dead"].as_u64().unwrap());
    dir.run(["demo", "--keep", "shop"]).fails(3, "shop/posthaste.db is there already");
    dir.run(["demo", "--set", "http.listen=8470"]).fails(3, "--set http.listen: http.listen is \"8470\"");
}

#[test]
fn op1_ctrl_c_ends_the_demo_with_its_summary() {
    let dir = Dir::new();
    let mut demo = Daemon::spawn(&mut dir.command(["demo", "--rate", "100", "--keep", "shop"]));
    demo.said("  2s  orders: ");
    demo.signal(Signal::INT);
    assert_eq!(demo.ends(), 0, "{:?}", demo.err());
    let holds = |line: &String| line.contains("as many as committed orders: ok");
    wait_for("summary", || demo.out().iter().any(holds).then_some(()));
    assert!(!dir.path().join("shop/posthaste.db-wal").exists());
}

#[test]
fn op1_in_a_terminal_the_demo_has_a_line_that_changes() {
    let dir = Dir::new();
    let answer = dir.run_on_terminal(["demo", "--for", "3s"], "").exits(0);
    assert!(answer.err.contains(" orders: ") && answer.err.contains("\x1b["), "{answer:?}");
    assert!(answer.out.contains("as many as committed orders: ok"), "{answer:?}");
}
