//! Dispatch: from a delivery to the code that handles it.
//!
//! | file | what is in it |
//! |---|---|
//! | `failure.rs` | [`Failure`]: what a handler says went wrong |
//! | `handler.rs` | [`Handler`]: code that takes one delivery at a time; async closures are handlers |
//! | `typed.rs` | [`Typed`]: a handler of decoded payloads |
//! | `router.rs` | [`Router`]: one handler per topic, or per aggregate and event type |
//! | `broadcast.rs` | [`Broadcast`]: several subscribers of one event |
//! | `intercept.rs` | [`Interceptor`]: code around every dispatch |
//! | `topic.rs` | [`TopicMap`]: from an event to the sink's destination |
//! | `into_routes.rs` | [`IntoRoutes`]: what a relay takes as its handler |
//! | `routes.rs` | [`Routes`]: which sink takes which event, as the relay sees it |
//! | `panics.rs` | a panic of foreign code as an error like any other |
//! | `redact/` | [`redact`]: a failure's text without payload and secrets |

mod broadcast;
mod failure;
mod handler;
mod intercept;
mod into_routes;
mod panics;
mod redact;
mod router;
mod routes;
mod topic;
mod typed;

pub use broadcast::Broadcast;
pub use failure::{Failure, IntoFailure};
pub use handler::{Handler, HandlerSink, Meta};
pub use intercept::{Intercepted, Interceptor};
pub use into_routes::IntoRoutes;
pub(crate) use panics::{caught, panic_text};
pub use redact::redact;
pub use router::Router;
pub use routes::{Route, Routed, Routes, Single};
pub(crate) use routes::{no_route, unanswered};
pub use topic::TopicMap;
pub use typed::Typed;
