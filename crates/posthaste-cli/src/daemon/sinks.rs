//! Sinks from their settings. Each is made once, and every table shares it.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use posthaste::sink::nats::NatsStream;
use posthaste::sink::{Delivery, Envelope, FileSink, HttpSink, NatsSink, Outcome, Sink, StdoutSink};

use crate::config::settings::{HttpSinkSettings, Login, NatsSinkSettings, SinkKind, SinkSettings};
use crate::exit::Exit;
use crate::failure::Failure;

/// All of them, by name. A destination that cannot be reached now is no error: its sink says so when it is asked.
pub(super) async fn build(
    settings: &BTreeMap<String, SinkSettings>,
) -> Result<BTreeMap<String, Arc<dyn Sink>>, Failure> {
    let built = settings.iter().map(async |(name, sink)| {
        let built = one(sink).await;
        let built = built.map_err(|why| Failure::new(Exit::BadInput, format!("sink {name}: {why}")))?;
        Ok::<_, Failure>((name.clone(), built))
    });
    Ok(try_join_all(built).await?.into_iter().collect())
}

/// One to ask whether its destination is there, if that can be asked without changing anything: neither a file nor a
/// stream is made.
pub(crate) async fn probed(settings: &SinkSettings) -> Result<Option<Arc<dyn Sink>>, String> {
    match &settings.kind {
        SinkKind::File(path) if !path.exists() => Ok(None),
        SinkKind::Nats(nats) if nats.create.is_some() => {
            let sink = self::nats(nats, settings.envelope.clone()).await.map_err(in_words)?;
            Ok(Some(Arc::new(StreamToCome(sink))))
        }
        _ => one(settings).await.map(Some),
    }
}

/// A sink of NATS whose probe does not make the stream that the sink itself would make.
struct StreamToCome(NatsSink);

#[async_trait]
impl Sink for StreamToCome {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        self.0.publish(batch).await
    }

    async fn probe(&self) -> Result<(), String> {
        self.0.answers().await
    }
}

async fn one(settings: &SinkSettings) -> Result<Arc<dyn Sink>, String> {
    let envelope = settings.envelope.clone();
    let built: posthaste::Result<Arc<dyn Sink>> = match &settings.kind {
        SinkKind::Stdout => Ok(Arc::new(StdoutSink::new().envelope(envelope))),
        SinkKind::File(path) => FileSink::open(path).map(|sink| Arc::new(sink.envelope(envelope)) as _),
        SinkKind::Http(http) => self::http(http, envelope)?.map(|sink| Arc::new(sink) as _),
        SinkKind::Nats(nats) => self::nats(nats, envelope).await.map(|sink| Arc::new(sink) as _),
    };
    built.map_err(in_words)
}

fn in_words(error: posthaste::Error) -> String {
    match std::error::Error::source(&error) {
        Some(cause) => format!("{error} ({cause})"),
        None => error.to_string(),
    }
}

fn http(settings: &HttpSinkSettings, envelope: Envelope) -> Result<posthaste::Result<HttpSink>, String> {
    let mut sink = HttpSink::builder(settings.url.reveal())
        .envelope(envelope)
        .timeout(settings.timeout)
        .connect_timeout(settings.connect_timeout)
        .concurrency(settings.concurrency);
    for secret in &settings.secrets {
        sink = sink.secret(secret.reveal());
    }
    for (name, value) in &settings.headers {
        sink = sink.header(name, value.reveal());
    }
    if let Some(file) = &settings.root_certificates {
        let pem = fs::read(file).map_err(|error| {
            format!(
                "cannot read the certificates {} ({error}); check its name and permissions",
                file.display()
            )
        })?;
        sink = sink.root_certificates(pem);
    }
    Ok(sink.build())
}

async fn nats(settings: &NatsSinkSettings, envelope: Envelope) -> posthaste::Result<NatsSink> {
    let mut sink = NatsSink::builder(settings.url.reveal())
        .envelope(envelope)
        .ack_timeout(settings.ack_timeout)
        .connect_timeout(settings.connect_timeout);
    sink = match &settings.login {
        Login::AsTheUrlSays => sink,
        Login::Token(token) => sink.token(token.reveal()),
        Login::User(user, password) => sink.user(user, password.reveal()),
        Login::Nkey(seed) => sink.nkey(seed.reveal()),
        Login::CredentialsFile(file) => sink.credentials_file(file),
    };
    if let Some(file) = &settings.root_certificates {
        sink = sink.root_certificates(file);
    }
    if let Some((certificate, key)) = &settings.client_certificate {
        sink = sink.client_certificate(certificate, key);
    }
    if let Some(domain) = &settings.domain {
        sink = sink.domain(domain);
    }
    match (&settings.stream, &settings.create) {
        (Some(name), Some(create)) => {
            let mut stream = NatsStream::new(name)
                .duplicate_window(create.duplicate_window)
                .max_age(create.max_age)
                .replicas(create.replicas);
            for subject in &create.subjects {
                stream = stream.subject(subject);
            }
            if let Some(bytes) = create.max_bytes {
                stream = stream.max_bytes(bytes);
            }
            if create.in_memory {
                stream = stream.in_memory();
            }
            sink = sink.create_stream(stream);
        }
        (Some(name), None) => sink = sink.stream(name),
        (None, _) => {}
    }
    sink.build().await
}
