//! What is known of the connection, from what the client tells.

use async_nats::{Event, ServerError};

/// Where questions to JetStream go; the server's refusal names it.
const API: &str = "$JS.API";

/// The connection's state and history.
#[derive(Debug, Clone, Default)]
pub(super) struct Link {
    /// How often a connection was lost.
    pub(super) losses: u64,
    /// Whether there has been one at all.
    pub(super) was_connected: bool,
    /// The last error of client or server.
    pub(super) said: Option<String>,
    /// Whether this user may not ask JetStream anything, only publish.
    pub(super) may_not_ask: bool,
}

impl Link {
    /// Takes note of an event of the client.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Connected => {
                self.was_connected = true;
                self.said = None;
            }
            Event::Disconnected | Event::Closed => self.losses += 1,
            Event::ServerError(error) => {
                let text = error.to_string();
                let is_refusal = matches!(error, ServerError::Other(_))
                    && text.to_lowercase().contains("permissions violation");
                self.may_not_ask |= is_refusal && text.contains(API);
                self.said = Some(text);
            }
            Event::ClientError(error) => self.said = Some(error.to_string()),
            _ => {}
        }
    }

    /// Why nothing can be published now.
    pub(super) fn unconnected(&self, servers: &str) -> String {
        match &self.said {
            Some(said) => format!("not connected to NATS at {servers}: {said}"),
            None => format!("not connected to NATS at {servers}"),
        }
    }
}
