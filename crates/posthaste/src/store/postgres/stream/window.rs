//! Reading a stream: the window between two snapshots.
//!
//! A lane was read up to a snapshot, its *base*. What is new is what the server shows now and the base did not: rows
//! of transactions that had not ended then. They are read in the order of `seq`, which for an aggregate whose writers
//! conflict on a row is the order of their commits, in pages; a window that does not fit one page has its end fixed as
//! its *target*, so that its pages are parts of one whole. Nothing is waited for: a transaction that is open for long
//! shows up in the window in which it ends.
//!
//! Nothing is written to a row. Before a page is given out, its lanes get a note of it in one statement, which also
//! says how far everything before it is done; it counts the steps of each lane, so that an owner whose memory and
//! database differ finds out before it delivers anything.
//!
//! `base_seq` only makes reading cheap: rows above it are found by `seq`, the few below it by `xid`.
//!
//! # A server that crashes
//!
//! Places are written, and events parked, by commits that do not wait for the disk, and a reader that finds nothing
//! moves its base without any write. A server that crashes, or a standby that is promoted for it, may know less than
//! the reader remembers: the parking of an event may be lost, and numbers of lost transactions are given out again,
//! to transactions that the base says were read. So what a reader remembers is worth as much as the one connection by
//! which it has read and written all of it, its own:
//!
//! - A server that ends breaks the connection. A reader without one is *cut off*: it forgets everything, answers that its lanes are
//!   lost, and they are taken again, under another fence, and loaded. Nothing that it remembered is written by
//!   another connection: not even a page that was finished meanwhile, as the number of that page is forgotten.
//! - What is loaded is true, whatever was lost. The server's log ends somewhere, and nothing after that is there. A place
//!   is written after the answer to the parking of whatever it passes over, by whichever connections: if the place is there,
//!   so is what is parked. And it is written by a transaction whose number was given out after its base was seen, and is
//!   not below any that the base says had ended: if the place is there, none of those is given out again.
//! - Who stops waiting for an answer, or gets none, has lost the connection, too: nobody knows whether the server is there.
//!   An error that the server answers with changes nothing.
//! - A pooler in between may keep the reader's connection and go on with another server's. Each write says in which *run* of the
//!   server its lane was loaded, and is refused in another.

mod ahead;
mod note;
mod open;
mod page;
mod place;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgPool};
use tokio::time::Instant;

use super::super::errors::classify;
use crate::error::{Error, ErrorKind, Result};
use crate::store::errors::in_time;
use crate::store::statement::Statement;
use crate::store::stream::{Hold, Page, Reader, Seen};
use crate::store::{Keep, TableName};
use ahead::{Ahead, Asked, Link};
use open::Patience;
use page::{Answer, Question};
use place::{Lane, Part, Place, UnderWay};

/// How often lanes in which nothing happens are written down.
const REFRESH: Duration = Duration::from_secs(10);

/// How often lanes are brought level with what was written to others.
const TOP: Duration = Duration::from_secs(1);

/// Since when the server has been running, in microseconds.
pub(super) const RUN: &str = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";

#[derive(Debug)]
pub(in super::super) struct Statements {
    page: page::Statements,
    note: Statement,
    open: open::Statements,
}

impl Statements {
    pub(in super::super) fn new(table: &TableName) -> Self {
        Self {
            page: page::Statements::new(table),
            note: note::statement(table),
            open: open::Statements::new(table),
        }
    }
}

pub(super) struct WindowReader {
    pool: PgPool,
    table: TableName,
    statements: Arc<super::super::Statements>,
    /// By which everything of `lanes` and `pages` is known. Whoever uses it takes it, and puts it back.
    link: Link,
    /// What was read before its turn.
    ahead: Option<Ahead>,
    lanes: BTreeMap<u16, Lane>,
    pages: VecDeque<UnderWay>,
    next_page: u64,
    /// The longest page that was asked for.
    most: u32,
    /// Lanes that it reads no more, until somebody has heard of it.
    lost: BTreeSet<u16>,
    refreshed: Instant,
    topped: Instant,
    patience: Patience,
}

impl WindowReader {
    pub(super) fn new(pool: PgPool, table: TableName, statements: Arc<super::super::Statements>) -> Self {
        Self {
            pool,
            table,
            statements,
            link: Link::CutOff,
            ahead: None,
            lanes: BTreeMap::new(),
            pages: VecDeque::new(),
            next_page: 1,
            most: 1,
            lost: BTreeSet::new(),
            refreshed: Instant::now(),
            topped: Instant::now(),
            patience: Patience::default(),
        }
    }

    fn error(&self, error: sqlx::Error) -> Error {
        classify(error, &self.table)
    }

    /// Forgets everything if the connection by which it is known is gone.
    fn check(&mut self) {
        if self.link.is_cut_off() {
            self.lost.extend(self.lanes.keys());
            self.lanes.clear();
            self.pages.clear();
            self.ahead = None;
        }
    }

    /// The connection by which its lanes are known, once it has answered what it was asked for ahead. Who does not put it back
    /// is cut off.
    async fn take_connection(&mut self) -> Result<PgConnection> {
        match std::mem::take(&mut self.link) {
            Link::Free(connection) => Ok(connection),
            Link::Asked(asked) => {
                let (connection, answered) = asked.answered().await.map_err(|e| self.error(e))?;
                match answered.map_err(|e| self.error(e)) {
                    Ok(ahead) => self.ahead = Some(ahead),
                    // What the server refused is refused again in its turn.
                    Err(error) if is_answer(&error) => {}
                    Err(error) => return Err(error),
                }
                Ok(connection)
            }
            Link::CutOff => {
                let message =
                    format!("table {}: the connection that its lanes are read by is gone", self.table);
                Err(Error::new(ErrorKind::Unreachable, message))
            }
        }
    }

    /// Keeps the connection unless it failed to do what it was used for.
    fn put_back(&mut self, connection: PgConnection, failure: Option<&Error>) {
        if failure.is_none_or(is_answer) {
            self.link = Link::Free(connection);
        }
    }

    fn lose(&mut self, lanes: &[u16]) {
        self.lanes.retain(|lane, _| !lanes.contains(lane));
        self.forget(lanes);
        self.lost.extend(lanes);
    }

    /// What nobody has heard of yet.
    fn take_lost(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.lost).into_iter().collect()
    }

    /// What to read next: the lanes that are furthest behind and at the same place. Where others are further, only as far
    /// as those are, after which all are read together.
    fn next_question(&self, limit: u32) -> Option<Question> {
        let order = |a: &&Lane, b: &&Lane| {
            a.read.base.order(&b.read.base).then(b.read.is_whole().cmp(&a.read.is_whole()))
        };
        let first = self.lanes.values().filter(|lane| !lane.left).min_by(order)?;
        let suspects = first.suspects.clone();
        let together: Vec<&Lane> = self
            .lanes
            .values()
            .filter(|lane| !lane.left && lane.read.is_at(&first.read) && lane.suspects == suspects)
            .collect();
        let holds = together.iter().map(|lane| lane.hold).collect();
        let lowest = together.iter().min_by_key(|lane| lane.read.base_seq)?;
        let place = Arc::clone(&lowest.read);
        let until = match &place.part {
            Part::Window { target, .. } => Some(target.clone()),
            Part::Recovery { .. } => None,
            Part::Nothing => match suspects {
                Some((noted, _)) if noted.order(&place.base).is_gt() => Some(noted),
                _ => {
                    let others = self
                        .lanes
                        .values()
                        .filter(|lane| !lane.left && lane.read.base.order(&place.base).is_gt());
                    others.map(|lane| &lane.read.base).min_by(|a, b| a.order(b)).cloned()
                }
            },
        };
        Some(Question { holds, place, until, limit, top: false })
    }

    /// These lanes have no part in what is under way.
    fn forget(&mut self, lanes: &[u16]) {
        for page in &mut self.pages {
            page.lanes.retain(|lane| !lanes.contains(lane));
            page.finished |= page.lanes.is_empty();
        }
        self.advance();
    }

    /// Moves `done` over the pages that are finished, up to the first that is not.
    fn advance(&mut self) {
        while self.pages.front().is_some_and(|page| page.finished) {
            let Some(page) = self.pages.pop_front() else { return };
            for lane in &page.lanes {
                if let Some(lane) = self.lanes.get_mut(lane)
                    && lane.done.is_at(&page.before)
                {
                    lane.done = Arc::clone(&page.place);
                }
            }
        }
    }

    /// Writes how far these lanes are.
    async fn write_all(&mut self, lanes: &[u16]) -> Result<()> {
        if lanes.is_empty() {
            return Ok(());
        }
        let mut connection = self.take_connection().await?;
        let written = self.write(&mut connection, lanes, None).await;
        self.put_back(connection, written.as_ref().err());
        self.lose(&written?);
        Ok(())
    }

    /// Lanes in which nothing happens are written down now and then: whoever looks at the table sees how far they are.
    async fn refresh(&mut self) -> Result<()> {
        if self.refreshed.elapsed() < REFRESH {
            return Ok(());
        }
        self.refreshed = Instant::now();
        let behind = self.lanes.values().filter(|lane| !lane.written.is_at(&lane.done));
        let behind: Vec<u16> = behind.map(|lane| lane.hold.lane).collect();
        self.write_all(&behind).await
    }

    /// A page, noted before anybody gets it, and the place after it; the connection comes with it.
    async fn noted_page(&mut self, question: &mut Question) -> Result<(PgConnection, Answer, Place)> {
        let (mut connection, answered) = self.ask(question).await?;
        let noted = match answered {
            Ok(answer) => self.note(&mut connection, question, &answer).await.map(|place| (answer, place)),
            Err(error) => Err(self.error(error)),
        };
        match noted {
            Ok((answer, place)) => Ok((connection, answer, place)),
            Err(error) => {
                self.put_back(connection, Some(&error));
                Err(error)
            }
        }
    }

    /// Asks, unless that was done ahead: then the question is in the end the one that was answered.
    async fn ask(&mut self, question: &mut Question) -> Result<(PgConnection, sqlx::Result<Answer>)> {
        let mut connection = self.take_connection().await?;
        if let Some(ahead) = self.ahead.take().filter(|ahead| ahead.is_for(question)) {
            let (asked, answer) = ahead.up_to(question.limit);
            *question = asked;
            return Ok((connection, Ok(answer)));
        }
        question.top = self.topped.elapsed() >= TOP;
        if question.top {
            self.topped = Instant::now();
        }
        let answered = self.statements.window.page.ask(&mut connection, question).await;
        Ok((connection, answered))
    }

    async fn note(
        &mut self,
        connection: &mut PgConnection,
        question: &Question,
        answer: &Answer,
    ) -> Result<Place> {
        let place = self.place_after(question, answer)?;
        let touched: BTreeSet<u16> = answer.rows.iter().map(|row| row.hold.lane).collect();
        let touched: Vec<u16> = touched.into_iter().collect();
        if !touched.is_empty() {
            failpoint!("page.read");
            let lost = self.write(connection, &touched, Some(&place)).await?;
            failpoint!("page.noted");
            self.lose(&lost);
        }
        Ok(place)
    }

    /// Asks for the next page, where the place after the last one says that there is more of the window.
    fn read_ahead(&mut self, connection: PgConnection, place: &Place) {
        let half_read = matches!(place.part, Part::Window { .. });
        let next = half_read.then(|| self.next_question(self.most)).flatten();
        let is_known = |next: &Question| self.ahead.as_ref().is_some_and(|ahead| ahead.is_for(next));
        let Some(next) = next.filter(|next| !is_known(next)) else {
            self.link = Link::Free(connection);
            return;
        };
        self.link = Link::Asked(Asked::new(connection, Arc::clone(&self.statements), next));
    }
}

/// Whether the server answered: the connection is as good as before.
fn is_answer(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<sqlx::Error>());
    *error.kind() != ErrorKind::Unreachable && matches!(cause, None | Some(sqlx::Error::Database(_)))
}

#[async_trait]
impl Reader for WindowReader {
    async fn open(&mut self, holds: &[Hold]) -> Result<()> {
        self.check();
        let mut connection = match self.link.is_cut_off() {
            false => self.take_connection().await?,
            // Not the pool's any more: it may open another for it, and who closes it need not wait for this one.
            true => self.pool.acquire().await.map_err(|e| self.error(e))?.detach(),
        };
        self.lost.retain(|lane| holds.iter().all(|hold| hold.lane != *lane));
        let loaded = self.load_all(&mut connection, holds).await;
        self.put_back(connection, loaded.as_ref().err());
        self.lanes.extend(loaded?.into_iter().map(|lane| (lane.hold.lane, lane)));
        Ok(())
    }

    fn has_suspects(&self, lane: u16) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.suspects.is_some())
    }

    async fn seen(&mut self) -> Option<Seen> {
        self.check();
        let Question { holds, place, until, .. } = self.next_question(1)?;
        let level = holds.len() == self.lanes.len() && until.is_none() && place.part == Part::Nothing;
        let settled = self.pages.is_empty() && self.lanes.values().all(|lane| lane.suspects.is_none());
        let run = self.lanes.values().map(|lane| lane.run).max()?;
        if !level || !settled || !self.lost.is_empty() {
            return None;
        }
        // Nobody reads for as long as this is answered.
        self.refresh().await.ok()?;
        if !self.lost.is_empty() {
            return None;
        }
        // What it remembers is worth as much as its connection. That is not asked for anything for as long as nothing is to be read.
        let mut connection = self.take_connection().await.ok()?;
        in_time(connection.ping()).await.ok()?;
        self.link = Link::Free(connection);
        Some(Seen { next: place.base.next(), running: place.base.running(), run, parked: true })
    }

    fn leave(&mut self, lanes: &[u16]) {
        self.lanes
            .values_mut()
            .filter(|lane| lanes.contains(&lane.hold.lane))
            .for_each(|lane| lane.left = true);
    }

    fn finished(&mut self, lanes: &[u16]) {
        self.forget(lanes);
        for lane in self.lanes.values_mut().filter(|lane| lanes.contains(&lane.hold.lane)) {
            lane.done = Arc::clone(&lane.read);
        }
    }

    fn close(&mut self, lanes: &[u16]) {
        self.lose(lanes);
        self.lost.retain(|lane| !lanes.contains(lane));
        // Who owns nothing keeps no connection busy.
        if self.lanes.is_empty() {
            self.link = Link::CutOff;
            self.check();
        }
    }

    fn errand(&mut self) -> Option<BoxFuture<'static, ()>> {
        match &mut self.link {
            Link::Asked(asked) => asked.errand(),
            Link::Free(_) | Link::CutOff => None,
        }
    }

    fn coming(&self) -> Option<BoxFuture<'static, ()>> {
        match &self.link {
            Link::Asked(asked) => asked.coming(),
            Link::Free(_) | Link::CutOff => None,
        }
    }

    async fn read(&mut self, limit: u32) -> Result<Page> {
        self.check();
        self.refresh().await?;
        self.most = self.most.max(limit);
        let Some(mut question) = self.next_question(limit) else {
            return Ok(Page { lost: self.take_lost(), ..Page::default() });
        };
        let (connection, answer, place) = self.noted_page(&mut question).await?;
        let Question { holds, place: before, until, .. } = question;
        let mut rows = answer.rows;
        let place = Arc::new(place);
        self.ahead = answer.rest.and_then(|rest| rest.after(&place));
        let suspects =
            holds.iter().find_map(|hold| self.lanes.get(&hold.lane)).and_then(|lane| lane.suspects.clone());
        // Caught up only with other lanes, or with the end of what is half read: there may be more.
        let more = !place.is_whole() || until.is_some() || before.part != Part::Nothing;
        let reaches = place.noted();
        let lanes = holds.iter().map(|hold| hold.lane);
        let lanes: Vec<u16> = lanes.filter(|lane| self.lanes.contains_key(lane)).collect();
        for lane in &lanes {
            if let Some(lane) = self.lanes.get_mut(lane) {
                lane.read = Arc::clone(&place);
                if lane
                    .suspects
                    .as_ref()
                    .is_some_and(|(noted, last)| reaches.0.order(noted).then(reaches.1.cmp(last)).is_ge())
                {
                    lane.suspects = None;
                }
            }
        }
        self.read_ahead(connection, &place);
        if let Some((noted, last)) = suspects {
            let all = place.noted().0.order(&noted).is_lt();
            rows.iter_mut().for_each(|row| row.suspect = all || row.sequence <= last);
        }
        rows.retain(|row| self.lanes.contains_key(&row.hold.lane));
        let number = self.next_page;
        self.next_page += 1;
        let empty = rows.is_empty();
        self.pages.push_back(UnderWay { number, lanes, before, place, finished: empty });
        self.advance();
        Ok(Page { number, rows, lost: self.take_lost(), more })
    }

    async fn settle(&mut self, _delivered: &[(Hold, i64)], pages: &[u64], _keep: Keep) -> Result<Vec<u16>> {
        self.check();
        for page in self.pages.iter_mut().filter(|page| pages.contains(&page.number)) {
            page.finished = true;
        }
        self.advance();
        // The note of a page that is on its way says how far those before it are; nobody waits for it here.
        let is_noted_soon = !self.pages.is_empty() || self.coming().is_some();
        if is_noted_soon { Ok(self.take_lost()) } else { self.flush().await }
    }

    async fn catch_up(&mut self) -> Result<Vec<u16>> {
        match self.pages.is_empty() && self.coming().is_none() {
            true => self.flush().await,
            false => Ok(Vec::new()),
        }
    }

    async fn flush(&mut self) -> Result<Vec<u16>> {
        self.check();
        let noted = self.lanes.values().filter(|lane| lane.noted);
        let noted: Vec<u16> = noted.map(|lane| lane.hold.lane).collect();
        self.write_all(&noted).await?;
        Ok(self.take_lost())
    }
}
