//! Each rule is shown a violation, and reports it.

use crate::edges::{self, PARTS, part};
use crate::folders::{self, exception};
use crate::sql;
use crate::tree::{Source, Tree};

/// Root of a library with re-exports, a macro that is in scope everywhere, and a store that re-exports one of its databases.
const ROOT: [(&str, &str); 3] = [
    (
        "lib.rs",
        "#[macro_use] mod failpoint;
         pub mod admin; pub mod error; pub mod event; pub mod produce; pub mod relay; pub mod sink;
         pub use produce::Outbox;
         pub use sink::{Delivery as Delivered, Sink};",
    ),
    ("failpoint.rs", "macro_rules! failpoint { ($name:literal) => {}; }"),
    ("store/mod.rs", "mod postgres; pub use postgres::PostgresStore;"),
];

fn tree(planted: &[(&str, &str)]) -> Tree {
    let files = ROOT.iter().filter(|(root, _)| !planted.iter().any(|(path, _)| path == root));
    let source = |(path, text): &(&str, &str)| Source { path: (*path).to_owned(), text: (*text).to_owned() };
    Tree::parse(&files.chain(planted).map(source).collect::<Vec<_>>())
}

#[track_caller]
fn assert_reported(violations: &[String], expected: &str) {
    let is_reported = violations.iter().any(|violation| violation.contains(expected));
    assert!(is_reported, "{expected:?} is not among {violations:#?}");
}

/// The text in this file lets one part see another.
#[track_caller]
fn assert_edge(path: &str, text: &str, expected: &str) {
    assert_reported(&edges::violations(&tree(&[(path, text)])), expected);
}

#[track_caller]
fn assert_no_edge(files: &[(&str, &str)]) {
    assert_eq!(edges::violations(&tree(files)), Vec::<String>::new(), "{files:#?}");
}

#[test]
fn each_edge_outside_the_table_is_reported() {
    for from in PARTS {
        let path = format!("{}/planted.rs", from.name.replace("::", "/"));
        for to in PARTS.iter().filter(|to| to.name != from.name) {
            let text = format!("use crate::{}::Planted;", to.name);
            let violations = edges::violations(&tree(&[(&path, &text)]));
            if from.sees.contains(&to.name) {
                assert!(violations.is_empty(), "{violations:?}");
            } else {
                assert_eq!(violations.len(), 1, "{violations:?}");
                assert_reported(&violations, &format!("{path}:1: {} sees {}:", from.name, to.name));
            }
        }
    }
}

#[test]
fn a_use_tree_is_read_to_its_leaves() {
    let expected = "store sees sink";
    assert_edge("store/lease.rs", "use crate::{sink, event};", expected);
    assert_edge(
        "store/lease.rs",
        "use crate::{event::{self, Event}, sink::{self, file::FileSink}};",
        expected,
    );
    assert_edge("store/lease.rs", "use {crate::event::Event, crate::sink::Sink};", expected);
    assert_edge("store/lease.rs", "use crate::sink as destination;", expected);
    assert_edge("store/lease.rs", "use crate::sink::Sink as _;", expected);
    assert_edge("store/lease.rs", "use crate::sink::*;", expected);
    assert_edge("store/lease.rs", "fn lease() { use crate::sink::Sink; }", expected);
    assert_edge("store/lease.rs", "use crate::*;", "store sees the crate's root");
    assert_edge("store/lease.rs", "use crate as posthaste;", "store sees the crate's root");
    assert_edge("store/lease.rs", "extern crate self as posthaste;", "store sees the crate's root");
}

#[test]
fn super_and_self_are_resolved_by_the_place_of_the_file() {
    assert_edge("store/lease.rs", "use super::super::sink;", "store sees sink");
    assert_edge("store/lease.rs", "use self::super::super::sink::Sink;", "store sees sink");
    assert_edge("store/mod.rs", "use super::sink::Sink;", "store sees sink");
    assert_edge("store/mod.rs", "mod inner { use super::super::sink::Sink; }", "store sees sink");
    assert_edge(
        "store/mysql/mod.rs",
        "use super::postgres::Statements;",
        "store::mysql sees store::postgres",
    );
    assert_no_edge(&[("store/postgres/stream/read.rs", "use super::super::sink; use self::sink::Sink;")]);
}

#[test]
fn a_path_counts_wherever_it_stands() {
    let expected = "store sees sink";
    assert_edge("store/lease.rs", "fn lease() { crate::sink::memory::collect(); }", expected);
    assert_edge("store/lease.rs", "type Batch = Vec<crate::sink::Delivery>;", expected);
    assert_edge("store/lease.rs", "fn lease<T: super::super::sink::Sink>(sink: T) {}", expected);
    assert_edge("store/lease.rs", "impl crate::sink::Sink for Lease {}", expected);
    assert_edge("store/lease.rs", "#[planted(with = crate::sink::encode)] struct Lease;", expected);
    assert_edge("store/lease.rs", "fn lease() { crate::sink::planted!(); }", expected);
    assert_edge("sink/file.rs", "fn write() { failpoint!(\"planted\"); }", "sink sees failpoint");
    assert_edge(
        "failpoint.rs",
        "macro_rules! failpoint { () => { $crate::sink::Sink } }",
        "failpoint sees sink",
    );
}

#[test]
fn a_path_among_the_tokens_of_a_macro_counts() {
    let expected = "store sees sink";
    assert_edge(
        "store/lease.rs",
        "fn lease() { assert!(matches!(1, crate::sink::Outcome::Retry)); }",
        expected,
    );
    assert_edge("store/lease.rs", "planted! { use crate::{event, sink::{Delivery, Sink}}; }", expected);
    assert_edge("store/lease.rs", "planted! { use crate::sink::*; }", expected);
    assert_edge("store/lease.rs", "planted!(super::super::sink::Sink);", expected);
    assert_edge("store/lease.rs", "planted!(crate::{sink});", expected);
    assert_edge(
        "store/lease.rs",
        "macro_rules! planted { ($name:ident) => { $crate::sink::$name } }",
        expected,
    );
}

#[test]
fn a_re_export_leads_to_its_home() {
    assert_edge("store/lease.rs", "use crate::Outbox;", "store sees produce");
    assert_edge("store/lease.rs", "fn lease(delivery: crate::Delivered) {}", "store sees sink");
    assert_edge("relay/claim.rs", "use crate::store::PostgresStore;", "relay sees store::postgres");
    assert_edge("relay/claim.rs", "use crate::store::*;", "relay sees store::postgres");
    // The module on the way counts where the home is outside it.
    let re_export = ("produce/mod.rs", "pub use crate::store::Enqueued;");
    let through = edges::violations(&tree(&[re_export, ("relay/claim.rs", "use crate::produce::Enqueued;")]));
    assert_reported(&through, "relay sees produce");
}

#[test]
fn an_import_is_followed() {
    let inline = "use crate::store; fn claim() { store::postgres::claim(); }";
    assert_edge("relay/claim.rs", inline, "relay sees store::postgres");
    let renamed = "use crate::store as s; fn claim() { planted!(s::postgres::claim()); }";
    assert_edge("relay/claim.rs", renamed, "relay sees store::postgres");
    let parent = ("relay/mod.rs", "use crate::produce::gate::Gate;");
    for text in ["use super::Gate;", "use super::*;", "fn claim(gate: super::Gate) {}"] {
        let violations = edges::violations(&tree(&[parent, ("relay/claim.rs", text)]));
        assert_reported(&violations, "relay/claim.rs:1: relay sees produce");
    }
}

#[test]
fn a_glob_that_is_re_exported_is_reported() {
    assert_edge(
        "store/mod.rs",
        "mod postgres; pub use postgres::*;",
        "store/mod.rs:1: a glob is re-exported",
    );
    assert_edge(
        "lib.rs",
        "mod store; pub use store::{TableName, record::*};",
        "lib.rs:1: a glob is re-exported",
    );
}

#[test]
fn tests_documentation_and_other_crates_are_no_edge() {
    let test_file = ("store/lease/tests.rs", "use crate::sink::Sink;");
    for text in [
        "#[cfg(test)] mod tests { use crate::sink::Sink; }",
        "#[cfg(all(test, feature = \"postgres\"))] use crate::sink::Sink;",
        "#[cfg(test)] mod tests;",
        "impl Lease { #[cfg(test)] fn lease() { crate::sink::planted(); } }",
        "/// See [`Sink`](crate::sink::Sink).\nstruct Lease;",
        "pub(in crate::store) struct Lease;",
        "use sink::Sink; fn lease() { ::crate_of::sink::planted!(::sink::Sink, other::crate_::sink); }",
    ] {
        assert_no_edge(&[("store/lease.rs", text)]);
    }
    assert_no_edge(&[("store/lease.rs", "#[cfg(test)] mod tests;"), test_file]);
    let compiled =
        edges::violations(&tree(&[("store/lease.rs", "#[cfg(feature = \"a\")] mod tests;"), test_file]));
    assert_reported(&compiled, "store sees sink");
    assert_edge("store/lease.rs", "#[cfg(not(test))] use crate::sink::Sink;", "store sees sink");
    assert_edge("store/lease.rs", "#[cfg(any(test, unix))] use crate::sink::Sink;", "store sees sink");
}

#[test]
fn a_module_outside_the_table_is_reported() {
    assert_edge("planted_module.rs", "", "planted_module: the module is missing in the table");
    assert_edge("store/lease.rs", "use crate::planted_module::Planted;", "store sees planted_module");
}

#[test]
fn an_exception_holds_for_its_file_and_module_alone() {
    let text = "use crate::produce::gate::HotEvent;";
    assert_no_edge(&[("relay/rush.rs", text)]);
    assert_edge("relay/hot.rs", text, "relay/hot.rs:1: relay sees produce");
    assert_edge("relay/rush.rs", "use crate::Outbox;", "relay/rush.rs:1: relay sees produce");
}

#[test]
fn an_edge_an_exception_or_a_part_without_need_is_reported() {
    let planted = [("relay/rush.rs", "use crate::produce::gate::HotEvent; use crate::sink::Sink;")];
    let unneeded = edges::unneeded(&tree(&planted));
    assert_reported(&unneeded, "relay does not see event");
    assert_reported(&unneeded, "relay/dispatch.rs does not see produce::gate");
    assert_reported(&unneeded, "telemetry: no module of this name");
    for needed in ["relay does not see sink", "relay/rush.rs", "sink: no module"] {
        assert!(!unneeded.iter().any(|edge| edge.starts_with(needed)), "{needed}");
    }
}

#[test]
fn an_edge_against_the_direction_of_the_table_is_reported() {
    let upward = |parts: &[edges::Part]| edges::upward(parts);
    assert_reported(&upward(&[part("event", &["store"]), part("store", &[])]), "event sees store");
    let family = [part("store", &["store::memory"]), part("store::memory", &["store"])];
    assert_eq!(upward(&family), Vec::<String>::new());
}

#[test]
fn sql_outside_the_store_is_reported() {
    for text in [
        "const COUNT: &str = \"SELECT count(*) FROM outbox\";",
        "const COUNT: &str = r#\"\n  select count(*) from outbox\"#;",
        "fn claim() { query(\"UPDATE {table} SET attempts = 0\"); }",
        "fn claim() { query(&format!(\"{} INSERT INTO {table}\", 1)); }",
        "fn claim() { query(b\"DELETE FROM outbox\"); }",
        "macro_rules! planted { () => { concat!(\"WITH a AS (SELECT 1)\", \" \") } }",
    ] {
        for part in PARTS.iter().filter(|part| !part.name.starts_with("store")) {
            let path = format!("{}/some.rs", part.name.replace("::", "/"));
            assert_reported(
                &sql::violations(&tree(&[(&path, text)])),
                &format!("{path}:1: SQL outside the store"),
            );
        }
        assert_eq!(sql::violations(&tree(&[("store/lease.rs", text)])), Vec::<String>::new());
    }
    for text in [
        "/// SELECT 1\nconst COUNT: &str = \"an event is selected from the table\";",
        "planted! { /// SELECT 1\n struct Count; }",
        "#[cfg(test)] mod tests { const COUNT: &str = \"SELECT 1\"; }",
    ] {
        assert_eq!(sql::violations(&tree(&[("relay/claim.rs", text)])), Vec::<String>::new());
    }
}

#[test]
fn an_exception_for_sql_without_need_is_reported() {
    assert_reported(&sql::unneeded(&tree(&[])), "planted.rs holds no SQL");
    let needed = tree(&[("planted.rs", "const COUNT: &str = \"SELECT 1\";")]);
    assert_eq!(sql::unneeded(&needed), Vec::<String>::new());
}

#[test]
fn a_file_that_not_every_database_has_is_reported() {
    let equal = ["mysql/stream/park.rs", "postgres/stream/park.rs", "sqlite/stream/park.rs", "table.rs"];
    let check = |extra: &[&'static str], exceptions| {
        folders::violations(equal.into_iter().chain(extra.iter().copied()), exceptions)
    };
    assert_eq!(check(&[], &[]), Vec::<String>::new());
    assert_reported(
        &check(&["mysql/stream/read.rs", "sqlite/stream/read.rs"], &[]),
        "stream/read.rs exists for",
    );
    assert_reported(&check(&["postgres/stream/window/page.rs"], &[]), "stream/window/page.rs exists for");
    assert_reported(
        &check(&["sqlite/inbox/0002_planted.up.sql"], &[]),
        "inbox/0002_planted.up.sql exists for",
    );
    assert_reported(&folders::violations(["mysql/mod.rs", "postgres/mod.rs"], &[]), "sqlite has no files");

    let excepted = [exception("stream/mark.rs", &["mysql"], "row locks")];
    assert_eq!(check(&["mysql/stream/mark.rs"], &excepted), Vec::<String>::new());
    assert_reported(&check(&["postgres/stream/mark.rs"], &excepted), "stream/mark.rs exists for");
    assert_reported(&check(&[], &excepted), "stream/mark.rs is equal for all databases, or gone");
}
