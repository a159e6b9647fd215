//! Events and dead letters: looking, writing, mending.

use serde_json::{Value, json};

use super::client::{Client, DATABASES, TOKEN, start, start_by};
use crate::daemon::wait_for;
use crate::support::{Db, Kind};

fn ids(page: &Value) -> Vec<String> {
    page["events"].as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect()
}

/// Writes so many events that no route takes, and waits until they are dead; `oldest` first.
fn bury(client: &Client, table: &str, topic: &str, count: usize) -> Vec<String> {
    let events = format!("/api/v1/tables/{table}/events");
    let write = |n: usize| {
        let event = json!({ "topic": topic, "payload": { "n": n }, "aggregate_type": "order", "aggregate_id": n.to_string() });
        client.post(&events, &event).is(201)["id"].as_str().unwrap().to_owned()
    };
    let ids: Vec<String> = (0..count).map(write).collect();
    let dead = format!("/api/v1/tables/{table}/dead?topic={topic}&limit=1000");
    wait_for("dead events", || {
        (client.get(&dead).is(200)["events"].as_array().unwrap().len() >= count).then_some(())
    });
    ids
}

/// A daemon whose only route is for topics that begin with `order`.
fn start_narrow(db: &Db) -> (crate::daemon::Daemon, Client) {
    db.run(["migrate", "up"]).exits(0);
    let file = "[sinks.lines]\nkind = \"file\"\npath = \"lines.jsonl\"\n[[routes]]\ntopics = [\"order.*\"]\nsink = \"lines\"\n";
    db.dir.write("posthaste.toml", file);
    start_by(db.command(["relay"]).env("OUTBOX_HTTP_TOKEN", TOKEN))
}

#[test]
fn op5_events_are_written_listed_and_shown() {
    for kind in DATABASES {
        let db = Db::new(kind);
        let (daemon, client) = start(&db);
        let events = format!("/api/v1/tables/{}/events", db.table());
        client.tell(&format!("/api/v1/relays/{}/pause", db.table())).is(200);
        let full = json!({
            "topic": "order.placed", "payload": { "price": 9.90, "big": 12345678901234567890u64 },
            "id": "0190163d-8694-739b-aea5-966c26f8ad91", "event_type": "placed", "aggregate_type": "order",
            "aggregate_id": "42", "namespace": "shop", "tenant_id": "t1", "dedupe_key": "t1/42",
            "headers": { "source": "test" }, "version": 3, "delay": "1h", "occurred_at": "2026-01-31T12:00:00Z",
        });
        let written = client.post(&events, &full).is(201);
        assert_eq!((&written["id"], &written["duplicate"]), (&full["id"], &json!(false)));
        assert_eq!(client.post(&events, &full).is(200)["duplicate"], true);
        let id = full["id"].as_str().unwrap();
        let shown = client.get(&format!("{events}/{id}")).is(200);
        for name in [
            "topic",
            "event_type",
            "aggregate_type",
            "namespace",
            "tenant_id",
            "dedupe_key",
            "headers",
            "version",
        ] {
            assert_eq!(shown[name], full[name], "{name}");
        }
        assert_eq!(shown["occurred_at"], full["occurred_at"]);
        assert_eq!((&shown["status"], &shown["payload"]), (&json!("pending"), &full["payload"]));
        // The same event is what the command line shows.
        let of_cli = db.run(["events", "show", id, "--json"]).exits(0).json();
        assert_eq!(of_cli, shown);
        let bytes = json!({ "topic": "image", "payload_base64": "AAEC", "content_type": "image/png" });
        let id = client.post(&events, &bytes).is(201)["id"].as_str().unwrap().to_owned();
        let shown = client.get(&format!("{events}/{id}")).is(200);
        assert_eq!((&shown["payload"], &shown["payload_size"]), (&Value::Null, &json!(3)));
        assert_eq!(shown["content_type"], "image/png");
        // Null is a payload.
        client.post(&events, &json!({ "topic": "nothing", "payload": null })).is(201);
        daemon.stop();
    }
}

#[test]
fn op5_listings_are_filtered_and_paged() {
    for kind in DATABASES {
        let db = Db::new(kind);
        let (daemon, client) = start(&db);
        let events = format!("/api/v1/tables/{}/events", db.table());
        let mut written = Vec::new();
        for n in 0..7 {
            let event = json!({ "topic": format!("order.{}", n % 2), "payload": n, "aggregate_type": "order",
                "aggregate_id": n.to_string(), "tenant_id": "t/1 &", "available_at": "2099-01-01T00:00:00Z" });
            written.push(client.post(&events, &event).is(201)["id"].as_str().unwrap().to_owned());
        }
        let mut seen = Vec::new();
        let mut path = format!("{events}?limit=3&oldest_first=true");
        let pages = loop {
            let page = client.get(&path).is(200);
            seen.extend(ids(&page));
            match page["next"].as_str() {
                Some(next) => path = format!("{events}?limit=3&oldest_first=true&after={next}"),
                None => break seen.len().div_ceil(3),
            }
        };
        assert_eq!((pages, &seen), (3, &written));
        let newest = client.get(&format!("{events}?limit=7")).is(200);
        assert_eq!((ids(&newest)[0].as_str(), &newest["next"]), (written[6].as_str(), &Value::Null));
        for (query, count) in [
            ("topic=order.1", 3),
            ("topic=order.*", 7),
            ("event_type=order.0", 4),
            ("aggregate=order%2F4", 1),
            ("tenant=t%2F1+%26", 7),
            ("tenant=other", 0),
            ("namespace=default", 7),
            ("status=pending", 7),
            ("status=dead", 0),
            ("since=1h", 7),
            ("until=1h", 0),
            ("since=2020-01-01T00:00:00Z&until=2099-01-01T00:00:00Z", 7),
        ] {
            let page = client.get(&format!("{events}?{query}")).is(200);
            assert_eq!(ids(&page).len(), count, "{query}");
        }
        for (query, words) in [
            ("topc=a", "the parameter \"topc\" is not known; do you mean topic?"),
            ("zzz=a", "there are status, topic"),
            ("topic=a&topic=b", "the parameter topic is there twice"),
            ("limit=0", "not a number from 1 to 1000"),
            ("limit=1001", "not a number from 1 to 1000"),
            ("limit=many", "not a number from 1 to 1000"),
            ("oldest_first=1", "write true or false"),
            ("status=ded", "is not a status: pending, processing, delivered or dead"),
            ("aggregate=order", "write a type and an id such as order/42"),
            ("since=yesterday", "neither a duration such as 30s"),
            ("after=7", "take it from `next`"),
        ] {
            client.get(&format!("{events}?{query}")).fails(400, "bad_request", words);
        }
        daemon.stop();
    }
}

#[test]
fn op5_what_is_not_there_is_named() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    client.get("/api/v1/tables/outbx/events").fails(404, "not_found", "do you mean outbox?");
    client.get("/api/v1/tables/zzz/events").fails(404, "not_found", "there are outbox");
    let event = "/api/v1/tables/outbox/events/0190163d-8694-739b-aea5-966c26f8ad91";
    client.get(event).fails(404, "not_found", "has no event 0190163d-8694-739b-aea5-966c26f8ad91");
    client.get("/api/v1/tables/outbox/events/7").fails(400, "bad_request", "UUID or a ULID");
    client.get(&format!("{event}?payload=true")).fails(400, "bad_request", "there are none here");
    client.get("/api/v1/tables/%ff/events").fails(400, "bad_request", "path cannot be read");
    client.get("/api/v2/status").fails(404, "not_found", "/api/v1/openapi.json");
    client.get("/").fails(404, "not_found", "there is no /");
    let answer = client.tell("/api/v1/status");
    answer.fails(405, "method_not_allowed", "does not answer to POST");
    assert!(answer.head.contains("allow: get,head"), "{answer:?}");
    client.get("/api/v1/tables/outbox/purge").fails(405, "method_not_allowed", "does not answer to GET");
    daemon.stop();
}

#[test]
fn op5_events_that_are_not_accepted_say_why() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    let path = "/api/v1/tables/outbox/events";
    for (body, words) in [
        (json!({}), "topic is missing"),
        (json!({ "topic": null, "payload": 1 }), "topic is missing"),
        (json!({ "topic": 7, "payload": 1 }), "topic is not a text in quotation marks"),
        (json!({ "topic": "a" }), "the payload is unclear"),
        (json!({ "topic": "a", "payload": 1, "payload_base64": "AA==" }), "the payload is unclear"),
        (json!({ "topic": "a", "payload_base64": "AA==" }), "the payload is unclear"),
        (json!({ "topic": "a", "payload_base64": "*", "content_type": "b" }), "is not base 64"),
        (json!({ "topic": "a", "paylod": 1 }), "\"paylod\" is not known; do you mean payload?"),
        (json!({ "topic": "a", "payload": 1, "aggregate_id": "1" }), "go together"),
        (json!({ "topic": "a", "payload": 1, "version": -1 }), "version is -1, and not a number"),
        (json!({ "topic": "a", "payload": 1, "delay": "soon" }), "delay is \"soon\": not a duration"),
        (
            json!({ "topic": "a", "payload": 1, "delay": "1s", "available_at": "2026-01-01T00:00:00Z" }),
            "exclude each other",
        ),
        (json!({ "topic": "a", "payload": 1, "headers": { "a": 1 } }), "headers is not an object of texts"),
        (json!([1]), "the body is not a JSON object"),
    ] {
        client.post(path, &body).fails(400, "bad_request", words);
    }
    for (body, words) in [
        (json!({ "topic": "", "payload": 1 }), "give it a value"),
        (json!({ "topic": "a\u{7}", "payload": 1 }), "control character"),
        (json!({ "topic": "a", "payload": 1, "id": "7" }), "UUID or a ULID"),
        (json!({ "topic": "a", "payload": 1, "tenant_id": "t", "dedupe_key": "k" }), "begin the dedupe key"),
    ] {
        client.post(path, &body).fails(422, "invalid", words);
    }
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n"
    );
    let twice = "{\"topic\": \"a\", \"topic\": \"b\", \"payload\": 1}";
    for (headers, body, code, words) in [
        ("content-type: application/json", "{\"topic\": ", 400, "the body is not a JSON object: EOF"),
        ("content-type: application/json", twice, 400, "topic is there twice"),
        ("content-type: text/plain", "{}", 415, "Content-Type: application/json"),
        ("accept: */*", "{}", 415, "Content-Type: application/json"),
    ] {
        let answer =
            client.send(&format!("{request}{headers}\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        assert!(answer.code == code && answer.text.contains(words), "{body}: {answer:?}");
    }
    assert_eq!(client.get(path).is(200)["events"], json!([]), "something was written");
    daemon.stop();
}

#[test]
fn op5_dead_events_are_replayed_and_discarded() {
    for kind in DATABASES {
        let db = Db::new(kind);
        let (daemon, client) = start_narrow(&db);
        let table = db.table();
        let (dead, replay) =
            (format!("/api/v1/tables/{table}/dead"), format!("/api/v1/tables/{table}/dead/replay"));
        let discard = format!("/api/v1/tables/{table}/dead/discard");
        let written = bury(&client, &table, "mail.sent", 5);
        let page = client.get(&format!("{dead}?limit=2&oldest_first=true")).is(200);
        assert_eq!((ids(&page), page["next"].as_str()), (written[..2].to_vec(), Some(written[1].as_str())));
        assert!(page["events"][0]["last_error"].as_str().unwrap().contains("no handler or route"), "{page}");

        // One by one; those that are not dead are named, and a dry run does nothing.
        let nobody = "0190163d-8694-739b-aea5-966c26f8ad91";
        let some = json!({ "ids": [written[0], written[1], written[1], nobody], "dry_run": true });
        let would = client.post(&discard, &some).is(200);
        assert_eq!((&would["would_touch"][0]["count"], &would["missing"]), (&json!(2), &json!([nobody])));
        assert_eq!(would["would_touch"][0]["sample"][1]["id"], written[1].as_str());
        assert_eq!(ids(&client.get(&dead).is(200)).len(), 5);
        let done = client.post(&discard, &json!({ "ids": [written[0], nobody] })).is(200);
        let expected = json!({ "table": table, "action": "discard", "dry_run": false, "touched": 1, "more": false,
            "missing": [nobody] });
        assert_eq!(done, expected);
        assert_eq!(ids(&client.get(&dead).is(200)).len(), 4);

        // By a filter. What is replayed dies again: nobody takes it.
        let which = json!({ "filter": { "topic": "mail.*", "aggregate": "order/1" }, "dry_run": true });
        let would = client.post(&replay, &which).is(200);
        assert_eq!((&would["action"], &would["would_touch"][0]["count"]), (&json!("replay"), &json!(1)));
        client.tell(&format!("/api/v1/relays/{table}/pause")).is(200);
        let done = client.post(&replay, &json!({ "filter": { "topic": "mail.*" }, "limit": 3 })).is(200);
        assert_eq!((&done["touched"], &done["more"]), (&json!(3), &json!(true)));
        let done = client.post(&replay, &json!({ "all": true })).is(200);
        assert_eq!((&done["touched"], &done["more"]), (&json!(1), &json!(false)));
        assert_eq!(ids(&client.get(&dead).is(200)).len(), 0);
        client.tell(&format!("/api/v1/relays/{table}/resume")).is(200);
        wait_for("dead events", || (ids(&client.get(&dead).is(200)).len() == 4).then_some(()));
        let done = client.post(&discard, &json!({ "filter": { "since": "1h" } })).is(200);
        assert_eq!(done["touched"], 4);

        for (body, words) in [
            (json!({}), "give one of ids, filter and \"all\": true"),
            (json!({ "ids": [nobody], "all": true }), "give one of ids, filter and \"all\": true"),
            (json!({ "filter": {} }), "filter is empty"),
            (json!({ "filter": { "topic": null } }), "filter is empty"),
            (json!({ "filter": { "tpic": "a" } }), "filter.\"tpic\" is not known; do you mean topic?"),
            (json!({ "filter": { "topic": 1 } }), "filter.topic is not a text"),
            (json!({ "filter": "a" }), "filter is not an object"),
            (json!({ "ids": [] }), "give 1 to 100"),
            (json!({ "ids": vec![nobody; 101] }), "give 1 to 100"),
            (json!({ "ids": ["7"] }), "ids: "),
            (json!({ "ids": nobody }), "ids is not an array of texts"),
            (json!({ "all": "true" }), "all is not true or false"),
            (json!({ "all": true, "limit": 10_001 }), "not a number from 1 to 10000"),
            (json!({ "all": true, "dryrun": true }), "do you mean dry_run?"),
        ] {
            client.post(&replay, &body).fails(400, "bad_request", words);
            client.post(&discard, &body).fails(400, "bad_request", words);
        }
        client.post(&discard, &json!({ "all": true, "confirm": "other" })).fails(
            422,
            "unconfirmed",
            "confirm names",
        );
        daemon.stop();
    }
}

#[test]
fn op5_what_has_ended_is_purged() {
    for kind in DATABASES {
        let db = Db::new(kind);
        let (daemon, client) = start_narrow(&db);
        let table = db.table();
        let purge = format!("/api/v1/tables/{table}/purge");
        let events = format!("/api/v1/tables/{table}/events");
        bury(&client, &table, "mail.sent", 2);
        for n in 0..3 {
            client.post(&events, &json!({ "topic": "order.placed", "payload": n })).is(201);
        }
        let delivered = format!("{events}?status=delivered");
        wait_for("deliveries", || (ids(&client.get(&delivered).is(200)).len() == 3).then_some(()));
        let old =
            client.post(&purge, &json!({ "delivered": true, "dead": true, "older_than": "1h" })).is(200);
        assert_eq!(old["touched"], 0);
        let all = json!({ "delivered": true, "dead": true, "older_than": "0s", "dry_run": true });
        let would = client.post(&purge, &all).is(200);
        let counts: Vec<(&str, u64)> = would["would_touch"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| (part["kind"].as_str().unwrap(), part["count"].as_u64().unwrap()))
            .collect();
        assert_eq!(counts, [("delivered", 3), ("dead", 2)]);
        let some = client.post(&purge, &json!({ "delivered": true, "older_than": "0s", "limit": 2 })).is(200);
        assert_eq!((&some["touched"], &some["more"]), (&json!(2), &json!(true)));
        let rest =
            client.post(&purge, &json!({ "delivered": true, "dead": true, "older_than": "0s" })).is(200);
        assert_eq!((&rest["touched"], &rest["more"]), (&json!(3), &json!(false)));
        assert_eq!(ids(&client.get(&events).is(200)).len(), 0);
        for (body, words) in [
            (json!({ "older_than": "1h" }), "nothing is named to purge"),
            (json!({ "dead": true }), "older_than is missing"),
            (json!({ "dead": true, "older_than": "1 h" }), "not a duration"),
        ] {
            client.post(&purge, &body).fails(400, "bad_request", words);
        }
        daemon.stop();
    }
}

/// `127.1` is this machine, but does not look like it.
#[test]
fn op4_a_database_elsewhere_needs_the_tables_name_once_more() {
    let db = Db::new(Kind::Postgres);
    db.run(["migrate", "up"]).exits(0);
    let file = "[sinks.lines]\nkind = \"file\"\npath = \"lines.jsonl\"\n[[routes]]\ntopics = [\"order.*\"]\nsink = \"lines\"\n";
    db.dir.write("posthaste.toml", file);
    let url = db.url();
    let (before, rest) = url.split_once('@').unwrap();
    let (_, port) = rest.split_once(':').unwrap();
    let far = format!("{before}@127.1:{port}");
    let (daemon, client) =
        start_by(db.command(["relay"]).env("OUTBOX_DATABASE_URL", far).env("OUTBOX_HTTP_TOKEN", TOKEN));
    let table = db.table();
    let written = bury(&client, &table, "mail.sent", 3);
    let at = |noun: &str| format!("/api/v1/tables/{table}/{noun}");
    let words = "the database is on 127.1, not on the daemon's machine; repeat the table's name";
    for (path, body) in [
        ("dead/replay", json!({ "all": true })),
        ("dead/discard", json!({ "filter": { "topic": "mail.*" } })),
        ("purge", json!({ "dead": true, "older_than": "0s" })),
    ] {
        client.post(&at(path), &body).fails(422, "unconfirmed", words);
        let mut other = body.clone();
        other["confirm"] = json!("outbox");
        client.post(&at(path), &other).fails(422, "unconfirmed", "confirm names \"outbox\"");
        let mut dry = body.clone();
        dry["dry_run"] = json!(true);
        assert_eq!(client.post(&at(path), &dry).is(200)["would_touch"][0]["count"], 3);
    }
    assert_eq!(ids(&client.get(&at("dead")).is(200)).len(), 3, "something was changed");
    let one = json!({ "ids": [written[0]] });
    assert_eq!(client.post(&at("dead/discard"), &one).is(200)["touched"], 1);
    let rest = json!({ "dead": true, "older_than": "0s", "confirm": table });
    assert_eq!(client.post(&at("purge"), &rest).is(200)["touched"], 2);
    daemon.stop();
}
