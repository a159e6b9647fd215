//! Notifications on a channel of the table's own. Its name is the table's number, which is the same however
//! the table is spelled.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgListener, PgPool, PgPoolOptions};
use sqlx::{Acquire, Connection};

use super::errors::{classify, connecting};
use super::{place, schema};
use crate::error::{Error, ErrorKind, Result};
use crate::store::errors::in_time;
use crate::store::{Notifications, TableName};

// Who notifies holds a lock of the whole cluster until the commit is done: it must not wait for the disk.
const NOTIFY: &str = "
SELECT set_config('synchronous_commit', 'off', true), pg_notify('posthaste_' || $1::regclass::oid, '')";

const CHANNEL: &str = "SELECT 'posthaste_' || $1::regclass::oid";

// The function is beside the table, wherever that is found. A trigger that is there is left alone: to make it
// again would wait for every transaction on the table.
const TRIGGER: &str = r#"
DO $do$
DECLARE
    place text := (SELECT quote_ident(nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE c.oid = '{table}'::regclass);
BEGIN
    EXECUTE 'CREATE OR REPLACE FUNCTION ' || place || '."{name}_notify"() RETURNS trigger LANGUAGE plpgsql AS
        $body$ BEGIN PERFORM pg_notify(''posthaste_'' || TG_RELID, ''''); RETURN NULL; END $body$';
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgname = '{name}_notify') THEN
        EXECUTE 'CREATE TRIGGER "{name}_notify" AFTER INSERT ON {table} FOR EACH STATEMENT
            EXECUTE FUNCTION ' || place || '."{name}_notify"()';
    END IF;
END $do$"#;

/// Takes the trigger away, and its function with it.
pub(super) const NO_TRIGGER: &str = r#"
DO $do$
DECLARE
    made text := (SELECT tgfoid::regprocedure FROM pg_trigger
                   WHERE tgrelid = to_regclass('{table}') AND tgname = '{name}_notify');
BEGIN
    IF made IS NOT NULL THEN
        DROP TRIGGER "{name}_notify" ON {table};
        EXECUTE 'DROP FUNCTION ' || made;
    END IF;
END $do$"#;

/// How long to listen to nothing before asking whether the server is still there.
const SILENCE: Duration = Duration::from_secs(30);

/// Tells those who listen.
pub(super) async fn notify(pool: &PgPool, table: &TableName) -> Result<()> {
    sqlx::query(NOTIFY).bind(table.quoted('"')).execute(pool).await.map_err(|e| classify(e, table))?;
    Ok(())
}

/// Listens on a connection of its own.
pub(super) async fn listen(pool: &PgPool, table: &TableName) -> Result<Option<Box<dyn Notifications>>> {
    let options = pool.connect_options();
    let refused = |error| connecting(error, table, &place(&options));
    let own = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_lazy_with(options.as_ref().clone());
    let mut listener = in_time(PgListener::connect_with(&own)).await.map_err(refused)?;
    // An interruption is the caller's to know of before anything is listened to again.
    listener.eager_reconnect(false);
    let channel = sqlx::query_scalar(CHANNEL).bind(table.quoted('"'));
    let channel: String = in_time(channel.fetch_one(&mut listener)).await.map_err(|e| classify(e, table))?;
    in_time(listener.listen(&channel)).await.map_err(|e| classify(e, table))?;
    Ok(Some(Box::new(PostgresNotifications { listener, table: table.clone() })))
}

struct PostgresNotifications {
    listener: PgListener,
    table: TableName,
}

#[async_trait]
impl Notifications for PostgresNotifications {
    async fn next(&mut self) -> Result<()> {
        loop {
            match tokio::time::timeout(SILENCE, self.listener.try_recv()).await {
                Ok(Ok(Some(_))) => return Ok(()),
                Ok(Ok(None)) => {
                    let message = format!("notifications of table {} were interrupted", self.table);
                    return Err(Error::new(ErrorKind::Unreachable, message));
                }
                Ok(Err(error)) => return Err(classify(error, &self.table)),
                // A connection that was cut off is as silent as one on which nothing happens.
                Err(_) => {
                    let asked = in_time(async { self.listener.acquire().await?.ping().await }).await;
                    asked.map_err(|e| classify(e, &self.table))?;
                }
            }
        }
    }
}

/// Makes inserts notify, or no longer.
pub(super) async fn notify_on_insert(pool: &PgPool, table: &TableName, on: bool) -> Result<()> {
    let mut tx = pool.begin().await.map_err(|e| classify(e, table))?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(schema::LOCK)
        .execute(&mut *tx)
        .await
        .map_err(|e| classify(e, table))?;
    schema::run(&mut tx, table, if on { TRIGGER } else { NO_TRIGGER }).await?;
    tx.commit().await.map_err(|e| classify(e, table))
}
