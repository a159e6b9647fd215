use std::time::Duration;

use time::{Duration as Span, OffsetDateTime};

use super::*;

/// Our clock before and after, and theirs read in the middle of the way plus so much.
fn skewed(round_trip: Span, theirs_ahead: Span) -> Finding {
    let before = OffsetDateTime::UNIX_EPOCH + Span::days(20_000);
    clock(before, before + round_trip / 2 + theirs_ahead, before + round_trip, &Limits::default())
}

#[test]
fn op10_clocks_that_differ_are_told_by_how_much_and_which_way() {
    for (ahead, verdict, found) in [
        (Span::milliseconds(2), Verdict::Ok, "clock skew 2.0 ms"),
        (Span::milliseconds(-900), Verdict::Ok, "clock skew 900 ms"),
        (Span::seconds(3), Verdict::Warning, "the database's clock is 3s ahead of this machine's (± 0.5 ms)"),
        (Span::seconds(-3), Verdict::Warning, "the database's clock is 3s behind this machine's (± 0.5 ms)"),
        (
            Span::minutes(90),
            Verdict::Fault,
            "the database's clock is 1h 30m ahead of this machine's (± 0.5 ms)",
        ),
    ] {
        let finding = skewed(Span::milliseconds(1), ahead);
        assert_eq!((finding.verdict, finding.found.as_str()), (verdict, found));
        assert_eq!(finding.advice.is_some(), verdict != Verdict::Ok);
    }
}

/// Between the question and the answer the database may have looked at its clock at any time.
#[test]
fn op10_what_the_way_may_account_for_is_no_difference() {
    assert_eq!(skewed(Span::seconds(4), Span::seconds(2)).verdict, Verdict::Ok);
    assert_eq!(skewed(Span::seconds(4), Span::milliseconds(3100)).verdict, Verdict::Warning);
    assert_eq!(skewed(Span::ZERO, Span::seconds(2)).verdict, Verdict::Warning);
    // Our own clock was set back in between.
    assert_eq!(skewed(Span::seconds(-5), Span::ZERO).verdict, Verdict::Warning);
}

fn transaction(idle: bool, lasting: Option<u64>, transactions: Option<u64>) -> Pin {
    let state = if idle { "idle in transaction" } else { "active" };
    Pin {
        kind: PinKind::Transaction,
        holder: Client {
            name: "pid 4242".to_owned(),
            application: Some("report".to_owned()),
            state: Some(state.to_owned()),
            idle,
            lasting: lasting.map(Duration::from_secs),
        },
        transactions,
        remedy: "SELECT pg_terminate_backend(4242);".to_owned(),
    }
}

#[test]
fn op10_an_old_transaction_is_worse_if_nobody_works_in_it() {
    let verdict = |pin| judge(&pin, &Limits::default()).map(|finding| finding.verdict);
    assert_eq!(verdict(transaction(true, Some(299), Some(9_000_000))), None);
    assert_eq!(verdict(transaction(true, Some(300), Some(0))), Some(Verdict::Fault));
    assert_eq!(verdict(transaction(false, Some(300), Some(0))), Some(Verdict::Warning));
    assert_eq!(verdict(transaction(false, Some(300), Some(1_000_000))), Some(Verdict::Fault));
    // A role that may not see how old it is.
    assert_eq!(verdict(transaction(false, None, Some(10))), None);
    assert_eq!(verdict(transaction(false, None, Some(1_000_000))), Some(Verdict::Fault));

    let told = judge(&transaction(true, Some(11_520), Some(1_204)), &Limits::default());
    assert_eq!(
        told.map(|finding| finding.found).as_deref(),
        Some(
            "an old transaction holds back cleanup: pid 4242, \"idle in transaction\" for 3h 12m (app=report), 1204 transactions held back"
        )
    );
}

#[test]
fn op10_slots_and_standbys_are_judged_by_what_they_hold_back() {
    let judged = |kind, idle, held| {
        let pin = Pin { kind, transactions: Some(held), ..transaction(idle, None, None) };
        judge(&pin, &Limits::default()).map(|finding| finding.verdict)
    };
    assert_eq!(judged(PinKind::Slot, false, 999_999), None);
    assert_eq!(judged(PinKind::Slot, true, 1), Some(Verdict::Warning));
    assert_eq!(judged(PinKind::Slot, false, 1_000_000), Some(Verdict::Fault));
    assert_eq!(judged(PinKind::CatalogSlot, true, 1_000_000), Some(Verdict::Warning));
    assert_eq!(judged(PinKind::CatalogSlot, false, 1), None);
    assert_eq!(judged(PinKind::Standby, false, 1), None);
    assert_eq!(judged(PinKind::Standby, false, 1_000_000), Some(Verdict::Warning));
}

#[test]
fn op10_dead_rows_count_where_autovacuum_should_have_begun() {
    let vacuum = |dead, begins_at| Cleaning::Vacuum {
        table: "outbox".to_owned(),
        off: None,
        dead,
        live: 10,
        begins_at,
        last: None,
    };
    let limits = Limits::default();
    assert!(untidy(&vacuum(99_999, 50), &limits).is_none());
    assert!(untidy(&vacuum(100_000, 50_000), &limits).is_none());
    let told = untidy(&vacuum(100_000, 50), &limits).map(|finding| finding.found);
    assert_eq!(
        told.as_deref(),
        Some("table outbox has 100000 dead row versions beside 10 rows, and was never vacuumed")
    );
}
