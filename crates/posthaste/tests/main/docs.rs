//! The documentation keeps up with the code: metrics, links, pages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The metrics of `telemetry.rs`: name, and the type it is described with.
fn metrics() -> BTreeMap<String, &'static str> {
    let source = read("crates/posthaste/src/telemetry.rs");
    // A call may be broken into lines.
    let flat: String = source.split_whitespace().collect();
    let types = ["counter", "gauge", "histogram"];
    let type_of = |constant: &str| {
        let described = |kind: &&&str| flat.contains(&format!("describe_{kind}!({constant},"));
        *types.iter().find(described).unwrap_or_else(|| panic!("{constant} is not described"))
    };
    source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split_once(": &str = "))
        .map(|(constant, name)| (name.trim_matches(['"', ';']).to_owned(), type_of(constant)))
        .collect()
}

#[test]
fn op6_every_metric_is_on_its_page() {
    let page = read("docs/src/reference/metrics.md");
    let rows: BTreeMap<String, &str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `outbox_")?.split_once("` | "))
        .map(|(name, rest)| (format!("outbox_{name}"), rest.split(" | ").next().unwrap_or_default()))
        .collect();
    let metrics = metrics();
    assert!(metrics.len() >= 15, "telemetry.rs is read wrongly: correct this test");
    assert_eq!(rows, metrics, "left: docs/src/reference/metrics.md, right: src/telemetry.rs");
}

/// Every page for readers: the book, the decisions, the files at the top.
fn pages() -> Vec<PathBuf> {
    fn walk(path: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(ROOT).join("docs"), &mut found);
    let top = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
    found.extend(top.map(|name| Path::new(ROOT).join(name)));
    found
}

/// A page without its code.
fn prose(text: &str) -> String {
    let mut in_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            lines.push(line);
        }
    }
    lines.join("\n")
}

/// The anchors of a page's headings, as mdBook and GitHub make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = prose(&std::fs::read_to_string(&page).unwrap());
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if path.is_empty() { page.clone() } else { page.parent().unwrap_or(&page).join(path) };
            let known = match std::fs::read_to_string(&target) {
                Ok(text) => anchor.is_empty() || anchors(&text).contains(anchor),
                Err(_) => target.is_dir(),
            };
            if !known {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A finding sends its reader to a page, or to a heading of one.
#[test]
fn op10_every_page_that_the_doctor_names_is_there() {
    let directory = Path::new(ROOT).join("crates/posthaste/src/admin/doctor");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap());
    let sources = sources.collect::<String>();
    let named = |part: &'static str| sources.split(part).skip(1).filter_map(|rest| rest.split('"').next());
    let pages: BTreeSet<&str> = named("\"operate/").chain(named("\"guides/")).collect();
    assert!(pages.len() >= 8, "the sources are read wrongly: correct this test");
    for page in pages {
        let (path, anchor) = page.split_once('#').unwrap_or((page, ""));
        let file =
            ["operate", "guides"].map(|part| Path::new(ROOT).join(format!("docs/src/{part}/{path}.md")));
        let file =
            file.iter().find(|file| file.is_file()).unwrap_or_else(|| panic!("there is no page {path}"));
        let text = std::fs::read_to_string(file).unwrap();
        assert!(anchor.is_empty() || anchors(&text).contains(anchor), "{path} has no heading {anchor}");
    }
}

#[test]
fn every_page_is_listed_and_its_code_compiled() {
    let book = Path::new(ROOT).join("docs/src");
    let (summary, decisions) = (read("docs/src/SUMMARY.md"), read("docs/adr/README.md"));
    let compiled = read("crates/posthaste/src/lib.rs");
    for page in pages() {
        let name = page.strip_prefix(Path::new(ROOT)).unwrap().to_string_lossy().into_owned();
        match page.strip_prefix(&book) {
            Ok(inside) if inside != Path::new("SUMMARY.md") => {
                assert!(summary.contains(&format!("({})", inside.display())), "{name} is not in SUMMARY.md");
            }
            Err(_) if name.starts_with("docs/adr/0") => {
                let file = page.file_name().unwrap().to_string_lossy();
                assert!(decisions.contains(&format!("({file})")), "{name} is not in docs/adr/README.md");
            }
            _ => {}
        }
        let has_code = std::fs::read_to_string(&page).unwrap().contains("```rust");
        assert!(
            !has_code || compiled.contains(&format!("\"{name}\"")),
            "{name} is not in `mod book` of lib.rs"
        );
    }
}

/// Every Rust file of the workspace.
fn sources(path: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// What is promised is kept by tests that there are.
#[test]
fn every_test_that_security_names_exists() {
    let page = read("SECURITY.md");
    let (_, promises) = page.split_once("## What is promised today").unwrap();
    let (promises, _) = promises.split_once("\n## ").unwrap();
    let is_test = |word: &&str| {
        let row: String = word.chars().take(2).collect();
        row.chars().all(|c| c.is_ascii_lowercase()) && word.get(2..3).is_some_and(|c| c.parse::<u8>().is_ok())
    };
    let named: BTreeSet<&str> = promises.split('`').skip(1).step_by(2).filter(is_test).collect();
    assert!(named.len() > 40, "{named:?}");
    let mut all = Vec::new();
    sources(&Path::new(ROOT).join("crates"), &mut all);
    let missing: Vec<&&str> = named
        .iter()
        .filter(|name| !all.iter().any(|source| source.contains(&format!("fn {name}("))))
        .collect();
    assert!(missing.is_empty(), "SECURITY.md names tests that there are none of: {missing:?}");
}
