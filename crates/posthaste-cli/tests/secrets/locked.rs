//! A database behind a password, and a configuration that is full of secrets.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use super::said::{key, secret};
use crate::support::{Answer, Db, Kind};

/// A database with an account whose password is a secret.
pub(super) struct Locked {
    pub(super) db: Db,
    pub(super) account: Option<String>,
}

impl Locked {
    pub(super) fn new(kind: Kind, mode: &str) -> Self {
        let db = Db::with_table(kind, mode);
        let password = secret("db-password");
        let name = crate::support::unique().replace('-', "_");
        let name = name[..name.len().min(30)].to_owned();
        let account = match kind {
            Kind::Postgres => {
                let schema = db.table().replace(".outbox", "");
                db.sql(&format!(
                    "CREATE ROLE {name} LOGIN PASSWORD '{password}'; GRANT ALL ON SCHEMA {schema} TO {name}; \
                     GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {name}; GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {name}"
                ));
                Some(name)
            }
            Kind::MySql | Kind::MariaDb => {
                db.sql(&format!("CREATE USER {name} IDENTIFIED BY '{password}'; GRANT ALL ON *.* TO {name}"));
                Some(name)
            }
            Kind::Sqlite => None,
        };
        Self { db, account }
    }

    pub(super) fn url(&self, password: &str) -> String {
        let url = self.db.url();
        match &self.account {
            None => url,
            Some(account) => {
                let (scheme, rest) = url.split_once("://").unwrap();
                let (_, server) = rest.rsplit_once('@').unwrap();
                format!("{scheme}://{account}:{password}@{server}")
            }
        }
    }

    /// The binary with the file alone.
    pub(super) fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        self.db.dir.command(arguments)
    }

    pub(super) fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Answer {
        self.command(arguments).output().unwrap().into()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let Some(account) = &self.account else { return };
        match self.db.kind {
            Kind::Postgres => drop(self.db.sql(&format!("DROP OWNED BY {account}; DROP ROLE {account}"))),
            _ => drop(self.db.sql(&format!("DROP USER {account}"))),
        }
    }
}

/// A port where nobody answers.
pub(super) fn closed() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub(super) fn file(locked: &Locked, echo: SocketAddr) -> String {
    let (gone, broker) = (closed(), closed());
    let [token, bearer, custom, path, query] =
        ["api-token", "hook-bearer", "hook-custom", "hook-path", "hook-query"].map(secret);
    let [user, password, nats, nats_password] =
        ["hook-user", "hook-password", "nats-token", "nats-password"].map(secret);
    format!(
        r#"
[database]
url = "{url}"
table = "{table}"

[relay]
tables = ["{table}"]
max_attempts = 2
backoff_first = "10ms"
backoff_longest = "20ms"
probe_first = "50ms"
probe_longest = "100ms"
mask_tenants = true

[sinks.echo]
kind = "http"
url = "http://{echo}/hooks/{path}?key={query}"
secret = "{key}"
headers.authorization = "Bearer {bearer}"
headers.x-shop = "{custom}"

[sinks.login]
kind = "http"
url = "http://{user}:{password}@{echo}/hooks/{path}"

[sinks.gone]
kind = "http"
url = "http://{user}:{password}@{gone}/hooks/{path}?key={query}"

[sinks.broker]
kind = "nats"
url = "nats://{nats}@{broker}"
connect_timeout = "500ms"

[sinks.user]
kind = "nats"
url = "nats://{broker}"
connect_timeout = "500ms"
user = "shop"
password = "{nats_password}"

[[routes]]
topics = ["say.*"]
sink = "echo"

[[routes]]
topics = ["login.*"]
sink = "login"

[[routes]]
topics = ["gone.*"]
sink = "gone"

[[routes]]
topics = ["broker.*"]
sink = "broker"
destination = "shop.{{topic}}.{{tenant_id}}"

[[routes]]
topics = ["user.*"]
sink = "user"

[http]
token = "{token}"
"#,
        url = locked.url(&secret("db-password")),
        table = locked.db.table(),
        key = key(),
    )
}
