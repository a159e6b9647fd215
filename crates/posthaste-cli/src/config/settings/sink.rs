//! The sinks: each of one kind, with the keys of that kind and no others.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use posthaste::sink::{Envelope, Format, HttpSink};

use super::Making;
use crate::config::key::{KEYS, Key, SINKS, Secrecy};
use crate::config::origin::Origin;
use crate::config::path::Path;
use crate::config::secret::{Secret, SecretUrl};

/// What the sink is called that is there where nobody wrote one.
const USUAL: &str = "stdout";

/// One sink.
#[derive(Debug, Clone)]
pub(crate) struct SinkSettings {
    pub(crate) envelope: Envelope,
    pub(crate) kind: SinkKind,
}

/// What it is.
#[derive(Debug, Clone)]
pub(crate) enum SinkKind {
    Stdout,
    File(PathBuf),
    Http(HttpSinkSettings),
    Nats(Box<NatsSinkSettings>),
}

/// A webhook.
#[derive(Debug, Clone)]
pub(crate) struct HttpSinkSettings {
    pub(crate) url: SecretUrl,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) headers: Vec<(String, Secret)>,
    pub(crate) root_certificates: Option<PathBuf>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) concurrency: usize,
}

/// NATS JetStream.
#[derive(Debug, Clone)]
pub(crate) struct NatsSinkSettings {
    pub(crate) url: SecretUrl,
    pub(crate) login: Login,
    pub(crate) root_certificates: Option<PathBuf>,
    /// Certificate and key.
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
    pub(crate) domain: Option<String>,
    pub(crate) stream: Option<String>,
    /// How the stream is made, if it is made here.
    pub(crate) create: Option<StreamSettings>,
    pub(crate) ack_timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

/// Who connects.
#[derive(Debug, Clone)]
pub(crate) enum Login {
    AsTheUrlSays,
    Token(Secret),
    User(String, Secret),
    Nkey(Secret),
    CredentialsFile(PathBuf),
}

/// A stream of JetStream that is made here.
#[derive(Debug, Clone)]
pub(crate) struct StreamSettings {
    pub(crate) subjects: Vec<String>,
    pub(crate) duplicate_window: Duration,
    pub(crate) max_age: Duration,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) replicas: usize,
    pub(crate) in_memory: bool,
}

impl SinkSettings {
    /// Its kind's name in the file.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            SinkKind::Stdout => "stdout",
            SinkKind::File(_) => "file",
            SinkKind::Http(_) => "http",
            SinkKind::Nats(_) => "nats",
        }
    }
}

/// The keys of one sink.
struct Keys<'a> {
    name: &'a str,
}

impl Keys<'_> {
    fn at(&self, leaf: &str) -> Path {
        Path::of(["sinks", self.name, leaf])
    }

    /// The section that they are in, whose name may be anything.
    fn section(&self) -> Path {
        Path::of(["sinks", self.name])
    }
}

impl Making<'_> {
    pub(super) fn sinks(&mut self) -> BTreeMap<String, SinkSettings> {
        let written = self.config.names("sinks");
        if written.is_empty() {
            let sink = SinkSettings { envelope: Envelope::default(), kind: SinkKind::Stdout };
            return BTreeMap::from([(USUAL.to_owned(), sink)]);
        }
        let mut sinks = BTreeMap::new();
        for (name, origin) in written {
            if name.is_empty() || name.chars().any(char::is_control) {
                self.wrong(
                    &origin,
                    format!("{name:?} is no name of a sink; give it one such as [sinks.broker]"),
                );
            }
            if let Some(sink) = self.sink(&name, &origin) {
                sinks.insert(name, sink);
            }
        }
        sinks
    }

    fn sink(&mut self, name: &str, origin: &Origin) -> Option<SinkSettings> {
        let keys = Keys { name };
        let Some(kind) = self.config.text(&keys.at("kind")) else {
            if !self.config.refused.contains(&keys.at("kind")) {
                let kinds: Vec<String> = SINKS.iter().map(|kind| format!("{kind:?}")).collect();
                self.wrong(
                    origin,
                    format!("{} has no kind; add kind = one of {}", keys.section(), kinds.join(", ")),
                );
            }
            return None;
        };
        let complete = self.has_its_keys(&keys, &kind, origin);
        let format: Format =
            self.config.text(&keys.at("format")).and_then(|text| text.parse().ok()).unwrap_or_default();
        let mut envelope = Envelope::new(format);
        if let Some(source) = self.config.text(&keys.at("source")) {
            envelope = envelope.source(source).unwrap_or_else(|_| Envelope::new(format));
        }
        let kind = match kind.as_str() {
            "file" => SinkKind::File(self.file_sink(&keys)),
            "http" => SinkKind::Http(self.http_sink(&keys, origin, complete)),
            "nats" => SinkKind::Nats(Box::new(self.nats_sink(&keys))),
            _ => SinkKind::Stdout,
        };
        complete.then_some(SinkSettings { envelope, kind })
    }

    fn file_sink(&mut self, keys: &Keys<'_>) -> PathBuf {
        let path = keys.at("path");
        let file = PathBuf::from(self.config.text(&path).unwrap_or_default());
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            let origin = self.config.origin(&path);
            self.warnings.push(format!(
                "{origin}: {path} is in the directory {}, which does not exist here; create it before the relay starts",
                directory.display()
            ));
        }
        file
    }

    /// Refuses keys of another kind, and misses those that it needs; whether it has those.
    fn has_its_keys(&mut self, keys: &Keys<'_>, kind: &str, origin: &Origin) -> bool {
        let config = self.config;
        let own = |path: &Path| {
            path.first() == "sinks" && path.steps().get(1).is_some_and(|name| name == keys.name)
        };
        for (path, entry) in config.entries().iter().filter(|(path, _)| own(path)) {
            if let Some(key) = Key::at(path).filter(|key| !key.of.contains(&kind)) {
                let of = key.of.join(" or ");
                let message =
                    format!("{path} is for sinks of kind {of}, and this one is {kind}; leave it away");
                self.wrong(&entry.origin, message);
            }
        }
        let mut complete = true;
        for key in
            KEYS.iter().filter(|key| key.required && key.of.contains(&kind) && key.path.starts_with("sinks."))
        {
            let path = keys.at(key.leaf());
            if config.value(&path).is_none() {
                complete = false;
                if !config.refused.contains(&path) {
                    let example = match (kind, key.leaf()) {
                        ("nats", "url") => "\"nats://localhost:4222\"",
                        ("http", "url") => "\"https://shop.example/hooks\"",
                        _ => key.example,
                    };
                    let message = format!(
                        "{} is of kind {kind} and has no {}; add {} = {example}",
                        keys.section(),
                        key.leaf(),
                        key.leaf()
                    );
                    self.wrong(origin, message);
                }
            }
        }
        complete
    }

    fn url(&self, keys: &Keys<'_>, secrecy: Secrecy) -> SecretUrl {
        SecretUrl::new(self.config.text(&keys.at("url")).unwrap_or_default(), secrecy)
    }

    fn http_sink(&mut self, keys: &Keys<'_>, origin: &Origin, complete: bool) -> HttpSinkSettings {
        let config = self.config;
        let in_headers = |path: &Path| path.fits("sinks.*.headers.*") && path.steps()[1] == keys.name;
        let headers = config.entries().iter().filter(|(path, _)| in_headers(path));
        let settings = HttpSinkSettings {
            url: self.url(keys, Secrecy::Path),
            secrets: config.list(&keys.at("secret")).into_iter().map(Secret::new).collect(),
            headers: headers
                .map(|(path, entry)| (path.last().to_owned(), Secret::new(entry.value.shown())))
                .collect(),
            root_certificates: config.text(&keys.at("root_certificates")).map(PathBuf::from),
            timeout: config.duration(&keys.at("timeout")),
            connect_timeout: config.duration(&keys.at("connect_timeout")),
            concurrency: config
                .count(&keys.at("concurrency"))
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(1),
        };
        if complete {
            self.try_http_sink(keys, origin, &settings);
        }
        settings
    }

    /// The library knows best which URL, secret or header will do; each is tried alone, so that the right line is
    /// named. Nothing is sent.
    fn try_http_sink(&mut self, keys: &Keys<'_>, origin: &Origin, settings: &HttpSinkSettings) {
        let harmless = "http://localhost/";
        let mut tries = vec![("url", HttpSink::builder(settings.url.reveal()))];
        for secret in &settings.secrets {
            tries.push(("secret", HttpSink::builder(harmless).secret(secret.reveal())));
        }
        for (name, value) in &settings.headers {
            tries.push(("headers", HttpSink::builder(harmless).header(name, value.reveal())));
        }
        for (leaf, sink) in tries {
            if let Err(error) = sink.build() {
                let path = keys.at(leaf);
                let said = self.config.said(&path).map(|entry| entry.origin.clone());
                let origin = said
                    .or_else(|| self.config.sections.get(&path).cloned())
                    .unwrap_or_else(|| origin.clone());
                self.wrong(&origin, format!("{path} does not do: {}; mend it", error.message()));
            }
        }
    }

    fn nats_sink(&mut self, keys: &Keys<'_>) -> NatsSinkSettings {
        let config = self.config;
        let text = |leaf: &str| config.text(&keys.at(leaf));
        let path = |leaf: &str| text(leaf).map(PathBuf::from);
        self.together(keys, "user", "password");
        self.together(keys, "password", "user");
        self.together(keys, "client_certificate", "client_key");
        self.together(keys, "client_key", "client_certificate");
        self.stream_keys(keys);
        let create = config.yes(&keys.at("create_stream")).then(|| StreamSettings {
            subjects: config.list(&keys.at("subjects")),
            duplicate_window: config.duration(&keys.at("duplicate_window")),
            max_age: config.duration(&keys.at("max_age")),
            max_bytes: config.count(&keys.at("max_bytes")),
            replicas: config.count(&keys.at("replicas")).and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
            in_memory: text("storage").as_deref() == Some("memory"),
        });
        NatsSinkSettings {
            url: self.url(keys, Secrecy::Login),
            login: self.login(keys),
            root_certificates: path("root_certificates"),
            client_certificate: path("client_certificate").zip(path("client_key")),
            domain: text("domain"),
            stream: text("stream"),
            create,
            ack_timeout: config.duration(&keys.at("ack_timeout")),
            connect_timeout: config.duration(&keys.at("connect_timeout")),
        }
    }

    fn together(&mut self, keys: &Keys<'_>, one: &str, other: &str) {
        let config = self.config;
        let Some(entry) = config.said(&keys.at(one)) else { return };
        if config.said(&keys.at(other)).is_none() && !config.refused.contains(&keys.at(other)) {
            self.wrong(&entry.origin, format!("{} needs {other} beside it; add it", keys.at(one)));
        }
    }

    /// Keys that say how a stream is made are of no use where none is made.
    fn stream_keys(&mut self, keys: &Keys<'_>) {
        const MAKING: [&str; 6] =
            ["subjects", "duplicate_window", "max_age", "max_bytes", "replicas", "storage"];
        let config = self.config;
        if config.yes(&keys.at("create_stream")) {
            return self.together(keys, "create_stream", "stream");
        }
        for leaf in MAKING {
            if let Some(entry) = config.said(&keys.at(leaf)) {
                let message = format!(
                    "{} is for a stream that is made here; add create_stream = true, or leave it away",
                    keys.at(leaf)
                );
                self.wrong(&entry.origin, message);
            }
        }
    }

    fn login(&mut self, keys: &Keys<'_>) -> Login {
        let config = self.config;
        let text = |leaf: &str| config.text(&keys.at(leaf));
        let ways: Vec<&str> = ["token", "user", "nkey", "credentials_file"]
            .into_iter()
            .filter(|leaf| text(leaf).is_some())
            .collect();
        if let [_, second, ..] = ways[..] {
            let origin = config.origin(&keys.at(second));
            let message = format!(
                "{} has {} to log in with; leave all but one away",
                keys.section(),
                ways.join(" and ")
            );
            self.wrong(&origin, message);
        }
        match ways.first().copied() {
            Some("token") => Login::Token(Secret::new(text("token").unwrap_or_default())),
            Some("user") => match text("user").zip(text("password")) {
                Some((user, password)) => Login::User(user, Secret::new(password)),
                None => Login::AsTheUrlSays,
            },
            Some("nkey") => Login::Nkey(Secret::new(text("nkey").unwrap_or_default())),
            Some("credentials_file") => {
                Login::CredentialsFile(text("credentials_file").unwrap_or_default().into())
            }
            _ => Login::AsTheUrlSays,
        }
    }
}
