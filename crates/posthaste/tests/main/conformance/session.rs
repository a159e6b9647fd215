//! Sessions: locks that one at a time holds, and what becomes of the leases of those who are gone.
//!
//! Rows of the contract: RE2, RE6, RE7, HK1.

use std::sync::Arc;

use posthaste::ErrorKind;
use posthaste::store::{
    AttemptLimits, Claim, Filter, Keep, Lock, Session, Settlement, Status, Store, WorkerId, connect,
};

use crate::harness::{Db, Kind, MINUTE, until, worker};

conformance!(
    re7_one_session_holds_a_lock_at_a_time,
    re7_a_lock_taken_twice_is_let_go_once,
    re7_only_the_holder_lets_a_lock_go,
    re7_closing_a_session_frees_its_locks,
    re7_dropping_a_session_frees_its_locks,
    re7_two_who_try_at_once_do_not_both_hold_a_lock,
    hk1_the_purge_has_a_lock_of_its_own,
    re7_a_live_session_says_so,
);

conformance_sql!(re7_each_table_has_locks_of_its_own);

conformance_servers!(
    re7_a_session_that_the_server_ended_holds_nothing_and_says_so,
    re7_a_lock_spelled_otherwise_is_the_same,
    re2_leases_end_at_once_with_their_session,
    re2_leases_of_live_sessions_and_of_plain_workers_last,
    re2_only_leases_of_those_named_and_still_absent_end,
    re2_attempts_stay_counted_and_the_last_makes_it_dead,
    re2_only_the_first_rows_are_looked_at,
    re2_leases_end_beside_claims_and_settlements,
    re2_a_worker_may_open_its_next_session_before_the_last_is_gone,
    re4_a_dedicated_store_does_not_wait_for_the_pool,
);

conformance_serverless!(re2_where_nobody_can_tell_leases_last);

databases!(re6_where_nobody_is_told_there_is_nothing_to_listen_to, with_db: mysql MySql, mariadb MariaDb, sqlite Sqlite, memory Memory);

async fn session(db: &Db) -> Box<dyn Session> {
    db.store().session(&worker()).await.unwrap()
}

/// Ends the leases of all that are absent now; answers with how many.
async fn end_absent(store: &dyn Store) -> u64 {
    let absent = store.absent_workers().await.unwrap();
    store.end_leases_of(&absent).await.unwrap()
}

/// Lets the lease of SQLite's locks pass; elsewhere they have none.
async fn end_locks(db: &Db) {
    if db.kind() == Kind::Sqlite {
        db.execute("UPDATE posthaste_locks SET until = until - 10000000").await.unwrap();
    }
}

/// Tries until somebody else's lock is free, which a server sees a moment after the connection has gone.
async fn take(session: &mut Box<dyn Session>, lock: Lock) {
    until("the lock is free", async || session.try_lock(lock).await.unwrap()).await;
}

async fn re7_one_session_holds_a_lock_at_a_time(db: &Db) {
    let (mut one, mut other) = (session(db).await, session(db).await);
    assert!(one.try_lock(Lock::Leader).await.unwrap());
    assert!(!other.try_lock(Lock::Leader).await.unwrap());
    one.unlock(Lock::Leader).await.unwrap();
    assert!(other.try_lock(Lock::Leader).await.unwrap());
    assert!(!one.try_lock(Lock::Leader).await.unwrap());
}

async fn re7_a_lock_taken_twice_is_let_go_once(db: &Db) {
    let (mut one, mut other) = (session(db).await, session(db).await);
    for _ in 0..3 {
        assert!(one.try_lock(Lock::Leader).await.unwrap());
    }
    assert!(!other.try_lock(Lock::Leader).await.unwrap());
    one.unlock(Lock::Leader).await.unwrap();
    assert!(other.try_lock(Lock::Leader).await.unwrap());
}

async fn re7_only_the_holder_lets_a_lock_go(db: &Db) {
    let (mut one, mut other, mut third) = (session(db).await, session(db).await, session(db).await);
    assert!(one.try_lock(Lock::Leader).await.unwrap());
    other.unlock(Lock::Leader).await.unwrap();
    assert!(!third.try_lock(Lock::Leader).await.unwrap());
    one.unlock(Lock::Leader).await.unwrap();
    one.unlock(Lock::Leader).await.unwrap();
    assert!(third.try_lock(Lock::Leader).await.unwrap());
}

async fn re7_closing_a_session_frees_its_locks(db: &Db) {
    let (mut one, mut other) = (session(db).await, session(db).await);
    assert!(one.try_lock(Lock::Leader).await.unwrap());
    assert!(one.try_lock(Lock::Purge).await.unwrap());
    one.close().await;
    assert!(other.try_lock(Lock::Leader).await.unwrap(), "at once");
    assert!(other.try_lock(Lock::Purge).await.unwrap(), "at once");
}

async fn re7_dropping_a_session_frees_its_locks(db: &Db) {
    let (mut one, mut other) = (session(db).await, session(db).await);
    assert!(one.try_lock(Lock::Leader).await.unwrap());
    assert!(!other.try_lock(Lock::Leader).await.unwrap());
    drop(one);
    end_locks(db).await;
    take(&mut other, Lock::Leader).await;
    if db.kind() == Kind::Sqlite {
        // Renewed by trying again or by a check, a lock lasts past its lease; else another takes it.
        for _ in 0..3 {
            db.execute("UPDATE posthaste_locks SET until = until - 9000000").await.unwrap();
            other.check().await.unwrap();
            db.execute("UPDATE posthaste_locks SET until = until - 9000000").await.unwrap();
            assert!(other.try_lock(Lock::Leader).await.unwrap());
        }
        let mut third = session(db).await;
        assert!(!third.try_lock(Lock::Leader).await.unwrap());
        end_locks(db).await;
        assert!(third.try_lock(Lock::Leader).await.unwrap());
        assert_eq!(other.check().await.unwrap_err().kind(), &ErrorKind::Unreachable);
        assert!(!other.try_lock(Lock::Leader).await.unwrap());
        other.unlock(Lock::Leader).await.unwrap();
        third.check().await.unwrap();
    }
}

async fn re7_two_who_try_at_once_do_not_both_hold_a_lock(db: &Db) {
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let mut session = session(db).await;
        tries.spawn(async move { (session.try_lock(Lock::Leader).await.unwrap(), session) });
    }
    let held = tries.join_all().await;
    assert_eq!(held.iter().filter(|(held, _)| *held).count(), 1);
}

async fn hk1_the_purge_has_a_lock_of_its_own(db: &Db) {
    let (mut one, mut other) = (session(db).await, session(db).await);
    assert!(one.try_lock(Lock::Leader).await.unwrap());
    assert!(other.try_lock(Lock::Purge).await.unwrap());
    assert!(!other.try_lock(Lock::Leader).await.unwrap());
    assert!(!one.try_lock(Lock::Purge).await.unwrap());
    other.unlock(Lock::Purge).await.unwrap();
    assert!(one.try_lock(Lock::Purge).await.unwrap());
}

async fn re7_a_live_session_says_so(db: &Db) {
    let mut session = session(db).await;
    session.check().await.unwrap();
    assert!(session.try_lock(Lock::Leader).await.unwrap());
    assert!(session.try_lock(Lock::Purge).await.unwrap());
    session.check().await.unwrap();
    session.unlock(Lock::Leader).await.unwrap();
    session.check().await.unwrap();
}

async fn re7_each_table_has_locks_of_its_own(db: &Db) {
    let elsewhere = connect(&db.url(), "other_outbox").await.unwrap();
    elsewhere.migrate_up().await.unwrap();
    let mut here = session(db).await;
    let mut there = elsewhere.session(&worker()).await.unwrap();
    assert!(here.try_lock(Lock::Leader).await.unwrap());
    assert!(there.try_lock(Lock::Leader).await.unwrap());
    assert!(!session(db).await.try_lock(Lock::Leader).await.unwrap());
    there.close().await;
    elsewhere.close().await;
}

async fn re7_a_lock_spelled_otherwise_is_the_same(db: &Db) {
    let spelled = connect(&db.url(), &format!("{}.outbox", db.place())).await.unwrap();
    let mut one = session(db).await;
    let mut other = spelled.session(&worker()).await.unwrap();
    assert!(one.try_lock(Lock::Leader).await.unwrap());
    assert!(!other.try_lock(Lock::Leader).await.unwrap());
    let id = db.enqueue_numbers("a", 0..1).await[0];
    db.claim(one.worker(), 1).await;
    assert_eq!(end_absent(&*spelled).await, 0, "its worker is known here too");
    one.close().await;
    assert_eq!(end_absent(&*spelled).await, 1);
    assert_eq!(db.store().get(id).await.unwrap().unwrap().status, Status::Pending);
    other.close().await;
    spelled.close().await;
}

async fn re7_a_session_that_the_server_ended_holds_nothing_and_says_so(db: &Db) {
    let (mut one, mut other) = (session(db).await, session(db).await);
    assert!(one.try_lock(Lock::Leader).await.unwrap());
    db.kill_session(one.worker()).await;
    take(&mut other, Lock::Leader).await;
    let error = one.check().await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unreachable, "{error}");
    let error = one.try_lock(Lock::Leader).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unreachable, "{error}");
    one.close().await;
    other.check().await.unwrap();
}

async fn re2_leases_end_at_once_with_their_session(db: &Db) {
    for end in ["close", "drop", "kill"] {
        let ids = db.enqueue_numbers("a", 0..3).await;
        let session = session(db).await;
        let name = session.worker().clone();
        assert_eq!(db.claim(&name, 3).await.len(), 3);
        assert!(db.claim(&worker(), 3).await.is_empty());
        assert_eq!(end_absent(db.store()).await, 0, "it lives");
        match end {
            "close" => session.close().await,
            "drop" => drop(session),
            _ => db.kill_session(&name).await,
        }
        let mut ended = 0;
        until("its leases end", async || {
            ended += end_absent(db.store()).await;
            ended > 0
        })
        .await;
        assert_eq!(ended, 3, "{end}");
        assert_eq!(end_absent(db.store()).await, 0, "once");
        let claimed = db.claim(&worker(), 10).await;
        assert_eq!(claimed.iter().map(|c| c.event.id()).collect::<Vec<_>>(), ids, "{end}");
        assert!(claimed.iter().all(|c| c.lease.attempt() == 2));
    }
}

async fn re2_leases_of_live_sessions_and_of_plain_workers_last(db: &Db) {
    let ids = db.enqueue_numbers("a", 0..3).await;
    let (one, other) = (session(db).await, session(db).await);
    db.claim(&worker(), 1).await;
    db.claim(one.worker(), 1).await;
    db.claim(other.worker(), 1).await;
    one.close().await;
    assert_eq!(end_absent(db.store()).await, 1);
    let mut found = Vec::new();
    for id in ids {
        found.push(db.store().get(id).await.unwrap().unwrap().status);
    }
    assert_eq!(found, [Status::Processing, Status::Pending, Status::Processing]);
}

/// One whose session alone broke is back before anybody has ended its leases.
async fn re2_only_leases_of_those_named_and_still_absent_end(db: &Db) {
    db.enqueue_numbers("a", 0..4).await;
    let names = [worker(), worker()];
    let mut absent = Vec::new();
    for name in &names {
        let session = db.store().session(name).await.unwrap();
        absent.push(session.worker().to_string());
        for _ in 0..2 {
            db.claim(session.worker(), 1).await;
        }
        session.close().await;
    }
    let mut found = db.store().absent_workers().await.unwrap();
    found.sort();
    absent.sort();
    assert_eq!(found, absent, "each once");
    let back = db.store().session(&names[0]).await.unwrap();
    assert!(absent.contains(&back.worker().to_string()), "under its name");
    assert_eq!(db.store().absent_workers().await.unwrap().len(), 1);
    assert_eq!(db.store().end_leases_of(&[back.worker().to_string()]).await.unwrap(), 0, "it is back");
    assert_eq!(db.store().end_leases_of(&[]).await.unwrap(), 0);
    assert_eq!(db.store().end_leases_of(&["nobody~".to_owned()]).await.unwrap(), 0);
    assert_eq!(db.store().end_leases_of(&absent).await.unwrap(), 2, "the other's");
    assert_eq!(db.claim(&worker(), 10).await.len(), 2);
}

async fn re2_attempts_stay_counted_and_the_last_makes_it_dead(db: &Db) {
    let id = db.enqueue_numbers("a", 0..1).await[0];
    for attempt in 1..=2 {
        let session = session(db).await;
        assert_eq!(db.claim(session.worker(), 1).await[0].lease.attempt(), attempt);
        session.close().await;
        assert_eq!(end_absent(db.store()).await, 1);
        let record = db.store().get(id).await.unwrap().unwrap();
        assert_eq!((record.status, record.attempts), (Status::Pending, attempt));
    }
    let claim = Claim::by(worker()).lease(MINUTE).attempts(AttemptLimits::new(2));
    let batch = db.store().claim(&claim).await.unwrap();
    assert!(batch.events.is_empty());
    assert_eq!(batch.buried.iter().map(|b| b.id).collect::<Vec<_>>(), [id]);
    assert!(batch.buried[0].reason.contains("crashed"), "{}", batch.buried[0].reason);
    assert_eq!(db.store().get(id).await.unwrap().unwrap().status, Status::Dead);
}

async fn re2_only_the_first_rows_are_looked_at(db: &Db) {
    let session = session(db).await;
    let mut left = 10_500;
    while left > 0 {
        let some = left.min(1000);
        db.enqueue_numbers("a", 0..some).await;
        left -= some;
    }
    assert_eq!(db.claim(session.worker(), 10_500).await.len(), 10_500);
    session.close().await;
    assert_eq!(end_absent(db.store()).await, 10_000);
    assert_eq!(db.claim(&worker(), 20_000).await.len(), 10_000);
}

/// Claims and delivers until nothing is left; answers with how many leases were lost meanwhile.
async fn deliver(store: Arc<dyn Store>, worker: WorkerId) -> usize {
    let mut lost = 0;
    while store.stats(1).await.unwrap().oldest_age.is_some() {
        let batch = store.claim(&Claim::by(worker.clone()).limit(40).lease(MINUTE)).await.unwrap();
        let mut open: Vec<_> = batch.events.into_iter().map(|c| Settlement::delivered(c.lease)).collect();
        while !open.is_empty() {
            let settled = store.settle(&open, Keep::Delivered).await.unwrap();
            lost += settled.lost.len();
            open.retain(|settlement| settled.busy.contains(&settlement.lease.id()));
        }
    }
    lost
}

async fn re2_leases_end_beside_claims_and_settlements(db: &Db) {
    db.enqueue_numbers("a", 0..1000).await;
    db.enqueue_numbers("a", 0..1000).await;
    let (live, gone, gone_too) = (session(db).await, session(db).await, session(db).await);
    let names = [&live, &gone, &gone_too].map(|session| session.worker().clone());
    gone.close().await;
    gone_too.close().await;
    let [live_one, gone_one, gone_other] = names.map(|name| tokio::spawn(deliver(db.shared_store(), name)));
    let store = db.shared_store();
    let ending = tokio::spawn(async move {
        let mut ended = 0;
        while store.stats(1).await.unwrap().oldest_age.is_some() {
            ended += end_absent(&*store).await;
        }
        ended
    });
    assert_eq!(live_one.await.unwrap(), 0, "its session lives");
    let lost = gone_one.await.unwrap() + gone_other.await.unwrap();
    println!("{} leases ended, {lost} of them found lost", ending.await.unwrap());
    let delivered = Filter::status(Status::Delivered);
    assert_eq!(db.store().count(&delivered, 10_000).await.unwrap().n, 2000);
    drop(live);
}

async fn re2_a_worker_may_open_its_next_session_before_the_last_is_gone(db: &Db) {
    db.enqueue_numbers("a", 0..1).await;
    let name = worker();
    let last = db.store().session(&name).await.unwrap();
    let mut next = db.store().session(&name).await.unwrap();
    next.check().await.unwrap();
    db.claim(next.worker(), 1).await;
    last.close().await;
    assert_eq!(end_absent(db.store()).await, 0, "the next session lives");
    next.check().await.unwrap();
}

async fn re4_a_dedicated_store_does_not_wait_for_the_pool(db: &Db) {
    db.enqueue_numbers("a", 0..2).await;
    let dedicated = db.store().dedicated();
    assert_eq!(dedicated.dialect(), db.store().dialect());
    let mut busy = Vec::new();
    for _ in 0..20 {
        busy.push(db.begin().await);
    }
    assert_eq!(dedicated.claim(&Claim::by(worker()).limit(1)).await.unwrap().events.len(), 1);
    dedicated.close().await;
    for transaction in busy {
        transaction.rollback().await;
    }
    assert_eq!(db.claim(&worker(), 10).await.len(), 1, "the pool is as open as before");
}

async fn re2_where_nobody_can_tell_leases_last(db: &Db) {
    db.enqueue_numbers("a", 0..1).await;
    let name = worker();
    let session = db.store().session(&name).await.unwrap();
    assert_eq!(session.worker(), &name, "nobody is known to be present");
    db.claim(session.worker(), 1).await;
    session.close().await;
    assert_eq!(end_absent(db.store()).await, 0);
    assert!(db.claim(&worker(), 1).await.is_empty());
}

async fn re6_where_nobody_is_told_there_is_nothing_to_listen_to(db: &Db) {
    db.store().notify().await.unwrap();
    assert!(db.store().listen().await.unwrap().is_none());
}
