//! What a relay's builder takes as its handler: a router with its routes, or one handler for every event.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::event::Event;

use super::{Handler, HandlerSink, Route, Router, Routes, Single};

/// A [`Router`], or any [`Handler`].
pub trait IntoRoutes {
    /// The routes it makes.
    fn into_routes(self) -> Arc<dyn Routes>;
}

impl IntoRoutes for Router {
    fn into_routes(self) -> Arc<dyn Routes> {
        Arc::new(self)
    }
}

impl<H: Handler> IntoRoutes for H {
    fn into_routes(self) -> Arc<dyn Routes> {
        let checked = self.check();
        let route = Route { name: "handler".into(), sink: Arc::new(HandlerSink(self)) };
        Arc::new(OneHandler { single: Single(route), checked })
    }
}

/// One handler for every event, and whether it can work.
struct OneHandler {
    single: Single,
    checked: Result<()>,
}

impl Routes for OneHandler {
    fn routes(&self) -> Vec<Route> {
        self.single.routes()
    }

    fn find(&self, event: &Event) -> Option<usize> {
        self.single.find(event)
    }

    fn check(&self) -> Result<()> {
        match &self.checked {
            Ok(()) => Ok(()),
            Err(error) => Err(Error::new(error.kind().clone(), error.message())),
        }
    }
}
