//! The configuration: where settings come from, mistakes in them, and that no secret is shown.
//!
//! Rows of the contract: OP1, OP3.

use serde_json::Value;

use crate::support::{Answer, Db, Dir, Kind};

const KINDS: [Kind; 3] = [Kind::Postgres, Kind::MariaDb, Kind::Sqlite];

/// Two tables, two sinks, two routes.
const SHOP: &str = r#"
[relay]
tables = ["orders_outbox", "mail_outbox"]
batch = 200

[tables.mail_outbox]
max_attempts = 5

[sinks.broker]
kind = "nats"
url = "nats://shop:hunter22@nats.internal:4222"
token = "hunter22"

[sinks.mailer]
kind = "http"
url = "https://mail.internal/hooks/hunter22"
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
headers.authorization = "Bearer ${HOOK_TOKEN}"

[[routes]]
topics = "order.*"
sink = "broker"
destination = "shop.{topic}"

[[routes]]
tables = ["mail_outbox"]
sink = "mailer"
"#;

fn check(dir: &Dir, file: &str) -> Answer {
    dir.write("posthaste.toml", file);
    dir.run(["config", "check"])
}

#[test]
fn op3_a_check_says_what_there_is() {
    let dir = Dir::new();
    let nothing = dir.run(["config", "check"]).exits(0);
    assert_eq!(
        nothing.out,
        "no file (posthaste.toml is not here), so defaults and the environment: ok\n\
         1 table: outbox\n1 sink: stdout (stdout)\n1 route\n"
    );
    dir.write("posthaste.toml", SHOP);
    let mut command = dir.command(["config", "check"]);
    let shop: Answer = command.env("HOOK_TOKEN", "hunter22").output().unwrap().into();
    assert_eq!(
        shop.exits(0).out,
        "posthaste.toml: ok\n2 tables: orders_outbox, mail_outbox\n2 sinks: broker (nats), mailer (http)\n2 routes\n"
    );
    let mut command = dir.command(["config", "check", "--json"]);
    let shop: Answer = command.env("HOOK_TOKEN", "hunter22").output().unwrap().into();
    let json = shop.exits(0).json();
    assert_eq!(json["ok"], true);
    assert_eq!(json["tables"], serde_json::json!(["orders_outbox", "mail_outbox"]));
    assert_eq!((&json["routes"], &json["file"]), (&Value::from(2), &Value::from("posthaste.toml")));
}

#[test]
fn op3_every_mistake_is_found_at_once_with_its_line_and_advice() {
    let dir = Dir::new();
    let answer = check(
        &dir,
        r#"
[relay]
batchsize = 5
lease = "90"
max_attempts = "5"
single_active = "yes"

[cleaner]
retension = "1d"

[logs]
level = "info"

[sinks.broker]
kind = "natz"

[sinks.hooks]
kind = "http"
subjects = ["a"]

[sinks.odd]
format = "xml"

[[routes]]
topics = 5
sink = "brokr"
destination = "a.{tpic}"

[[routes]]
tables = ["ordrs"]
"#,
    )
    .exits(3);
    let expected = r#"posthaste: the configuration has 14 mistakes; mend them all:
  posthaste.toml:3:1: there is no key relay.batchsize; did you mean relay.batch?
  posthaste.toml:4:1: relay.lease is "90", a number without a unit; write "90s", or another of ms, s, m, h, d
  posthaste.toml:5:1: relay.max_attempts is the text "5"; write the number 5, without quotation marks
  posthaste.toml:6:1: relay.single_active is "yes"; write true or false
  posthaste.toml:9:1: there is no key cleaner.retension; did you mean cleaner.retention?
  posthaste.toml:11:2: there is no section logs; did you mean [log]?
  posthaste.toml:15:1: sinks.broker.kind is "natz", not one of "stdout", "file", "http", "nats"; did you mean "nats"?
  posthaste.toml:17:8: sinks.hooks is of kind http and has no url; add url = "https://shop.example/hooks"
  posthaste.toml:19:1: sinks.hooks.subjects is for sinks of kind nats, and this one is http; leave it away
  posthaste.toml:21:8: sinks.odd has no kind; add kind = one of "stdout", "file", "http", "nats"
  posthaste.toml:22:1: sinks.odd.format is "xml", not one of "cloudevents", "cloudevents-structured", "payload", "envelope"
  posthaste.toml:25:1: routes[0].topics is 5; write a text in quotation marks, or a list of them
  posthaste.toml:26:1: routes[0].sink names "brokr", and there is no such sink; did you mean "broker"?
  posthaste.toml:27:1: routes[0].destination does not do: the topic template "a.{tpic}" has an unknown placeholder "tpic" at byte 2; known are topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, version
"#;
    // What the routes say of tables comes last and depends on them.
    let (found, rest) = answer.err.split_at(answer.err.find("  posthaste.toml:29").unwrap());
    assert_eq!(found, expected.replace("14 mistakes", "16 mistakes"));
    assert!(
        rest.contains("routes[1].tables names the table ordrs, which is not relayed; there are outbox"),
        "{rest}"
    );
    assert!(rest.contains("routes[1] has no sink; add sink = \"broker\""), "{rest}");
}

#[test]
fn op3_what_does_not_go_together_is_a_mistake_of_its_own() {
    for (file, words) in [
        (
            "[relay]\ntimeout = \"2m\"",
            ":2:1: table outbox: the timeout 120s is not shorter than the lease 60s",
        ),
        (
            "[tables.a]\nlease = \"2s\"\ntimeout = \"1s\"\n",
            ":2:1: table a: the poll interval 1s is longer than a third",
        ),
        (
            "[relay]\nprobe_first = \"1m\"",
            ":2:1: table outbox: probe_longest 30s is shorter than probe_first 60s",
        ),
        ("[relay]\nbackoff_first = \"5m\"", ":2:1: table outbox: backoff_longest 60s is shorter"),
        (
            "[relay]\nlane_lease = \"500ms\"",
            ":2:1: table outbox: the lane lease 500ms is shorter than a second",
        ),
        ("[tables.a]\nlanes = 4", ":2:1: tables.a.lanes is for a stream; add mode = \"stream\""),
        ("[tables.a]\nmode = \"stream\"\nlanes = 3", ":3:1: tables.a.lanes does not do"),
        ("[relay]\ntables = [\"a\", \"a\"]", ":2:1: relay.tables names a twice"),
        (
            "[relay]\nenabled = false\n[cleaner]\nenabled = false",
            ":2:1: neither the relay nor the cleaner is enabled",
        ),
        (
            "[sinks.a]\nkind = \"stdout\"\n[sinks.b]\nkind = \"stdout\"",
            ":3:8: there are 2 sinks (a, b) and no [[routes]]",
        ),
        (
            "[sinks.a]\nkind = \"stdout\"\n[[routes]]\nsink = \"b\"",
            ":4:1: routes[0].sink names \"b\", and there is no such sink",
        ),
        (
            "[tables.a]\n[tables.b]\n[sinks.s]\nkind = \"stdout\"\n[[routes]]\ntables = \"a\"\nsink = \"s\"",
            "no route takes events of table b",
        ),
        (
            "[sinks.a]\nkind = \"http\"\nurl = \"shop.example\"",
            ":3:1: sinks.a.url does not do: the webhook's URL cannot be read",
        ),
        (
            "[sinks.a]\nkind = \"http\"\nurl = \"http://a\"\nsecret = \"hunter22\"",
            ":4:1: sinks.a.secret does not do: a webhook secret",
        ),
        (
            "[sinks.a]\nkind = \"http\"\nurl = \"http://a\"\ntimeout = \"20s\"",
            ":4:1: sinks.a.timeout is 20s, and twice that does not fit",
        ),
        (
            "[sinks.a]\nkind = \"nats\"\nurl = \"a\"\nuser = \"u\"",
            ":4:1: sinks.a.user needs password beside it",
        ),
        (
            "[sinks.a]\nkind = \"nats\"\nurl = \"a\"\ncreate_stream = true",
            ":4:1: sinks.a.create_stream needs stream beside it",
        ),
        (
            "[sinks.a]\nkind = \"nats\"\nurl = \"a\"\nsubjects = \"x\"",
            ":4:1: sinks.a.subjects is for a stream that is made here",
        ),
        (
            "[sinks.a]\nkind = \"nats\"\nurl = \"a\"\ntoken = \"x\"\nnkey = \"y\"",
            ":5:1: sinks.a has token and nkey to log in with",
        ),
        (
            "[sinks.a]\nkind = \"nats\"\nurl = \"a\"\ntoken = \"x\"\ntoken_file = \"y\"",
            ":5:1: sinks.a.token_file and sinks.a.token (posthaste.toml:4) are both set",
        ),
        (
            "[sinks.a]\nkind = \"nats\"\nurl = \"a\"\ntoken_file = \"y\"",
            ":4:1: sinks.a.token_file: cannot read y",
        ),
        (
            "[sinks.a]\nkind = \"nats\"\nurl = \"${NOWHERE}\"",
            ":3:1: sinks.a.url names the environment variable NOWHERE, which is not set",
        ),
        ("[topics.\"order.*\"]\nordered = false", ":1:9: topics.\"order.*\" has a * in it"),
        ("[http]\nlisten = \"8470\"", ":2:1: http.listen is \"8470\"; write an IP address"),
        (
            "[database]\nurl = \"oracle://u:hunter22@h/db\"",
            ":2:1: database.url does not do: \"oracle\" is no supported",
        ),
        ("retention = \"1d\"", ":1:1: there is no key retention; did you mean cleaner.retention?"),
        (
            "[relay]\nretention = \"1d\"",
            ":2:1: there is no key relay.retention; did you mean cleaner.retention?",
        ),
        ("relay = 5", ":1:1: relay is not a value; write [relay] on a line of its own"),
        ("[routes]\nsink = \"a\"", ":1:2: routes is not a value; write [[routes]]"),
        ("[relay\nbatch = 5", ":1:7: "),
    ] {
        let dir = Dir::new();
        let answer = check(&dir, file);
        assert_eq!(answer.code, 3, "{file}\n{answer:?}");
        assert!(answer.err.contains(words) && answer.out.is_empty(), "{file}\n{}", answer.err);
        assert!(!answer.err.contains("hunter22"), "{answer:?}");
        dir.write("posthaste.toml", file);
        let json = dir.run(["config", "check", "--json"]).exits(3).json();
        assert_eq!(json["ok"], false);
        assert!(!json["mistakes"].as_array().unwrap().is_empty(), "{json}");
    }
}

#[test]
fn op3_a_variable_or_flag_with_a_mistake_is_named() {
    let dir = Dir::new();
    let mut command = dir.command(["config", "check", "--set", "relay.lese=5s", "--set", "log"]);
    let answer: Answer = command.env("OUTBOX_RELAY_BATCH_SIZE", "many").output().unwrap().into();
    let answer = answer.exits(3);
    for words in [
        "  OUTBOX_RELAY_BATCH_SIZE: relay.batch is \"many\"; write a whole number from 1 to 100000",
        "  --set relay.lese: there is no key relay.lese; did you mean relay.lease?",
        "  --set log: has no value",
    ] {
        assert!(answer.err.contains(words), "{}", answer.err);
    }
    let mut command = dir.command(["config", "check"]);
    let answer: Answer = command.env("OUTBOX_RELAY_BATCHSIZE", "5").output().unwrap().into();
    let answer = answer.exits(0);
    assert!(answer.err.contains("warning: the variable OUTBOX_RELAY_BATCHSIZE sets nothing: it is ignored; did you mean OUTBOX_RELAY_BATCH_SIZE?"), "{answer:?}");
}

#[test]
fn op3_the_file_is_found_and_a_missing_one_is_named() {
    let dir = Dir::new();
    dir.write("other.toml", "[relay]\nbatch = 7\n");
    let batch = |answer: Answer| {
        let json = answer.exits(0).json();
        let found =
            json.as_array().unwrap().iter().find(|line| line["key"] == "relay.batch").unwrap().clone();
        (found["value"].as_str().unwrap().to_owned(), found["origin"].as_str().unwrap().to_owned())
    };
    let expected = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
    assert_eq!(batch(dir.run(["config", "print", "--json"])), expected("500", "default"));
    assert_eq!(
        batch(dir.run(["--config", "other.toml", "config", "print", "--json"])),
        expected("7", "other.toml:2")
    );
    let mut command = dir.command(["config", "print", "--json"]);
    command.env("OUTBOX_CONFIG", "other.toml");
    assert_eq!(batch(command.output().unwrap().into()), expected("7", "other.toml:2"));
    command.env("OUTBOX_RELAY_BATCH_SIZE", "8");
    assert_eq!(batch(command.output().unwrap().into()), expected("8", "OUTBOX_RELAY_BATCH_SIZE"));
    command.args(["--set", "relay.batch=9"]);
    assert_eq!(batch(command.output().unwrap().into()), expected("9", "--set relay.batch"));
    dir.write("posthaste.toml", "[relay]\nbatch = 6\n");
    assert_eq!(batch(dir.run(["config", "print", "--json"])), expected("6", "posthaste.toml:2"));

    for command in [&["config", "check"][..], &["events", "list"], &["enqueue", "a", "1"]] {
        let arguments = ["--config", "nowhere.toml"].into_iter().chain(command.iter().copied());
        dir.run(arguments).fails(3, "--config: cannot read the configuration nowhere.toml");
    }
}

#[test]
fn op3_no_secret_is_printed() {
    let dir = Dir::new();
    dir.write(
        "posthaste.toml",
        format!(
            "[database]\nurl = \"postgres://shop:hunter22@db/shop\"\n[http]\ntoken = \"hunter22\"\n{SHOP}"
        ),
    );
    dir.write("secret", "hunter22\n");
    for arguments in [&["config", "print"][..], &["config", "print", "--json"], &["config", "check"]] {
        let mut command = dir.command(arguments.iter().copied());
        command.env("HOOK_TOKEN", "hunter22").env("OUTBOX_HTTP_TOKEN_FILE", "secret");
        let answer: Answer = command.output().unwrap().into();
        let answer = answer.exits(0);
        assert!(!answer.out.contains("hunter22") && !answer.err.contains("hunter22"), "{answer:?}");
        assert!(!answer.out.contains("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "{answer:?}");
    }
    let print = dir.command(["config", "print"]).env("HOOK_TOKEN", "x").output().unwrap();
    let print = Answer::from(print).exits(0).out;
    for line in [
        "database.url postgres://shop:***@db/shop posthaste.toml:2",
        "relay.batch 200 posthaste.toml:8",
        "relay.lease 60s default",
        "http.token *** posthaste.toml:4",
        "sinks.broker.url nats://***@nats.internal:4222 posthaste.toml:15",
        "sinks.mailer.url https://mail.internal/*** posthaste.toml:20",
        "sinks.mailer.headers.authorization *** posthaste.toml:22",
        "routes[0].destination shop.{topic} posthaste.toml:27",
        "tables.mail_outbox.max_attempts 5 posthaste.toml:11",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let found = print.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == words);
        assert!(found, "{line}\n{print}");
    }
}

#[test]
fn op3_every_command_takes_database_and_table_from_the_configuration() {
    for kind in KINDS {
        let db = Db::new(kind);
        let file = format!("[database]\nurl = \"${{WHERE}}\"\ntable = \"{}\"\n", db.table());
        db.dir.write("posthaste.toml", &file);
        let run = |arguments: &[&'static str]| -> Answer {
            db.dir.command(arguments.iter().copied()).env("WHERE", db.url()).output().unwrap().into()
        };
        run(&["migrate", "up"]).exits(0);
        run(&["enqueue", "a", "1"]).exits(0);
        assert_eq!(db.sql(&format!("SELECT count(*) FROM {}", db.table())), "1");
        let elsewhere = run(&["--table", "elsewhere", "events", "list"]).exits(5);
        assert!(elsewhere.err.contains("elsewhere"), "{elsewhere:?}");
        // Without the variable nobody must end up in another database.
        db.dir
            .run(["enqueue", "a", "1"])
            .fails(3, "names the environment variable WHERE, which is not set; set it");
        assert!(!db.dir.path().join("posthaste.db").exists());
        // A sink that lacks its secret is no reason to refuse a listing.
        db.dir.write("posthaste.toml", format!("{file}[sinks.a]\nkind = \"nats\"\nurl = \"${{NOWHERE}}\"\n"));
        run(&["events", "list"]).exits(0);
        run(&["config", "check"]).fails(3, "NOWHERE");
        // A key that does not exist is, since nobody knows what was meant.
        db.dir.write("posthaste.toml", format!("{file}[relays]\n"));
        run(&["events", "list"])
            .fails(3, "posthaste.toml:4:2: there is no section relays; did you mean [relay]?");
    }
}

#[test]
fn op3_what_is_of_no_use_is_a_warning() {
    let dir = Dir::new();
    let file = "[relay]\ntables = \"a\"\n[tables.b]\n[sinks.s]\nkind = \"stdout\"\n[sinks.t]\nkind = \"stdout\"\n\
                [[routes]]\nsink = \"s\"\n";
    let answer = check(&dir, file).exits(0);
    assert_eq!(
        answer.err,
        "posthaste: warning: posthaste.toml:3: [tables.\"b\"] is for a table that is neither relayed nor purged; add it to \
         relay.tables\nposthaste: warning: no route leads to sink t\n"
    );
    let json = dir.run(["config", "check", "--json"]).exits(0).json();
    assert_eq!(json["warnings"].as_array().unwrap().len(), 2);
}

#[test]
fn op3_keys_are_listed() {
    let dir = Dir::new();
    dir.write("posthaste.toml", "no toml at all");
    let keys = dir.run(["config", "keys", "--json"]).exits(0).json();
    let batch = keys.as_array().unwrap().iter().find(|key| key["key"] == "relay.batch").unwrap();
    assert_eq!(
        (&batch["default"], &batch["variable"]),
        (&Value::from("500"), &Value::from("OUTBOX_RELAY_BATCH_SIZE"))
    );
    let listed = dir.run(["config", "keys"]).exits(0).out;
    assert!(listed.contains("relay.batch\n    Most events of one claim"), "{listed}");
    assert!(
        listed.contains(
            "    takes: number, 1 to 100000; default: 500\n    variable: OUTBOX_RELAY_BATCH_SIZE\n"
        ),
        "{listed}"
    );
}

#[test]
fn op3_a_flag_for_every_table_is_stronger_than_the_file_is_for_one() {
    let dir = Dir::new();
    dir.write("posthaste.toml", "[tables.a]\nbatch = 7\nlease = \"90s\"\n");
    let shown = dir.run(["config", "print", "--json", "--set", "relay.batch=9"]).exits(0).out;
    assert!(!shown.contains("\"value\": 7") && !shown.contains("\"7\""), "{shown}");
    let mut command = dir.command(["config", "check"]);
    let answer = Answer::from(command.env("OUTBOX_TABLE", "b").output().unwrap()).exits(0);
    assert!(
        answer.err.contains("commands work on table b, which is neither relayed nor purged"),
        "{answer:?}"
    );
}

#[test]
fn op3_routes_that_leave_something_out_are_a_warning() {
    let dir = Dir::new();
    let file = r#"
[sinks.s]
kind = "stdout"
[sinks.f]
kind = "file"
path = "no/such/place/events.jsonl"
[topics."stock.emptied.v1"]
max_attempts = 3
[[routes]]
topics = "order.*"
sink = "s"
[[routes]]
topics = ["order.placed.*", "order.paid.v1"]
sink = "f"
"#;
    let answer = check(&dir, file).exits(0);
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("config_warnings_of_routes", answer.err);
    });
    assert!(answer.out.starts_with("posthaste.toml: ok\n"), "{answer:?}");
    let json = dir.run(["config", "check", "--json"]).exits(0).json();
    assert_eq!((&json["ok"], json["warnings"].as_array().unwrap().len()), (&Value::Bool(true), 4));

    // Where nothing is delivered nothing is dead for want of a route.
    let only_cleans = format!("[relay]\nenabled = false\n{file}");
    let answer = check(&dir, &only_cleans).exits(0);
    assert!(!answer.err.contains("no route takes") && !answer.err.contains("never reached"), "{answer:?}");

    // Behind a route that takes everything, of one table alone; and nothing is left out.
    let behind = r#"
[relay]
tables = ["orders", "mail"]
[sinks.s]
kind = "stdout"
[[routes]]
tables = ["orders"]
sink = "s"
[[routes]]
topics = "mail.*"
sink = "s"
[[routes]]
topics = "*"
sink = "s"
[[routes]]
topics = "a"
tables = ["orders", "mail"]
sink = "s"
"#;
    let answer = check(&dir, behind).exits(0);
    assert_eq!(answer.err.lines().count(), 1, "{answer:?}");
    assert!(answer.err.contains("posthaste.toml:15: routes[3] (a) is never reached"), "{answer:?}");
}
