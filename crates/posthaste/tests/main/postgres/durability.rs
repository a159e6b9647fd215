//! Claims, extensions and settlements do not wait for the disk, and nothing else of their connection is changed.
//!
//! Rows of the contract: RE1, RE3.

use std::time::Duration;

use posthaste::store::{Claim, Extended, Keep, PostgresStore, Settlement, Store};
use sqlx::postgres::PgPoolOptions;

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, MINUTE, worker};

/// Notes of every write to the table how its transaction commits, at the moment it does.
const WITNESS: [&str; 3] = [
    "CREATE TABLE witness (operation text, waits text)",
    "CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS
     $$ BEGIN INSERT INTO witness VALUES (TG_OP, current_setting('synchronous_commit')); RETURN NULL; END $$",
    "CREATE CONSTRAINT TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON outbox
     DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION witness()",
];

/// What was seen since the last look.
async fn seen(db: &Db) -> Vec<String> {
    let seen = db.texts("SELECT operation || ' ' || waits FROM witness ORDER BY operation").await;
    db.execute("DELETE FROM witness").await.unwrap();
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re1_claims_and_settlements_do_not_wait_for_the_disk() {
    let db = Db::new(Kind::Postgres).await;
    for sql in WITNESS {
        db.execute(sql).await.unwrap();
    }
    let Handle::Postgres(sql) = db.handle() else { panic!("PostgreSQL only") };
    let options = sql.pool.connect_options().as_ref().clone().options([("synchronous_commit", "on")]);
    let single = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let store = PostgresStore::new(single.clone(), "outbox".parse().unwrap());
    let claim = Claim::by(worker()).lease(MINUTE);

    let event = |n: u64| crate::harness::event("a", n).build().unwrap();
    store.insert(&[event(1), event(2)]).await.unwrap();
    assert_eq!(seen(&db).await, ["INSERT on", "INSERT on"], "a producer's commit waits");

    let leases: Vec<_> = store.claim(&claim).await.unwrap().events.into_iter().map(|c| c.lease).collect();
    assert_eq!(seen(&db).await, ["UPDATE off", "UPDATE off"]);
    assert_eq!(store.extend(&leases, MINUTE).await.unwrap(), Extended::default());
    assert_eq!(seen(&db).await, ["UPDATE off", "UPDATE off"]);
    let [one, other] = <[_; 2]>::try_from(leases).unwrap();
    let settlements = [Settlement::delivered(one), Settlement::retry(other, Duration::ZERO, "once more")];
    assert_eq!(store.settle(&settlements, Keep::Delivered).await.unwrap().written, 2);
    assert_eq!(seen(&db).await, ["UPDATE off", "UPDATE off"]);

    store.insert(&[event(3)]).await.unwrap();
    let batch = store.claim(&claim.clone().after(None)).await.unwrap();
    let mut leases = batch.events.into_iter().map(|c| c.lease);
    let settlements =
        [Settlement::delivered(leases.next().unwrap()), Settlement::released(leases.next().unwrap())];
    seen(&db).await;
    assert_eq!(store.settle(&settlements, Keep::Nothing).await.unwrap().written, 2);
    assert_eq!(seen(&db).await, ["DELETE off", "UPDATE off"]);

    db.execute("INSERT INTO outbox (topic, payload, version) VALUES ('bad', '1', -1)").await.unwrap();
    seen(&db).await;
    let batch = store.claim(&claim.after(batch.mark)).await.unwrap();
    assert_eq!(batch.buried.len(), 1);
    assert_eq!(seen(&db).await, ["UPDATE off", "UPDATE off"], "the claim and the burial");

    let setting: String = sqlx::query_scalar("SHOW synchronous_commit").fetch_one(&single).await.unwrap();
    assert_eq!(setting, "on", "the session is as it was");
    store.insert(&[event(4)]).await.unwrap();
    assert_eq!(seen(&db).await, ["INSERT on"]);
    single.close().await;
    db.drop_everything().await;
}
