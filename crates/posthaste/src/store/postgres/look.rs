//! A connection to look with, for no longer than is allowed.
//!
//! The limit is one of a transaction, never of a session: a pooler between here and the server would hand a session's to
//! somebody else. The server ends the statement itself, also when nobody waits for it any more.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

/// A look at the table. Dropping it ends its transaction.
pub(super) struct Look {
    connection: Connection,
    pub(super) began: Instant,
}

enum Connection {
    Plain(PoolConnection<Postgres>),
    InTransaction(Transaction<'static, Postgres>),
}

impl Look {
    /// Each of its statements may take this long.
    pub(super) async fn begin(pool: &PgPool, within: Option<Duration>) -> sqlx::Result<Self> {
        let connection = match within {
            None => Connection::Plain(pool.acquire().await?),
            Some(limit) => Connection::InTransaction(transaction(pool, limited(limit)).await?),
        };
        Ok(Self { connection, began: Instant::now() })
    }

    /// The same, where the planner must not think that to read the whole table is cheaper than the index on the time that
    /// rows were written: without statistics it always does.
    pub(super) async fn begin_by_time(pool: &PgPool, within: Option<Duration>) -> sqlx::Result<Self> {
        let mut settings = "SET LOCAL enable_seqscan = off; ".to_owned();
        settings += &within.map(limited).unwrap_or_default();
        let connection = Connection::InTransaction(transaction(pool, settings).await?);
        Ok(Self { connection, began: Instant::now() })
    }
}

fn limited(limit: Duration) -> String {
    let millis = limit.as_millis().clamp(1, i32::MAX as u128);
    format!(
        "SELECT set_config('statement_timeout', '{millis}', true) WHERE current_setting('statement_timeout')::interval \
         NOT BETWEEN interval '1 microsecond' AND interval '1 millisecond' * {millis}"
    )
}

async fn transaction(pool: &PgPool, settings: String) -> sqlx::Result<Transaction<'static, Postgres>> {
    let pool = pool.clone();
    // A task of its own goes on when nobody waits for it: sqlx puts the connection of a begin that was dropped half-way
    // back into the pool as it is, in the middle of a transaction. For the same reason nothing but the begin is in it that
    // could fail.
    let begun = tokio::spawn(async move {
        let mut begun = pool.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY").await?;
        sqlx::raw_sql(AssertSqlSafe(settings)).execute(&mut *begun).await?;
        Ok(begun)
    });
    begun.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

impl Deref for Look {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match &self.connection {
            Connection::Plain(connection) => connection,
            Connection::InTransaction(transaction) => transaction,
        }
    }
}

impl DerefMut for Look {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match &mut self.connection {
            Connection::Plain(connection) => connection,
            Connection::InTransaction(transaction) => transaction,
        }
    }
}
