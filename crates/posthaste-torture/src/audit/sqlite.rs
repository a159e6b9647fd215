//! Triggers of SQLite. Its clock counts milliseconds, the same one for the whole of a statement, and no session has a name.

use super::Dialect;
use super::trigger::{On, Trigger};

/// Microseconds since 1970, as posthaste's own tables have them.
const NOW: &str = "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)";

pub(super) const DIALECT: Dialect = Dialect {
    create: "
CREATE TABLE torture_audit (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    at              INTEGER NOT NULL,
    session         TEXT    NOT NULL,
    outbox          TEXT    NOT NULL,
    event           TEXT,
    lane            INTEGER,
    holder_before   TEXT,
    until_before    INTEGER,
    attempts_before INTEGER NOT NULL,
    outcome_before  TEXT,
    fence_before    INTEGER,
    position_before INTEGER,
    gone_before     INTEGER NOT NULL,
    holder_after    TEXT,
    until_after     INTEGER,
    attempts_after  INTEGER NOT NULL,
    outcome_after   TEXT,
    fence_after     INTEGER,
    position_after  INTEGER,
    gone_after      INTEGER NOT NULL
)",
    trigger,
    places: false,
    micros: str::to_owned,
    event: "event",
    rows: "
SELECT CAST(seq AS TEXT), id, attempts, status
  FROM {table}_status WHERE seq > {after} ORDER BY seq LIMIT {page}",
    first_row: "0",
};

fn trigger(trigger: &Trigger) -> Vec<String> {
    let Trigger { name, table, on, .. } = trigger;
    let record = trigger.record(NOW, "''");
    let join = |columns: &[&str], test: fn(&str) -> String, with: &str| {
        columns.iter().map(|column| test(column)).collect::<Vec<_>>().join(with)
    };
    let (on, when) = match on {
        On::Insert([]) => ("INSERT", String::new()),
        On::Insert(columns) => {
            let set = join(columns, |column| format!("NEW.{column} IS NOT NULL"), " AND ");
            ("INSERT", format!("WHEN {set}"))
        }
        On::Update(columns) => {
            let changed = join(columns, |column| format!("OLD.{column} IS NOT NEW.{column}"), " OR ");
            ("UPDATE", format!("WHEN {changed}"))
        }
        On::Delete => ("DELETE", String::new()),
    };
    vec![format!("CREATE TRIGGER {name} AFTER {on} ON {table} FOR EACH ROW {when}\nBEGIN\n {record}\nEND")]
}
