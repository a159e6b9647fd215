//! The secrets, and what was said: searched for them, plain and encoded.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::support::Answer;

/// What every secret begins with: nothing else does.
const MARK: &str = "zq7";
/// Numbers have no such beginning.
pub(super) const NUMBER: u64 = 739_173_917_391;

/// A secret of this name.
pub(super) fn secret(name: &str) -> String {
    format!("{MARK}-{name}-{MARK}")
}

/// The key that webhooks are signed with.
pub(super) fn key() -> String {
    format!("whsec_{}", STANDARD.encode(format!("{:-<32}", secret("hmac"))))
}

/// Secrets that an event has, which are shown to whoever asks for that very event.
const OF_EVENTS: [&str; 3] = ["payload", "header", "note"];

/// Secrets that nobody is shown.
pub(super) const OTHERS: [&str; 12] = [
    "db-password",
    "wrong-password",
    "api-token",
    "wrong-token",
    "hook-bearer",
    "hook-custom",
    "hook-path",
    "hook-query",
    "hook-user",
    "hook-password",
    "nats-token",
    "nats-password",
];

/// What was said, and by whom.
#[derive(Default)]
pub(super) struct Said(pub(super) Vec<(String, String)>);

impl Said {
    pub(super) fn add(&mut self, by: impl Into<String>, text: impl Into<String>) {
        self.0.push((by.into(), text.into()));
    }

    pub(super) fn answer(&mut self, by: impl Into<String>, answer: Answer) {
        self.add(by, answer.out + &answer.err);
    }

    /// Demands that none of these is in any of it, plain or encoded.
    #[track_caller]
    pub(super) fn keeps<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut hidden: Vec<String> = names.into_iter().map(secret).collect();
        hidden.push(key()["whsec_".len()..].to_owned());
        let encoded: Vec<String> =
            hidden.iter().map(|hidden| STANDARD.encode(hidden).trim_end_matches('=').to_owned()).collect();
        let quoted: Vec<String> = hidden.iter().map(|hidden| format!("{:?}", hidden.as_bytes())).collect();
        for (by, text) in &self.0 {
            for hidden in hidden.iter().chain(&encoded).chain(&quoted) {
                let line = text.lines().find(|line| line.contains(hidden.as_str()));
                assert!(line.is_none(), "{by} says {hidden}: {line:?}");
            }
        }
    }

    /// Demands that nothing of an event is in it, either.
    #[track_caller]
    pub(super) fn keeps_events(&self) {
        self.keeps(OF_EVENTS);
        let number = NUMBER.to_string();
        for (by, text) in &self.0 {
            let line = text.lines().find(|line| line.contains(&number) || line.contains(MARK));
            assert!(line.is_none(), "{by} says {line:?}");
        }
    }
}
