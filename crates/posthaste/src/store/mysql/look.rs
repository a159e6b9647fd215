//! A connection to look with, for no longer than is allowed.
//!
//! The limit is part of each statement, never of a session: a pooler between here and the server would hand a session's to
//! somebody else. The server ends the statement itself, also when nobody waits for it any more.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sqlx::mysql::{MySqlConnection, MySqlPool};
use sqlx::pool::PoolConnection;
use sqlx::{MySql, QueryBuilder};

use super::schema;
use crate::store::Dialect;

/// A look at the table.
pub(super) struct Look {
    connection: PoolConnection<MySql>,
    select: String,
    pub(super) began: Instant,
}

impl Look {
    /// Each of its statements may take this long. Which server it is decides how it is told so, and is asked once.
    pub(super) async fn begin(
        pool: &MySqlPool,
        server: &OnceLock<Dialect>,
        within: Option<Duration>,
    ) -> sqlx::Result<Self> {
        let mut connection = pool.acquire().await?;
        let select = match within {
            None => "SELECT ".to_owned(),
            Some(limit) => {
                let dialect = match server.get() {
                    Some(dialect) => *dialect,
                    None => {
                        let dialect = schema::dialect(&mut connection).await?;
                        *server.get_or_init(|| dialect)
                    }
                };
                limited(dialect, limit)
            }
        };
        Ok(Self { connection, select, began: Instant::now() })
    }

    /// The beginning of a statement; what it selects is to follow.
    pub(super) fn select(&self) -> QueryBuilder<MySql> {
        QueryBuilder::new(self.select.as_str())
    }
}

fn limited(dialect: Dialect, limit: Duration) -> String {
    let millis = limit.as_millis().clamp(1, 1000 * 86_400 * 365);
    match dialect {
        Dialect::MariaDb => {
            let seconds = format!("{}.{:03}", millis / 1000, millis % 1000);
            format!(
                "SET STATEMENT max_statement_time = \
                 IF(@@max_statement_time BETWEEN 0.000001 AND {seconds}, @@max_statement_time, {seconds}) FOR SELECT "
            )
        }
        _ => format!("SELECT /*+ MAX_EXECUTION_TIME({millis}) */ "),
    }
}

impl Deref for Look {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.connection
    }
}

impl DerefMut for Look {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op6_each_server_is_told_the_limit_in_its_own_words() {
        let limit = Duration::from_millis(5050);
        assert_eq!(limited(Dialect::MySql, limit), "SELECT /*+ MAX_EXECUTION_TIME(5050) */ ");
        assert!(limited(Dialect::MariaDb, limit).contains("BETWEEN 0.000001 AND 5.050, "));
        // Nothing would be no limit.
        assert!(limited(Dialect::MySql, Duration::ZERO).contains("(1)"));
        assert!(limited(Dialect::MariaDb, Duration::ZERO).contains("0.001"));
    }
}
