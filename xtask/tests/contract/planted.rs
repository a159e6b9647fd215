//! Wrong pages and wrong tests, each of which a rule must find: a check that cannot fail shows nothing.

use crate::rules::check;
use crate::sources::{Source, tests};

/// A page with these lines in its table.
fn page(lines: &[&str]) -> String {
    format!("# The contract\n\n| id | row | state |\n|---|---|---|\n{}\n", lines.join("\n"))
}

fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}

/// A file with a test of each name.
fn with_tests(names: &[&str]) -> Source {
    let text: String = names.iter().map(|name| format!("#[test]\nfn {name}() {{}}\n")).collect();
    source("crates/shop/tests/main/orders.rs", &text)
}

/// Demands exactly one breach, which has all of these words.
#[track_caller]
fn assert_found(page: &str, sources: &[Source], words: &[&str]) {
    let breaches = check(page, sources);
    let [breach] = &breaches[..] else { panic!("one breach with {words:?} was expected: {breaches:#?}") };
    assert!(words.iter().all(|word| breach.contains(word)), "{breach}");
}

#[track_caller]
fn assert_nothing_found(page: &str, sources: &[Source]) {
    assert_eq!(check(page, sources), Vec::<String>::new());
}

#[test]
fn a_page_that_fits_its_tests_is_accepted() {
    let page = page(&["| EN1 | one | built |", "| EN1 fast | two | planned |", "| EN2 | three | planned |"]);
    assert_nothing_found(&page, &[with_tests(&["en1_holds", "a_test_of_no_row", "ends_in_en2_"])]);
}

#[test]
fn a_built_row_without_a_test_is_found() {
    let page = page(&["| EN1 | one | built |", "| EN2 | two | built |"]);
    assert_found(&page, &[with_tests(&["en1_holds"])], &["docs/contract.md:6: EN2 is built", "`en2_…`"]);
}

#[test]
fn a_test_of_a_planned_row_is_found() {
    let page = page(&["| EN1 | one | planned |"]);
    let words = ["crates/shop/tests/main/orders.rs:2: en1_holds", "EN1 is planned", "mark it built"];
    assert_found(&page, &[with_tests(&["en1_holds"])], &words);
}

#[test]
fn a_test_of_a_row_that_does_not_exist_is_found() {
    let page = page(&["| EN1 | one | built |"]);
    let sources = [with_tests(&["en1_holds", "en17_holds"])];
    assert_found(&page, &sources, &["orders.rs:4: en17_holds", "EN17 is not in docs/contract.md"]);
}

#[test]
fn a_name_with_leading_zeros_is_no_row() {
    let page = page(&["| EN1 | one | built |"]);
    assert_found(&page, &[with_tests(&["en1_holds", "en01_holds"])], &["EN01 is not in"]);
}

#[test]
fn a_built_part_that_no_test_names_is_found() {
    let page =
        page(&["| SI1 | sinks | parts |", "| SI1 nats | NATS | built |", "| SI1 file | file | built |"]);
    // `renats` and `arrives_by_nats` are not the part's word after the id.
    let sources = [with_tests(&["si1_file_holds", "si1_file_is_sent_by_nats"])];
    assert_found(&page, &sources, &["SI1 nats is built, but no test shows it", "`si1_nats_…`"]);
}

#[test]
fn a_part_is_named_after_the_id_by_a_module_or_by_a_database() {
    let page = page(&["| SI1 | sinks | parts |", "| SI1 nats | NATS | built |"]);
    assert_nothing_found(&page, &[with_tests(&["si1_nats_holds"])]);
    let test = "#[tokio::test]\nasync fn si1_holds() {}\n";
    assert_nothing_found(&page, &[source("crates/shop/tests/sinks/nats/mod.rs", test)]);
    assert_nothing_found(&page, &[source("crates/shop/src/sink.rs", &format!("mod nats {{ {test} }}"))]);
    // Another module, a module that was closed before, and a part of a module's name.
    for (path, text) in [
        ("crates/shop/tests/sinks/kafka.rs", test.to_owned()),
        ("crates/shop/tests/sinks/kafka.rs", format!("mod nats {{}} {test}")),
        ("crates/shop/tests/sinks/nats_like.rs", test.to_owned()),
    ] {
        assert_eq!(check(&page, &[source(path, &text)]).len(), 2, "{path}: {text}");
    }
}

#[test]
fn a_test_of_a_planned_part_is_found() {
    let page =
        page(&["| SI1 | sinks | parts |", "| SI1 nats | NATS | built |", "| SI1 kafka | Kafka | planned |"]);
    let sources = [with_tests(&["si1_nats_holds", "si1_kafka_holds"])];
    assert_found(&page, &sources, &["si1_kafka_holds", "SI1 kafka is planned (docs/contract.md:7)"]);
}

#[test]
fn a_test_that_names_no_part_of_a_row_of_parts_is_found() {
    let page = page(&["| SI1 | sinks | parts |", "| SI1 nats | NATS | built |"]);
    let sources = [with_tests(&["si1_nats_holds", "si1_holds"])];
    assert_found(&page, &sources, &["si1_holds: it names no part of SI1", "`si1_nats_…`"]);
}

#[test]
fn a_row_all_of_whose_parts_are_planned_is_planned() {
    let page = page(&["| SI1 | sinks | parts |", "| SI1 nats | NATS | planned |"]);
    assert_found(&page, &[with_tests(&["si1_holds"])], &["SI1 is planned"]);
    assert_nothing_found(&page, &[]);
}

#[test]
fn an_id_that_is_there_twice_is_found() {
    let page = page(&["| EN1 | one | planned |", "| EN2 | two | planned |", "| EN1 | three | planned |"]);
    assert_found(&page, &[], &["docs/contract.md:7: EN1 is already in line 5"]);
}

#[test]
fn an_id_of_another_form_is_found() {
    for id in ["En1", "EN", "EN01", "ENQ1", "EN1a", "EN1 Fast", "EN1 very fast", "EN1 fast_path", "", "E"] {
        let page = page(&["| EN2 | two | planned |", &format!("| {id} | one | planned |")]);
        assert_found(&page, &[], &["docs/contract.md:6", "is not an id"]);
    }
}

#[test]
fn a_state_that_does_not_exist_is_found() {
    let wrong = ["| EN1 | one | done |", "| EN1 | one |  |", "| EN1 | one | Built |"];
    for line in wrong {
        assert_found(&page(&["| EN2 | two | planned |", line]), &[], &["the state of EN1"]);
    }
    let page = page(&["| EN1 | one | planned |", "| EN1 fast | two | parts |"]);
    assert_found(&page, &[], &["the state of EN1 fast"]);
}

#[test]
fn a_line_without_three_cells_is_found() {
    for line in ["| EN1 | one | two | planned |", "| EN1 | planned |", "| EN1 | one | planned"] {
        let page = page(&["| EN2 | two | planned |", line]);
        assert_found(&page, &[], &["docs/contract.md:6", "three cells"]);
    }
}

#[test]
fn a_row_outside_a_table_is_found() {
    let page = page(&["| EN1 | one | planned |", "", "| EN2 | two | planned |"]);
    assert_found(&page, &[], &["docs/contract.md:7", "in no table"]);
}

#[test]
fn a_page_without_rows_is_found() {
    assert_found("# The contract\n", &[], &["no table"]);
}

#[test]
fn a_row_that_contradicts_its_parts_is_found() {
    assert_found(&page(&["| EN1 | one | parts |"]), &[], &["EN1 has the state `parts` and no part"]);
    let apart = page(&["| EN1 | one | planned |", "| EN2 | two | planned |", "| EN1 fast | one | planned |"]);
    assert_found(&apart, &[], &["EN1 fast is not below its row"]);
    let built = page(&["| EN1 | one | planned |", "| EN1 fast | one | built |"]);
    let breaches = check(&built, &[with_tests(&["en1_fast_holds"])]);
    assert!(breaches[0].contains("EN1 is planned and has a built part"), "{breaches:#?}");
}

#[test]
fn a_header_with_a_row_that_does_not_exist_or_is_planned_is_found() {
    let page = page(&["| EN1 | one | planned |", "| EN2 | two | built |"]);
    let file = |header: &str| {
        let test = "\n#[test]\nfn en2_holds() {}\n";
        [source("crates/shop/tests/main.rs", &format!("//! Orders.\n//!\n{header}\n{test}"))]
    };
    assert_nothing_found(&page, &file("//! Rows of the contract: EN2."));
    let words = ["crates/shop/tests/main.rs", "EN9", "not in docs/contract.md"];
    assert_found(&page, &file("//! Rows of the contract: EN2,\n//! EN9."), &words);
    assert_found(&page, &file("//! Rows of the contract: EN1, EN2."), &["names `EN1`, which is planned"]);
    assert_found(&page, &file("//! Rows of the contract: EN2 EN2."), &["`EN2 EN2`"]);
}

/// What looks like a test and is none does not show a row.
#[test]
fn only_tests_that_run_are_seen() {
    let page = page(&["| EN1 | one | built |"]);
    for text in [
        "fn en1_holds() {}",
        "pub async fn en1_holds<D: Destination>() {}",
        "// #[test] fn en1_holds() {}",
        "const TEXT: &str = \"#[test] fn en1_holds() {}\";",
        "#[cfg(test)]\nfn en1_holds() {}",
        "#[test]\n#[ignore = \"two minutes\"]\nfn en1_holds() {}",
        "#[test]\nfn other() {}\nfn en1_holds() {}",
        "fn main() { assert!(en1_holds()); }",
        "macro_rules! show { ($name:ident) => { println!(\"{}\", $name) } }\nshow!(en1_holds);",
    ] {
        assert_found(&page, &[source("crates/shop/tests/main.rs", text)], &["EN1 is built, but no test"]);
    }
}

/// The macros of this repository, in short.
#[test]
fn tests_that_macros_make_are_seen() {
    let harness = "
        macro_rules! conformance {
            ($($test:ident),*) => { $(databases!($test, with_db: postgres Postgres, mysql MySql);)* };
        }
        macro_rules! databases {
            ($test:ident, $way:ident: $($name:ident $kind:ident),*) => {
                mod $test { $( #[tokio::test(flavor = \"multi_thread\")] async fn $name() {} )* }
            };
        }
        macro_rules! each {
            ($($test:ident),*) => { $(mod $test { #[test] fn sqlite() { super::$test(); } })* };
        }
        macro_rules! conforms {
            ($type:ty: $($test:ident),*) => { mod suite { $( #[test] fn $test() {} )* } };
        }";
    let callers = "
        conformance!(en1_on_all, en2_on_all);
        databases!(en3_on_one, with_db: mariadb MariaDb);
        each!(en4_on_a_file);
        conforms!(crate::file::Directory: en5_of_a_suite);
        proptest! { #[test] fn en6_of_a_library(n in 0..9) {} }";
    let sources = [
        source("crates/shop/tests/main/orders.rs", callers),
        source("crates/shop/tests/main/harness.rs", harness),
    ];
    let mut found: Vec<String> = tests(&sources)
        .into_iter()
        .map(|test| test.to_string().split_once(' ').map(|(_, name)| name.to_owned()).unwrap())
        .collect();
    found.sort();
    let expected = [
        "en1_on_all::mysql",
        "en1_on_all::postgres",
        "en2_on_all::mysql",
        "en2_on_all::postgres",
        "en3_on_one::mariadb",
        "en4_on_a_file::sqlite",
        "en5_of_a_suite",
        "en6_of_a_library",
    ];
    assert_eq!(found, expected);
    // A macro of another crate is another macro.
    let elsewhere =
        [source("crates/shop/tests/main/harness.rs", harness), source("crates/other/src/lib.rs", callers)];
    assert_eq!(tests(&elsewhere).len(), 1);
}
