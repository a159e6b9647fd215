//! Triggers of MariaDB and MySQL. They run with the rights of whoever made them, so that relays need none to the record.
//!
//! An auto-increment would be locked by every statement of several rows until its end, and let relays wait for each other.

use super::Dialect;
use super::trigger::{On, Trigger};

pub(super) const DIALECT: Dialect = Dialect {
    create: "
CREATE TABLE torture_audit (
    number          BIGINT       NOT NULL DEFAULT (UUID_SHORT()) PRIMARY KEY,
    at              DATETIME(6)  NOT NULL,
    session         VARCHAR(128) NOT NULL,
    outbox          VARCHAR(64)  NOT NULL,
    event           BINARY(16)   NULL,
    lane            BIGINT       NULL,
    holder_before   VARCHAR(128) NULL,
    until_before    DATETIME(6)  NULL,
    attempts_before BIGINT       NOT NULL,
    outcome_before  VARCHAR(16)  NULL,
    fence_before    BIGINT       NULL,
    position_before BIGINT       NULL,
    gone_before     BIGINT       NOT NULL,
    holder_after    VARCHAR(128) NULL,
    until_after     DATETIME(6)  NULL,
    attempts_after  BIGINT       NOT NULL,
    outcome_after   VARCHAR(16)  NULL,
    fence_after     BIGINT       NULL,
    position_after  BIGINT       NULL,
    gone_after      BIGINT       NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4",
    trigger,
    places: false,
    micros: |column| format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {column})"),
    event: "LOWER(HEX(event))",
    rows: "
SELECT CAST(seq AS CHAR), id, CAST(attempts AS SIGNED), CAST(status AS CHAR)
  FROM {table}_status WHERE seq > {after} ORDER BY seq LIMIT {page}",
    first_row: "0",
};

fn trigger(trigger: &Trigger) -> Vec<String> {
    let Trigger { name, table, on, .. } = trigger;
    let record = trigger.record("UTC_TIMESTAMP(6)", "SUBSTRING_INDEX(USER(), '@', 1)");
    let all = |columns: &[&str], test: fn(&str) -> String| {
        columns.iter().map(|column| test(column)).collect::<Vec<_>>().join(" AND ")
    };
    let (on, when) = match on {
        On::Insert([]) => ("INSERT", "TRUE".to_owned()),
        On::Insert(columns) => ("INSERT", all(columns, |column| format!("NEW.{column} IS NOT NULL"))),
        On::Update(columns) => {
            let same = all(columns, |column| format!("OLD.{column} <=> NEW.{column}"));
            ("UPDATE", format!("NOT ({same})"))
        }
        On::Delete => ("DELETE", "TRUE".to_owned()),
    };
    vec![format!(
        "CREATE TRIGGER {name} AFTER {on} ON {table} FOR EACH ROW\nIF {when} THEN\n {record}\nEND IF"
    )]
}
