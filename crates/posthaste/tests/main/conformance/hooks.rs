//! Producer hooks, and the trace that enqueue adds.
//!
//! Rows of the contract: EN5, EV6.

use std::sync::{Arc, Mutex};

use posthaste::event::EventRules;
use posthaste::produce::{HookError, TraceContext};
use posthaste::store::Filter;
use posthaste::{ErrorKind, Event, Hook};

use crate::harness::{Db, Kind, Setup, event, worker};

conformance_by_kind!(
    en5_before_write_changes_adds_and_suppresses,
    en5_a_failing_before_write_writes_nothing,
    en5_a_hook_that_fails_after_the_write_breaks_nothing,
    ev6_the_current_trace_is_added_where_the_caller_gave_none,
);

streams!(
    ; by_kind: en5_a_failing_before_write_writes_nothing,
    en5_a_hook_that_fails_after_the_write_breaks_nothing,
);

/// Writes down what it sees.
#[derive(Default)]
struct Witness {
    seen: Mutex<Vec<String>>,
}

impl Witness {
    fn see(&self, stage: &str, events: &[Event]) {
        let topics: Vec<&str> = events.iter().map(Event::topic).collect();
        self.seen.lock().unwrap().push(format!("{stage} {}", topics.join("+")));
    }
}

impl Hook for Witness {
    fn before_write(&self, events: Vec<Event>, _: &EventRules) -> Result<Vec<Event>, HookError> {
        self.see("before", &events);
        Ok(events)
    }
    fn after_write(&self, events: &[Event]) -> Result<(), HookError> {
        self.see("written", events);
        Ok(())
    }
    fn after_commit(&self, events: &[Event]) -> Result<(), HookError> {
        self.see("committed", events);
        Ok(())
    }
    fn after_rollback(&self, events: &[Event]) -> Result<(), HookError> {
        self.see("rolled back", events);
        Ok(())
    }
}

/// Drops topic `drop`, doubles topic `double`, marks everything.
struct Editor;

impl Hook for Editor {
    fn before_write(&self, events: Vec<Event>, _: &EventRules) -> Result<Vec<Event>, HookError> {
        let mut edited = Vec::new();
        for event in events.into_iter().filter(|event| event.topic() != "drop") {
            if event.topic() == "double" {
                edited.push(Event::json("copy", &0)?.build()?);
            }
            edited.push(event.to_builder().header("edited", "yes").build()?);
        }
        Ok(edited)
    }
}

async fn en5_before_write_changes_adds_and_suppresses(kind: Kind) {
    let witness = Arc::new(Witness::default());
    let hooks: Vec<Arc<dyn Hook>> = vec![Arc::new(Editor), witness.clone()];
    let db = Db::with(kind, Setup { hooks, ..Setup::default() }).await;
    let mut tx = db.begin().await;
    let answers = tx.enqueue_all(&db, [event("drop", 1), event("double", 2), event("a", 3)]).await.unwrap();
    let alone = tx.enqueue(&db, event("drop", 4)).await.unwrap();
    let again = tx.enqueue(&db, event("a", 5).id(answers[2].id)).await.unwrap();
    assert!(again.duplicate, "which no hook sees as written");
    tx.commit().await;
    assert_eq!(answers.iter().map(|a| a.suppressed).collect::<Vec<_>>(), [true, false, false]);
    assert!(alone.suppressed && !alone.duplicate && alone.sequence.is_none());
    let claimed = db.claim(&worker(), 10).await;
    let topics: Vec<&str> = claimed.iter().map(|c| c.event.topic()).collect();
    assert_eq!(topics, ["copy", "double", "a"]);
    assert_eq!((answers[1].id, answers[2].id), (claimed[1].event.id(), claimed[2].event.id()));
    assert_eq!(claimed[2].event.headers()["edited"], "yes");
    let mut expected = vec!["before copy+double+a", "written copy+double+a", "before ", "before a"];
    if kind == Kind::Memory {
        expected.push("committed copy+double+a");
    }
    assert_eq!(*witness.seen.lock().unwrap(), expected);
    db.drop_everything().await;
}

struct Refuser;

impl Hook for Refuser {
    fn before_write(&self, _: Vec<Event>, _: &EventRules) -> Result<Vec<Event>, HookError> {
        Err("not today".into())
    }
}

async fn en5_a_failing_before_write_writes_nothing(kind: Kind) {
    let db = Db::with(kind, Setup { hooks: vec![Arc::new(Refuser)], ..Setup::default() }).await;
    let mut tx = db.begin().await;
    let error = tx.enqueue(&db, event("a", 1)).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Hook);
    assert!(error.to_string().contains("not today"));
    tx.commit().await;
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 0);
    db.drop_everything().await;
}

struct Clumsy;

impl Hook for Clumsy {
    fn after_write(&self, events: &[Event]) -> Result<(), HookError> {
        if events[0].topic() == "panic" { panic!("clumsy") } else { Err("clumsy".into()) }
    }
    fn after_commit(&self, _: &[Event]) -> Result<(), HookError> {
        panic!("clumsy")
    }
    fn after_rollback(&self, _: &[Event]) -> Result<(), HookError> {
        Err("clumsy".into())
    }
}

async fn en5_a_hook_that_fails_after_the_write_breaks_nothing(kind: Kind) {
    let witness = Arc::new(Witness::default());
    let hooks: Vec<Arc<dyn Hook>> = vec![Arc::new(Clumsy), witness.clone()];
    let db = Db::with(kind, Setup { hooks, ..Setup::default() }).await;
    let mut tx = db.begin().await;
    tx.enqueue(&db, event("fail", 1)).await.unwrap();
    tx.enqueue(&db, event("panic", 2)).await.unwrap();
    tx.commit().await;
    let mut tx = db.begin().await;
    tx.enqueue(&db, event("gone", 3)).await.unwrap();
    tx.rollback().await;
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 2);
    let seen = witness.seen.lock().unwrap().clone();
    assert!(
        seen.contains(&"written fail".to_owned()) && seen.contains(&"written panic".to_owned()),
        "{seen:?}"
    );
    if kind == Kind::Memory {
        assert!(
            seen.contains(&"committed panic".to_owned()) && seen.contains(&"rolled back gone".to_owned()),
            "{seen:?}"
        );
    }
    db.drop_everything().await;
}

async fn ev6_the_current_trace_is_added_where_the_caller_gave_none(kind: Kind) {
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let trace = TraceContext { traceparent: traceparent.to_owned(), tracestate: "vendor=1".to_owned() };
    let db = Db::with(kind, Setup { trace: Some(trace), ..Setup::default() }).await;
    let own = "00-ffffffffffffffffffffffffffffffff-ffffffffffffffff-00";
    let mut tx = db.begin().await;
    tx.enqueue_all(&db, [event("a", 1), event("a", 2).header("traceparent", own)]).await.unwrap();
    tx.commit().await;
    let claimed = db.claim(&worker(), 10).await;
    let headers = |at: usize| claimed[at].event.headers();
    assert_eq!(
        (headers(0)["traceparent"].as_str(), headers(0)["tracestate"].as_str()),
        (traceparent, "vendor=1")
    );
    assert_eq!(headers(1)["traceparent"], own);
    assert!(!headers(1).contains_key("tracestate"), "another trace's state does not belong here");
    db.drop_everything().await;
}
