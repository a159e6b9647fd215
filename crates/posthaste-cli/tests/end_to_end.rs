//! From `psql` to JetStream, through servers that are killed on the way.
//!
//! Rows of the contract: OP1, SI1, SI3, RE1, SM1.

use std::collections::{BTreeMap, BTreeSet};

use async_nats::jetstream;
use futures_util::StreamExt as _;

use crate::daemon::{Daemon, wait_for};
use crate::private::Server;
use crate::support::Dir;

/// Orders of each stretch: while all is well, while the broker is away, and while the database dies.
const ORDERS: u64 = 60;

/// An order and its event in one transaction; again where nobody knows whether the one before was committed.
fn place(database: &Server, order: u64) {
    let customer = order % 5;
    let sql = format!(
        "BEGIN;
         WITH placed AS (INSERT INTO orders VALUES ({order}) ON CONFLICT DO NOTHING RETURNING id)
         INSERT INTO outbox (topic, payload, aggregate_type, aggregate_id, headers)
         SELECT 'order.placed.v1', json_build_object('order', id), 'customer', {customer}, '{{\"from\": \"psql\"}}' FROM placed;
         COMMIT;"
    );
    wait_for("committed order", || database.psql(&sql).ok());
}

/// One that nobody is to hear of.
fn think_better_of(database: &Server, order: u64) {
    let sql = format!(
        "BEGIN; INSERT INTO orders VALUES ({order});
         INSERT INTO outbox (topic, payload) VALUES ('order.placed.v1', '{{\"order\": {order}}}'); ROLLBACK;"
    );
    database.psql(&sql).unwrap();
}

/// Everything in the stream: by id, which order it is of, in the order of its arrival.
async fn arrived(broker: &Server) -> Vec<(String, u64, BTreeMap<String, String>)> {
    let context = jetstream::new(async_nats::connect(broker.url()).await.unwrap());
    let mut stream = context.get_stream("ORDERS").await.unwrap();
    let messages = stream.info().await.unwrap().state.messages;
    let consumer = stream.create_consumer(jetstream::consumer::pull::Config::default()).await.unwrap();
    let mut coming = consumer.messages().await.unwrap();
    let mut arrived = Vec::new();
    for _ in 0..messages {
        let message = coming.next().await.unwrap().unwrap();
        let payload: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
        let headers = message.headers.as_ref().unwrap();
        let headers: BTreeMap<String, String> =
            headers.iter().map(|(name, values)| (name.to_string(), values[0].to_string())).collect();
        assert_eq!(message.subject.as_str(), "orders.order.placed.v1");
        arrived.push((headers["Nats-Msg-Id"].clone(), payload["order"].as_u64().unwrap(), headers));
    }
    arrived
}

#[test]
fn re1_nothing_is_lost_from_psql_to_jetstream_while_both_servers_die() {
    relayed("queue");
}

#[test]
fn sm1_a_stream_keeps_its_order_from_psql_to_jetstream_while_both_servers_die() {
    relayed("stream");
}

fn relayed(mode: &str) {
    let (mut database, mut broker, dir) = (Server::postgres(), Server::nats(), Dir::new());
    database.psql("CREATE TABLE orders (id bigint PRIMARY KEY)").unwrap();
    dir.write(
        "posthaste.toml",
        format!(
            r#"
            [database]
            url = "{}"
            [sinks.broker]
            kind = "nats"
            url = "{}"
            stream = "ORDERS"
            create_stream = true
            subjects = "orders.>"
            [[routes]]
            sink = "broker"
            destination = "orders.{{topic}}"
            [http]
            enabled = false
            "#,
            database.url(),
            broker.url()
        ),
    );
    dir.run(["migrate", "up", "--mode", mode]).exits(0);
    let daemon = Daemon::start(&mut dir.command(["relay"]));
    let mut next = 0;
    let mut stretch = |database: &Server| {
        for _ in 0..ORDERS {
            place(database, next);
            next += 1;
        }
    };
    stretch(&database);
    think_better_of(&database, 1_000_000);
    broker.kill();
    stretch(&database);
    broker.start_again();
    database.kill();
    database.start_again();
    stretch(&database);
    think_better_of(&database, 2_000_000);

    wait_for("end of the backlog", || {
        let pending = "SELECT count(*) FROM outbox_status WHERE status <> 'delivered'";
        database.psql(pending).ok().filter(|pending| pending.trim() == "0")
    });
    daemon.stop();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let arrived = runtime.block_on(arrived(&broker));
    let ids: BTreeSet<&str> = arrived.iter().map(|(id, ..)| id.as_str()).collect();
    let written = database.psql("SELECT id FROM outbox").unwrap();
    assert_eq!(ids, written.lines().collect(), "every committed event, and no other");
    let orders: BTreeSet<u64> = arrived.iter().map(|(_, order, _)| *order).collect();
    assert_eq!(orders, (0..next).collect(), "every order, and none that was rolled back");
    for (id, order, headers) in &arrived {
        assert_eq!((headers["ce-id"].as_str(), headers["from"].as_str()), (id.as_str(), "psql"));
        assert_eq!(headers["ce-type"], "order.placed.v1", "{order}");
    }
    if mode == "stream" {
        // The broker knows ids for two minutes: what was sent twice is there once.
        for customer in 0..5 {
            let of: Vec<u64> =
                arrived.iter().map(|(_, order, _)| *order).filter(|order| order % 5 == customer).collect();
            assert!(of.is_sorted(), "of customer {customer}: {of:?}");
        }
    }
}
