//! Every key of the configuration, once: what it is called, what it takes, what it is where nobody says, and
//! where else it can be set. `config check`, `config print` and the reference in the book are made from this table.
//!
//! A path has `*` where a name stands (`sinks.*.url`) and `[]` where a place in a list stands (`routes[].sink`).

use super::kind::Kind::{self, *};
use super::path::Path;

/// One key.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its place in the file.
    pub(crate) path: &'static str,
    /// What it takes.
    pub(crate) kind: Kind,
    /// What it is where nobody says: a value, or in words what happens without one.
    pub(crate) default: Preset,
    /// The environment variable that sets it, too.
    pub(crate) variable: Option<&'static str>,
    /// The flag that sets it, too.
    pub(crate) flag: Option<&'static str>,
    /// Its name in `[tables.NAME]`, where it can be set for one table.
    pub(crate) in_tables: Option<&'static str>,
    /// What of it must not be shown.
    pub(crate) secrecy: Secrecy,
    /// The key beside it that this one is the file of.
    pub(crate) file_of: Option<&'static str>,
    /// The kinds of sinks that have it; of no meaning elsewhere.
    pub(crate) of: &'static [&'static str],
    /// Whether those sinks cannot do without it.
    pub(crate) required: bool,
    /// A value that is not the default, as the file has it.
    pub(crate) example: &'static str,
    /// What it is for.
    pub(crate) about: &'static str,
}

/// What a key is where nobody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preset {
    /// This value, as a variable would have it.
    Value(&'static str),
    /// None; in words, what that means.
    Unset(&'static str),
}

impl Preset {
    /// As people see it.
    pub(crate) fn shown(self) -> &'static str {
        match self {
            Self::Value(text) | Self::Unset(text) => text,
        }
    }
}

/// What of a value must not be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// Nothing is secret.
    Open,
    /// All of it.
    Secret,
    /// The password in a URL.
    Password,
    /// Who logs in and with what, since a user alone can be a token.
    Login,
    /// All but the host of a URL.
    Path,
}

/// Every key, in the order of the reference.
pub(crate) static KEYS: &[Key] = &[
    set("database.url", Text, "sqlite://posthaste.db", "The database: a `postgres://`, `mysql://`, `mariadb://` or `sqlite://` URL. Unset, it is an SQLite file in the working directory, which makes itself.")
        .variable("OUTBOX_DATABASE_URL").flag("--database").secrecy(Secrecy::Password)
        .example("\"postgres://shop:${DB_PASSWORD}@db.internal/shop\""),
    unset("database.url_file", Text, "none", "A file that has the URL in it.")
        .variable("OUTBOX_DATABASE_URL_FILE").file_of("url").example("\"/run/secrets/database-url\""),
    set("database.table", TableName, "outbox", "The table that commands work on, with its schema if need be. Unset, it is the one that is relayed.")
        .variable("OUTBOX_TABLE").flag("--table").example("\"orders_outbox\""),
    // What a relay does.
    set("relay.enabled", Bool, "true", "Whether events are delivered; if not, `posthaste relay` only purges.")
        .variable("OUTBOX_RELAY_ENABLED").example("false"),
    unset("relay.tables", Tables, "the tables with a section of their own, or else `database.table`", "The tables whose events are delivered.")
        .variable("OUTBOX_RELAY_TABLES").flag("--table").example("[\"orders_outbox\", \"billing_outbox\"]"),
    set("relay.migrate", Bool, "false", "Whether the tables are created and brought up to date at the start. The embedded database makes its first table, and those that the file names, by itself.")
        .variable("OUTBOX_RELAY_MIGRATE").flag("--migrate").in_tables("migrate").example("true"),
    set("relay.single_active", Bool, "false", "Whether only one relay of a table is active while the others stand by.")
        .variable("OUTBOX_RELAY_SINGLE_ACTIVE").in_tables("single_active").example("true"),
    set("relay.poll_interval", Duration, "1s", "The longest time between two looks at a table; at most a third of the lease.")
        .variable("OUTBOX_RELAY_POLL_INTERVAL").in_tables("poll_interval").example("\"500ms\""),
    set("relay.batch", Count(1, 100_000), "500", "Most events of one claim, and of one publish to a sink that takes batches.")
        .variable("OUTBOX_RELAY_BATCH_SIZE").in_tables("batch").example("200"),
    unset("relay.capacity", Count(1, 10_000_000), "a batch for each sink, up to 8, and one more", "Most claimed events in memory.")
        .variable("OUTBOX_RELAY_CAPACITY").in_tables("capacity").example("2000"),
    unset("relay.concurrency", Count(1, 100_000), "4, or 32 to a sink that takes one event at a time", "Most publishes at once.")
        .variable("OUTBOX_RELAY_CONCURRENCY").in_tables("concurrency").example("8"),
    set("relay.lease", Duration, "60s", "How long a claimed event is this relay's; renewed for as long as it waits or runs. Longer than the timeout.")
        .variable("OUTBOX_RELAY_LOCK_TTL").in_tables("lease").example("\"2m\""),
    set("relay.lane_lease", Duration, "10s", "How long lanes of a stream are this relay's if it is not heard of; at least 1s.")
        .variable("OUTBOX_RELAY_LANE_LEASE").in_tables("lane_lease").example("\"20s\""),
    set("relay.timeout", Duration, "30s", "How long a publish may take.")
        .variable("OUTBOX_RELAY_DISPATCH_TIMEOUT").in_tables("timeout").example("\"45s\""),
    set("relay.drain_timeout", DurationOrZero, "5s", "How long what runs may take to finish when the relay stops.")
        .variable("OUTBOX_RELAY_DRAIN_TIMEOUT").in_tables("drain_timeout").example("\"20s\""),
    set("relay.max_attempts", Count(1, 1_000_000), "25", "After how many attempts an event is dead.")
        .variable("OUTBOX_RELAY_MAX_ATTEMPTS").in_tables("max_attempts").example("10"),
    set("relay.backoff_first", DurationOrZero, "1s", "How long a failed event waits before its second attempt; doubled after each one.")
        .variable("OUTBOX_RELAY_BACKOFF_FIRST").in_tables("backoff_first").example("\"5s\""),
    set("relay.backoff_longest", DurationOrZero, "60s", "The longest that a failed event waits between two attempts.")
        .variable("OUTBOX_RELAY_BACKOFF_LONGEST").in_tables("backoff_longest").example("\"10m\""),
    set("relay.jitter", Choice(&["equal", "scaled", "none"]), "equal", "What chance makes of a wait: half of it to all of it (`equal`), half to one and a half (`scaled`), or exactly it.")
        .variable("OUTBOX_RELAY_JITTER").in_tables("jitter").example("\"none\""),
    set("relay.probe_first", Duration, "1s", "How long an unavailable sink rests before it is tried again.")
        .variable("OUTBOX_RELAY_PROBE_FIRST").in_tables("probe_first").example("\"2s\""),
    set("relay.probe_longest", Duration, "30s", "The longest that an unavailable sink rests between two tries.")
        .variable("OUTBOX_RELAY_PROBE_LONGEST").in_tables("probe_longest").example("\"1m\""),
    set("relay.stats_interval", Duration, "5s", "How often the gauges are read from the database.")
        .variable("OUTBOX_RELAY_STATS_INTERVAL").in_tables("stats_interval").example("\"15s\""),
    set("relay.error_bytes", Count(64, 2048), "2048", "How many bytes of an error are stored with its event.")
        .variable("OUTBOX_LAST_ERROR_MAX_BYTES").in_tables("error_bytes").example("512"),
    set("relay.mask_tenants", Bool, "false", "Whether the log shows `***` instead of tenants.")
        .variable("OUTBOX_RELAY_MASK_TENANTS").in_tables("mask_tenants").example("true"),
    // What is deleted.
    set("cleaner.enabled", Bool, "true", "Whether events that are past their retention are deleted.")
        .variable("OUTBOX_CLEANER_ENABLED").example("false"),
    unset("cleaner.tables", Tables, "the tables that are relayed", "The tables that are purged, whether they are relayed here or not.")
        .variable("OUTBOX_CLEANER_TABLES").flag("--table").example("[\"orders_outbox\", \"archive_outbox\"]"),
    set("cleaner.interval", Duration, "1m", "How often what is past its retention is deleted.")
        .variable("OUTBOX_CLEANER_INTERVAL").in_tables("purge_interval").example("\"10m\""),
    set("cleaner.retention", DurationOrZero, "168h", "How long delivered events are kept; 0 deletes them on delivery.")
        .variable("OUTBOX_CLEANER_RETENTION").in_tables("retention").example("\"24h\""),
    set("cleaner.dead_retention", DurationOrZero, "0", "How long dead events are kept; 0 is for ever.")
        .variable("OUTBOX_CLEANER_DEAD_RETENTION").in_tables("dead_retention").example("\"90d\""),
    // One table.
    unset("tables.*.mode", Choice(&["queue", "stream"]), "the mode it has, or queue", "How the table is made, where it is made here: a queue, or a stream that keeps the order of each aggregate's events.")
        .example("\"stream\""),
    unset("tables.*.lanes", Count(1, 256), "1", "Into how many lanes a stream is divided when it is made: a power of two up to 256.")
        .example("4"),
    // One topic.
    set("topics.*.ordered", Bool, "true", "Whether events of this topic keep their order in a stream.").example("false"),
    set("topics.*.on_dead", Choice(&["block", "skip"]), "block", "What becomes of later events of an aggregate in a stream when one of this topic is dead: they wait for an operator, or go on without it.")
        .example("\"skip\""),
    unset("topics.*.max_attempts", Count(1, 1_000_000), "the table's", "After how many attempts an event of this topic is dead.").example("3"),
    unset("topics.*.backoff_first", DurationOrZero, "the table's", "How long a failed event of this topic waits before its second attempt.").example("\"10s\""),
    unset("topics.*.backoff_longest", DurationOrZero, "the table's", "The longest that a failed event of this topic waits between two attempts.").example("\"1h\""),
    unset("topics.*.jitter", Choice(&["equal", "scaled", "none"]), "the table's", "What chance makes of a wait for this topic.").example("\"scaled\""),
    // One sink.
    unset("sinks.*.kind", Choice(SINKS), "none", "What it is.").of(SINKS).required().example("\"nats\""),
    set("sinks.*.format", Choice(&["cloudevents", "cloudevents-structured", "payload", "envelope"]), "cloudevents", "How an event becomes a message. Lines of JSON have no headers: there `cloudevents` is the structured one.")
        .of(SINKS).example("\"envelope\""),
    unset("sinks.*.source", Source, "`/posthaste/` and the table's name", "The CloudEvents `source`: who speaks, as a URI or a path.")
        .of(SINKS).example("\"https://shop.example/orders\""),
    unset("sinks.*.path", Text, "none", "The file that events are appended to; made if it does not exist.")
        .of(&["file"]).required().example("\"/var/spool/posthaste/events.jsonl\""),
    unset("sinks.*.url", Text, "none", "Where it is: the webhook's URL, in which `{destination}` stands for the event's destination; or one or more servers of NATS, `nats://` or `tls://`, with commas.")
        .of(&["http", "nats"]).required().secrecy(Secrecy::Path).example("\"https://shop.example/hooks/{destination}\""),
    unset("sinks.*.url_file", Text, "none", "A file that has the URL in it.").of(&["http", "nats"]).file_of("url").example("\"/run/secrets/url\""),
    unset("sinks.*.secret", List, "requests are not signed", "What requests are signed with, `whsec_` and base 64; several while a secret is being replaced.")
        .of(&["http"]).secrecy(Secrecy::Secret).example("\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\""),
    unset("sinks.*.secret_file", Text, "none", "A file that has the secret in it.").of(&["http"]).file_of("secret").example("\"/run/secrets/webhook\""),
    unset("sinks.*.headers.*", Text, "none", "A header of every request, by its name.")
        .of(&["http"]).secrecy(Secrecy::Secret).example("\"Bearer ${HOOK_TOKEN}\""),
    set("sinks.*.timeout", Duration, "10s", "How long a request may take. Twice that must fit into the relay's timeout.").of(&["http"]).example("\"5s\""),
    set("sinks.*.concurrency", Count(1, 10_000), "16", "How many requests of one batch run at once.").of(&["http"]).example("4"),
    set("sinks.*.connect_timeout", Duration, "5s", "How long connecting may take.").of(&["http", "nats"]).example("\"2s\""),
    unset("sinks.*.root_certificates", Text, "those of the system alone", "A file of certificates in PEM of authorities to trust, too.")
        .of(&["http", "nats"]).example("\"/etc/posthaste/ca.pem\""),
    unset("sinks.*.token", Text, "as the URL says", "Logs in with a token.").of(&["nats"]).secrecy(Secrecy::Secret).example("\"${NATS_TOKEN}\""),
    unset("sinks.*.token_file", Text, "none", "A file that has the token in it.").of(&["nats"]).file_of("token").example("\"/run/secrets/nats-token\""),
    unset("sinks.*.user", Text, "as the URL says", "Logs in as this user, with `password`.").of(&["nats"]).example("\"shop\""),
    unset("sinks.*.password", Text, "none", "The password of `user`.").of(&["nats"]).secrecy(Secrecy::Secret).example("\"${NATS_PASSWORD}\""),
    unset("sinks.*.password_file", Text, "none", "A file that has the password in it.").of(&["nats"]).file_of("password").example("\"/run/secrets/nats-password\""),
    unset("sinks.*.nkey", Text, "none", "Logs in with the seed of an nkey.").of(&["nats"]).secrecy(Secrecy::Secret).example("\"${NATS_NKEY}\""),
    unset("sinks.*.nkey_file", Text, "none", "A file that has the seed in it.").of(&["nats"]).file_of("nkey").example("\"/run/secrets/nats-nkey\""),
    unset("sinks.*.credentials_file", Text, "none", "Logs in with a credentials file (`.creds`).").of(&["nats"]).example("\"/etc/posthaste/shop.creds\""),
    unset("sinks.*.client_certificate", Text, "none", "A file with the certificate to show to the server, in PEM; with `client_key`.").of(&["nats"]).example("\"/etc/posthaste/client.pem\""),
    unset("sinks.*.client_key", Text, "none", "The file with that certificate's key, in PEM.").of(&["nats"]).example("\"/etc/posthaste/client.key\""),
    unset("sinks.*.domain", Text, "none", "The domain of JetStream to publish to.").of(&["nats"]).example("\"hub\""),
    unset("sinks.*.stream", Text, "whichever takes the subject", "The stream that events must arrive in.").of(&["nats"]).example("\"ORDERS\""),
    set("sinks.*.create_stream", Bool, "false", "Whether that stream is made where it is missing.").of(&["nats"]).example("true"),
    unset("sinks.*.subjects", List, "the stream's name", "The subjects of a stream that is made here; `>` and `*` are wildcards.").of(&["nats"]).example("[\"order.>\", \"invoice.>\"]"),
    set("sinks.*.duplicate_window", Duration, "2m", "For how long a stream that is made here remembers ids and drops what comes again.").of(&["nats"]).example("\"10m\""),
    set("sinks.*.max_age", DurationOrZero, "0", "How long a stream that is made here keeps messages; 0 is for ever.").of(&["nats"]).example("\"7d\""),
    unset("sinks.*.max_bytes", Count(1, i64::MAX as u64), "no limit", "How many bytes a stream that is made here keeps, the oldest going first.").of(&["nats"]).example("1000000000"),
    set("sinks.*.replicas", Count(1, 5), "1", "On how many servers a stream that is made here is kept.").of(&["nats"]).example("3"),
    set("sinks.*.storage", Choice(&["file", "memory"]), "file", "Where a stream that is made here is kept.").of(&["nats"]).example("\"memory\""),
    set("sinks.*.ack_timeout", Duration, "5s", "How long an acknowledgement may take.").of(&["nats"]).example("\"3s\""),
    // One route.
    set("routes[].topics", List, "*", "The topics that take this route; `*` stands for any characters. The first route that fits is taken.").example("[\"order.*\", \"invoice.*\"]"),
    unset("routes[].tables", Tables, "all tables", "The tables whose events take this route.").example("[\"orders_outbox\"]"),
    unset("routes[].sink", Text, "none", "The name of the sink that it leads to.").example("\"broker\""),
    unset("routes[].destination", Template, "the topic", "Where in the sink an event goes: a text with `{topic}`, `{event_type}`, `{aggregate_type}`, `{aggregate_id}`, `{namespace}`, `{tenant_id}` and `{version}`.").example("\"shop.{topic}\""),
    // The daemon itself.
    set("http.enabled", Bool, "true", "Whether health, metrics and the API are served.").variable("OUTBOX_HTTP_ENABLED").example("false"),
    set("http.listen", Address, "127.0.0.1:8470", "The address that they are served on.").variable("OUTBOX_HTTP_LISTEN").example("\"0.0.0.0:8470\""),
    unset("http.token", Text, "nobody may change anything", "The bearer token that whoever changes something must show.")
        .variable("OUTBOX_HTTP_TOKEN").secrecy(Secrecy::Secret).example("\"${OPERATOR_TOKEN}\""),
    unset("http.token_file", Text, "none", "A file that has the token in it.").variable("OUTBOX_HTTP_TOKEN_FILE").file_of("token").example("\"/run/secrets/http-token\""),
    set("http.metrics_path", UrlPath, "/metrics", "Where the metrics are served.").variable("OUTBOX_HTTP_METRICS_PATH").example("\"/internal/metrics\""),
    set("log.format", Choice(&["text", "json"]), "text", "How the log is written to standard error.").variable("OUTBOX_LOG_FORMAT").example("\"json\""),
    set("log.level", Filter, "info", "What is logged: `error`, `warn`, `info`, `debug` or `trace`, also by module, such as `info,posthaste=debug`.")
        .variable("OUTBOX_LOG").example("\"info,posthaste=debug\""),
];

/// The kinds of sinks.
pub(crate) const SINKS: &[&str] = &["stdout", "file", "http", "nats"];

const fn key(path: &'static str, kind: Kind, default: Preset, about: &'static str) -> Key {
    Key {
        path,
        kind,
        default,
        variable: None,
        flag: None,
        in_tables: None,
        secrecy: Secrecy::Open,
        file_of: None,
        of: &[],
        required: false,
        example: "",
        about,
    }
}

const fn set(path: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Key {
    key(path, kind, Preset::Value(default), about)
}

const fn unset(path: &'static str, kind: Kind, means: &'static str, about: &'static str) -> Key {
    key(path, kind, Preset::Unset(means), about)
}

impl Key {
    const fn variable(mut self, name: &'static str) -> Self {
        self.variable = Some(name);
        self
    }

    const fn flag(mut self, name: &'static str) -> Self {
        self.flag = Some(name);
        self
    }

    const fn in_tables(mut self, name: &'static str) -> Self {
        self.in_tables = Some(name);
        self
    }

    const fn secrecy(mut self, secrecy: Secrecy) -> Self {
        self.secrecy = secrecy;
        self
    }

    const fn file_of(mut self, name: &'static str) -> Self {
        self.file_of = Some(name);
        self
    }

    const fn of(mut self, kinds: &'static [&'static str]) -> Self {
        self.of = kinds;
        self
    }

    const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    const fn example(mut self, value: &'static str) -> Self {
        self.example = value;
        self
    }

    /// The key that a place in the file is for.
    pub(crate) fn at(path: &Path) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.patterns().any(|pattern| path.fits(&pattern)))
    }

    /// The key with this path.
    pub(crate) fn named(path: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.path == path)
    }

    /// Where it can stand: its path, and where it can be set for one table, that too.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = String> {
        let in_tables = self.in_tables.map(|name| format!("tables.*.{name}"));
        std::iter::once(self.path.to_owned()).chain(in_tables)
    }

    /// The part of its path behind the last dot.
    pub(crate) fn leaf(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }
}
