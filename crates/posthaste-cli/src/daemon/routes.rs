//! The routes of one table: the first that fits an event's topic says to which sink it goes, and where in it.
//!
//! A sink is one route of the relay, with one breaker, however many lines of the configuration lead to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use posthaste::dispatch::{Route, Routes};
use posthaste::sink::Sink;
use posthaste::{Event, TableName, TopicMap};

use crate::config::settings::{RouteSettings, Settings};

/// The routes of one table.
pub(super) struct TableRoutes {
    routes: Vec<Route>,
    rules: Arc<[Rule]>,
}

struct Rule {
    route: RouteSettings,
    /// Which of the routes it leads to.
    sink: usize,
}

impl TableRoutes {
    pub(super) fn new(
        settings: &Settings,
        table: &TableName,
        sinks: &BTreeMap<String, Arc<dyn Sink>>,
    ) -> Self {
        let mut routes: Vec<Route> = Vec::new();
        let mut rules = Vec::new();
        for route in settings.routes_of(table) {
            // Settings name no sink that is not there.
            let Some(sink) = sinks.get(&route.sink) else { continue };
            let known = routes.iter().position(|known| *known.name == *route.sink);
            let at = known.unwrap_or_else(|| {
                routes.push(Route { name: route.sink.as_str().into(), sink: Arc::clone(sink) });
                routes.len() - 1
            });
            rules.push(Rule { route: route.clone(), sink: at });
        }
        Self { routes, rules: rules.into() }
    }

    /// Where in its sink an event goes.
    pub(super) fn topics(&self) -> TopicMap {
        if self.rules.iter().all(|rule| rule.route.destination.is_topic()) {
            return TopicMap::topic();
        }
        let rules = Arc::clone(&self.rules);
        TopicMap::from_fn(move |event| match rule(&rules, event.topic()) {
            Some(rule) => rule.route.destination.map(event).map(|destination| destination.to_string()),
            None => Ok(event.topic().to_owned()),
        })
    }
}

fn rule<'a>(rules: &'a [Rule], topic: &str) -> Option<&'a Rule> {
    rules.iter().find(|rule| rule.route.takes_topic(topic))
}

impl Routes for TableRoutes {
    fn routes(&self) -> Vec<Route> {
        self.routes.clone()
    }

    fn find(&self, event: &Event) -> Option<usize> {
        self.of_topic(event.topic())
    }

    fn of_topic(&self, topic: &str) -> Option<usize> {
        rule(&self.rules, topic).map(|rule| rule.sink)
    }
}
