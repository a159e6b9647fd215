//! What MySQL and MariaDB know of themselves: open transactions, the purge of old row versions, and who lives.

use async_trait::async_trait;
use sqlx::{query_as, query_scalar};

use super::MySqlStore;
use super::session::lock_name;
use crate::error::Result;
use crate::store::health::{
    Access, Cleaning, Client, Fleet, Health, Holder, LOOKED_AT, LaneOwner, NAMED, Pin, PinKind, Work, length,
    number, over,
};
use crate::store::statement::Statement;
use crate::store::{Count, Dialect, TableName};

// Some versions know these settings as numbers, others as words.
const SERVER: &str = "
SELECT VERSION(), CAST(@@global.read_only AS CHAR), CAST(@@global.innodb_read_only AS CHAR), CURRENT_USER()";

// The table's times are in the server's own time zone, the session's is its client's. On MySQL, the table of connections in the
// information schema fails (error 3854) while any connection executes a statement with bytes that are not UTF-8, such as
// an id; the one in the performance schema does not, and MariaDB has none there.
const TRANSACTIONS: &str = "
SELECT CAST(t.trx_mysql_thread_id AS SIGNED), p.USER, p.COMMAND,
       TIMESTAMPDIFF(MICROSECOND, t.trx_started, CONVERT_TZ(NOW(), @@session.time_zone, 'SYSTEM'))
  FROM information_schema.INNODB_TRX AS t
  LEFT JOIN /*!50700 performance_schema.processlist */ /*M! information_schema.PROCESSLIST */ AS p ON p.ID = t.trx_mysql_thread_id
 WHERE t.trx_mysql_thread_id <> CONNECTION_ID()
 ORDER BY t.trx_started, 1 LIMIT ?";

const HISTORY: &str = "
SELECT CAST(`COUNT` AS SIGNED) FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'";

const DUE: &str = "
SELECT COUNT(*), CAST(COALESCE(SUM({free}), 0) AS SIGNED),
       TIMESTAMPDIFF(MICROSECOND, MIN(CASE WHEN {free} THEN available_at END), UTC_TIMESTAMP(6))
  FROM (SELECT available_at, locked_until FROM {table} FORCE INDEX (`{name}_claim`)
         WHERE outcome IS NULL ORDER BY available_at, seq LIMIT ?) AS f";

const FREE: &str =
    "(available_at <= UTC_TIMESTAMP(6) AND (locked_until IS NULL OR locked_until <= UTC_TIMESTAMP(6)))";

// The rows are read before the locks.
const HOLDERS: &str = concat!(
    "
SELECT worker, leased, ended, ended_for, CAST(CASE WHEN worker LIKE '%~' THEN IS_USED_LOCK(",
    lock_name!("worker"),
    ") IS NOT NULL END AS SIGNED)
  FROM (SELECT SUBSTRING_INDEX(locked_by, '#', 1) AS worker,
               CAST(SUM(locked_until > UTC_TIMESTAMP(6)) AS SIGNED) AS leased,
               CAST(SUM(locked_until <= UTC_TIMESTAMP(6)) AS SIGNED) AS ended,
               TIMESTAMPDIFF(MICROSECOND, MIN(locked_until), UTC_TIMESTAMP(6)) AS ended_for
          FROM (SELECT locked_by, locked_until FROM {table} FORCE INDEX (`{name}_claim`)
                 WHERE outcome IS NULL ORDER BY available_at, seq LIMIT ?) AS f
         WHERE locked_by IS NOT NULL AND locked_until IS NOT NULL
         GROUP BY 1) AS w
 ORDER BY leased + ended DESC, worker LIMIT ?"
);

const LIVING: &str =
    "SELECT relay FROM {relays_table} WHERE `until` > UTC_TIMESTAMP(6) ORDER BY joined_at, relay";

const LANES: &str = concat!(
    "
SELECT CAST(lane AS SIGNED), owner, TIMESTAMPDIFF(MICROSECOND, leased_until, UTC_TIMESTAMP(6)),
       CAST(CASE WHEN owner IS NOT NULL AND present THEN IS_USED_LOCK(",
    lock_name!("CONCAT(owner, '~')"),
    ") IS NOT NULL END AS SIGNED)
  FROM {lanes_table}
 ORDER BY lane"
);

fn statement(table: &TableName, sql: &'static str) -> Statement {
    Statement::new(Dialect::MySql, table, sql).with("{free}", FREE)
}

/// An account in quotation marks: without its host it would be another one. A host has no `@`, a user may.
fn account_name(account: &str) -> Option<String> {
    let (user, host) = account.rsplit_once('@')?;
    let quoted = |part: &str| format!("`{}`", part.replace('`', "``"));
    Some(format!("{}@{}", quoted(user), quoted(host)))
}

#[async_trait]
impl Health for MySqlStore {
    async fn access(&self) -> Result<Access> {
        let (version, read_only, innodb, account): (String, String, String, String) =
            query_as(SERVER).fetch_one(&self.pool).await.map_err(|e| self.error(e))?;
        let on = |setting: &str| !matches!(setting, "0" | "OFF");
        let setting = match (on(&innodb), on(&read_only)) {
            (true, _) => Some("innodb_read_only"),
            (false, true) => Some("read_only"),
            (false, false) => None,
        };
        let read_only = setting.map(|setting| format!("{setting} is on, as on a replica"));
        let server = match version.contains("MariaDB") {
            true => format!("MariaDB {}", version.split('-').next().unwrap_or_default()),
            false => format!("MySQL {version}"),
        };
        let account = account_name(&account);
        // Who has locked a table as a whole only a plugin or another schema of the server could tell.
        Ok(Access { server, account, read_only, denied: Vec::new(), locked: None })
    }

    async fn pins(&self) -> Result<Option<Vec<Pin>>> {
        let rows = query_as(TRANSACTIONS).bind(NAMED).fetch_all(&self.pool).await;
        let rows: Vec<(i64, Option<String>, Option<String>, Option<i64>)> =
            rows.map_err(|e| self.error(e))?;
        let pin = |(id, user, command, lasting): (i64, _, Option<String>, Option<i64>)| {
            // A prepared transaction whose connection has gone has none.
            let prepared = id == 0;
            let idle = prepared || command.as_deref() == Some("Sleep");
            let state = match (prepared, idle) {
                (true, _) => "prepared",
                (false, true) => "idle in transaction",
                (false, false) => "active",
            };
            Pin {
                kind: if prepared { PinKind::Prepared } else { PinKind::Transaction },
                holder: Client {
                    name: if prepared { "an XA transaction".to_owned() } else { format!("connection {id}") },
                    application: user,
                    state: Some(state.to_owned()),
                    idle,
                    lasting: lasting.map(length),
                },
                transactions: None,
                remedy: if prepared {
                    "XA RECOVER; and XA ROLLBACK of what it names;".to_owned()
                } else {
                    format!("KILL {id};")
                },
            }
        };
        Ok(Some(rows.into_iter().map(pin).collect()))
    }

    async fn cleaning(&self) -> Result<Vec<Cleaning>> {
        let history: Option<i64> =
            query_scalar(HISTORY).fetch_optional(&self.pool).await.map_err(|e| self.error(e))?;
        Ok(history.map(|history| Cleaning::Purge { history: number(history) }).into_iter().collect())
    }

    async fn work(&self) -> Result<Work> {
        let due = statement(&self.table, DUE);
        let due = query_as(due.sql()).bind(LOOKED_AT + 1).fetch_one(&self.pool).await;
        let (open, due, oldest): (i64, i64, Option<i64>) = due.map_err(|e| self.error(e))?;
        let holders = statement(&self.table, HOLDERS);
        let holders = query_as(holders.sql())
            .bind(self.table.schema())
            .bind(LOOKED_AT)
            .bind(NAMED)
            .fetch_all(&self.pool)
            .await;
        let holders: Vec<(String, i64, i64, Option<i64>, Option<i64>)> =
            holders.map_err(|e| self.error(e))?;
        let holder = |(worker, leased, ended, ended_for, present): (_, _, _, _, Option<i64>)| Holder {
            worker,
            leased: number(leased),
            ended: number(ended),
            ended_for: over(ended_for),
            present: present.map(|present| present != 0),
        };
        Ok(Work {
            due: Count::among(open, due, LOOKED_AT),
            oldest_due: over(oldest),
            holders: holders.into_iter().map(holder).collect(),
            // A lock is found by its name alone, and who holds no rows is not known by name.
            relays: None,
        })
    }

    async fn fleet(&self) -> Result<Fleet> {
        let living = statement(&self.table, LIVING);
        let relays = query_scalar(living.sql()).fetch_all(&self.pool).await.map_err(|e| self.error(e))?;
        let lanes = statement(&self.table, LANES);
        let lanes = query_as(lanes.sql()).bind(self.table.schema()).fetch_all(&self.pool).await;
        let lanes: Vec<(i64, Option<String>, Option<i64>, Option<i64>)> = lanes.map_err(|e| self.error(e))?;
        let lane = |(lane, owner, ended_for, present): (i64, _, _, Option<i64>)| LaneOwner {
            lane: lane as u16,
            owner,
            ended_for: over(ended_for),
            present: present.map(|present| present != 0),
        };
        Ok(Fleet { relays, lanes: lanes.into_iter().map(lane).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op1_an_account_is_its_user_and_its_host() {
        for (account, name) in [
            ("shop@%", "`shop`@`%`"),
            ("shop@10.0.0.0/255.0.0.0", "`shop`@`10.0.0.0/255.0.0.0`"),
            ("me@home@localhost", "`me@home`@`localhost`"),
            ("a`b@%", "`a``b`@`%`"),
            ("@localhost", "``@`localhost`"),
        ] {
            assert_eq!(account_name(account).as_deref(), Some(name), "{account}");
        }
        assert_eq!(account_name("shop"), None);
    }
}
