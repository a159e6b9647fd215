//! What must not be shown: tokens, passwords, and the parts of URLs that hold them.

use std::fmt;

use super::key::Secrecy;

/// What stands for a secret.
pub(crate) const HIDDEN: &str = "***";

/// A text that nobody sees.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever it is meant for.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// A URL that is shown without its secrets.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretUrl {
    url: String,
    secrecy: Secrecy,
}

impl SecretUrl {
    pub(crate) fn new(url: impl Into<String>, secrecy: Secrecy) -> Self {
        Self { url: url.into(), secrecy }
    }

    /// All of it, for whoever connects.
    pub(crate) fn reveal(&self) -> &str {
        &self.url
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&masked(&self.url, self.secrecy))
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A value without what is secret in it.
pub(crate) fn masked(text: &str, secrecy: Secrecy) -> String {
    match secrecy {
        Secrecy::Open => text.to_owned(),
        Secrecy::Secret => HIDDEN.to_owned(),
        Secrecy::Password | Secrecy::Path => url_masked(text.trim(), secrecy),
        Secrecy::Login => {
            let urls: Vec<String> = servers(text).iter().map(|url| url_masked(url.trim(), secrecy)).collect();
            urls.join(",")
        }
    }
}

/// Several servers, with commas. A password may hold one, too: only what begins with a scheme begins a server.
fn servers(text: &str) -> Vec<String> {
    let mut servers: Vec<String> = Vec::new();
    for part in text.split(',') {
        match servers.last_mut() {
            Some(last) if scheme(part).is_none() => *last += &format!(",{part}"),
            _ => servers.push(part.to_owned()),
        }
    }
    servers
}

/// The scheme that a text begins with, if it is a URL, and what follows.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.trim_start().split_once("://")?;
    let is_one = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_one.then_some((scheme, rest))
}

fn url_masked(url: &str, secrecy: Secrecy) -> String {
    let Some((scheme, rest)) = scheme(url) else {
        // Not a URL after all. Only a file or a server without anybody's name can be shown: of a database, what is called
        // one.
        let plain = match secrecy {
            Secrecy::Path => false,
            Secrecy::Password => url.starts_with("sqlite:") && !url.contains(['@', '=']),
            _ => !url.contains(['@', '=']) && !url.contains("://"),
        };
        return if plain { url.to_owned() } else { HIDDEN.to_owned() };
    };
    // A password may hold any of the characters that end an authority, if nobody encoded them: the last '@' before
    // the query is taken as its end.
    if rest.find('?').is_some_and(|query| rest[query..].contains('@')) {
        // Nobody can tell a password with a question mark from a parameter with an at sign.
        return format!("{scheme}://{HIDDEN}");
    }
    let (before_query, query) =
        rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (login, host) = match before_query.rsplit_once('@') {
        Some((login, host)) => (Some(login), host),
        None => (None, before_query),
    };
    let mut shown = format!("{scheme}://");
    match login
        .map(|login| login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password))))
    {
        None => {}
        Some((user, None)) if secrecy == Secrecy::Password => shown += &format!("{user}@"),
        Some((user, Some(_))) if secrecy == Secrecy::Password => shown += &format!("{user}:{HIDDEN}@"),
        Some(_) => shown += &format!("{HIDDEN}@"),
    }
    if secrecy == Secrecy::Path {
        let (host, path) = host.split_once('/').unwrap_or((host, ""));
        shown += host;
        if !path.is_empty() || query.is_some() {
            shown += &format!("/{HIDDEN}");
        }
        return shown;
    }
    shown += host;
    if let Some(query) = query {
        let parts: Vec<String> = query.split('&').map(parameter_masked).collect();
        shown += &format!("?{}", parts.join("&"));
    }
    shown
}

/// A parameter of a database's URL; those with a secret have one of these words in their name.
fn parameter_masked(parameter: &str) -> String {
    const WORDS: [&str; 4] = ["password", "secret", "token", "key"];
    match parameter.split_once('=') {
        Some((name, _)) if WORDS.iter().any(|word| name.to_ascii_lowercase().contains(word)) => {
            format!("{name}={HIDDEN}")
        }
        _ => parameter.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op3_secrets_in_urls_are_masked() {
        for (url, secrecy, shown) in [
            (
                "postgres://shop:hunter22@db/shop?sslmode=require",
                Secrecy::Password,
                "postgres://shop:***@db/shop?sslmode=require",
            ),
            ("postgres://shop:hunt/er@22@db/shop", Secrecy::Password, "postgres://shop:***@db/shop"),
            (
                "postgres://shop@db/shop?password=hunter22",
                Secrecy::Password,
                "postgres://shop@db/shop?password=***",
            ),
            ("sqlite://posthaste.db", Secrecy::Password, "sqlite://posthaste.db"),
            ("postgres://shop:hun,ter22@db/shop", Secrecy::Password, "postgres://shop:***@db/shop"),
            ("postgres://shop:hunt?er22@db/shop", Secrecy::Password, "postgres://***"),
            ("postgres://db/shop?password=hun@ter22", Secrecy::Password, "postgres://***"),
            ("nats://u:hun,ter22@a, nats://b:4222", Secrecy::Login, "nats://***@a,nats://b:4222"),
            ("a:4222,b:4222", Secrecy::Login, "a:4222,b:4222"),
            ("shop:hunter22@db", Secrecy::Password, "***"),
            ("hunter22", Secrecy::Password, "***"),
            ("sqlite:outbox.db", Secrecy::Password, "sqlite:outbox.db"),
            ("nats://hunter22@a:4222,nats://u:hunter22@b", Secrecy::Login, "nats://***@a:4222,nats://***@b"),
            ("localhost:4222", Secrecy::Login, "localhost:4222"),
            ("https://shop.example/hooks/hunter22?key=hunter22", Secrecy::Path, "https://shop.example/***"),
            ("https://u:hunter22@shop.example", Secrecy::Path, "https://***@shop.example"),
            ("hunter22", Secrecy::Path, "***"),
            ("hunter22", Secrecy::Secret, "***"),
        ] {
            assert_eq!(masked(url, secrecy), shown, "{url}");
        }
    }

    #[test]
    fn op3_a_secret_is_not_debugged() {
        assert_eq!(format!("{:?}", Some(Secret::new("hunter22"))), "Some(***)");
    }
}
