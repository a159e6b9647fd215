#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use time::OffsetDateTime;
use tokio::sync::watch;
use uuid::Uuid;

use super::super::feed::{Fed, FedEvent, Heard, Said};
use super::*;
use crate::error::{Error, ErrorKind};
use crate::store::stream::{
    Beat, BlockedAggregate, Council, LaneLag, Page, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Reader,
    Row,
};
use crate::store::{Claim, Lanes, Verdict};

const HOLD: Hold = Hold { lane: 0, fence: 1 };

/// A stream of one lane in memory, in which nothing parked comes up again by itself.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Memory>>);

/// What is to be read, and what was said of it.
#[derive(Default)]
struct Memory {
    pages: VecDeque<Page>,
    parked: Vec<(i64, Wait)>,
    /// What is parked and comes up with each claim.
    due: Vec<Parked>,
    /// What was said of it.
    ends: Vec<(i64, ParkedVerdict)>,
    finished: Vec<u64>,
    released: Vec<Hold>,
    blocked: HashSet<String>,
    /// Whether something is still to be read that the owner before had under way.
    suspects: bool,
    /// Whether the next question is not answered.
    fails: bool,
    /// Whether nothing can be parked.
    cannot_park: bool,
    /// A page is on its way until this is closed.
    coming: Option<watch::Receiver<()>>,
    /// How often what was settled meanwhile was asked to be written.
    caught_up: usize,
}

impl Fake {
    fn said(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next page has the same events once more.
    fn page_again(&self, number: u64, fed: &Fed) {
        let row = |event: &FedEvent| Row {
            hold: HOLD,
            sequence: event.lease.sequence(),
            id: event.lease.id(),
            created_at: OffsetDateTime::UNIX_EPOCH,
            delayed: false,
            suspect: false,
            event: Ok(Arc::clone(&event.event)),
        };
        let rows = fed.events.iter().map(row).collect();
        self.said().pages.push_back(Page { number, rows, lost: Vec::new(), more: false });
    }

    /// An event of this aggregate that was dead and is replayed.
    fn replay(&self, sequence: i64, aggregate: &str) {
        let event = Event::json("t", &0).unwrap().aggregate("order", aggregate).build().unwrap();
        let mut said = self.said();
        said.blocked.insert(stored_key(&event, true));
        said.due.push(Parked {
            hold: HOLD,
            position: 1,
            sequence,
            id: event.id(),
            topic: "t".to_owned(),
            attempt: 1,
            spent: false,
            suspect: false,
            last_error: None,
            blocks: true,
            created_at: OffsetDateTime::UNIX_EPOCH,
            event: Ok(event),
        });
    }

    /// The rows of the last page that may have ended their owner's process.
    fn suspect(&self, rows: impl Fn(i64) -> bool) {
        let mut said = self.said();
        said.suspects = true;
        let page = said.pages.back_mut().unwrap();
        page.rows.iter_mut().for_each(|row| row.suspect = rows(row.sequence));
    }

    /// The next page has an event of each of these aggregates.
    fn page(&self, number: u64, aggregates: &[&str]) {
        let row = |(n, aggregate): (usize, &&str)| {
            let event = Event::json("t", &0).unwrap().aggregate("order", *aggregate).build().unwrap();
            Row {
                hold: HOLD,
                sequence: number as i64 * 100 + n as i64,
                id: event.id(),
                created_at: OffsetDateTime::UNIX_EPOCH,
                delayed: false,
                suspect: false,
                event: Ok(Arc::new(event)),
            }
        };
        let rows = aggregates.iter().enumerate().map(row).collect();
        self.said().pages.push_back(Page { number, rows, lost: Vec::new(), more: false });
    }
}

#[async_trait]
impl Reader for Fake {
    async fn open(&mut self, _: &[Hold]) -> Result<()> {
        Ok(())
    }

    fn has_suspects(&self, _: u16) -> bool {
        self.said().suspects
    }

    fn leave(&mut self, _: &[u16]) {}

    fn finished(&mut self, _: &[u16]) {}

    fn close(&mut self, _: &[u16]) {}

    fn coming(&self) -> Option<BoxFuture<'static, ()>> {
        let mut coming = self.said().coming.clone()?;
        Some(Box::pin(async move { while coming.changed().await.is_ok() {} }))
    }

    async fn read(&mut self, _: u32) -> Result<Page> {
        let mut said = self.said();
        let page = said.pages.pop_front().unwrap_or_default();
        said.suspects &= page.more;
        Ok(page)
    }

    async fn settle(&mut self, _: &[(Hold, i64)], pages: &[u64], _: Keep) -> Result<Vec<u16>> {
        self.said().finished.extend(pages);
        Ok(Vec::new())
    }

    async fn catch_up(&mut self) -> Result<Vec<u16>> {
        self.said().caught_up += 1;
        Ok(Vec::new())
    }

    async fn flush(&mut self) -> Result<Vec<u16>> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Stream for Fake {
    fn lanes(&self) -> Lanes {
        Lanes::new(1).unwrap()
    }

    async fn beat(&self, _: &Beat<'_>) -> Result<Council> {
        Ok(Council::default())
    }

    async fn take(&self, _: &Beat<'_>, _: &[u16], _: &[String]) -> Result<Vec<Hold>> {
        Ok(vec![HOLD])
    }

    async fn release(&self, holds: &[Hold]) -> Result<()> {
        self.said().released.extend(holds);
        Ok(())
    }

    async fn leave(&self, _: &WorkerId) -> Result<()> {
        Ok(())
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(self.clone())
    }

    async fn blocked_among(&self, keys: &[String]) -> Result<HashSet<String>> {
        let mut said = self.said();
        if std::mem::take(&mut said.fails) {
            return Err(Error::new(ErrorKind::Unreachable, "gone"));
        }
        Ok(keys.iter().filter(|key| said.blocked.contains(*key)).cloned().collect())
    }

    async fn park(&self, parks: &[Park]) -> Result<Vec<u16>> {
        let mut said = self.said();
        if said.cannot_park {
            return Err(Error::new(ErrorKind::Unreachable, "gone"));
        }
        said.parked.extend(parks.iter().map(|park| (park.sequence, park.wait)));
        said.blocked.extend(parks.iter().map(|park| park.key.clone()));
        Ok(Vec::new())
    }

    async fn claim_parked(&self, claim: &ParkedClaim<'_>) -> Result<Vec<Parked>> {
        let mut due = self.said().due.clone();
        due.retain(|parked| claim.holds.contains(&parked.hold));
        Ok(due)
    }

    async fn claimed(&self, _: &[Hold]) -> Result<Vec<(Hold, i64)>> {
        Ok(Vec::new())
    }

    async fn settle_parked(&self, ends: &[ParkedEnd], _: Keep) -> Result<Vec<u16>> {
        self.said().ends.extend(ends.iter().map(|end| (end.sequence, end.verdict.clone())));
        Ok(Vec::new())
    }

    async fn has_parked(&self, _: &[u16]) -> Result<bool> {
        Ok(true)
    }

    async fn blocked_by(&self, _: &[Uuid]) -> Result<Vec<BlockedAggregate>> {
        Ok(Vec::new())
    }

    async fn blocked(&self, _: u32) -> Result<Vec<BlockedAggregate>> {
        Ok(Vec::new())
    }

    async fn lag(&self, _: u32) -> Result<Vec<LaneLag>> {
        Ok(Vec::new())
    }
}

async fn feed(fake: &Fake) -> StreamFeed {
    let worker = WorkerId::new("w").unwrap();
    let signals = Signals { crew: Crew::new("t".into()).0, claimer: Arc::default(), keeper: Arc::default() };
    let settings = Settings { batch: 2, ..Settings::default() };
    let feed = StreamFeed::new("t".into(), Arc::new(fake.clone()), worker, &settings, signals);
    feed.open(&[HOLD]).await.unwrap();
    feed.lives_until(Instant::now() + Duration::from_secs(3600));
    feed.set_looked(true);
    feed
}

async fn claim(feed: &StreamFeed, limit: u32) -> Result<Fed> {
    feed.claim(&Claim::by(WorkerId::new("w").unwrap()).limit(limit)).await
}

fn sequences(fed: &Fed) -> Vec<i64> {
    fed.events.iter().map(|event| event.lease.sequence()).collect()
}

async fn settle(feed: &StreamFeed, fed: &Fed, verdict: Verdict) -> Heard {
    settle_all(feed, &[fed], verdict).await
}

async fn settle_all(feed: &StreamFeed, fed: &[&Fed], verdict: Verdict) -> Heard {
    let said = |event| Said { lease: event, verdict: &verdict, behind: false };
    let events = fed.iter().flat_map(|fed| &fed.events);
    let said: Vec<Said<'_>> = events.map(|event| said(&event.lease)).collect();
    feed.settle(&said, Keep::Delivered).await.unwrap()
}

#[tokio::test]
async fn sm1_a_page_that_was_kept_is_given_out_in_parts_and_done_when_all_of_it_is() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.page(1, &["a", "b", "c"]);
    fake.said().fails = true;
    assert!(claim(&feed, 3).await.is_err());
    // A breaker lets one event through.
    let first = claim(&feed, 1).await.unwrap();
    assert_eq!(sequences(&first), [100]);
    assert!(first.more);
    settle(&feed, &first, Verdict::Delivered).await;
    assert!(fake.said().finished.is_empty(), "two of it are not delivered");
    let rest = claim(&feed, 5).await.unwrap();
    assert_eq!(sequences(&rest), [101, 102]);
    settle(&feed, &rest, Verdict::Delivered).await;
    assert_eq!(fake.said().finished, [1]);
}

#[tokio::test]
async fn sm1_a_lane_is_given_up_although_some_of_it_was_read_and_not_given_out() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.page(1, &["a", "b"]);
    fake.said().fails = true;
    assert!(claim(&feed, 2).await.is_err());
    let first = claim(&feed, 1).await.unwrap();
    feed.leave(&[0]).await;
    assert!(feed.release(&[0]).await.unwrap().is_empty(), "one of it is under way");
    settle(&feed, &first, Verdict::Delivered).await;
    assert_eq!(feed.release(&[0]).await.unwrap(), [0]);
    assert_eq!(fake.said().parked, [(101, Wait::Behind)], "who takes it finds the other one");
    assert_eq!(fake.said().released, [HOLD]);
}

#[tokio::test]
async fn sm2_what_is_read_after_a_failure_is_parked_behind_what_is_under_way() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.page(1, &["a", "a", "b"]);
    let first = claim(&feed, 3).await.unwrap();
    assert_eq!(sequences(&first), [100, 101, 102]);
    first.events[0].turn.as_ref().unwrap().fail();
    fake.page(2, &["a", "b"]);
    let second = claim(&feed, 3).await.unwrap();
    assert_eq!(sequences(&second), [201], "of another aggregate");
    assert_eq!(
        fake.said().parked,
        [(100, Wait::Running), (101, Wait::Running), (200, Wait::Behind)],
        "each in its place"
    );
}

#[tokio::test]
async fn sm1_a_straggler_is_parked_after_so_many_events_however_quickly_they_went() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.page(1, &["slow"]);
    let slow = claim(&feed, 10).await.unwrap();
    assert_eq!(sequences(&slow), [100]);
    // Four times as many as fit into memory: two batches of two.
    for number in 2..=5 {
        fake.page(number, &["a", "b", "c", "d"]);
        let fed = claim(&feed, 10).await.unwrap();
        settle(&feed, &fed, Verdict::Delivered).await;
        assert!(fake.said().parked.is_empty());
    }
    assert!(!fake.said().finished.contains(&1));
    claim(&feed, 10).await.unwrap();
    assert_eq!(fake.said().parked, [(100, Wait::Running)]);
    assert!(fake.said().finished.contains(&1));
}

/// A lane was lost and taken again while its events were under way: of both copies one is this relay's, and they end at once.
#[tokio::test]
async fn sm1_the_end_of_a_new_copy_counts_beside_that_of_the_old_one() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.page(1, &["a", "b"]);
    let old = claim(&feed, 2).await.unwrap();
    feed.lose(&[0]).await;
    feed.open(&[HOLD]).await.unwrap();
    fake.page_again(2, &old);
    let new = claim(&feed, 2).await.unwrap();
    assert_eq!(sequences(&new), sequences(&old));
    let heard = settle_all(&feed, &[&old, &new], Verdict::Delivered).await;
    let leases = |fed: &Fed| fed.events.iter().map(|event| event.lease.clone()).collect::<HashSet<_>>();
    assert_eq!(heard.lost, leases(&old));
    assert!(heard.busy.is_empty());
}

/// A lane that is gone on with has no note any more of what was under way: who may go on with it has parked the suspects.
#[tokio::test]
async fn re11_a_lane_is_not_gone_on_with_until_its_suspects_are_parked() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.page(1, &["a", "b", "c"]);
    fake.suspect(|_| true);
    assert_eq!(feed.owned_last(), []);
    fake.said().cannot_park = true;
    assert!(claim(&feed, 3).await.is_err());
    assert_eq!(feed.owned_last(), [], "they were read, and nobody else knows of them");
    fake.said().cannot_park = false;
    claim(&feed, 2).await.unwrap();
    assert_eq!(feed.owned_last(), [], "one is left");
    claim(&feed, 2).await.unwrap();
    assert_eq!(fake.said().parked, [(100, Wait::Suspect), (101, Wait::Suspect), (102, Wait::Suspect)]);
    assert_eq!(feed.owned_last(), [HOLD]);
}

/// The owner before may have parked some of what it had under way: were that delivered before it is read, it would be read, and
/// delivered, once more.
#[tokio::test]
async fn re11_what_is_parked_waits_until_the_suspects_of_its_lane_are_read() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.replay(7, "a");
    fake.page(1, &["b"]);
    fake.suspect(|_| true);
    let fed = claim(&feed, 5).await.unwrap();
    assert_eq!(sequences(&fed), [0_i64; 0]);
    assert_eq!(fake.said().parked, [(100, Wait::Suspect)]);
    assert!(fed.more, "it is asked for at once");
    assert_eq!(sequences(&claim(&feed, 5).await.unwrap()), [7]);
}

/// What a late transaction wrote stays in order, whatever was under way when it committed and whichever part of it is suspect.
#[tokio::test]
async fn sm1_what_is_read_behind_a_suspect_does_not_go_before_it() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.page(1, &["a", "b"]);
    let first = claim(&feed, 2).await.unwrap();
    assert_eq!(sequences(&first), [100, 101]);
    fake.page(2, &["a", "a", "c"]);
    fake.suspect(|sequence| sequence == 200);
    assert_eq!(sequences(&claim(&feed, 3).await.unwrap()), [202]);
    let mut parked = vec![(100, Wait::Running), (200, Wait::Suspect), (201, Wait::Behind)];
    assert_eq!(fake.said().parked, parked, "each in its place");
    fake.page(3, &["a", "b"]);
    assert_eq!(sequences(&claim(&feed, 3).await.unwrap()), [301], "it is suspect still");
    parked.push((300, Wait::Behind));
    assert_eq!(fake.said().parked, parked);
}

/// An aggregate may always have something under way: what waits for that has its turn nevertheless.
#[tokio::test]
async fn sm2_what_is_replayed_comes_to_its_turn_in_a_busy_aggregate() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.page(1, &["a", "a"]);
    let busy = claim(&feed, 2).await.unwrap();
    assert_eq!(sequences(&busy), [100, 101]);
    fake.replay(7, "a");
    fake.page(2, &["a", "b"]);
    assert_eq!(
        sequences(&claim(&feed, 2).await.unwrap()),
        [201],
        "what is read now does not join the others"
    );
    assert!(matches!(fake.said().ends[..], [(7, ParkedVerdict::Released { .. })]), "it waits for them");
    let parked = [(100, Wait::Running), (101, Wait::Running), (200, Wait::Behind)];
    assert_eq!(fake.said().parked, parked, "each in its place");
    settle(&feed, &busy, Verdict::Delivered).await;
    drop(busy);
    assert_eq!(sequences(&claim(&feed, 2).await.unwrap()), [7]);
}

/// It was discarded before its turn came.
#[tokio::test]
async fn sm2_who_waits_for_nobody_goes_on_in_a_busy_aggregate() {
    let fake = Fake::default();
    let feed = feed(&fake).await;
    fake.page(1, &["a"]);
    let _busy = claim(&feed, 2).await.unwrap();
    fake.replay(7, "a");
    claim(&feed, 2).await.unwrap();
    fake.said().due.clear();
    fake.said().blocked.clear();
    fake.page(2, &["a"]);
    assert_eq!(sequences(&claim(&feed, 2).await.unwrap()), [200]);
    assert!(fake.said().parked.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sm1_events_end_while_a_page_is_on_its_way() {
    let fake = Fake::default();
    fake.page(1, &["a", "b"]);
    fake.page(2, &["c"]);
    let feed = feed(&fake).await;
    let first = claim(&feed, 10).await.unwrap();
    let (page, coming) = watch::channel(());
    fake.said().coming = Some(coming);
    let mut second = Box::pin(claim(&feed, 10));
    assert!(second.as_mut().now_or_never().is_none(), "there is no page yet");
    let settled = settle(&feed, &first, Verdict::Delivered).now_or_never();
    assert!(settled.is_some_and(|heard| heard.lost.is_empty()));
    assert_eq!(fake.said().finished, [1], "nobody has waited for the page");
    drop(page);
    assert_eq!(sequences(&second.await.unwrap()), [200]);
}

/// It would be waited for time and again, and nobody would ever give its connection up.
#[tokio::test(start_paused = true)]
async fn re11_a_page_that_never_comes_is_waited_for_where_its_connection_is_given_up() {
    let fake = Fake::default();
    fake.page(1, &["a"]);
    let feed = feed(&fake).await;
    let (_page, coming) = watch::channel(());
    fake.said().coming = Some(coming);
    let began = Instant::now();
    assert_eq!(sequences(&claim(&feed, 10).await.unwrap()), [100]);
    assert!(began.elapsed() < 2 * Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn sm1_what_has_ended_is_written_although_nobody_claims_any_more() {
    let fake = Fake::default();
    fake.page(1, &["a"]);
    let feed = feed(&fake).await;
    let fed = claim(&feed, 10).await.unwrap();
    assert!(feed.seen().await.is_none());
    assert_eq!(fake.said().caught_up, 0, "something is under way");
    settle(&feed, &fed, Verdict::Delivered).await;
    feed.seen().await;
    assert_eq!(fake.said().caught_up, 1);
}
