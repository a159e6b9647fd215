//! What PostgreSQL knows of itself: transactions, slots and locks that hold others up, vacuum, and who lives.

use async_trait::async_trait;
use sqlx::postgres::{PgPool, PgRow};
use sqlx::{Row, query, query_as, query_scalar};

use super::PostgresStore;
use super::session::CLASS_PRESENCE;
use crate::error::Result;
use crate::store::health::{
    Access, Cleaning, Client, Fleet, Health, Holder, LOOKED_AT, LaneOwner, NAMED, Pin, PinKind, TableLock,
    Work, length, number, over,
};
use crate::store::statement::Statement;
use crate::store::{Count, Dialect, TableName};

const SERVER: &str = "
SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('transaction_read_only')::bool,
       current_user::text";

// $1 the table. A relay changes rows, and deletes those past their retention. It may have been granted only the columns that
// it reads and changes; a row is deleted as a whole.
const DENIED: &str = "
SELECT p FROM unnest(ARRAY['SELECT', 'UPDATE', 'DELETE']) AS p
 WHERE to_regclass($1) IS NOT NULL
   AND NOT CASE p WHEN 'DELETE' THEN has_table_privilege(to_regclass($1)::oid, p)
                  ELSE has_any_column_privilege(to_regclass($1)::oid, p) END";

// $1 the table. Who waits for such a lock holds up whoever comes after it.
const LOCKED: &str = "
SELECT l.pid, a.application_name, a.state, (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint,
       l.granted, pg_blocking_pids(l.pid)
  FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = to_regclass($1) AND l.mode = 'AccessExclusiveLock'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.pid <> pg_backend_pid()
 ORDER BY l.granted DESC, a.xact_start LIMIT 1";

// $1 limit. Transactions of other databases hold nothing back here, nor does a vacuum; a standby does.
const TRANSACTIONS: &str = "
SELECT a.pid, a.application_name, a.state, (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint,
       greatest(age(a.backend_xmin), age(a.backend_xid))::bigint, coalesce(a.backend_type = 'walsender', false)
  FROM pg_stat_activity AS a
 WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
   AND (a.datid = (SELECT oid FROM pg_database WHERE datname = current_database()) OR a.backend_type = 'walsender')
   AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
   AND a.pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
 ORDER BY a.xact_start, 5 DESC LIMIT $1";

const PREPARED: &str = "
SELECT gid, quote_literal(gid), owner::text, (extract(epoch FROM clock_timestamp() - prepared) * 1000000)::bigint,
       age(transaction)::bigint
  FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT $1";

const SLOTS: &str = "
SELECT slot_name::text, active, age(xmin)::bigint, age(catalog_xmin)::bigint
  FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
 ORDER BY greatest(age(xmin), age(catalog_xmin)) DESC LIMIT $1";

const AUTOVACUUM: &str = "
SELECT current_setting('autovacuum')::bool, current_setting('track_counts')::bool";

// $1 the tables.
const VACUUM: &str = "
SELECT c.oid::regclass::text, coalesce(bool_or(o.option_name = 'autovacuum_enabled' AND NOT o.option_value::bool), false),
       coalesce(s.n_dead_tup, 0), coalesce(s.n_live_tup, 0),
       (coalesce(max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_vacuum_threshold'),
                 current_setting('autovacuum_vacuum_threshold'))::float8
        + coalesce(max(o.option_value) FILTER (WHERE o.option_name = 'autovacuum_vacuum_scale_factor'),
                   current_setting('autovacuum_vacuum_scale_factor'))::float8 * greatest(c.reltuples, 0))::bigint,
       (extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum)) * 1000000)::bigint
  FROM unnest($1::text[]) AS t(name)
  JOIN pg_class AS c ON c.oid = to_regclass(t.name)
  LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
  LEFT JOIN LATERAL pg_options_to_table(c.reloptions) AS o ON true
 GROUP BY c.oid, c.reltuples, s.n_dead_tup, s.n_live_tup, s.last_vacuum, s.last_autovacuum
 ORDER BY 1";

// $1 how many rows are looked at.
const DUE: &str = "
SELECT count(*), count(*) FILTER (WHERE {free}), (extract(epoch FROM now() - min(available_at) FILTER (WHERE {free})) * 1000000)::bigint
  FROM (SELECT available_at, locked_until FROM {table}
         WHERE outcome IS NULL ORDER BY available_at, seq LIMIT $1) AS f";

const FREE: &str = "available_at <= now() AND (locked_until IS NULL OR locked_until <= now())";

// $1 the class of presence, $2 how many rows are looked at, $3 limit. The rows are read before the locks.
const HOLDERS: &str = "
SELECT w.worker, w.leased, w.ended, w.ended_for,
       CASE WHEN w.worker LIKE '%~' THEN hashtext(w.worker)::oid IN ({present}) END
  FROM (SELECT split_part(f.locked_by, '#', 1) AS worker, count(*) FILTER (WHERE f.locked_until > now()) AS leased,
               count(*) FILTER (WHERE f.locked_until <= now()) AS ended,
               (extract(epoch FROM now() - min(f.locked_until)) * 1000000)::bigint AS ended_for
          FROM (SELECT locked_by, locked_until FROM {table}
                 WHERE outcome IS NULL ORDER BY available_at, seq LIMIT $2) AS f
         WHERE f.locked_by IS NOT NULL AND f.locked_until IS NOT NULL
         GROUP BY 1) AS w
 ORDER BY w.leased + w.ended DESC, w.worker LIMIT $3";

const PRESENT: &str = "SELECT objid FROM pg_locks
               WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = $1::oid
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

const RELAYS: &str = "SELECT count(DISTINCT objid) FROM ({present}) AS p";

const LIVING: &str = "SELECT relay FROM {relays_table} WHERE until > now() ORDER BY joined_at, relay";

// $1 the class of presence.
const LANES: &str = "
SELECT l.lane, l.owner, (extract(epoch FROM now() - l.leased_until) * 1000000)::bigint,
       CASE WHEN l.present THEN hashtext(l.owner || '~')::oid IN ({present}) END
  FROM {lanes_table} AS l ORDER BY l.lane";

fn statement(table: &TableName, sql: &'static str) -> Statement {
    Statement::new(Dialect::Postgres, table, sql).with("{free}", FREE).with("{present}", PRESENT)
}

#[async_trait]
impl Health for PostgresStore {
    async fn access(&self) -> Result<Access> {
        let (version, standby, read_only, user): (String, bool, bool, String) =
            query_as(SERVER).fetch_one(&self.pool).await.map_err(|e| self.error(e))?;
        let read_only = match (standby, read_only) {
            (true, _) => Some("it is a standby that follows another server".to_owned()),
            (false, true) => {
                Some("its transactions are read-only (default_transaction_read_only)".to_owned())
            }
            (false, false) => None,
        };
        let name = self.table.quoted('"');
        let denied: Vec<String> =
            query_scalar(DENIED).bind(&name).fetch_all(&self.pool).await.map_err(|e| self.error(e))?;
        let known = ["SELECT", "UPDATE", "DELETE"];
        let denied = known.into_iter().filter(|right| denied.iter().any(|d| d == right)).collect();
        let locked = query(LOCKED).bind(&name).fetch_optional(&self.pool).await;
        let locked = locked.and_then(|row| row.map(|row| table_lock(&row)).transpose());
        let locked = locked.map_err(|e| self.error(e))?;
        // Some builders add their own words behind it.
        let version = version.split(' ').next().unwrap_or_default();
        let account = Some(format!("\"{}\"", user.replace('"', "\"\"")));
        Ok(Access { server: format!("PostgreSQL {version}"), account, read_only, denied, locked })
    }

    async fn pins(&self) -> Result<Option<Vec<Pin>>> {
        let mut pins = transactions(&self.pool).await.map_err(|e| self.error(e))?;
        pins.append(&mut prepared(&self.pool).await.map_err(|e| self.error(e))?);
        pins.append(&mut slots(&self.pool).await.map_err(|e| self.error(e))?);
        Ok(Some(pins))
    }

    async fn cleaning(&self) -> Result<Vec<Cleaning>> {
        let (autovacuum, counts): (bool, bool) =
            query_as(AUTOVACUUM).fetch_one(&self.pool).await.map_err(|e| self.error(e))?;
        let tables = [
            self.table.clone(),
            self.table.lanes_table(),
            self.table.parked_table(),
            self.table.places_table(),
            self.table.relays_table(),
        ];
        let names: Vec<String> = tables.iter().map(|table| table.quoted('"')).collect();
        let rows: Vec<(String, bool, i64, i64, i64, Option<i64>)> =
            query_as(VACUUM).bind(names).fetch_all(&self.pool).await.map_err(|e| self.error(e))?;
        let vacuum = |(table, off, dead, live, begins_at, last): (String, bool, _, _, _, Option<i64>)| {
            let setting = match (autovacuum, counts) {
                (false, _) => Some("autovacuum"),
                (true, false) => Some("track_counts"),
                (true, true) => None,
            };
            let off = match setting {
                Some(setting) => Some((
                    format!("{setting} is off on the server"),
                    format!("ALTER SYSTEM SET {setting} = on; SELECT pg_reload_conf();"),
                )),
                None if off => Some((
                    format!("table {table} has autovacuum_enabled = off"),
                    format!("ALTER TABLE {table} RESET (autovacuum_enabled);"),
                )),
                None => None,
            };
            let (dead, live, begins_at) = (number(dead), number(live), number(begins_at));
            Cleaning::Vacuum { table, off, dead, live, begins_at, last: last.map(length) }
        };
        Ok(rows.into_iter().map(vacuum).collect())
    }

    async fn work(&self) -> Result<Work> {
        let most = i64::from(LOOKED_AT);
        let due = statement(&self.table, DUE);
        let due = query_as(due.sql()).bind(most + 1).fetch_one(&self.pool).await;
        let (open, due, oldest): (i64, i64, Option<i64>) = due.map_err(|e| self.error(e))?;
        let holders = statement(&self.table, HOLDERS);
        let holders = query_as(holders.sql())
            .bind(CLASS_PRESENCE)
            .bind(most)
            .bind(i64::from(NAMED))
            .fetch_all(&self.pool)
            .await;
        let holders: Vec<(String, i64, i64, Option<i64>, Option<bool>)> =
            holders.map_err(|e| self.error(e))?;
        let holder = |(worker, leased, ended, ended_for, present)| Holder {
            worker,
            leased: number(leased),
            ended: number(ended),
            ended_for: over(ended_for),
            present,
        };
        let relays = statement(&self.table, RELAYS);
        let relays = query_scalar(relays.sql()).bind(CLASS_PRESENCE).fetch_one(&self.pool).await;
        Ok(Work {
            due: Count::among(open, due, LOOKED_AT),
            oldest_due: over(oldest),
            holders: holders.into_iter().map(holder).collect(),
            relays: Some(number(relays.map_err(|e| self.error(e))?)),
        })
    }

    async fn fleet(&self) -> Result<Fleet> {
        let living = statement(&self.table, LIVING);
        let relays = query_scalar(living.sql()).fetch_all(&self.pool).await.map_err(|e| self.error(e))?;
        let lanes = statement(&self.table, LANES);
        let lanes = query_as(lanes.sql()).bind(CLASS_PRESENCE).fetch_all(&self.pool).await;
        let lanes: Vec<(i16, Option<String>, Option<i64>, Option<bool>)> =
            lanes.map_err(|e| self.error(e))?;
        let lane = |(lane, owner, ended_for, present): (i16, _, _, _)| LaneOwner {
            lane: lane as u16,
            owner,
            ended_for: over(ended_for),
            present,
        };
        Ok(Fleet { relays, lanes: lanes.into_iter().map(lane).collect() })
    }
}

/// Somebody whose row begins with number, application, state and the age of the transaction.
fn client(row: &PgRow) -> sqlx::Result<(i32, Client)> {
    let pid: i32 = row.try_get(0)?;
    let state: Option<String> = row.try_get(2)?;
    let idle = state.as_deref().is_some_and(|state| state.starts_with("idle"));
    let client = Client {
        name: format!("pid {pid}"),
        application: row.try_get::<Option<String>, _>(1)?.filter(|name| !name.is_empty()),
        state,
        idle,
        lasting: row.try_get::<Option<i64>, _>(3)?.map(length),
    };
    Ok((pid, client))
}

fn terminate(pid: i32) -> String {
    format!("SELECT pg_terminate_backend({pid});")
}

fn table_lock(row: &PgRow) -> sqlx::Result<TableLock> {
    let (pid, by) = client(row)?;
    let granted: bool = row.try_get(4)?;
    let blocking: Vec<i32> = if granted { Vec::new() } else { row.try_get(5)? };
    let behind = blocking.iter().map(|pid| format!("pid {pid}")).collect();
    Ok(TableLock { by, behind, remedy: Some(terminate(blocking.first().copied().unwrap_or(pid))) })
}

async fn transactions(pool: &PgPool) -> sqlx::Result<Vec<Pin>> {
    let rows = query(TRANSACTIONS).bind(i64::from(NAMED)).fetch_all(pool).await?;
    let pin = |row: &PgRow| {
        let (pid, holder) = client(row)?;
        let standby: bool = row.try_get(5)?;
        let kind = if standby { PinKind::Standby } else { PinKind::Transaction };
        let transactions = row.try_get::<Option<i64>, _>(4)?.map(number);
        Ok(Pin { kind, holder, transactions, remedy: terminate(pid) })
    };
    rows.iter().map(pin).collect()
}

async fn prepared(pool: &PgPool) -> sqlx::Result<Vec<Pin>> {
    type Prepared = (String, String, Option<String>, Option<i64>, Option<i64>);
    let rows: Vec<Prepared> = query_as(PREPARED).bind(i64::from(NAMED)).fetch_all(pool).await?;
    let pin = |(gid, quoted, owner, lasting, transactions): Prepared| Pin {
        kind: PinKind::Prepared,
        holder: Client {
            name: format!("prepared transaction {gid}"),
            application: owner,
            state: Some("prepared".to_owned()),
            idle: true,
            lasting: lasting.map(length),
        },
        transactions: transactions.map(number),
        remedy: format!("ROLLBACK PREPARED {quoted};"),
    };
    Ok(rows.into_iter().map(pin).collect())
}

async fn slots(pool: &PgPool) -> sqlx::Result<Vec<Pin>> {
    type Slot = (String, bool, Option<i64>, Option<i64>);
    let rows: Vec<Slot> = query_as(SLOTS).bind(i64::from(NAMED)).fetch_all(pool).await?;
    let pin = |(slot, active, rows, catalog): Slot| Pin {
        kind: if rows.is_some() { PinKind::Slot } else { PinKind::CatalogSlot },
        // The name of a slot has letters, digits and underscores only.
        remedy: format!("SELECT pg_drop_replication_slot('{slot}');"),
        holder: Client {
            name: format!("replication slot {slot}"),
            application: None,
            state: Some(if active { "active" } else { "inactive" }.to_owned()),
            idle: !active,
            lasting: None,
        },
        transactions: rows.or(catalog).map(number),
    };
    Ok(rows.into_iter().map(pin).collect())
}
