//! The routes: which topic of which table goes to which sink, and where in it.

use std::collections::{BTreeMap, BTreeSet};

use posthaste::{TableName, TopicMap};

use super::Making;
use super::sink::{SinkKind, SinkSettings};
use super::table::TableSettings;
use crate::config::nearest;
use crate::config::origin::Origin;
use crate::config::path::Path;

/// One route; the first that fits is taken.
#[derive(Debug, Clone)]
pub(crate) struct RouteSettings {
    /// Patterns of topics.
    pub(crate) topics: Vec<String>,
    /// Empty means all.
    tables: Vec<TableName>,
    /// The sink's name.
    pub(crate) sink: String,
    /// Where in the sink; the topic, if nothing is said.
    pub(crate) destination: TopicMap,
}

impl RouteSettings {
    /// Everything to this sink.
    fn all_to(sink: String) -> Self {
        Self { topics: vec!["*".to_owned()], tables: Vec::new(), sink, destination: TopicMap::topic() }
    }

    /// Whether events of this table may take it.
    pub(crate) fn takes_table(&self, table: &TableName) -> bool {
        self.tables.is_empty() || self.tables.contains(table)
    }

    /// Whether events of this topic take it.
    pub(crate) fn takes_topic(&self, topic: &str) -> bool {
        self.topics.iter().any(|pattern| fits(pattern, topic))
    }
}

impl RouteSettings {
    /// Whether it takes every topic of this pattern, of this table. It may say no where only all its patterns together do.
    fn takes_all(&self, pattern: &str, table: &TableName) -> bool {
        // What fits with the stars as they are fits with whatever they stand for.
        self.takes_table(table) && self.takes_topic(pattern)
    }
}

/// Whether a topic is as a pattern says, in which `*` stands for any characters.
fn fits(pattern: &str, topic: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = topic.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        // The first place that fits leaves the most for the parts behind it.
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

impl Making<'_> {
    pub(super) fn routes(
        &mut self,
        tables: &[TableSettings],
        sinks: &BTreeMap<String, SinkSettings>,
    ) -> Vec<RouteSettings> {
        let written = self.config.names("routes");
        if written.is_empty() {
            return self.without_routes(sinks);
        }
        let mut routes = Vec::new();
        for (place, origin) in &written {
            routes.extend(self.route(place, origin, tables, sinks));
        }
        for table in tables.iter().filter(|table| table.relayed) {
            if routes.len() == written.len() && !routes.iter().any(|route| route.takes_table(&table.name)) {
                let message = format!(
                    "no route takes events of table {}: all of them would be dead; add one",
                    table.name
                );
                self.wrong(&Origin::Default, message);
            }
        }
        if routes.len() == written.len() {
            self.warn_of_routes(&written, &routes, tables);
        }
        let used: BTreeSet<&str> = routes.iter().map(|route| route.sink.as_str()).collect();
        for name in sinks.keys().filter(|name| !used.contains(name.as_str())) {
            self.warnings.push(format!("no route leads to sink {name}"));
        }
        routes
    }

    /// What routes leave out, and what none of them ever gets.
    fn warn_of_routes(
        &mut self,
        written: &[(String, Origin)],
        routes: &[RouteSettings],
        tables: &[TableSettings],
    ) {
        let relayed: Vec<&TableName> =
            tables.iter().filter(|table| table.relayed).map(|table| &table.name).collect();
        if relayed.is_empty() {
            // Nothing is delivered here, so that nothing is dead for want of a route.
            return;
        }
        for (at, route) in routes.iter().enumerate() {
            let before = &routes[..at];
            let mut taken = relayed.iter().filter(|table| route.takes_table(table)).peekable();
            let is_behind = taken.peek().is_some()
                && taken.all(|table| {
                    let all = |pattern: &String| before.iter().any(|first| first.takes_all(pattern, table));
                    route.topics.iter().all(all)
                });
            if is_behind {
                let (place, origin) = &written[at];
                self.warnings.push(format!(
                    "{origin}: routes{place} ({}) is never reached: routes before it take all of its topics, and the first \
                     that fits is taken; move it before them, or leave it away",
                    route.topics.join(", ")
                ));
            }
        }
        let reaches =
            |pattern: &str, table: &TableName| routes.iter().any(|route| route.takes_all(pattern, table));
        let open: Vec<String> =
            relayed.iter().filter(|table| !reaches("*", table)).map(ToString::to_string).collect();
        if !open.is_empty() {
            self.warnings.push(format!(
                "no route takes every topic of table {}: an event whose topic none takes is dead at once, to be replayed when \
                 there is a route; if others can come up, add a last route with topics = \"*\"",
                open.join(", ")
            ));
        }
        for (topic, origin) in self.config.names("topics") {
            if !topic.contains('*') && !relayed.iter().any(|table| reaches(&topic, table)) {
                self.warnings.push(format!(
                    "{origin}: [topics.{topic:?}] is for a topic that no route takes: its events are dead at once; add a route, \
                     or correct its name"
                ));
            }
        }
    }

    fn without_routes(&mut self, sinks: &BTreeMap<String, SinkSettings>) -> Vec<RouteSettings> {
        let names: Vec<&String> = sinks.keys().collect();
        let [only] = names[..] else {
            // None means that those that were written are wrong, which has been said.
            if let Some((_, origin)) = self.config.names("sinks").get(1).filter(|_| names.len() > 1) {
                let names: Vec<String> = names.iter().map(|name| (*name).clone()).collect();
                let message = format!(
                    "there are {} sinks ({}) and no [[routes]]; say with topics = \"*\" and sink = \"{}\" what goes where",
                    names.len(),
                    names.join(", "),
                    names[0]
                );
                let origin = origin.clone();
                self.wrong(&origin, message);
            }
            return Vec::new();
        };
        vec![RouteSettings::all_to(only.clone())]
    }

    fn route(
        &mut self,
        place: &str,
        origin: &Origin,
        tables: &[TableSettings],
        sinks: &BTreeMap<String, SinkSettings>,
    ) -> Option<RouteSettings> {
        let at = |leaf: &str| Path::of(["routes", place, leaf]);
        let named = self.config.list(&at("tables"));
        let mut of = Vec::new();
        for name in &named {
            match tables.iter().find(|table| table.name.to_string() == *name) {
                Some(table) => of.push(table.name.clone()),
                None => {
                    let known: Vec<String> = tables.iter().map(|table| table.name.to_string()).collect();
                    let near = nearest(name, known.iter().map(String::as_str));
                    let advice = near.map_or_else(
                        || format!("there are {}", known.join(", ")),
                        |near| format!("did you mean {near}?"),
                    );
                    let origin = self.config.origin(&at("tables"));
                    self.wrong(
                        &origin,
                        format!("{} names the table {name}, which is not relayed; {advice}", at("tables")),
                    );
                }
            }
        }
        let destination = self.config.text(&at("destination"));
        let destination = destination.and_then(|text| TopicMap::template(&text).ok()).unwrap_or_default();
        let Some(sink) = self.config.text(&at("sink")) else {
            if !self.config.refused.contains(&at("sink")) {
                let names: Vec<String> =
                    self.config.names("sinks").into_iter().map(|(name, _)| format!("{name:?}")).collect();
                let message = format!(
                    "routes{place} has no sink; add sink = {}",
                    names.first().map_or("\"…\"", String::as_str)
                );
                self.wrong(origin, message);
            }
            return None;
        };
        // A sink that is there and wrong has been spoken of.
        let written = self.config.names("sinks");
        if !sinks.contains_key(&sink) && !written.iter().any(|(name, _)| *name == sink) {
            let known: Vec<&str> = written.iter().map(|(name, _)| name.as_str()).collect();
            let advice = match nearest(&sink, known.iter().copied()) {
                Some(near) => format!("did you mean {near:?}?"),
                None if known.is_empty() => format!("add [sinks.{sink}] with its kind"),
                None => format!("there are {}", known.join(", ")),
            };
            let origin = self.config.origin(&at("sink"));
            self.wrong(
                &origin,
                format!("{} names {sink:?}, and there is no such sink; {advice}", at("sink")),
            );
            return None;
        }
        Some(RouteSettings { topics: self.config.list(&at("topics")), tables: of, sink, destination })
    }

    /// A sink in doubt asks its destination, so twice its timeout must fit into that of the relay.
    pub(super) fn compare_timeouts(
        &mut self,
        tables: &[TableSettings],
        sinks: &BTreeMap<String, SinkSettings>,
        routes: &[RouteSettings],
    ) {
        for (name, sink) in sinks {
            let (leaf, timeout) = match &sink.kind {
                SinkKind::Http(http) => ("timeout", http.timeout),
                SinkKind::Nats(nats) => ("ack_timeout", nats.ack_timeout),
                SinkKind::Stdout | SinkKind::File(_) => continue,
            };
            let tight = tables.iter().find(|table| {
                table.relayed
                    && 2 * timeout > table.timeout
                    && routes.iter().any(|route| route.sink == *name && route.takes_table(&table.name))
            });
            if let Some(table) = tight {
                let path = Path::of(["sinks", name, leaf]);
                let origin = self.config.origin(&path);
                self.wrong(
                    &origin,
                    format!(
                        "{path} is {:?}, and twice that does not fit into the relay's timeout of {:?} (table {}); shorten \
                         the one or lengthen the other",
                        timeout, table.timeout, table.name
                    ),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op3_topics_fit_patterns() {
        for (pattern, topic) in [
            ("*", ""),
            ("*", "a.b"),
            ("order.*", "order.placed.v1"),
            ("*.v1", "a.v1"),
            ("a*b*c", "a.b.b.c"),
            ("a", "a"),
        ] {
            assert!(fits(pattern, topic), "{pattern} {topic}");
        }
        for (pattern, topic) in [
            ("order.*", "orders.placed"),
            ("a", "ab"),
            ("*.v1", "a.v12"),
            ("a*b*c", "acb"),
            ("a*a", "a"),
            ("", "a"),
        ] {
            assert!(!fits(pattern, topic), "{pattern} {topic}");
        }
    }
}
