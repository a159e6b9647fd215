//! Who may do what.
//!
//! | | listens on loopback | listens elsewhere |
//! |---|---|---|
//! | health, metrics | anybody | anybody |
//! | reading `/api` | anybody | the token |
//! | whatever changes something | the token | the token |
//!
//! Without a configured token nobody may do what needs one. On loopback "anybody" is a program of this machine, and a
//! web page that has its own name resolve to 127.0.0.1 is none: the request then names a host that is not this one, and
//! is refused. There are no CORS headers, so that no page reads an answer.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, Method, Version, header};
use subtle::ConstantTimeEq;

use super::problem::{Kind, Problem};
use crate::config::secret::Secret;
use crate::config::settings::HttpSettings;

/// The rules of one server.
pub(super) struct Access {
    token: Option<Secret>,
    loopback: bool,
}

/// What a request shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Nothing,
    TheToken,
    SomethingElse,
}

impl Access {
    pub(super) fn new(settings: &HttpSettings) -> Self {
        // An empty token would be shown by whoever shows nothing.
        let token = settings.token.clone().filter(|token| !token.reveal().trim().is_empty());
        Self { token, loopback: settings.listen.ip().is_loopback() }
    }

    /// Whether the request may go on.
    pub(super) fn check(&self, request: &Request) -> Result<(), Problem> {
        let shown = self.shown(request.headers());
        if shown == Shown::TheToken {
            return Ok(());
        }
        if self.loopback {
            check_host(request)?;
        }
        let writes = !matches!(*request.method(), Method::GET | Method::HEAD);
        let of_api = request.uri().path().starts_with("/api/");
        if !writes && (self.loopback || !of_api) {
            return Ok(());
        }
        let what = if writes { "changing something" } else { "reading from another machine" };
        Err(match (&self.token, shown) {
            (None, _) => Problem::new(
                Kind::Forbidden,
                format!(
                    "{what} needs a token, and none is configured; set http.token, http.token_file or OUTBOX_HTTP_TOKEN, \
                     restart, and send it as `Authorization: Bearer …`"
                ),
            ),
            (Some(_), Shown::Nothing) => Problem::new(
                Kind::Unauthorized,
                format!("{what} needs the token of http.token; send it as `Authorization: Bearer …`"),
            ),
            (Some(_), _) => Problem::new(
                Kind::Unauthorized,
                "the token is not that of http.token; send that one as `Authorization: Bearer …`",
            ),
        })
    }

    fn shown(&self, headers: &HeaderMap) -> Shown {
        let Some(value) = headers.get(header::AUTHORIZATION) else { return Shown::Nothing };
        let value = value.as_bytes();
        let bearer = value.len() > 7 && value[..7].eq_ignore_ascii_case(b"bearer ");
        let given = if bearer { value[7..].trim_ascii() } else { b"" };
        match &self.token {
            // However much of it is right, it takes the same time to say no.
            Some(token) if bool::from(given.ct_eq(token.reveal().trim().as_bytes())) => Shown::TheToken,
            _ => Shown::SomethingElse,
        }
    }
}

/// Whether the request names this machine.
fn check_host(request: &Request) -> Result<(), Problem> {
    let mut named = request.headers().get_all(header::HOST).iter();
    let (first, others) = (named.next(), named.count());
    let host = first.and_then(|host| host.to_str().ok()).map(without_port);
    // HTTP/1.0 need not name one, and no browser speaks it.
    let unnamed = first.is_none() && request.uri().host().is_none() && request.version() == Version::HTTP_10;
    let right =
        request.uri().host().or(host).is_some_and(is_this_machine) && host.is_none_or(is_this_machine);
    if unnamed || others == 0 && right {
        return Ok(());
    }
    Err(Problem::new(
        Kind::Forbidden,
        "the request is for another host than this machine, as those of a web page that pretends to be it; ask for \
         127.0.0.1 or localhost, or send the token",
    ))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_this_machine(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use axum::body::Body;

    use super::*;

    fn check(listen: &str, token: Option<&str>, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        let settings = HttpSettings {
            enabled: true,
            listen: listen.parse().unwrap(),
            token: token.map(Secret::new),
            metrics_path: "/metrics".to_owned(),
        };
        let mut request = Request::builder().method(method).uri(path);
        if headers.iter().all(|(name, _)| *name != "host") {
            request = request.version(Version::HTTP_10);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = Access::new(&settings).check(&request.body(Body::empty()).unwrap());
        answer.err().map_or(200, |problem| problem.status().as_u16())
    }

    const HERE: &str = "127.0.0.1:8470";
    const THERE: &str = "0.0.0.0:8470";

    #[test]
    fn op5_whatever_writes_needs_the_token() {
        for (listen, token, header, code) in [
            (HERE, None, None, 403),
            (HERE, None, Some("Bearer hunter22"), 403),
            (HERE, Some("hunter22"), None, 401),
            (HERE, Some("hunter22"), Some("Bearer hunter23"), 401),
            (HERE, Some("hunter22"), Some("Bearer hunter2"), 401),
            (HERE, Some("hunter22"), Some("Bearer hunter222"), 401),
            (HERE, Some("hunter22"), Some("Basic hunter22"), 401),
            (HERE, Some("hunter22"), Some("hunter22"), 401),
            (HERE, Some("hunter22"), Some("Bearer hunter22"), 200),
            (HERE, Some("hunter22\n"), Some("bearer  hunter22"), 200),
            (HERE, Some(" "), Some("Bearer  "), 403),
            (HERE, Some(""), Some("Bearer "), 403),
            (THERE, None, None, 403),
            (THERE, Some("hunter22"), Some("Bearer hunter22"), 200),
        ] {
            let headers: Vec<(&str, &str)> =
                header.map(|value| ("authorization", value)).into_iter().collect();
            for method in ["POST", "DELETE", "OPTIONS"] {
                let answer = check(listen, token, method, "/api/v1/relays/outbox/pause", &headers);
                assert_eq!(answer, code, "{listen} {token:?} {header:?}");
            }
        }
    }

    #[test]
    fn op5_reading_is_open_on_loopback_alone() {
        for (listen, path, code) in [
            (HERE, "/api/v1/status", 200),
            (THERE, "/api/v1/status", 401),
            (THERE, "/healthz", 200),
            (THERE, "/readyz", 200),
            (THERE, "/metrics", 200),
        ] {
            assert_eq!(check(listen, Some("hunter22"), "GET", path, &[]), code, "{listen} {path}");
        }
        assert_eq!(check(THERE, None, "GET", "/api/v1/status", &[]), 403);
    }

    #[test]
    fn op5_a_web_page_that_pretends_to_be_this_machine_reads_nothing() {
        for (host, code) in [
            ("127.0.0.1:8470", 200),
            ("localhost:8470", 200),
            ("LOCALHOST", 200),
            ("[::1]:8470", 200),
            ("[::1]", 200),
            ("127.0.0.9", 200),
            ("evil.example:8470", 403),
            ("localhost.evil.example", 403),
            ("10.0.0.7:8470", 403),
            ("[::2]:8470", 403),
            ("", 403),
        ] {
            assert_eq!(check(HERE, None, "GET", "/api/v1/status", &[("host", host)]), code, "{host}");
            let with_token = [("host", host), ("authorization", "Bearer hunter22")];
            assert_eq!(check(HERE, Some("hunter22"), "GET", "/metrics", &with_token), 200, "{host}");
        }
        assert_eq!(check(THERE, None, "GET", "/metrics", &[("host", "metrics.example")]), 200);
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check(HERE, None, "GET", "/api/v1/status", &twice), 403);
        assert_eq!(check(HERE, None, "GET", "/api/v1/status", &[("host", "évil.example")]), 403);
        let unnamed = Request::builder().uri("/api/v1/status").body(Body::empty()).unwrap();
        assert!(check_host(&unnamed).is_err(), "whoever speaks HTTP/1.1 names a host");
    }

    /// Nothing else here sees the token, and a comparison that ends at the first difference would tell how much was right.
    #[test]
    fn op5_the_token_is_compared_in_constant_time() {
        let mut seen = Vec::new();
        let mut directories =
            vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/http"))];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                    continue;
                }
                let source = std::fs::read_to_string(&path).unwrap();
                let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
                let lines = source.lines().filter(|line| line.contains(".reveal()"));
                seen.extend(lines.map(|line| (path.file_name().unwrap().to_owned(), line.trim().to_owned())));
            }
        }
        let (compared, others): (Vec<_>, Vec<_>) =
            seen.into_iter().partition(|(_, line)| line.contains("ct_eq"));
        assert_eq!(compared.len(), 1, "{compared:?}");
        assert!(
            others.iter().all(|(file, line)| file == "access.rs" && line.contains("is_empty()")),
            "{others:?}"
        );
    }
}
