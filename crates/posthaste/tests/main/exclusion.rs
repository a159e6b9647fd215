//! No two workers ever hold the same row at once, shown by the intervals in which they held it.
//!
//! Rows of the contract: RE1, RE3.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste::store::{AttemptLimits, Claim, Filter, Keep, Settlement, Stats, Status, Store, WorkerId};
use uuid::Uuid;

use crate::harness::{Db, Kind, MINUTE};

const EVENTS: u64 = 4000;
const WORKERS: usize = 4;

/// When a worker came to hold an event and when it let go, by a counter that all workers share.
struct Held {
    id: Uuid,
    from: u64,
    until: u64,
}

async fn work(store: Arc<dyn Store>, clock: Arc<AtomicU64>, seed: u64) -> Vec<Held> {
    let me = WorkerId::unique();
    let mut held = Vec::new();
    let mut empty = 0;
    let mut dice = seed;
    while empty < 3 {
        // Sizes and verdicts vary, so that the workers cross each other's path in the index.
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let limit = 1 + (dice >> 33) % 60;
        let batch = store.claim(&Claim::by(me.clone()).limit(limit as u32).lease(MINUTE)).await.unwrap();
        let from = clock.fetch_add(1, Ordering::SeqCst);
        if batch.events.is_empty() {
            empty += 1;
            tokio::task::yield_now().await;
            continue;
        }
        empty = 0;
        let ids: Vec<Uuid> = batch.events.iter().map(|claimed| claimed.event.id()).collect();
        let settlements: Vec<Settlement> = batch
            .events
            .into_iter()
            .enumerate()
            .map(|(at, claimed)| match (dice >> 20).wrapping_add(at as u64) % 5 {
                0 if claimed.lease.attempt() < 5 => {
                    Settlement::retry(claimed.lease, Default::default(), "again")
                }
                1 if claimed.lease.attempt() < 5 => Settlement::released(claimed.lease),
                _ => Settlement::delivered(claimed.lease),
            })
            .collect();
        let until = clock.fetch_add(1, Ordering::SeqCst);
        let mut open = settlements;
        while !open.is_empty() {
            let settled = store.settle(&open, Keep::Delivered).await.unwrap();
            assert!(settled.lost.is_empty(), "a lease was lost though none ended");
            open.retain(|settlement| settled.busy.contains(&settlement.lease.id()));
        }
        held.extend(ids.into_iter().map(|id| Held { id, from, until }));
    }
    held
}

conformance_by_kind!(
    re1_workers_never_hold_the_same_row_at_once,
    re3_a_delivery_is_written_once_though_leases_end_all_the_time,
);

async fn re1_workers_never_hold_the_same_row_at_once(kind: Kind) {
    let db = Db::new(kind).await;
    db.enqueue_numbers("a", 0..EVENTS).await;
    let clock = Arc::new(AtomicU64::new(0));
    let mut workers = Vec::new();
    for seed in 0..WORKERS {
        workers.push(tokio::spawn(work(db.second_store().await, Arc::clone(&clock), seed as u64)));
    }
    let mut by_event: HashMap<Uuid, Vec<(u64, u64)>> = HashMap::new();
    let mut did_work = 0;
    for worker in workers {
        let held = worker.await.unwrap();
        did_work += usize::from(!held.is_empty());
        for Held { id, from, until } in held {
            by_event.entry(id).or_default().push((from, until));
        }
    }
    assert_eq!(by_event.len() as u64, EVENTS, "every event was held");
    for (id, mut intervals) in by_event {
        intervals.sort();
        // A lease is held from within its claim (before `from`) to within its settlement (after `until`).
        assert!(intervals.is_sorted_by(|a, b| a.1 < b.0), "{id} was held twice at once: {intervals:?}");
    }
    assert!(did_work > 1, "only one worker found anything");
    assert_eq!(db.store().count(&Filter::status(Status::Delivered), 10_000).await.unwrap().n, EVENTS);
    db.drop_everything().await;
}

/// Leases end while events are under way, others take over, and both settle: one settlement counts.
async fn re3_a_delivery_is_written_once_though_leases_end_all_the_time(kind: Kind) {
    const EVENTS: u64 = 300;
    let db = Db::new(kind).await;
    db.enqueue_numbers("a", 0..EVENTS).await;
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let store = db.second_store().await;
        workers.push(tokio::spawn(async move {
            let me = WorkerId::unique();
            let (mut written, mut lost) = (0, 0);
            loop {
                let claim = Claim::by(me.clone()).limit(40).lease(Duration::from_millis(1));
                let limits = AttemptLimits::new(1_000_000);
                let batch = store.claim(&claim.attempts(limits)).await.unwrap();
                if batch.events.is_empty() {
                    if store.stats(1).await.unwrap() == Stats::default() {
                        return (written, lost);
                    }
                    continue;
                }
                // A claim of another's in between, as often as not: its leases have ended by now.
                store.now().await.unwrap();
                let leases: Vec<_> = batch.events.into_iter().map(|claimed| claimed.lease).collect();
                store.extend(&leases, Duration::from_millis(1)).await.unwrap();
                let batch: Vec<_> = leases.into_iter().map(Settlement::delivered).collect();
                let settled = store.settle(&batch, Keep::Delivered).await.unwrap();
                written += settled.written;
                lost += settled.lost.len();
            }
        }));
    }
    let (mut written, mut lost) = (0, 0);
    for worker in workers {
        let (w, l) = worker.await.unwrap();
        written += w;
        lost += l;
    }
    println!("{written} settlements counted, {lost} came too late");
    assert_eq!(written as u64, EVENTS);
    assert_eq!(db.store().count(&Filter::status(Status::Delivered), 10_000).await.unwrap().n, EVENTS);
    db.drop_everything().await;
}
