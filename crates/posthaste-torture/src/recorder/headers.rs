//! Which headers of a message are written down: those of the event, and those that say its id.

/// What the message or its transport says of itself, whatever the event.
const TRANSPORT: [&str; 5] = ["accept", "content-length", "content-type", "host", "user-agent"];

/// What begins so is the message's own.
const OWN: [&str; 3] = ["ce-", "nats-", "webhook-"];

/// Those of them that say the event's id.
const IDS: [&str; 3] = [ID, "nats-msg-id", "webhook-id"];

/// The one by which the event is known.
pub const ID: &str = "ce-id";

/// The headers that are kept, by their names.
pub fn kept(headers: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut kept: Vec<(String, String)> = headers.filter(|(name, _)| is_kept(name)).collect();
    kept.sort();
    kept
}

/// One that nobody expects is kept, too: the checker asks where it came from.
fn is_kept(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let own = OWN.iter().any(|prefix| name.starts_with(prefix)) || TRANSPORT.contains(&name.as_str());
    !own || IDS.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_messages_own_is_kept() {
        let names = ["x-note", "Host", "ce-type", "CE-ID", "Nats-Msg-Id", "webhook-timestamp", "a-stranger"];
        let headers = names.map(|name| (name.to_owned(), String::new()));
        let kept: Vec<String> = kept(headers.into_iter()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(kept, ["CE-ID", "Nats-Msg-Id", "a-stranger", "x-note"]);
    }
}
