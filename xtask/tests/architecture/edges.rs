//! Which part of the library may see which: a table, its exceptions, and the check of both.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{Reference, Segments, Tree};

/// A module, with everything below it that is not a part of its own, and the other parts that it may see.
pub struct Part {
    pub name: &'static str,
    pub sees: &'static [&'static str],
}

pub const fn part(name: &'static str, sees: &'static [&'static str]) -> Part {
    Part { name, sees }
}

/// The direction of the code: a part sees only parts above it. Every module below the root is in the table, and every edge of
/// the table is used.
pub const PARTS: &[Part] = &[
    part("failpoint", &[]),
    part("planted", &[]),
    part("error", &[]),
    part("event", &["error"]),
    part(
        "store",
        &[
            "error",
            "event",
            "failpoint",
            "planted",
            "store::memory",
            "store::mysql",
            "store::postgres",
            "store::sqlite",
        ],
    ),
    part("store::memory", &["error", "event", "store"]),
    part("store::mysql", &["error", "event", "failpoint", "store"]),
    part("store::postgres", &["error", "event", "failpoint", "planted", "store"]),
    part("store::sqlite", &["error", "event", "failpoint", "store"]),
    part("telemetry", &["store"]),
    part("sink", &["error", "event"]),
    part("dispatch", &["error", "event", "sink"]),
    part(
        "produce",
        &[
            "error",
            "event",
            "failpoint",
            "planted",
            "store",
            "store::memory",
            "store::mysql",
            "store::postgres",
            "store::sqlite",
            "telemetry",
        ],
    ),
    part("relay::status", &[]),
    part(
        "relay",
        &[
            "dispatch",
            "error",
            "event",
            "failpoint",
            "planted",
            "relay::status",
            "sink",
            "store",
            "telemetry",
        ],
    ),
    part("admin", &["error", "event", "relay::status", "sink", "store", "telemetry"]),
    part("inbox", &["error", "produce", "store", "store::mysql", "store::postgres", "store::sqlite"]),
    part("testing", &["error", "event", "produce", "sink", "store"]),
];

/// An edge that one file has and its part has not. An exception that is not needed fails the test.
pub struct Exception {
    pub file: &'static str,
    /// The module that the file sees.
    pub sees: &'static str,
    pub reason: &'static str,
}

const fn exception(file: &'static str, sees: &'static str, reason: &'static str) -> Exception {
    Exception { file, sees, reason }
}

pub const EXCEPTIONS: &[Exception] = &[
    exception(
        "admin.rs",
        "produce",
        "`Outbox::admin` is defined here; a replay wakes the relay at the outbox's gate",
    ),
    exception("relay/builder.rs", "produce", "`Outbox::relay` is defined here and takes the outbox's gate"),
    exception("relay/mod.rs", "produce::gate", "a relay that starts attaches its hot queue to the gate"),
    exception("relay/engine.rs", "produce::gate", "the relay opens and closes the hot queue"),
    exception(
        "relay/dispatch.rs",
        "produce::gate",
        "the dispatcher takes committed events from the hot queue",
    ),
    exception(
        "relay/rush.rs",
        "produce::gate",
        "committed events that arrive together are handed on together",
    ),
];

/// A file that sees another part.
struct Edge<'a> {
    reference: &'a Reference,
    from: String,
    to: String,
    path: Segments,
}

fn edges(tree: &Tree) -> Vec<Edge<'_>> {
    let mut edges = Vec::new();
    // The root re-exports from everywhere.
    for reference in tree.references.iter().filter(|reference| !reference.module.is_empty()) {
        let from = part_of(&reference.module);
        for path in tree.resolve(reference) {
            let seen: BTreeSet<String> = [part_of(&path)].into_iter().chain(parts_of_glob(&path)).collect();
            for to in seen.into_iter().filter(|to| *to != from) {
                edges.push(Edge { reference, from: from.clone(), to, path: path.clone() });
            }
        }
    }
    edges
}

/// The innermost part that a path leads into. A module that is missing in the table is a part, too.
fn part_of(path: &[String]) -> String {
    let around = PARTS.iter().map(|part| part.name).filter(|name| is_within(path, name));
    match (around.max_by_key(|name| name.len()), path.first()) {
        (Some(name), _) => name.to_owned(),
        (None, Some(module)) if module != "*" => module.clone(),
        _ => "the crate's root".to_owned(),
    }
}

/// The parts inside a module that a glob opens.
fn parts_of_glob(path: &[String]) -> impl Iterator<Item = String> {
    let opened = path.split_last().filter(|(last, module)| *last == "*" && !module.is_empty());
    let names = PARTS.iter().map(|part| part.name);
    names
        .filter(move |name| {
            let segments: Segments = name.split("::").map(str::to_owned).collect();
            opened.is_some_and(|(_, module)| segments.len() > module.len() && segments.starts_with(module))
        })
        .map(str::to_owned)
}

fn is_within(path: &[String], module: &str) -> bool {
    let mut path = path.iter();
    module.split("::").all(|segment| path.next().is_some_and(|of_path| of_path == segment))
}

fn is_allowed(edge: &Edge<'_>) -> bool {
    PARTS.iter().any(|part| part.name == edge.from && part.sees.contains(&edge.to.as_str()))
}

fn is_excepted(edge: &Edge<'_>, exception: &Exception) -> bool {
    edge.reference.file == exception.file && is_within(&edge.path, exception.sees)
}

/// Edges that neither the table nor an exception allows, one for each file and part, and modules that the table does not know.
pub fn violations(tree: &Tree) -> Vec<String> {
    let mut found = BTreeMap::new();
    for edge in edges(tree) {
        if is_allowed(&edge) || EXCEPTIONS.iter().any(|exception| is_excepted(&edge, exception)) {
            continue;
        }
        let Reference { file, line, path, .. } = edge.reference;
        let (written, home) = (path.join("::"), edge.path.join("::"));
        let message = format!("{file}:{line}: {} sees {}: `{written}` is {home}", edge.from, edge.to);
        found.entry((file, edge.to)).or_insert(message);
    }
    let unknown = tree.top_level().filter(|module| !PARTS.iter().any(|part| part.name == *module));
    let unknown = unknown.map(|module| format!("{module}: the module is missing in the table of parts"));
    let globs = tree.exported_globs.iter();
    let globs =
        globs.map(|(file, line)| format!("{file}:{line}: a glob is re-exported: name each item instead"));
    found.into_values().chain(unknown).chain(globs).collect()
}

/// Parts without a module, edges of the table that no file uses, and exceptions that no file needs.
pub fn unneeded(tree: &Tree) -> Vec<String> {
    let edges = edges(tree);
    let listed = PARTS.iter().flat_map(|part| part.sees.iter().map(|sees| (part.name, *sees)));
    let unused = listed.filter(|(from, to)| !edges.iter().any(|edge| edge.from == *from && edge.to == *to));
    let unused = unused.map(|(from, to)| format!("{from} does not see {to}: remove the edge from the table"));
    let needed =
        |exception: &&Exception| edges.iter().any(|edge| is_excepted(edge, exception) && !is_allowed(edge));
    let exceptions = EXCEPTIONS.iter().filter(|exception| !needed(exception));
    let exceptions = exceptions.map(|Exception { file, sees, reason }| {
        format!("{file} does not see {sees}: remove the exception ({reason})")
    });
    let gone = PARTS.iter().map(|part| part.name).filter(|name| !tree.has_module(name));
    let gone = gone.map(|name| format!("{name}: no module of this name: remove the part from the table"));
    gone.chain(unused).chain(exceptions).collect()
}

/// Edges to a part that is not further up in the table. A part and the parts inside it may see each other.
pub fn upward(parts: &[Part]) -> Vec<String> {
    let family = |name: &'static str| name.split("::").next();
    let mut found = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        for sees in part.sees.iter().filter(|sees| family(sees) != family(part.name)) {
            if !parts[..at].iter().any(|above| above.name == *sees) {
                found.push(format!("{} sees {sees}, which is not above it in the table", part.name));
            }
        }
    }
    found
}
