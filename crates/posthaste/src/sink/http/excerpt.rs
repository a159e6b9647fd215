//! What of an answer goes into an error: its beginning, without what only the sink and its destination should know.
//!
//! A destination often repeats what it was asked: `Cannot POST /hooks/T0/B0/…`, `unknown key …`. A webhook's URL may be its
//! secret, and so may be every header that was set for it. They are taken out here, since nobody behind the sink knows them.
//! The event's own payload and headers are the relay's to take out (`dispatch::redact`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::PLACEHOLDER;

/// Characters of an answer that go into an error.
const EXCERPT: usize = 200;

/// Bytes of a word of the URL that is hidden: shorter ones are names such as `hooks`.
const LEAST_OF_URL: usize = 8;

/// Bytes of any other secret that is hidden: what is shorter stands in every other word.
const LEAST: usize = 4;

/// What stands where a secret was.
const HIDDEN: &str = "***";

/// What a destination may repeat and nobody else should see, the longest first.
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    /// Those of a sink with this URL, these headers and these keys.
    pub(super) fn of<'a>(
        url: &str,
        headers: impl Iterator<Item = &'a str>,
        keys: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut all = Vec::new();
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if let Some((login, _)) = authority.rsplit_once('@') {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            all.extend([login, user, password].map(str::to_owned));
            all.push(STANDARD.encode(format!("{user}:{password}")));
        }
        for value in headers {
            all.extend([value, value.rsplit(' ').next().unwrap_or_default()].map(str::to_owned));
        }
        all.extend(keys.map(str::to_owned));
        all.retain(|secret| secret.len() >= LEAST);
        for part in tail.split(PLACEHOLDER) {
            let words = part.split(['/', '?', '&', '=', '#']).chain([part]);
            all.extend(words.filter(|word| word.len() >= LEAST_OF_URL).map(str::to_owned));
        }
        // A part of a longer one would leave the rest of it.
        all.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        all.dedup();
        Self(all)
    }

    /// The beginning of an answer's body, on one line.
    pub(super) fn excerpt(&self, body: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(body).into_owned();
        for secret in &self.0 {
            if text.contains(secret) {
                text = text.replace(secret, HIDDEN);
            }
        }
        text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(EXCERPT).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(body: &str) -> String {
        let url =
            "https://shop-user:pass%21@shop.example/hooks/T0BQ7F8XK2/{destination}/in?api_key=k3y-of-shop";
        let headers = ["Bearer hunter22", "plain-value", "a"];
        Secrets::of(url, headers.into_iter(), ["whsec_c2VjcmV0"].into_iter()).excerpt(body.as_bytes())
    }

    #[test]
    fn rt5_what_a_destination_repeats_of_its_own_secrets_is_taken_out() {
        for (body, kept) in [
            (
                "Cannot POST /hooks/T0BQ7F8XK2/order.placed/in?api_key=k3y-of-shop",
                "Cannot POST ***order.placed***",
            ),
            ("no hook T0BQ7F8XK2", "no hook ***"),
            ("no key k3y-of-shop", "no key ***"),
            ("{\"authorization\":\"Bearer hunter22\"}", "{\"authorization\":\"***\"}"),
            ("token hunter22 is spent", "token *** is spent"),
            ("plain-value? never heard of it", "***? never heard of it"),
            ("who is shop-user:pass%21", "who is ***"),
            ("Basic c2hvcC11c2VyOnBhc3MlMjE=", "Basic ***"),
            ("not whsec_c2VjcmV0", "not ***"),
            (" a hook\r\nof shop.example ", "a hook  of shop.example"),
        ] {
            assert_eq!(excerpt(body), kept);
        }
    }

    #[test]
    fn rt5_an_answer_is_cut_after_its_secrets_are_gone() {
        let body = format!("{}hunter22{}", "x".repeat(EXCERPT - 4), "y".repeat(EXCERPT));
        let kept = excerpt(&body);
        assert!(kept.chars().count() == EXCERPT && kept.ends_with("***y"), "{kept}");
    }
}
