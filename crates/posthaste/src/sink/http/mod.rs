//! Webhooks: one request for each event.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `envelope` | CloudEvents, binary | what receivers' libraries read |
//! | `secret` | none | without one, nothing is signed; with several, a receiver may know any of them |
//! | `timeout` | 10 s | from the first byte to the end of the answer; twice that must fit into the relay's timeout |
//! | `connect_timeout` | 5 s | a host that does not answer is no slow one |
//! | `concurrency` | 16 | requests of one batch at a time, and the most a batch has |
//!
//! With the relay's four publishes at a time there are at most 64 requests under way. A request is a `POST` with the
//! headers of [`Message::headers`](crate::sink::Message::headers), the sink's own, and those of
//! [Standard Webhooks](https://www.standardwebhooks.com): `webhook-id` (the event's id) and `webhook-timestamp`
//! always, `webhook-signature` where there is a secret. What an answer means is in the module `answer`, and in
//! the book.
//!
//! An answer's body is read up to 4 KiB, so that the connection can be used again, and 200 characters of a refusal go
//! into the error, without the sink's own URL, headers and keys. Redirects are not followed: a signed body is for the
//! URL it was meant for.

mod answer;
mod excerpt;
mod sign;

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::join_all;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, Url};
use time::OffsetDateTime;

use super::envelope::{Envelope, encode_path};
use super::{Delivery, Outcome, Sink};
use crate::error::{Error, ErrorKind, Result};
use answer::Answer;
use excerpt::Secrets;
use sign::Secret;

/// Where a URL has the delivery's destination.
const PLACEHOLDER: &str = "{destination}";

/// Bytes of an answer that are read.
const READ_LIMIT: usize = 4096;

/// Sends each event to a URL.
///
/// ```
/// use posthaste::sink::HttpSink;
///
/// let sink = HttpSink::builder("https://shop.example/hooks/orders")
///     .secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
///     .build()?;
/// # let _ = sink;
/// # Ok::<_, posthaste::Error>(())
/// ```
///
/// One sink has one URL. `{destination}` in its path or query stands for the delivery's destination, that is for the
/// event's topic or for what the relay's topic map makes of it: `https://shop.example/hooks/{destination}`.
pub struct HttpSink {
    client: Client,
    target: Target,
    headers: HeaderMap,
    secrets: Vec<Secret>,
    /// What must not come back in an error.
    hidden: Secrets,
    envelope: Envelope,
    concurrency: usize,
}

/// Where requests go.
enum Target {
    Fixed(Url),
    /// What stands before and after the destination.
    Filled(String, String),
}

/// The settings of an [`HttpSink`].
#[must_use]
pub struct HttpSinkBuilder {
    url: String,
    secrets: Vec<String>,
    headers: Vec<(String, String)>,
    certificates: Vec<Vec<u8>>,
    envelope: Envelope,
    timeout: Duration,
    connect_timeout: Duration,
    concurrency: usize,
}

impl HttpSink {
    /// A sink for this URL.
    pub fn builder(url: impl Into<String>) -> HttpSinkBuilder {
        HttpSinkBuilder {
            url: url.into(),
            secrets: Vec::new(),
            headers: Vec::new(),
            certificates: Vec::new(),
            envelope: Envelope::default(),
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            concurrency: 16,
        }
    }

    async fn send(&self, delivery: &Delivery) -> Answer {
        let url = match self.target.url(delivery.destination()) {
            Ok(url) => url,
            Err(error) => return Answer::Clear(Outcome::Reject { error }),
        };
        let message = self.envelope.wrap(delivery);
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers() {
            let parsed = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_bytes()));
            let (Ok(name), Ok(value)) = parsed else {
                return Answer::Clear(Outcome::Reject {
                    error: format!("its header {name:?} cannot be sent"),
                });
            };
            headers.append(name, value);
        }
        // What the operator has set wins over what a producer says.
        for name in self.headers.keys() {
            headers.remove(name);
        }
        headers.extend(self.headers.clone());
        self.sign(&mut headers, &message.id.to_string(), &message.body);
        match self.client.post(url).headers(headers).body(message.body).send().await {
            Ok(response) => self.read(response).await,
            Err(error) => answer::of_error(error),
        }
    }

    fn sign(&self, headers: &mut HeaderMap, id: &str, body: &[u8]) {
        let timestamp = OffsetDateTime::now_utc().unix_timestamp();
        let signatures =
            (!self.secrets.is_empty()).then(|| sign::signatures(&self.secrets, id, timestamp, body));
        let all = [
            ("webhook-id", Some(id.to_owned())),
            ("webhook-timestamp", Some(timestamp.to_string())),
            ("webhook-signature", signatures),
        ];
        for (name, value) in all {
            // An id, a number and base 64 are all fit for a header.
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }

    /// What an answer means, read no further than it is worth.
    async fn read(&self, mut response: Response) -> Answer {
        let status = response.status();
        let after = answer::retry_after(response.headers(), SystemTime::now());
        let mut body = Vec::new();
        // The status is the answer: a body that breaks off changes nothing.
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk[..chunk.len().min(READ_LIMIT - body.len())]);
            if body.len() >= READ_LIMIT {
                break;
            }
        }
        answer::of_status(status, after, &self.hidden.excerpt(&body))
    }

    /// Whether there is somebody behind the URL: any answer but a proxy's that there is nobody.
    async fn ask(&self, destination: Option<&str>) -> Result<(), String> {
        let url = self.target.probed(destination)?;
        let asked = self.client.head(url).headers(self.headers.clone()).send().await;
        match asked {
            Ok(response) if answer::is_outage(response.status()) => {
                Err(format!("HTTP {}", response.status()))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(answer::text(error)),
        }
    }
}

impl Target {
    fn parse(url: &str) -> Result<Self> {
        // The URL may hold a secret, so errors do not repeat it.
        let wrong = |what: String| Error::new(ErrorKind::InvalidSetting, format!("the webhook's URL {what}"));
        let parse = |url: &str| {
            let parsed = Url::parse(url).map_err(|error| wrong(format!("cannot be read: {error}")))?;
            if matches!(parsed.scheme(), "http" | "https")
                && parsed.host_str().is_some_and(|host| !host.is_empty())
            {
                Ok(parsed)
            } else {
                Err(wrong(format!(
                    "begins with {:?}, not with http:// or https:// and a host",
                    parsed.scheme()
                )))
            }
        };
        let Some((before, after)) = url.split_once(PLACEHOLDER) else {
            return parse(url).map(Self::Fixed);
        };
        // No event may choose the host.
        let authority = before.split_once("://").map_or("", |(_, rest)| rest);
        if !authority.contains(['/', '?']) || after.contains(PLACEHOLDER) || before.contains('#') {
            return Err(wrong(format!("may have one {PLACEHOLDER}, in its path or query")));
        }
        parse(before)?;
        parse(&format!("{before}x{after}"))?;
        Ok(Self::Filled(before.to_owned(), after.to_owned()))
    }

    fn url(&self, destination: &str) -> Result<Url, String> {
        match self {
            Self::Fixed(url) => Ok(url.clone()),
            // Such a segment of a path means another path, encoded or not.
            Self::Filled(..) if matches!(destination, "" | "." | "..") => {
                Err(format!("its destination {destination:?} cannot stand in a URL"))
            }
            Self::Filled(before, after) => {
                Url::parse(&format!("{before}{}{after}", encode_path(destination)))
                    .map_err(|error| format!("its destination makes no URL: {error}"))
            }
        }
    }

    /// A URL to ask, with a destination or, where there is none, with what stands before it.
    fn probed(&self, destination: Option<&str>) -> Result<Url, String> {
        match (self, destination) {
            (Self::Filled(before, _), None) => Url::parse(before).map_err(|error| error.to_string()),
            (target, destination) => target.url(destination.unwrap_or_default()),
        }
    }

    fn host(&self) -> String {
        let url = self.probed(None).ok();
        url.and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
    }
}

#[async_trait]
impl Sink for HttpSink {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut answers = Vec::with_capacity(batch.len());
        for part in batch.chunks(self.concurrency) {
            answers.extend(join_all(part.iter().map(|delivery| self.send(delivery))).await);
        }
        let is_doubtful = |answer: &Answer| matches!(answer, Answer::Doubtful(_));
        let nobody_answered = answers.iter().all(|answer| {
            is_doubtful(answer) || matches!(answer, Answer::Clear(Outcome::Unavailable { .. }))
        });
        let doubted = answers.iter().position(is_doubtful);
        let outage = match doubted {
            Some(at) if nobody_answered => self.ask(Some(batch[at].destination())).await.is_err(),
            _ => false,
        };
        let outcome = |answer| match answer {
            Answer::Clear(outcome) => outcome,
            Answer::Doubtful(error) if outage => Outcome::Unavailable { error },
            Answer::Doubtful(error) => Outcome::Retry { after: None, error },
        };
        answers.into_iter().map(outcome).collect()
    }

    /// As many as are sent at once: a batch takes no longer than one request.
    fn batch_limit(&self) -> usize {
        self.concurrency
    }

    async fn probe(&self) -> Result<(), String> {
        self.ask(None).await
    }
}

/// Shows the host only: a URL may hold a secret.
impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSink").field("host", &self.target.host()).finish_non_exhaustive()
    }
}

impl fmt::Debug for HttpSinkBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSinkBuilder").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl HttpSinkBuilder {
    /// Signs with this secret (`whsec_` and base 64). Called again, each request has a signature for every secret,
    /// the first one's first: so a secret is replaced without a request that its receiver cannot check.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secrets.push(secret.into());
        self
    }

    /// A header of every request, such as `authorization`. It wins over an event's header of that name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Trusts these authorities, too: certificates in PEM.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.push(pem.into());
        self
    }

    /// How an event becomes a request.
    pub fn envelope(mut self, envelope: impl Into<Envelope>) -> Self {
        self.envelope = envelope.into();
        self
    }

    /// How long a request may take, its answer included.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long connecting may take.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How many requests of one batch run at once.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests;
        self
    }

    /// The sink. Nothing is sent yet, and the destination need not be there.
    pub fn build(self) -> Result<HttpSink> {
        let wrong = |what: String| Error::new(ErrorKind::InvalidSetting, what);
        if self.concurrency == 0 || self.timeout.is_zero() || self.connect_timeout.is_zero() {
            return Err(wrong("a webhook's timeouts and concurrency must not be zero".to_owned()));
        }
        let hidden = Secrets::of(
            &self.url,
            self.headers.iter().map(|(_, value)| value.as_str()),
            self.secrets.iter().map(String::as_str),
        );
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers {
            let parsed = (HeaderName::try_from(&name), HeaderValue::try_from(value));
            let (Ok(parsed), Ok(mut value)) = parsed else {
                return Err(wrong(format!("the header {name:?} of a webhook is not one")));
            };
            value.set_sensitive(true);
            headers.append(parsed, value);
        }
        let mut client = Client::builder()
            .redirect(Policy::none())
            .timeout(self.timeout)
            .connect_timeout(self.connect_timeout)
            .user_agent(concat!("posthaste/", env!("CARGO_PKG_VERSION")));
        for pem in self.certificates {
            let found = Certificate::from_pem_bundle(&pem).unwrap_or_default();
            if found.is_empty() {
                return Err(wrong("the certificates for a webhook are not PEM".to_owned()));
            }
            client = client.tls_certs_merge(found);
        }
        Ok(HttpSink {
            client: client
                .build()
                .map_err(|error| wrong(format!("no client for webhooks: {}", answer::text(error))))?,
            target: Target::parse(&self.url)?,
            headers,
            secrets: self.secrets.iter().map(|secret| Secret::parse(secret)).collect::<Result<_>>()?,
            hidden,
            envelope: self.envelope,
            concurrency: self.concurrency,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    #[test]
    fn si4_a_destination_fills_the_path_and_nothing_else() {
        let target = Target::parse("https://u:p@shop.example/hooks/{destination}/in?k=1").unwrap();
        let url = |destination| target.url(destination).unwrap().to_string();
        assert_eq!(url("order.placed"), "https://u:p@shop.example/hooks/order.placed/in?k=1");
        assert_eq!(url("a/../b?c#d@e"), "https://u:p@shop.example/hooks/a%2F..%2Fb%3Fc%23d%40e/in?k=1");
        for wrong in ["", ".", ".."] {
            assert!(target.url(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(target.host(), "shop.example");
    }

    #[test]
    fn a_url_that_cannot_work_is_refused_and_not_repeated() {
        for wrong in [
            "shop.example/hooks",
            "ftp://secret@shop.example/",
            "http://",
            "https://{destination}/hooks",
            "https://secret.{destination}.example/hooks",
            "https://shop.example/{destination}/{destination}",
            "https://shop.example/#{destination}",
        ] {
            let error = HttpSink::builder(wrong).build().unwrap_err().to_string();
            assert!(!error.contains("secret") && !error.contains("shop"), "{error}");
        }
        assert!(HttpSink::builder("http://a/").header("a b", "c").build().is_err());
        assert!(HttpSink::builder("http://a/").timeout(Duration::ZERO).build().is_err());
        assert!(HttpSink::builder("http://a/").root_certificates("no PEM").build().is_err());
        let sink = HttpSink::builder("http://user:hunter22@a/?token=hunter22").build().unwrap();
        assert!(!format!("{sink:?}").contains("hunter22"), "{sink:?}");
    }
}
