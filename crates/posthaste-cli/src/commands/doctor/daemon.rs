//! What a daemon with this configuration says of its relays, if it runs on this machine and serves HTTP: only it knows
//! what somebody has paused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use posthaste::admin::doctor::{self, Check, Finding, Verdict};
use posthaste::relay::{RelayStatus, RouteStatus};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::config::settings::HttpSettings;

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of an answer that are read.
const MOST: u64 = 4 << 20;

/// What it says of the relay of this table; nothing, if nobody is there: it may well run on another machine.
pub(super) async fn relay(settings: &HttpSettings, table: &str) -> Vec<Finding> {
    if !settings.enabled || settings.listen.port() == 0 {
        return Vec::new();
    }
    let address = SocketAddr::new(reached_by(settings.listen.ip()), settings.listen.port());
    let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await else {
        return Vec::new();
    };
    match tokio::time::timeout(PATIENCE, ask(stream, settings)).await {
        Ok(Ok(status)) => match relay_of(&status, table) {
            Some(status) => doctor::relay(&status),
            None => Vec::new(),
        },
        Ok(Err(why)) => vec![silent(address, &why)],
        Err(_) => vec![silent(address, "no answer within 5 s")],
    }
}

fn silent(address: SocketAddr, why: &str) -> Finding {
    let found = format!("what listens on {address} does not say how its relays are: {why}");
    let advice =
        "If it is the relay of this configuration, give the doctor the same http.token; its log says more.";
    Finding::new(Check::Relay, Verdict::Note, found, advice).page("reference/http")
}

/// From this machine.
fn reached_by(listening: IpAddr) -> IpAddr {
    match listening {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// One request and its answer need no more than this of HTTP.
async fn ask(mut stream: TcpStream, settings: &HttpSettings) -> Result<Value, String> {
    // On loopback nobody needs it to look; elsewhere it is shown to this machine alone, however the network is.
    let token = settings.token.as_ref().filter(|_| settings.listen.ip().is_unspecified());
    let shown =
        token.map_or_else(String::new, |token| format!("Authorization: Bearer {}\r\n", token.reveal()));
    let request = format!("GET /api/v1/status HTTP/1.0\r\nHost: localhost\r\n{shown}\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    stream.take(MOST).read_to_end(&mut answer).await.map_err(|error| error.to_string())?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?;
    let code = head.split_ascii_whitespace().nth(1).unwrap_or_default();
    if code != "200" {
        return Err(format!("it answers {code}"));
    }
    serde_json::from_str(body).map_err(|_| "it is something else".to_owned())
}

/// The relay of a table, as the API shows it.
fn relay_of(status: &Value, table: &str) -> Option<RelayStatus> {
    let tables = status["tables"].as_array()?;
    let relay = &tables.iter().find(|found| found["table"] == table)?["relay"];
    let is = |name: &str| relay[name].as_bool().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    relay.as_object()?;
    let mut shown = RelayStatus::default();
    shown.table = table.to_owned();
    shown.running = is("running");
    shown.paused = is("paused");
    shown.leading = is("leading");
    shown.worker = text(&relay["worker"]);
    shown.database = text(&relay["database"]);
    shown.routes = relay["sinks"].as_array().into_iter().flatten().map(route).collect();
    Some(shown)
}

fn route(sink: &Value) -> RouteStatus {
    let mut route = RouteStatus::new(sink["sink"].as_str().unwrap_or_default());
    route.paused = sink["paused"].as_bool().unwrap_or_default();
    route.resting = sink["resting"].as_object().map(|resting| {
        let seconds = resting.get("seconds").and_then(Value::as_f64).unwrap_or_default();
        let reason = resting.get("reason").and_then(Value::as_str).unwrap_or_default();
        (Duration::try_from_secs_f64(seconds).unwrap_or_default(), reason.to_owned())
    });
    route
}
