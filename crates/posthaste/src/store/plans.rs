//! The plans that a server keeps of prepared statements.
//!
//! They were perhaps made while the table was nearly empty and reading all of it was the quickest way; PostgreSQL keeps them until
//! somebody analyses the table. So when a statement takes long, it and those around it get another text, by which they are
//! prepared once more. They stay named: a pooler may give what is unnamed to somebody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;

use super::statement::Statement;

/// Statements whose plans are made again together.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    generation: AtomicU32,
    /// How often statements of this generation were executed.
    uses: AtomicU32,
}

impl Plans {
    /// Longer than a batch takes by the right plan, unless the database is slow or far away.
    const LONG: Duration = Duration::from_millis(50);
    /// Executions of a generation before the next: a slow database is not to prepare all the time. The server keeps a plan from
    /// the sixth execution of a statement on.
    const USES: u32 = 16;

    /// The text to send.
    pub(crate) fn of(&self, statement: &Statement) -> AssertSqlSafe<Arc<str>> {
        self.uses.fetch_add(1, Ordering::Relaxed);
        match self.generation.load(Ordering::Relaxed) {
            0 => statement.sql(),
            n => AssertSqlSafe(format!("{} -- plan {n}", statement.text()).into()),
        }
    }

    /// Takes the time of an execution, also of one that is given up.
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch { plans: self, began: Instant::now() }
    }
}

pub(crate) struct Watch<'a> {
    plans: &'a Plans,
    began: Instant,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let enough = |uses| (uses >= Plans::USES).then_some(0);
        if self.began.elapsed() >= Plans::LONG
            && self.plans.uses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_ok()
        {
            self.plans.generation.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::store::Dialect;

    #[test]
    fn re1_statements_are_prepared_once_more_when_one_took_long_and_not_all_the_time() {
        let statement =
            Statement::new(Dialect::Postgres, &"outbox".parse().unwrap(), "SELECT 1 FROM {table}");
        let plans = Plans::default();
        let execute = |took: Duration| {
            let AssertSqlSafe(text) = plans.of(&statement);
            drop(Watch { plans: &plans, began: Instant::now().checked_sub(took).unwrap() });
            text.to_string()
        };
        let quick: Vec<_> = (1..Plans::USES).map(|_| execute(Duration::ZERO)).collect();
        assert!(quick.iter().all(|text| text == statement.text()));
        // The one that takes long has the text of before, too; it is the next one that is prepared.
        assert_eq!(execute(Plans::LONG), statement.text());
        let slow: Vec<_> = (0..Plans::USES).map(|_| execute(Plans::LONG)).collect();
        assert!(slow.iter().all(|text| *text == format!("{} -- plan 1", statement.text())), "{slow:?}");
        assert_eq!(execute(Duration::ZERO), format!("{} -- plan 2", statement.text()));
    }
}
