//! Triggers of PostgreSQL: a function each, called after the statement for every row that it changed.
//!
//! A plain table, not an unlogged one: that would be empty after a crash of the server.

use super::Dialect;
use super::trigger::{On, Trigger};

pub(super) const DIALECT: Dialect = Dialect {
    create: "
CREATE TABLE torture_audit (
    number          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at              timestamptz NOT NULL,
    session         text        NOT NULL,
    outbox          text        NOT NULL,
    event           uuid,
    lane            bigint,
    holder_before   text,
    until_before    timestamptz,
    attempts_before bigint      NOT NULL,
    outcome_before  text,
    fence_before    bigint,
    position_before bigint,
    gone_before     bigint      NOT NULL,
    holder_after    text,
    until_after     timestamptz,
    attempts_after  bigint      NOT NULL,
    outcome_after   text,
    fence_after     bigint,
    position_after  bigint,
    gone_after      bigint      NOT NULL
) WITH (autovacuum_enabled = off)",
    trigger,
    places: true,
    micros: |column| format!("(extract(epoch FROM {column}) * 1000000)::bigint"),
    event: "event::text",
    rows: "
SELECT id::text, id::text, attempts::bigint, status
  FROM {table}_status WHERE id > '{after}' ORDER BY id LIMIT {page}",
    first_row: "00000000-0000-0000-0000-000000000000",
};

fn trigger(trigger: &Trigger) -> Vec<String> {
    let Trigger { name, table, on, .. } = trigger;
    let record = trigger.record("clock_timestamp()", "current_setting('application_name')");
    let function = format!(
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $audit$
BEGIN
 {record}
 RETURN NULL;
END $audit$"
    );
    let list = |row: &str, columns: &[&str]| {
        let columns: Vec<String> = columns.iter().map(|column| format!("{row}.{column}")).collect();
        columns.join(", ")
    };
    let (on, when) = match on {
        On::Insert([]) => ("INSERT", String::new()),
        On::Insert(columns) => ("INSERT", format!("WHEN (({}) IS NOT NULL)", list("NEW", columns))),
        On::Update(columns) => {
            let (old, new) = (list("OLD", columns), list("NEW", columns));
            ("UPDATE", format!("WHEN (({old}) IS DISTINCT FROM ({new}))"))
        }
        On::Delete => ("DELETE", String::new()),
    };
    let trigger =
        format!("CREATE TRIGGER {name} AFTER {on} ON {table} FOR EACH ROW {when} EXECUTE FUNCTION {name}()");
    vec![function, trigger]
}
