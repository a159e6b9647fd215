//! Reading ahead: in a backlog the server is asked for the next page while this one is dealt with. Both take about as long, and
//! one after the other a reader would be half as fast.
//!
//! What was read ahead is only known to the reader: nothing is noted of it before its turn, and it is forgotten if something
//! else is to be read first.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::postgres::PgConnection;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::super::super::Statements;
use super::page::{Answer, Question};
use super::place::{Part, Place};
use crate::store::stream::{Hold, Row};

/// How long it may lie, however long it took: operators may have discarded some of it since.
const STALE: Duration = Duration::from_secs(1);

/// A reader's connection.
#[derive(Default)]
pub(super) enum Link {
    /// There is none, or somebody uses it, who may not come back.
    #[default]
    CutOff,
    Free(PgConnection),
    /// It is asked for the next page.
    Asked(Asked),
}

impl Link {
    pub(super) fn is_cut_off(&self) -> bool {
        matches!(self, Self::CutOff)
    }
}

/// A page that is asked for before its turn. Who drops it drops the connection.
pub(super) struct Asked {
    question: Question,
    /// What asks, until somebody carries it out.
    errand: Option<BoxFuture<'static, ()>>,
    answered: oneshot::Receiver<(PgConnection, sqlx::Result<Answer>, Instant)>,
    /// Closed by the answer.
    unanswered: watch::Receiver<()>,
}

impl Asked {
    pub(super) fn new(mut connection: PgConnection, statements: Arc<Statements>, question: Question) -> Self {
        let asked = question.clone();
        let (mut answer, answered) = oneshot::channel();
        let (ends, unanswered) = watch::channel(());
        let errand = async move {
            let said = tokio::select! {
                biased;
                // Nobody waits for it any more: the connection is given up.
                () = answer.closed() => return,
                said = statements.window.page.ask(&mut connection, &asked) => said,
            };
            let _ = answer.send((connection, said, Instant::now()));
            drop(ends);
        };
        Self { question, errand: Some(Box::pin(errand)), answered, unanswered }
    }

    /// What asks, if nobody has been given it.
    pub(super) fn errand(&mut self) -> Option<BoxFuture<'static, ()>> {
        self.errand.take()
    }

    /// Ends with the answer, whatever it is; `None` if that is there.
    pub(super) fn coming(&self) -> Option<BoxFuture<'static, ()>> {
        let mut unanswered = self.unanswered.clone();
        unanswered.has_changed().ok().filter(|_| self.errand.is_none())?;
        Some(Box::pin(async move { while unanswered.changed().await.is_ok() {} }))
    }

    /// Waits for the answer; the connection is free again.
    pub(super) async fn answered(mut self) -> sqlx::Result<(PgConnection, sqlx::Result<Ahead>)> {
        if let Some(errand) = self.errand.take() {
            errand.await;
        }
        let (connection, answer, at) = self.answered.await.map_err(|_| sqlx::Error::WorkerCrashed)?;
        let ahead = |answer| Ahead { question: self.question, answer, at };
        Ok((connection, answer.map(ahead)))
    }
}

/// A page that was read before its turn.
pub(super) struct Ahead {
    question: Question,
    answer: Answer,
    /// When all of it was there.
    at: Instant,
}

impl Ahead {
    /// Whether it is what this asks for, though perhaps of another length.
    pub(super) fn is_for(&self, question: &Question) -> bool {
        question.is_answered_by(&self.question) && self.at.elapsed() < STALE
    }

    /// The question that was answered, and the answer. What is beyond the limit is a page of its own.
    pub(super) fn up_to(self, limit: u32) -> (Question, Answer) {
        let Self { mut question, mut answer, at } = self;
        if answer.rows.len() > limit as usize {
            let rows = answer.rows.split_off(limit as usize);
            let left = question.limit.saturating_sub(limit);
            answer.rest = Some(Rest { holds: question.holds.clone(), rows, limit: left, at });
            question.limit = limit;
        }
        (question, answer)
    }
}

/// What is left of a page that was read before its turn.
pub(super) struct Rest {
    holds: Vec<Hold>,
    rows: Vec<Row>,
    limit: u32,
    at: Instant,
}

impl Rest {
    /// It as a page that follows this place, which is within the same window.
    pub(super) fn after(self, place: &Arc<Place>) -> Option<Ahead> {
        let Part::Window { target, .. } = &place.part else { return None };
        let question = Question {
            holds: self.holds,
            place: Arc::clone(place),
            until: Some(target.clone()),
            limit: self.limit,
            top: false,
        };
        Some(Ahead { question, answer: Answer { rows: self.rows, ..Answer::default() }, at: self.at })
    }
}
