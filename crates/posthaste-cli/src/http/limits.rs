//! How much of everything: whoever can connect can ask, but not for more than this.

use std::time::Duration;

/// Connections at once; more wait to be accepted.
pub(super) const CONNECTIONS: usize = 256;
/// How long the head of a request may take to arrive, and how long a connection may be idle.
pub(super) const HEAD: Duration = Duration::from_secs(10);
/// How long a body may take to arrive.
pub(super) const BODY_TIME: Duration = Duration::from_secs(10);
/// Bytes of a body.
pub(super) const BODY: usize = 1024 * 1024;
/// Bytes of a request's head.
pub(super) const HEAD_BYTES: usize = 64 * 1024;
/// Headers of a request.
pub(super) const HEADERS: usize = 64;
/// How long an answer may take to make.
pub(super) const REQUEST: Duration = Duration::from_secs(30);
/// How long a manual trigger is waited for; the pass goes on behind it.
pub(super) const TRIGGER: Duration = Duration::from_secs(20);
/// How long a connection may last: one whose client reads nothing is not kept for ever.
pub(super) const CONNECTION: Duration = Duration::from_secs(300);
/// How long what is under way has at the end.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// Events of a page.
pub(super) const PAGE: u64 = 1000;
/// Events of a page, unless it is said.
pub(super) const USUAL_PAGE: u64 = 50;
/// Events that one request replays, discards or purges.
pub(super) const CHANGE: u64 = 10_000;
/// And unless it is said.
pub(super) const USUAL_CHANGE: u64 = 1000;
/// Events that are named one by one.
pub(super) const IDS: usize = 100;
