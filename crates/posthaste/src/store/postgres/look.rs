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
    Unlimited(PoolConnection<Postgres>),
    Limited(Transaction<'static, Postgres>),
}

impl Look {
    /// Each of its statements may take this long.
    pub(super) async fn begin(pool: &PgPool, within: Option<Duration>) -> sqlx::Result<Self> {
        let connection = match within {
            None => Connection::Unlimited(pool.acquire().await?),
            Some(limit) => Connection::Limited(limited(pool.clone(), limit).await?),
        };
        Ok(Self { connection, began: Instant::now() })
    }
}

async fn limited(pool: PgPool, limit: Duration) -> sqlx::Result<Transaction<'static, Postgres>> {
    let millis = limit.as_millis().clamp(1, i32::MAX as u128);
    let begin = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SELECT set_config('statement_timeout', '{millis}', true) \
         WHERE current_setting('statement_timeout')::interval NOT BETWEEN interval '1 microsecond' AND interval '1 millisecond' * {millis}"
    );
    // A task of its own goes on when nobody waits for it: sqlx puts the connection of a begin that was dropped half-way
    // back into the pool as it is, in the middle of a transaction.
    let begun = tokio::spawn(async move { pool.begin_with(AssertSqlSafe(begin)).await });
    begun.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

impl Deref for Look {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match &self.connection {
            Connection::Unlimited(connection) => connection,
            Connection::Limited(transaction) => transaction,
        }
    }
}

impl DerefMut for Look {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match &mut self.connection {
            Connection::Unlimited(connection) => connection,
            Connection::Limited(transaction) => transaction,
        }
    }
}
