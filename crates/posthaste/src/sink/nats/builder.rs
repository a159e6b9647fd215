//! The settings of a sink for NATS.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use async_nats::{ConnectOptions, ServerAddr};
use tokio::sync::{Mutex, watch};

use super::NatsSink;
use super::link::Link;
use super::stream::NatsStream;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::Envelope;

/// How often the server is asked whether it lives while nothing else comes from it.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The settings of a [`NatsSink`].
#[must_use]
pub struct NatsSinkBuilder {
    url: String,
    login: Login,
    root_certificates: Vec<PathBuf>,
    client_certificate: Option<(PathBuf, PathBuf)>,
    domain: Option<String>,
    stream: Option<String>,
    wanted: Option<NatsStream>,
    envelope: Envelope,
    ack_timeout: Duration,
    connect_timeout: Duration,
}

/// Who connects, where the URL does not say.
enum Login {
    AsTheUrlSays,
    Token(String),
    User(String, String),
    Nkey(String),
    CredentialsFile(PathBuf),
}

impl NatsSinkBuilder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            login: Login::AsTheUrlSays,
            root_certificates: Vec::new(),
            client_certificate: None,
            domain: None,
            stream: None,
            wanted: None,
            envelope: Envelope::default(),
            ack_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
        }
    }

    /// Logs in with a token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.login = Login::Token(token.into());
        self
    }

    /// Logs in with user and password.
    pub fn user(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Login::User(user.into(), password.into());
        self
    }

    /// Logs in with the seed of an nkey.
    pub fn nkey(mut self, seed: impl Into<String>) -> Self {
        self.login = Login::Nkey(seed.into());
        self
    }

    /// Logs in with a credentials file (`.creds`).
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.login = Login::CredentialsFile(path.into());
        self
    }

    /// Trusts the authorities of this file of certificates in PEM, too.
    pub fn root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificates.push(path.into());
        self
    }

    /// Shows this certificate to the server: two files in PEM.
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Publishes to JetStream of this domain.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// The stream that the events must arrive in. An event that another one takes is refused.
    pub fn stream(mut self, name: impl Into<String>) -> Self {
        self.stream = Some(name.into());
        self.wanted = None;
        self
    }

    /// The stream that the events must arrive in, made where it is missing: at the first event, and again if it is
    /// deleted later.
    pub fn create_stream(mut self, stream: NatsStream) -> Self {
        self.stream = Some(stream.name().to_owned());
        self.wanted = Some(stream);
        self
    }

    /// How an event becomes a message.
    pub fn envelope(mut self, envelope: impl Into<Envelope>) -> Self {
        self.envelope = envelope.into();
        self
    }

    /// How long an acknowledgement may take.
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// How long connecting may take.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The sink. A server that cannot be reached is no error: it is waited for as long as connecting may take, and
    /// tried on in the background from then on.
    pub async fn build(self) -> Result<NatsSink> {
        // The URL may hold a password, so errors do not repeat it.
        let wrong = |what: String| Error::new(ErrorKind::InvalidSetting, what);
        if self.ack_timeout.is_zero() || self.connect_timeout.is_zero() {
            return Err(wrong("the timeouts of a NATS sink must not be zero".to_owned()));
        }
        let name = |name: &str| {
            name.is_empty() || name.contains(|c: char| c.is_whitespace() || "./\\*>".contains(c))
        };
        if let Some(stream) = self.stream.as_deref().filter(|stream| name(stream)) {
            return Err(wrong(format!("{stream:?} is no name of a stream")));
        }
        let servers = self
            .url
            .split(',')
            .map(|url| url.trim().parse::<ServerAddr>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| wrong(format!("the URL of NATS cannot be read: {error}")))?;

        let (sender, link) = watch::channel(Link::default());
        let sender = Arc::new(sender);
        let options = self.options(&servers).await?.event_callback(move |event| {
            sender.send_modify(|link| link.note(&event));
            std::future::ready(())
        });
        // The client logs addresses as they are.
        let bare = self.url.split(',').map(|url| without_login(url.trim()).parse::<ServerAddr>());
        let bare = bare.collect::<Result<Vec<_>, _>>();
        let bare = bare.map_err(|error| wrong(format!("the URL of NATS cannot be read: {error}")))?;
        let client = options
            .connect(bare)
            .await
            .map_err(|error| wrong("a connection to NATS cannot be set up".to_owned()).because(error))?;
        let mut first = link.clone();
        // Whether in time or not: the sink itself says when there is no connection.
        let _ = tokio::time::timeout(self.connect_timeout, first.wait_for(|link| link.was_connected)).await;

        let context = match &self.domain {
            Some(domain) => {
                ContextBuilder::new().domain(domain).timeout(self.ack_timeout).build(client.clone())
            }
            None => ContextBuilder::new().timeout(self.ack_timeout).build(client.clone()),
        };
        Ok(NatsSink {
            client,
            servers: self.url.split(',').map(|url| address(url.trim())).collect::<Vec<_>>().join(", "),
            context,
            link,
            stream: self.stream,
            wanted: self.wanted.map(|stream| (stream, Mutex::new(false))),
            envelope: self.envelope,
            ack_timeout: self.ack_timeout,
        })
    }

    async fn options(&self, servers: &[ServerAddr]) -> Result<ConnectOptions> {
        let options = ConnectOptions::new();
        let mut options = match &self.login {
            Login::AsTheUrlSays => as_the_url_says(options, servers),
            Login::Token(token) => options.token(token.clone()),
            Login::User(user, password) => options.user_and_password(user.clone(), password.clone()),
            Login::Nkey(seed) => options.nkey(seed.clone()),
            Login::CredentialsFile(path) => options.credentials_file(path).await.map_err(|error| {
                let what = format!("the credentials file {} cannot be read", path.display());
                Error::new(ErrorKind::InvalidSetting, what).because(error)
            })?,
        };
        for path in &self.root_certificates {
            options = options.add_root_certificates(path.clone());
        }
        if let Some((certificate, key)) = &self.client_certificate {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        Ok(options
            .name("posthaste")
            .retry_on_initial_connect()
            .connection_timeout(self.connect_timeout)
            .ping_interval(PING_INTERVAL))
    }
}

/// A server's URL without who logs in.
fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let server = rest.rsplit_once('@').map_or(rest, |(_, server)| server);
    if scheme.is_empty() { server.to_owned() } else { format!("{scheme}://{server}") }
}

/// Where a server is, without who logs in.
fn address(url: &str) -> String {
    let bare = without_login(url);
    let server = bare.split_once("://").map_or(bare.as_str(), |(_, server)| server);
    server.split(['/', '?']).next().unwrap_or_default().to_owned()
}

/// The login of the first server that has one: the client itself does not look there. A user without a password is
/// a token.
fn as_the_url_says(options: ConnectOptions, servers: &[ServerAddr]) -> ConnectOptions {
    let Some((user, server)) = servers.iter().find_map(|server| Some((server.username()?, server))) else {
        return options;
    };
    match server.password() {
        Some(password) => options.user_and_password(decoded(user), decoded(password)),
        None => options.token(decoded(user)),
    }
}

/// A part of a URL without its percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Shows no URL and no login: they hold secrets.
impl fmt::Debug for NatsSinkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSinkBuilder").field("stream", &self.stream).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn si1_a_server_is_named_without_its_login() {
        assert_eq!(address("nats://shop:hunter@22@nats.internal:4222"), "nats.internal:4222");
        assert_eq!(address("tls://token@[::1]:4222/x?y=token"), "[::1]:4222");
        assert_eq!(address("nats.internal"), "nats.internal");
    }

    #[test]
    fn si1_a_login_in_the_url_is_decoded() {
        assert_eq!(decoded("hunter%4022%2f%"), "hunter@22/%");
        assert_eq!(decoded("%zz"), "%zz");
    }
}
