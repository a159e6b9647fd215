//! What a running daemon serves. Every answer in here is compared with the OpenAPI document that the daemon itself gives
//! out.
//!
//! Rows of the contract: OP4, OP5, OP6.
//!
//! | file | what is in it |
//! |---|---|
//! | `client.rs` | asking, and the comparison |
//! | `health.rs` | alive, ready, degraded, not ready |
//! | `events.rs` | events and dead letters: looking, writing, mending |
//! | `relays.rs` | relays and sinks: status, pause, resume, trigger; streams |
//! | `access.rs` | the token, hosts, other machines |
//! | `hostile.rs` | anything as body, query or head: the daemon refuses it and lives |
//! | `limits.rs` | too much, too slow, and what the log says of it |
//! | `metrics.rs` | what Prometheus reads |

mod access;
pub(crate) mod client;
mod events;
mod health;
mod hostile;
mod limits;
mod metrics;
mod relays;
