//! Several relays on one table, and one whose lease is taken from it.
//!
//! Rows of the contract: RE1, RE3, RE7, RE2.

use std::sync::Arc;
use std::time::Duration;

use posthaste::sink::Delivery;
use posthaste::store::{Claim, Filter, Page, Settlement, Status};
use posthaste::{Failure, Handler, Relay};
use tokio::sync::{Barrier, OnceCell, Semaphore, mpsc};

use crate::harness::log;
use crate::harness::{Db, Recorder, until, worker};

const SECOND: Duration = Duration::from_secs(1);

conformance_sql!(
    re1_two_relays_share_a_table,
    re3_a_lease_lost_in_mid_dispatch_changes_nothing_and_is_no_failure,
);

streams!(re1_two_relays_share_a_table);

/// Counts what it passes on; nobody gets past its first before the others have one, too.
fn counted(recorder: &Recorder, begin: &Arc<Barrier>) -> (impl Handler + use<>, Arc<Semaphore>) {
    let count = Arc::new(Semaphore::new(0));
    let begun = Arc::new(OnceCell::new());
    let (recorder, counter, begin) = (recorder.clone(), Arc::clone(&count), Arc::clone(begin));
    let handler = move |delivery: Delivery| {
        let (recorder, counter) = (recorder.clone(), Arc::clone(&counter));
        let (begin, begun) = (Arc::clone(&begin), Arc::clone(&begun));
        async move {
            begun.get_or_init(|| begin.wait()).await;
            counter.add_permits(1);
            recorder.handle(&delivery).await
        }
    };
    (handler, count)
}

async fn re1_two_relays_share_a_table(db: &Db) {
    const EVENTS: u64 = 20_000;
    let enqueue = async || {
        for part in 0..EVENTS / 1000 {
            db.enqueue_numbers("a", part * 1000..(part + 1) * 1000).await;
        }
    };
    let is_stream = db.is_stream().await;
    if !is_stream {
        enqueue().await;
    }
    let recorder = Recorder::default();
    let begin = Arc::new(Barrier::new(2));
    let (one, by_one) = counted(&recorder, &begin);
    let (other, by_other) = counted(&recorder, &begin);
    // As in two processes: each with connections of its own.
    let one = Relay::on(db.second_store().await).handler(one).build().unwrap();
    let other = Relay::on(db.second_store().await).handler(other).build().unwrap();
    one.start().await.unwrap();
    other.start().await.unwrap();
    if is_stream {
        // Who is there first has every lane, and gives none up of which something runs: that would wait for the other's first.
        let owners = "SELECT count(DISTINCT owner) FROM outbox_lanes";
        until("both own lanes", async || db.number(owners).await == 2).await;
        enqueue().await;
    }
    recorder.wait_for(EVENTS as usize).await;
    one.stop().await;
    other.stop().await;
    assert_eq!(db.count(Status::Delivered).await, EVENTS);
    assert_eq!((recorder.repeats(), recorder.overlaps()), (0, 0));
    let shares = (by_one.available_permits(), by_other.available_permits());
    assert!(shares.0 > 0 && shares.1 > 0, "one did all the work: {shares:?}");
}

async fn re3_a_lease_lost_in_mid_dispatch_changes_nothing_and_is_no_failure(db: &Db) {
    let id = db.enqueue_numbers("a", 0..1).await[0];
    let log = log::watch(id.to_string());
    let (entered, mut entering) = mpsc::unbounded_channel();
    let finish = Arc::new(Semaphore::new(0));
    let stalls = {
        let finish = Arc::clone(&finish);
        move |_: Delivery| {
            let (finish, entered) = (Arc::clone(&finish), entered.clone());
            async move {
                entered.send(()).unwrap();
                finish.acquire().await.unwrap().forget();
                Ok::<_, Failure>(())
            }
        }
    };
    let relay = db.relay().handler(stalls).start().await.unwrap();
    entering.recv().await.unwrap();
    // The worker stalls until its lease has ended; another takes the event, and delivers it.
    db.shift(120 * SECOND).await;
    let second = worker();
    let claimed = db.store().claim(&Claim::by(second)).await.unwrap().events;
    assert_eq!(claimed.len(), 1);
    let delivered = [Settlement::delivered(claimed[0].lease.clone())];
    assert_eq!(db.store().settle(&delivered, Default::default()).await.unwrap().written, 1);
    let before = db.store().get(id).await.unwrap().unwrap();
    finish.add_permits(1);
    let drained = relay.stop().await;
    assert_eq!(db.store().get(id).await.unwrap().unwrap(), before, "the late settlement changed something");
    assert_eq!((before.status, before.attempts), (Status::Delivered, 2));
    assert_eq!((drained.settled, drained.abandoned), (0, 0), "{drained:?}");
    assert_eq!(log.count("its lease was lost before it was settled"), 1, "{:?}", log.lines());
    let all = db.store().list(&Filter::all(), Page::first(10)).await.unwrap();
    assert!(all.iter().all(|record| record.last_error.is_none()));
}
