//! Lanes in short transactions: who changes what is parked in a lane locks the lane first, so that nothing of it
//! changes in between.
//!
//! Nobody is waited for with a lane locked. A producer that met a duplicate of an event holds its row until it commits: such a
//! row is passed over and written to later. That an event is parked is said by its row among the parked alone until then, and
//! of one that was delivered that row stays, with nobody behind it and due at no time.
//!
//! Indexes are forced: a small table would be read from end to end, and every row of it locked.

pub(super) mod admin;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::json;
use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlRow};
use sqlx::pool::PoolConnection;
use sqlx::{Connection, Executor, MySql, Row as _, Transaction};
use time::{OffsetDateTime, PrimitiveDateTime};

use super::queue::PAUSES;
use super::session::lock_name;
use super::{EVENT_COLUMNS, decode, errors};
use crate::error::Result;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::stream::floor::{Delivered, FloorReader, Ground};
use crate::store::stream::place::{
    Ended, MOST_RUNS, MOST_WAITING, Takes, Waiting, age, firsts_json, holds_json, json_text, keys_json, lane,
    longest_due, mask, places, refused,
};
use crate::store::stream::{
    Beat, BlockedAggregate, Council, Hold, LaneLag, LaneState, Lanes, Park, Parked, ParkedClaim, ParkedEnd,
    Reader, Row, Stream,
};
use crate::store::tries::insist;
use crate::store::{Count, Dialect, Keep, TableName, WorkerId};

// An owner that is stopped in the middle would keep its lanes locked for as long as it stands still: of a connection that says
// nothing for five seconds the server ends the transaction. Afterwards it may be silent for as long as before.
const BEGIN: &str = "
SET @posthaste_wait_timeout = COALESCE(@posthaste_wait_timeout, @@SESSION.wait_timeout);
SET SESSION wait_timeout = 5;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
START TRANSACTION";

const AFTERWARDS: &str = "
SET SESSION wait_timeout = @posthaste_wait_timeout;
SET @posthaste_wait_timeout = NULL";

const JOIN: &str = "
INSERT INTO {relays_table} (relay, `until`) VALUES (?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
    ON DUPLICATE KEY UPDATE seen_at = UTC_TIMESTAMP(6), `until` = VALUES(`until`)";

const RENEW: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane AND l.fence = h.fence
   SET l.leased_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, l.present = ?
 WHERE l.owner = ?";

// One that is not heard of for a minute is not coming back.
const RELAYS: &str = "
SELECT relay, CAST(`until` > UTC_TIMESTAMP(6) AS SIGNED), CAST(`until` < UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE AS SIGNED)
  FROM {relays_table}
 ORDER BY joined_at, relay";

const FORGET: &str = "
DELETE FROM {relays_table} WHERE relay = ? AND `until` < UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE";

const LANES: &str = concat!(
    "
SELECT lane, fence, owner,
       CAST(owner IS NULL OR leased_until IS NULL OR leased_until <= UTC_TIMESTAMP(6) AS SIGNED),
       CAST(owner IS NOT NULL AND present AND IS_USED_LOCK(",
    lock_name!("CONCAT(owner, '~')"),
    ") IS NULL AS SIGNED)
  FROM {lanes_table}
 ORDER BY lane"
);

// A lane that somebody is just writing to is passed over, not waited for. One's own is free: who takes it does not know of it.
// A server that takes over after another may not know of the last owners: what it counts on from was theirs already, and
// the time was not.
const FREE: &str = "
SELECT lane, fence, GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  FROM {lanes_table}
 WHERE SUBSTR(?, lane + 1, 1) = '1'
   AND (owner IS NULL OR leased_until IS NULL OR leased_until <= UTC_TIMESTAMP(6) OR owner = ?
        OR JSON_CONTAINS(?, JSON_QUOTE(owner)))
 ORDER BY lane
   FOR UPDATE SKIP LOCKED";

const TAKE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane
   SET l.fence = h.fence, l.owner = ?, l.present = ?, l.leased_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
       l.noted_seq = CASE WHEN SUBSTR(?, l.lane + 1, 1) = '1' THEN NULL ELSE l.noted_seq END";

const ORPHANS: &str = "
SELECT position FROM {parked_table} WHERE claimed IS NOT NULL AND SUBSTR(?, lane + 1, 1) = '1' ORDER BY position";

const SUSPECT: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$')) AS o
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = o.position
   SET p.claimed = NULL, p.suspect = p.suspect OR SUBSTR(?, p.lane + 1, 1) = '0',
       p.due = CASE WHEN p.blocks THEN NULL ELSE UTC_TIMESTAMP(6) END";

const STUCK: &str = "
SELECT p.position
  FROM (SELECT MIN(position) AS position FROM {parked_table}
         WHERE blocks AND SUBSTR(?, lane + 1, 1) = '1' GROUP BY `key`) AS f
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = f.position
 WHERE p.outcome IS NULL AND p.due IS NULL AND p.claimed IS NULL
 ORDER BY p.position";

const CLAIMED: &str = "
SELECT lane, claimed, seq FROM {parked_table}
 WHERE claimed IS NOT NULL AND SUBSTR(?, lane + 1, 1) = '1'";

const RELEASE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane AND l.fence = h.fence
   SET l.owner = NULL, l.present = FALSE, l.leased_until = NULL, l.noted_seq = NULL";

const LEAVE: &str = "DELETE FROM {relays_table} WHERE relay = ?";

const HELD: &str = "
SELECT l.lane, l.fence, l.noted_seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane AND l.fence = h.fence
   {lock}";

// The limit keeps the database from making a join of it that reads everything that is parked.
const BLOCKED_AMONG: &str = "
SELECT k.k
  FROM JSON_TABLE(?, '$[*]' COLUMNS (k VARCHAR(512) PATH '$')) AS k
 WHERE (SELECT 1 FROM {parked_table} AS p FORCE INDEX (`{name}_parked_key`) WHERE p.`key` = k.k AND p.blocks LIMIT 1) IS NOT NULL";

const OPEN: &str = "
SELECT o.seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
 WHERE o.outcome IS NULL AND {not_parked}";

const NOT_PARKED: &str = "(SELECT 1 FROM {parked_table} AS w WHERE w.seq = o.seq LIMIT 1) IS NULL";

const THERE: &str = "
SELECT o.seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
   {lock}";

const PARK: &str = "
INSERT INTO {parked_table} (seq, id, lane, topic, `key`, blocks, suspect, attempts, due, claimed, outcome, last_error, settled_at)
SELECT p.s, UNHEX(p.id), p.lane, p.topic, p.k, p.blocks, p.suspect, p.attempts,
       CASE WHEN p.at_its_time = 1 THEN o.available_at
            WHEN p.due IS NOT NULL THEN UTC_TIMESTAMP(6) + INTERVAL p.due MICROSECOND END,
       p.claimed, p.outcome, p.error, CASE WHEN p.outcome IS NOT NULL THEN UTC_TIMESTAMP(6) END
  FROM JSON_TABLE(?, '$[*]' COLUMNS (n FOR ORDINALITY, s BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]', lane INT PATH '$[2]',
                                     topic VARCHAR(128) PATH '$[3]', k VARCHAR(512) PATH '$[4]', blocks INT PATH '$[5]',
                                     suspect INT PATH '$[6]', attempts INT PATH '$[7]', due BIGINT PATH '$[8]',
                                     at_its_time INT PATH '$[9]', claimed BIGINT PATH '$[10]',
                                     outcome VARCHAR(8) PATH '$[11]', error TEXT PATH '$[12]')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
 ORDER BY p.n";

const MARK_PARKED: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
   SET o.outcome = 'parked'";

// Only the first of an aggregate comes up, whatever those behind it say; what nobody waits for waits for nobody. Of the
// suspects those come first that were tried least: one that ends every process does not keep the others waiting.
const DUE: &str = "
SELECT p.position, p.seq, p.id, p.lane, p.topic, p.`key`, p.attempts, p.suspect, p.blocks, p.last_error,
       TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), p.due)
  FROM {parked_table} AS p FORCE INDEX (`{name}_parked_due`)
 WHERE p.claimed IS NULL AND p.due <= UTC_TIMESTAMP(6) AND p.outcome IS NULL AND p.suspect = ?
   AND SUBSTR(?, p.lane + 1, 1) = '1'
   AND (NOT p.blocks OR (SELECT b.position FROM {parked_table} AS b FORCE INDEX (`{name}_parked_key`)
                          WHERE b.`key` = p.`key` AND b.blocks AND b.position < p.position LIMIT 1) IS NULL)
   {topics}
 ORDER BY {tried} p.due, p.position
 LIMIT ?";

const ONLY: &str = "AND JSON_CONTAINS(?, JSON_QUOTE(p.topic))";

const EXCEPT: &str = "AND NOT JSON_CONTAINS(?, JSON_QUOTE(p.topic))";

const BEHIND: &str = "
SELECT position, seq, id, lane, topic, `key`, attempts, suspect, blocks, last_error, 0,
       CAST(claimed IS NULL AND outcome IS NULL AND due IS NULL AND NOT suspect AS SIGNED)
  FROM {parked_table} FORCE INDEX (`{name}_parked_key`)
 WHERE `key` = ? AND position > ? AND blocks
 ORDER BY position
 LIMIT ?";

const EVENTS: &str = "
SELECT {columns}, o.seq, o.created_at
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s";

const CLAIM: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$[0]', fence BIGINT PATH '$[1]')) AS c
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = c.position
   SET p.claimed = c.fence, p.attempts = p.attempts + 1";

const UNPARK: &str = "
DELETE p
  FROM JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = d.position";

// Delivered, but its event is somebody's just now.
const SHELVE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = d.position
   SET p.claimed = NULL, p.due = NULL, p.blocks = FALSE";

const SHELVED: &str = "
SELECT position, seq
  FROM {parked_table}
 WHERE claimed IS NULL AND due IS NULL AND outcome IS NULL AND NOT blocks AND SUBSTR(?, lane + 1, 1) = '1'
 ORDER BY position";

const ENDED: &str = "
SELECT p.position, p.seq, p.`key`, p.blocks
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', lane INT PATH '$[1]', fence BIGINT PATH '$[2]')) AS e
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (`{name}_parked_seq`) ON p.seq = e.s
 WHERE p.lane = e.lane AND p.claimed = e.fence";

// Verdicts: 1 retry, 2 dead, 3 released, 4 behind.
const SETTLE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$[0]', verdict INT PATH '$[1]', due BIGINT PATH '$[2]',
                                     error TEXT PATH '$[3]', blocks INT PATH '$[4]')) AS e
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = e.position
   SET p.claimed    = NULL,
       p.due        = CASE WHEN e.due IS NOT NULL THEN UTC_TIMESTAMP(6) + INTERVAL e.due MICROSECOND END,
       p.blocks     = e.blocks,
       p.attempts   = CASE WHEN e.verdict IN (3, 4) THEN GREATEST(p.attempts - 1, 0) ELSE p.attempts END,
       p.last_error = COALESCE(e.error, p.last_error),
       p.outcome    = CASE e.verdict WHEN 2 THEN 'dead' END,
       p.settled_at = CASE e.verdict WHEN 2 THEN UTC_TIMESTAMP(6) END";

const FIRSTS: &str = "
SELECT (SELECT b.position FROM {parked_table} AS b FORCE INDEX (`{name}_parked_key`)
         WHERE b.`key` = k.k AND b.blocks ORDER BY b.position LIMIT 1)
  FROM JSON_TABLE(?, '$[*]' COLUMNS (k VARCHAR(512) PATH '$')) AS k";

const PROMOTE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$[0]', due BIGINT PATH '$[1]')) AS f
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = f.position
   SET p.due = UTC_TIMESTAMP(6) + INTERVAL f.due MICROSECOND
 WHERE p.outcome IS NULL AND p.due IS NULL AND p.claimed IS NULL";

const MARK_DELIVERED: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = d.s
   SET o.outcome = 'delivered', o.settled_at = UTC_TIMESTAMP(6)";

const NAMES: &str = "
SELECT o.seq, LOWER(HEX(o.id)), o.dedupe_key, o.namespace, o.topic
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = d.s";

// A producer that met a duplicate of a row holds its entry in an index until it commits, and to delete the row would
// be to wait for it.
const FREE_BY_ID: &str = "
SELECT o.seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_id`) ON o.id = UNHEX(d.id)
   FOR UPDATE SKIP LOCKED";

const FREE_BY_DEDUPE_KEY: &str = "
SELECT o.seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (dedupe_key VARCHAR(255) PATH '$[0]', namespace VARCHAR(64) PATH '$[1]',
                                     topic VARCHAR(128) PATH '$[2]')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_dedupe`)
     ON o.dedupe_key = d.dedupe_key AND o.namespace = d.namespace AND o.topic = d.topic
   FOR UPDATE SKIP LOCKED";

const DELETE: &str = "
DELETE o
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = d.s";

const HAS_PARKED: &str =
    "SELECT EXISTS (SELECT 1 FROM {parked_table} WHERE SUBSTR(?, lane + 1, 1) = '1' LIMIT 1)";

const BLOCKED: &str = "
SELECT o.namespace, o.aggregate_type, o.aggregate_id, p.lane, p.id, p.topic, COALESCE(p.last_error, ''),
       COALESCE(p.settled_at, p.parked_at), p.`key`, p.position
  FROM {parked_table} AS p
  JOIN {table} AS o ON o.seq = p.seq
 WHERE p.outcome = 'dead' AND p.blocks AND o.aggregate_id IS NOT NULL
   AND (SELECT b.position FROM {parked_table} AS b
         WHERE b.`key` = p.`key` AND b.blocks AND b.outcome = 'dead' AND b.position < p.position LIMIT 1) IS NULL
 ORDER BY p.settled_at, p.position
 LIMIT ?";

const WAITING: &str = "
SELECT COUNT(*)
  FROM (SELECT 1 FROM {parked_table}
         WHERE `key` = ? AND position > ? AND blocks AND outcome IS NULL LIMIT ?) AS w";

const OWNERS: &str = "SELECT lane, owner FROM {lanes_table} ORDER BY lane";

const LAG: &str = "
SELECT lane, COUNT(*), TIMESTAMPDIFF(MICROSECOND, MIN(created_at), UTC_TIMESTAMP(6))
  FROM (SELECT lane, created_at FROM {table} FORCE INDEX (`{name}_unsettled`)
         WHERE outcome IS NULL ORDER BY seq LIMIT ?) AS l
 GROUP BY lane";

const PARKED: &str = "
SELECT lane, COUNT(*) FROM (SELECT lane FROM {parked_table} ORDER BY position LIMIT ?) AS l GROUP BY lane";

const DEAD: &str = "
SELECT lane, COUNT(DISTINCT `key`), COUNT(*)
  FROM (SELECT lane, `key` FROM {parked_table} WHERE outcome = 'dead' AND blocks LIMIT ?) AS l
 GROUP BY lane";

const UNSETTLED: &str = "
SELECT o.seq
  FROM {table} AS o FORCE INDEX (`{name}_unsettled`)
 WHERE o.outcome IS NULL AND o.seq > ? AND SUBSTR(?, o.lane + 1, 1) = '1' AND {not_parked}
 ORDER BY o.seq
 LIMIT ?";

const ROWS: &str = "
SELECT {columns}, o.seq, o.created_at, CAST(o.lane AS SIGNED), CAST(o.available_at > UTC_TIMESTAMP(6) AS SIGNED)
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
 WHERE o.outcome IS NULL AND {not_parked}";

const NOTE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]', s BIGINT PATH '$[2]')) AS n
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = n.lane AND l.fence = n.fence
   SET l.noted_seq = GREATEST(COALESCE(l.noted_seq, n.s), n.s)";

const CLEAR: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane AND l.fence = h.fence
   SET l.noted_seq = NULL";

/// The reads of all topics, of some, and of all but some.
#[derive(Debug)]
struct Dues {
    all: Statement,
    only: Statement,
    except: Statement,
}

#[derive(Debug)]
pub(super) struct Statements {
    join: Statement,
    renew: Statement,
    relays: Statement,
    forget: Statement,
    lanes: Statement,
    free: Statement,
    take: Statement,
    orphans: Statement,
    suspect: Statement,
    stuck: Statement,
    claimed: Statement,
    release: Statement,
    leave: Statement,
    held: Statement,
    held_shared: Statement,
    held_alone: Statement,
    blocked_among: Statement,
    open: Statement,
    there: Statement,
    there_free: Statement,
    park: Statement,
    mark_parked: Statement,
    due: Dues,
    due_suspect: Dues,
    behind: Statement,
    events: Statement,
    claim: Statement,
    pub(super) unpark: Statement,
    shelve: Statement,
    shelved: Statement,
    ended: Statement,
    settle: Statement,
    firsts: Statement,
    promote: Statement,
    mark_delivered: Statement,
    names: Statement,
    free_by_id: Statement,
    free_by_dedupe_key: Statement,
    delete: Statement,
    has_parked: Statement,
    blocked: Statement,
    waiting: Statement,
    owners: Statement,
    lag: Statement,
    parked: Statement,
    dead: Statement,
    unsettled: Statement,
    rows: Statement,
    note: Statement,
    clear: Statement,
}

impl Statements {
    fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        let not_parked = statement(NOT_PARKED);
        let unparked = |sql| statement(sql).with_rendered("{not_parked}", &not_parked);
        let locking = |sql, lock| statement(sql).with("{lock}", lock);
        let due = |tried, topics| statement(DUE).with("{tried}", tried).with("{topics}", topics);
        let dues = |tried| Dues { all: due(tried, ""), only: due(tried, ONLY), except: due(tried, EXCEPT) };
        Self {
            join: statement(JOIN),
            renew: statement(RENEW),
            relays: statement(RELAYS),
            forget: statement(FORGET),
            lanes: statement(LANES),
            free: statement(FREE),
            take: statement(TAKE),
            orphans: statement(ORPHANS),
            suspect: statement(SUSPECT),
            stuck: statement(STUCK),
            claimed: statement(CLAIMED),
            release: statement(RELEASE),
            leave: statement(LEAVE),
            held: locking(HELD, ""),
            held_shared: locking(HELD, "LOCK IN SHARE MODE"),
            held_alone: locking(HELD, "FOR UPDATE"),
            blocked_among: statement(BLOCKED_AMONG),
            open: unparked(OPEN),
            there: locking(THERE, ""),
            there_free: locking(THERE, "FOR UPDATE SKIP LOCKED"),
            park: statement(PARK),
            mark_parked: statement(MARK_PARKED),
            due: dues(""),
            due_suspect: dues("p.attempts,"),
            behind: statement(BEHIND),
            events: statement(EVENTS).with("{columns}", EVENT_COLUMNS),
            claim: statement(CLAIM),
            unpark: statement(UNPARK),
            shelve: statement(SHELVE),
            shelved: statement(SHELVED),
            ended: statement(ENDED),
            settle: statement(SETTLE),
            firsts: statement(FIRSTS),
            promote: statement(PROMOTE),
            mark_delivered: statement(MARK_DELIVERED),
            names: statement(NAMES),
            free_by_id: statement(FREE_BY_ID),
            free_by_dedupe_key: statement(FREE_BY_DEDUPE_KEY),
            delete: statement(DELETE),
            has_parked: statement(HAS_PARKED),
            blocked: statement(BLOCKED),
            waiting: statement(WAITING),
            owners: statement(OWNERS),
            lag: statement(LAG),
            parked: statement(PARKED),
            dead: statement(DEAD),
            unsettled: unparked(UNSETTLED),
            rows: unparked(ROWS).with("{columns}", EVENT_COLUMNS),
            note: statement(NOTE),
            clear: statement(CLEAR),
        }
    }
}

/// A stream in MySQL or MariaDB.
#[derive(Debug, Clone)]
pub(super) struct MySqlStream {
    pub(super) pool: MySqlPool,
    pub(super) table: TableName,
    lanes: Lanes,
    pub(super) statements: Arc<Statements>,
    /// Parked events that were delivered and whose rows were somebody's.
    shelved: Arc<Mutex<Vec<Shelved>>>,
}

#[derive(Debug, Clone, Copy)]
struct Shelved {
    hold: Hold,
    position: i64,
    sequence: i64,
}

impl MySqlStream {
    /// The stream of this table.
    pub(super) fn new(pool: &MySqlPool, table: &TableName, lanes: Lanes) -> Self {
        let statements = Statements::new(table).into();
        Self { pool: pool.clone(), table: table.clone(), lanes, statements, shelved: Arc::default() }
    }

    fn shelved(&self) -> MutexGuard<'_, Vec<Shelved>> {
        self.shelved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls until it succeeds or another call would not help.
    async fn insist<A, F>(&self, mut call: impl FnMut() -> F) -> Result<A>
    where
        F: Future<Output = sqlx::Result<A>>,
    {
        insist(|| {
            let called = call();
            async { called.await.map_err(|error| errors::classify(error, &self.table)) }
        })
        .await
    }
}

#[async_trait]
impl Stream for MySqlStream {
    fn lanes(&self) -> Lanes {
        self.lanes
    }

    async fn beat(&self, beat: &Beat<'_>) -> Result<Council> {
        self.insist(|| self::beat(self, beat)).await
    }

    async fn take(&self, beat: &Beat<'_>, lanes: &[u16], absent: &[String]) -> Result<Vec<Hold>> {
        self.insist(|| take(self, beat, lanes, absent)).await
    }

    async fn release(&self, holds: &[Hold]) -> Result<()> {
        self.insist(|| release(self, holds)).await
    }

    async fn leave(&self, relay: &WorkerId) -> Result<()> {
        self.insist(|| leave(self, relay)).await
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(FloorReader::new(self.clone()))
    }

    async fn blocked_among(&self, keys: &[String]) -> Result<HashSet<String>> {
        self.insist(|| blocked_among(self, keys)).await
    }

    async fn park(&self, parks: &[Park]) -> Result<Vec<u16>> {
        self.insist(|| park(self, parks)).await
    }

    async fn claim_parked(&self, claim: &ParkedClaim<'_>) -> Result<Vec<Parked>> {
        self.insist(|| claim_parked(self, claim)).await
    }

    async fn claimed(&self, holds: &[Hold]) -> Result<Vec<(Hold, i64)>> {
        self.insist(|| claimed(self, holds)).await
    }

    async fn settle_parked(&self, ends: &[ParkedEnd], keep: Keep) -> Result<Vec<u16>> {
        self.insist(|| settle_parked(self, ends, keep)).await
    }

    async fn has_parked(&self, lanes: &[u16]) -> Result<bool> {
        self.insist(|| has_parked(self, lanes)).await
    }

    async fn blocked(&self, limit: u32) -> Result<Vec<BlockedAggregate>> {
        self.insist(|| blocked(self, limit)).await
    }

    async fn lag(&self, cap: u32) -> Result<Vec<LaneLag>> {
        self.insist(|| lag(self, cap)).await
    }
}

#[async_trait]
impl Ground for MySqlStream {
    async fn noted(&self, holds: &[Hold]) -> Result<Vec<(u16, Option<i64>)>> {
        self.insist(|| noted(self, holds)).await
    }

    async fn unsettled(&self, lanes: &[u16], above: i64, limit: u32) -> Result<Vec<i64>> {
        self.insist(|| unsettled(self, lanes, above, limit)).await
    }

    async fn rows(&self, sequences: &[i64]) -> Result<Vec<Row>> {
        self.insist(|| rows(self, sequences)).await
    }

    async fn note(&self, notes: &[(Hold, i64)]) -> Result<Vec<Hold>> {
        self.insist(|| note(self, notes)).await
    }

    async fn deliver(&self, rows: &[(Hold, i64)], keep: Keep) -> Result<Delivered> {
        let mut delivered = Delivered { busy: rows.to_vec(), ..Delivered::default() };
        for pause in PAUSES {
            tokio::time::sleep(pause).await;
            let open = std::mem::take(&mut delivered.busy);
            let done = self.insist(|| deliver(self, &open, keep)).await?;
            delivered.refused.extend(done.refused);
            delivered.busy = done.busy;
            if delivered.busy.is_empty() {
                break;
            }
        }
        Ok(delivered)
    }

    async fn clear(&self, holds: &[Hold]) -> Result<Vec<Hold>> {
        self.insist(|| clear(self, holds)).await
    }
}

// Own.

async fn beat(stream: &MySqlStream, beat: &Beat<'_>) -> sqlx::Result<Council> {
    let statements = &stream.statements;
    let mut connection = stream.pool.acquire().await?;
    sqlx::query(statements.join.sql())
        .bind(beat.relay.as_str())
        .bind(micros(beat.lease))
        .execute(&mut *connection)
        .await?;
    if !beat.holds.is_empty() {
        sqlx::query(statements.renew.sql())
            .bind(holds_json(beat.holds.iter().copied()))
            .bind(micros(beat.lease))
            .bind(beat.present)
            .bind(beat.relay.as_str())
            .execute(&mut *connection)
            .await?;
    }
    let relays: Vec<(String, i64, i64)> =
        sqlx::query_as(statements.relays.sql()).fetch_all(&mut *connection).await?;
    for (relay, _, long_gone) in &relays {
        if *long_gone == 1 {
            sqlx::query(statements.forget.sql()).bind(relay).execute(&mut *connection).await?;
        }
    }
    let lanes: Vec<(i16, i64, Option<String>, i64, i64)> = sqlx::query_as(statements.lanes.sql())
        .bind(stream.table.schema())
        .fetch_all(&mut *connection)
        .await?;
    let state = |(number, fence, owner, free, absent): (i16, i64, Option<String>, i64, i64)| LaneState {
        lane: lane(number.into()),
        fence,
        owner,
        free: free == 1,
        absent: absent == 1,
    };
    Ok(Council {
        relays: relays.into_iter().filter(|(_, lives, _)| *lives == 1).map(|(relay, ..)| relay).collect(),
        lanes: lanes.into_iter().map(state).collect(),
    })
}

async fn take(
    stream: &MySqlStream,
    beat: &Beat<'_>,
    lanes: &[u16],
    absent: &[String],
) -> sqlx::Result<Vec<Hold>> {
    if lanes.is_empty() {
        return Ok(Vec::new());
    }
    let mut connection = stream.pool.acquire().await?;
    let taken = take_on(&mut connection, &stream.statements, beat, lanes, absent).await;
    afterwards(connection, taken).await
}

async fn take_on(
    connection: &mut MySqlConnection,
    statements: &Statements,
    beat: &Beat<'_>,
    lanes: &[u16],
    absent: &[String],
) -> sqlx::Result<Vec<Hold>> {
    let mut tx = begin(connection).await?;
    let free: Vec<(i16, i64, i64)> = sqlx::query_as(statements.free.sql())
        .bind(mask(lanes.iter().copied()))
        .bind(beat.relay.as_str())
        .bind(json!(absent).to_string())
        .fetch_all(&mut *tx)
        .await?;
    let free = free.into_iter().map(|(number, fence, next)| (lane(number.into()), fence, next));
    let Takes { holds, continued } = Takes::of(free, beat.holds);
    if holds.is_empty() {
        return Ok(holds);
    }
    sqlx::query(statements.take.sql())
        .bind(holds_json(holds.iter().copied()))
        .bind(beat.relay.as_str())
        .bind(beat.present)
        .bind(micros(beat.lease))
        .bind(&continued)
        .execute(&mut *tx)
        .await?;
    // Whose session is gone has no share: one that lives says so again with its next beat.
    for relay in absent {
        sqlx::query(statements.leave.sql()).bind(relay).execute(&mut *tx).await?;
    }
    let taken = mask(holds.iter().map(|hold| hold.lane));
    let orphans: Vec<i64> =
        sqlx::query_scalar(statements.orphans.sql()).bind(&taken).fetch_all(&mut *tx).await?;
    if !orphans.is_empty() {
        sqlx::query(statements.suspect.sql())
            .bind(json!(orphans).to_string())
            .bind(&continued)
            .execute(&mut *tx)
            .await?;
    }
    let shelved: Vec<(i64, i64)> =
        sqlx::query_as(statements.shelved.sql()).bind(&taken).fetch_all(&mut *tx).await?;
    unshelve(&mut tx, statements, &shelved, Keep::Delivered).await?;
    let stuck: Vec<i64> = sqlx::query_scalar(statements.stuck.sql()).bind(&taken).fetch_all(&mut *tx).await?;
    promote(&mut tx, statements, &stuck, &[]).await?;
    tx.commit().await?;
    Ok(holds)
}

async fn release(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<()> {
    if holds.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(stream.statements.release.sql()).bind(holds_json(holds.iter().copied()));
    query.execute(&stream.pool).await.map(drop)
}

async fn leave(stream: &MySqlStream, relay: &WorkerId) -> sqlx::Result<()> {
    let query = sqlx::query(stream.statements.leave.sql()).bind(relay.as_str());
    query.execute(&stream.pool).await.map(drop)
}

// Park.

async fn blocked_among(stream: &MySqlStream, keys: &[String]) -> sqlx::Result<HashSet<String>> {
    let mut connection = stream.pool.acquire().await?;
    blocked_of(&mut connection, &stream.statements, keys.iter().map(String::as_str)).await
}

async fn park(stream: &MySqlStream, parks: &[Park]) -> sqlx::Result<Vec<u16>> {
    if parks.is_empty() {
        return Ok(Vec::new());
    }
    let mut connection = stream.pool.acquire().await?;
    let refused = park_on(&mut connection, &stream.statements, parks).await;
    afterwards(connection, refused).await
}

async fn park_on(
    connection: &mut MySqlConnection,
    statements: &Statements,
    parks: &[Park],
) -> sqlx::Result<Vec<u16>> {
    let mut tx = begin(connection).await?;
    let holds = || parks.iter().map(|park| park.hold);
    let held = held(&mut tx, &statements.held_alone, holds()).await?;
    let mut sequences: Vec<i64> = parks.iter().map(|park| park.sequence).collect();
    sequences.sort_unstable();
    let open: Vec<i64> = sqlx::query_scalar(statements.open.sql())
        .bind(json!(sequences).to_string())
        .fetch_all(&mut *tx)
        .await?;
    let mut open: HashSet<i64> = open.into_iter().collect();
    let new: Vec<&Park> =
        parks.iter().filter(|park| held.contains(&park.hold) && open.remove(&park.sequence)).collect();
    if !new.is_empty() {
        let blocked = blocked_of(&mut tx, statements, new.iter().map(|park| park.key.as_str())).await?;
        let places = places(new.iter().copied(), blocked);
        let rows = places.iter().map(|place| place.json(&place.park.id.simple().to_string()));
        sqlx::query(statements.park.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        let mut marked: Vec<i64> = new.iter().map(|park| park.sequence).collect();
        marked.sort_unstable();
        let free = free(&mut tx, statements, &marked).await?;
        sqlx::query(statements.mark_parked.sql()).bind(json!(free).to_string()).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(refused(holds(), &held))
}

async fn claim_parked(stream: &MySqlStream, claim: &ParkedClaim<'_>) -> sqlx::Result<Vec<Parked>> {
    if claim.holds.is_empty() || claim.limit == 0 {
        return Ok(Vec::new());
    }
    tidy(stream).await?;
    let mut connection = stream.pool.acquire().await?;
    // Mostly nothing is due, and to find that out nothing need be locked.
    if due(&mut connection, &stream.statements, claim, claim.holds, 1).await?.is_empty() {
        return Ok(Vec::new());
    }
    let claimed = claim_parked_on(&mut connection, &stream.statements, claim).await;
    afterwards(connection, claimed).await
}

async fn claim_parked_on(
    connection: &mut MySqlConnection,
    statements: &Statements,
    claim: &ParkedClaim<'_>,
) -> sqlx::Result<Vec<Parked>> {
    let mut tx = begin(connection).await?;
    let held = held(&mut tx, &statements.held_alone, claim.holds.iter().copied()).await?;
    let held: Vec<Hold> = held.into_iter().collect();
    let firsts = due(&mut tx, statements, claim, &held, claim.limit).await?;
    let waiting = with_runs(&mut tx, statements, firsts, claim).await?;
    let sequences: Vec<i64> = waiting.iter().map(|waiting| waiting.sequence).collect();
    let events =
        sqlx::query(statements.events.sql()).bind(json!(sequences).to_string()).fetch_all(&mut *tx).await?;
    let mut events: HashMap<i64, &MySqlRow> =
        events.iter().map(|row| Ok((row.try_get(15)?, row))).collect::<sqlx::Result<_>>()?;
    let (claimed, gone): (Vec<Waiting>, Vec<Waiting>) =
        waiting.into_iter().partition(|waiting| events.contains_key(&waiting.sequence));
    if !claimed.is_empty() {
        let rows = claimed.iter().map(|waiting| json!([waiting.position, waiting.hold.fence]));
        sqlx::query(statements.claim.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
    }
    if !gone.is_empty() {
        let rows = gone.iter().map(|waiting| json!(waiting.position));
        sqlx::query(statements.unpark.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        come_up(&mut tx, statements, gone.iter().map(|waiting| waiting.key.as_str()), &[]).await?;
    }
    let mut parked = Vec::with_capacity(claimed.len());
    for waiting in claimed {
        if let Some(row) = events.remove(&waiting.sequence) {
            parked.push(waiting.into_parked(time(row, 16)?, decode(row)));
        }
    }
    tx.commit().await?;
    Ok(parked)
}

async fn claimed(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<Vec<(Hold, i64)>> {
    let lanes = mask(holds.iter().map(|hold| hold.lane));
    let query = sqlx::query_as(stream.statements.claimed.sql()).bind(lanes);
    let claimed: Vec<(i16, i64, i64)> = query.fetch_all(&stream.pool).await?;
    let claimed = claimed
        .into_iter()
        .map(|(number, fence, sequence)| (Hold { lane: lane(number.into()), fence }, sequence));
    Ok(claimed.filter(|(hold, _)| holds.contains(hold)).collect())
}

async fn settle_parked(stream: &MySqlStream, ends: &[ParkedEnd], keep: Keep) -> sqlx::Result<Vec<u16>> {
    if ends.is_empty() {
        return Ok(Vec::new());
    }
    let mut connection = stream.pool.acquire().await?;
    let settled = settle_parked_on(&mut connection, &stream.statements, ends, keep).await;
    let (refused, shelved) = afterwards(connection, settled).await?;
    stream.shelved().extend(shelved);
    Ok(refused)
}

async fn settle_parked_on(
    connection: &mut MySqlConnection,
    statements: &Statements,
    ends: &[ParkedEnd],
    keep: Keep,
) -> sqlx::Result<(Vec<u16>, Vec<Shelved>)> {
    let mut tx = begin(connection).await?;
    let holds = || ends.iter().map(|end| end.hold);
    let held = held(&mut tx, &statements.held_alone, holds()).await?;
    let ended = ended(&mut tx, statements, ends.iter().filter(|end| held.contains(&end.hold))).await?;
    let (delivered, others): (Vec<&Ended<'_>>, Vec<&Ended<'_>>) =
        ended.iter().partition(|ended| ended.is_delivered());
    let rows: Vec<(i64, i64)> = delivered.iter().map(|ended| (ended.position, ended.end.sequence)).collect();
    let busy = unshelve(&mut tx, statements, &rows, keep).await?;
    let shelved: Vec<Shelved> = delivered
        .iter()
        .filter(|ended| busy.contains(&ended.position))
        .map(|ended| Shelved { hold: ended.end.hold, position: ended.position, sequence: ended.end.sequence })
        .collect();
    if !shelved.is_empty() {
        let rows = shelved.iter().map(|shelved| json!(shelved.position));
        sqlx::query(statements.shelve.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
    }
    if !others.is_empty() {
        let rows = others.iter().map(|ended| ended.json());
        sqlx::query(statements.settle.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
    }
    if !ended.is_empty() {
        come_up(&mut tx, statements, ended.iter().map(|ended| ended.key.as_str()), &ended).await?;
    }
    tx.commit().await?;
    Ok((refused(holds(), &held), shelved))
}

async fn has_parked(stream: &MySqlStream, lanes: &[u16]) -> sqlx::Result<bool> {
    let query = sqlx::query_scalar::<_, i64>(stream.statements.has_parked.sql());
    Ok(query.bind(mask(lanes.iter().copied())).fetch_one(&stream.pool).await? == 1)
}

// Operate.

async fn blocked(stream: &MySqlStream, limit: u32) -> sqlx::Result<Vec<BlockedAggregate>> {
    let mut connection = stream.pool.acquire().await?;
    let rows = sqlx::query(stream.statements.blocked.sql()).bind(limit).fetch_all(&mut *connection).await?;
    let mut blocked = Vec::with_capacity(rows.len());
    for row in &rows {
        let waiting = sqlx::query_scalar(stream.statements.waiting.sql())
            .bind(row.try_get::<String, _>(8)?)
            .bind(row.try_get::<i64, _>(9)?)
            .bind(i64::from(MOST_WAITING) + 1)
            .fetch_one(&mut *connection)
            .await?;
        blocked.push(BlockedAggregate {
            namespace: row.try_get(0)?,
            aggregate_type: row.try_get(1)?,
            aggregate_id: row.try_get(2)?,
            lane: lane(row.try_get::<i16, _>(3)?.into()),
            event_id: row.try_get(4)?,
            topic: row.try_get(5)?,
            reason: row.try_get(6)?,
            since: time(row, 7)?,
            waiting: Count::of(waiting, MOST_WAITING),
        });
    }
    Ok(blocked)
}

async fn lag(stream: &MySqlStream, cap: u32) -> sqlx::Result<Vec<LaneLag>> {
    let statements = &stream.statements;
    let most = i64::from(cap) + 1;
    let mut connection = stream.pool.acquire().await?;
    let owners: Vec<(i16, Option<String>)> =
        sqlx::query_as(statements.owners.sql()).fetch_all(&mut *connection).await?;
    let events: Vec<(i16, i64, Option<i64>)> =
        sqlx::query_as(statements.lag.sql()).bind(most).fetch_all(&mut *connection).await?;
    let parked: Vec<(i16, i64)> =
        sqlx::query_as(statements.parked.sql()).bind(most).fetch_all(&mut *connection).await?;
    let dead: Vec<(i16, i64, i64)> =
        sqlx::query_as(statements.dead.sql()).bind(most).fetch_all(&mut *connection).await?;
    let looked_at = (
        events.iter().map(|(_, rows, _)| rows).sum(),
        parked.iter().map(|(_, rows)| rows).sum(),
        dead.iter().map(|(_, _, rows)| rows).sum(),
    );
    let of = |(number, owner): (i16, Option<String>)| {
        let events = events.iter().find(|(lane, ..)| *lane == number);
        let parked = parked.iter().find(|(lane, _)| *lane == number);
        let dead = dead.iter().find(|(lane, ..)| *lane == number);
        LaneLag {
            lane: lane(number.into()),
            owner,
            events: Count::among(looked_at.0, events.map_or(0, |(_, rows, _)| *rows), cap),
            age: events.and_then(|(_, _, micros)| *micros).map(age),
            parked: Count::among(looked_at.1, parked.map_or(0, |(_, rows)| *rows), cap),
            blocked: Count::among(looked_at.2, dead.map_or(0, |(_, keys, _)| *keys), cap),
        }
    };
    Ok(owners.into_iter().map(of).collect())
}

// Read.

async fn noted(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<Vec<(u16, Option<i64>)>> {
    let rows: Vec<(i16, i64, Option<i64>)> = sqlx::query_as(stream.statements.held.sql())
        .bind(holds_json(holds.iter().copied()))
        .fetch_all(&stream.pool)
        .await?;
    Ok(rows.into_iter().map(|(number, _, noted)| (lane(number.into()), noted)).collect())
}

async fn unsettled(stream: &MySqlStream, lanes: &[u16], above: i64, limit: u32) -> sqlx::Result<Vec<i64>> {
    sqlx::query_scalar(stream.statements.unsettled.sql())
        .bind(above)
        .bind(mask(lanes.iter().copied()))
        .bind(limit)
        .fetch_all(&stream.pool)
        .await
}

async fn rows(stream: &MySqlStream, sequences: &[i64]) -> sqlx::Result<Vec<Row>> {
    let rows = sqlx::query(stream.statements.rows.sql())
        .bind(json!(sequences).to_string())
        .fetch_all(&stream.pool)
        .await?;
    let read = |row: &MySqlRow| {
        Ok(Row {
            hold: Hold { lane: lane(row.try_get(17)?), fence: 0 },
            sequence: row.try_get(15)?,
            id: row.try_get(0).unwrap_or_default(),
            topic: row.try_get(1).unwrap_or_default(),
            created_at: time(row, 16)?,
            delayed: row.try_get::<i64, _>(18)? == 1,
            suspect: false,
            event: decode(row),
        })
    };
    rows.iter().map(read).collect()
}

async fn note(stream: &MySqlStream, notes: &[(Hold, i64)]) -> sqlx::Result<Vec<Hold>> {
    let rows = notes.iter().map(|(hold, sequence)| json!([hold.lane, hold.fence, sequence]));
    let query = sqlx::query(stream.statements.note.sql()).bind(json_text(rows));
    let written = query.execute(&stream.pool).await?.rows_affected();
    let holds: Vec<Hold> = notes.iter().map(|(hold, _)| *hold).collect();
    unless_all(stream, written, holds).await
}

async fn deliver(stream: &MySqlStream, rows: &[(Hold, i64)], keep: Keep) -> sqlx::Result<Delivered> {
    let mut connection = stream.pool.acquire().await?;
    let delivered = deliver_on(&mut connection, &stream.statements, rows, keep).await;
    afterwards(connection, delivered).await
}

async fn deliver_on(
    connection: &mut MySqlConnection,
    statements: &Statements,
    rows: &[(Hold, i64)],
    keep: Keep,
) -> sqlx::Result<Delivered> {
    let mut tx = begin(connection).await?;
    let held = held(&mut tx, &statements.held_shared, rows.iter().map(|(hold, _)| *hold)).await?;
    let (ours, others): (Vec<_>, Vec<_>) = rows.iter().copied().partition(|(hold, _)| held.contains(hold));
    let mut delivered =
        Delivered { refused: others.into_iter().map(|(hold, _)| hold).collect(), busy: Vec::new() };
    if ours.is_empty() {
        return Ok(delivered);
    }
    let sequences = json_text(ours.iter().map(|(_, sequence)| json!(sequence)));
    let open: Vec<i64> =
        sqlx::query_scalar(statements.open.sql()).bind(sequences).fetch_all(&mut *tx).await?;
    let free = free(&mut tx, statements, &open).await?;
    if free.len() < open.len() {
        let is_free: HashSet<&i64> = free.iter().collect();
        let busy: HashSet<i64> = open.into_iter().filter(|sequence| !is_free.contains(sequence)).collect();
        delivered.busy = ours.iter().filter(|(_, sequence)| busy.contains(sequence)).copied().collect();
    }
    if !free.is_empty() {
        finish(&mut tx, statements, &free, keep).await?;
    }
    tx.commit().await?;
    Ok(delivered)
}

async fn clear(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<Vec<Hold>> {
    let query = sqlx::query(stream.statements.clear.sql()).bind(holds_json(holds.iter().copied()));
    let written = query.execute(&stream.pool).await?.rows_affected();
    unless_all(stream, written, holds.to_vec()).await
}

// Parts of them.

/// A transaction that locks the rows it reads and no gaps between them, and ends if its owner stands still.
async fn begin(connection: &mut MySqlConnection) -> sqlx::Result<Transaction<'_, MySql>> {
    connection.begin_with(BEGIN).await
}

/// What came of a transaction, with its connection as it was before.
async fn afterwards<A>(mut connection: PoolConnection<MySql>, done: sqlx::Result<A>) -> sqlx::Result<A> {
    if let Err(error) = connection.execute(AFTERWARDS).await {
        tracing::debug!(%error, "a connection broke after its transaction");
    }
    done
}

/// Which of these are still held; with a lock they stay so to the end of the transaction.
async fn held(
    connection: &mut MySqlConnection,
    statement: &Statement,
    holds: impl Iterator<Item = Hold>,
) -> sqlx::Result<HashSet<Hold>> {
    let query = sqlx::query_as(statement.sql()).bind(holds_json(holds));
    let held: Vec<(i16, i64, Option<i64>)> = query.fetch_all(connection).await?;
    Ok(held.into_iter().map(|(number, fence, _)| Hold { lane: lane(number.into()), fence }).collect())
}

/// What was refused, where not all of it was written.
async fn unless_all(stream: &MySqlStream, written: u64, holds: Vec<Hold>) -> sqlx::Result<Vec<Hold>> {
    if written == holds.len() as u64 {
        return Ok(Vec::new());
    }
    let known = noted(stream, &holds).await?;
    let known: HashSet<u16> = known.into_iter().map(|(lane, _)| lane).collect();
    Ok(holds.into_iter().filter(|hold| !known.contains(&hold.lane)).collect())
}

/// Which of these aggregates have events parked that others wait behind.
async fn blocked_of(
    connection: &mut MySqlConnection,
    statements: &Statements,
    keys: impl Iterator<Item = &str>,
) -> sqlx::Result<HashSet<String>> {
    let query = sqlx::query_scalar(statements.blocked_among.sql()).bind(keys_json(keys));
    Ok(query.fetch_all(connection).await?.into_iter().collect())
}

/// Parked events that are due, longest first, and at most one suspect among them.
async fn due(
    connection: &mut MySqlConnection,
    statements: &Statements,
    claim: &ParkedClaim<'_>,
    holds: &[Hold],
    limit: u32,
) -> sqlx::Result<Vec<Waiting>> {
    let fences: HashMap<u16, i64> = holds.iter().map(|hold| (hold.lane, hold.fence)).collect();
    let mask = mask(holds.iter().map(|hold| hold.lane));
    let mut kinds = Vec::with_capacity(2);
    let dues = [(&statements.due_suspect, true, u32::from(claim.suspects)), (&statements.due, false, limit)];
    for (Dues { all, only, except }, suspect, limit) in dues {
        let statement = claim.topics.choose([all, only, except]);
        let mut query = sqlx::query(statement.sql()).bind(suspect).bind(&mask);
        if let Some(topics) = claim.topics.json() {
            query = query.bind(topics);
        }
        let rows =
            if limit == 0 { Vec::new() } else { query.bind(limit).fetch_all(&mut *connection).await? };
        kinds.push(rows.iter().map(|row| waiting(row, &fences)).collect::<sqlx::Result<Vec<_>>>()?);
    }
    Ok(longest_due(kinds.pop().unwrap_or_default(), kinds.pop().unwrap_or_default(), limit))
}

/// These, each followed by those right behind it where it was never tried, as far as the limit goes.
async fn with_runs(
    connection: &mut MySqlConnection,
    statements: &Statements,
    firsts: Vec<Waiting>,
    claim: &ParkedClaim<'_>,
) -> sqlx::Result<Vec<Waiting>> {
    let mut room = (claim.limit as usize).saturating_sub(firsts.len());
    let mut runs = 0;
    let mut found = Vec::with_capacity(claim.limit as usize);
    for first in firsts {
        let fences = HashMap::from([(first.hold.lane, first.hold.fence)]);
        let behind = if first.leads() && room > 0 && runs < MOST_RUNS {
            runs += 1;
            sqlx::query(statements.behind.sql())
                .bind(&first.key)
                .bind(first.position)
                .bind(i64::try_from(room).unwrap_or(i64::MAX))
                .fetch_all(&mut *connection)
                .await?
        } else {
            Vec::new()
        };
        found.push(first);
        for row in &behind {
            let next = waiting(row, &fences)?;
            if row.try_get::<i64, _>(11)? != 1 || !claim.topics.has(&next.topic) {
                break;
            }
            found.push(next);
            room -= 1;
        }
    }
    Ok(found)
}

fn waiting(row: &MySqlRow, fences: &HashMap<u16, i64>) -> sqlx::Result<Waiting> {
    let lane = lane(row.try_get::<i16, _>(3)?.into());
    Ok(Waiting {
        hold: Hold { lane, fence: fences.get(&lane).copied().unwrap_or_default() },
        position: row.try_get(0)?,
        sequence: row.try_get(1)?,
        id: row.try_get(2)?,
        topic: row.try_get(4)?,
        key: row.try_get(5)?,
        attempts: u32::try_from(row.try_get::<i32, _>(6)?).unwrap_or(0),
        suspect: row.try_get(7)?,
        blocks: row.try_get(8)?,
        last_error: row.try_get(9)?,
        due: row.try_get(10)?,
    })
}

/// Those of these whose event is claimed by who says so, each once.
async fn ended<'e>(
    connection: &mut MySqlConnection,
    statements: &Statements,
    ends: impl Iterator<Item = &'e ParkedEnd>,
) -> sqlx::Result<Vec<Ended<'e>>> {
    let mut by_sequence: HashMap<i64, &ParkedEnd> = HashMap::new();
    for end in ends {
        by_sequence.entry(end.sequence).or_insert(end);
    }
    let rows = by_sequence.values().map(|end| json!([end.sequence, end.hold.lane, end.hold.fence]));
    let query = sqlx::query_as(statements.ended.sql()).bind(json_text(rows));
    let found: Vec<(i64, i64, String, bool)> = query.fetch_all(connection).await?;
    let mut ended: Vec<Ended<'e>> = found
        .into_iter()
        .filter_map(|(position, sequence, key, blocks)| {
            by_sequence.remove(&sequence).map(|end| Ended { position, key, blocks, end })
        })
        .collect();
    ended.sort_by_key(|ended| ended.position);
    Ok(ended)
}

/// Lets the first of each of these aggregates come up.
pub(super) async fn come_up(
    connection: &mut MySqlConnection,
    statements: &Statements,
    keys: impl Iterator<Item = &str>,
    ended: &[Ended<'_>],
) -> sqlx::Result<()> {
    let query = sqlx::query_scalar::<_, Option<i64>>(statements.firsts.sql()).bind(keys_json(keys));
    let mut firsts: Vec<i64> = query.fetch_all(&mut *connection).await?.into_iter().flatten().collect();
    firsts.sort_unstable();
    promote(connection, statements, &firsts, ended).await
}

/// Makes these first ones due, unless they are already, or claimed, or dead.
async fn promote(
    connection: &mut MySqlConnection,
    statements: &Statements,
    firsts: &[i64],
    ended: &[Ended<'_>],
) -> sqlx::Result<()> {
    if firsts.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(statements.promote.sql()).bind(firsts_json(firsts, ended));
    query.execute(connection).await.map(drop)
}

/// Writes again what could not be written.
async fn tidy(stream: &MySqlStream) -> sqlx::Result<()> {
    let shelved = stream.shelved().clone();
    if shelved.is_empty() {
        return Ok(());
    }
    let mut connection = stream.pool.acquire().await?;
    let busy = tidy_on(&mut connection, &stream.statements, &shelved).await;
    let busy = afterwards(connection, busy).await?;
    let done: HashSet<i64> = shelved.iter().map(|shelved| shelved.position).collect();
    stream.shelved().retain(|left| busy.contains(&left.position) || !done.contains(&left.position));
    Ok(())
}

async fn tidy_on(
    connection: &mut MySqlConnection,
    statements: &Statements,
    shelved: &[Shelved],
) -> sqlx::Result<HashSet<i64>> {
    let mut tx = begin(connection).await?;
    let held = held(&mut tx, &statements.held_alone, shelved.iter().map(|shelved| shelved.hold)).await?;
    // Of other lanes the next owner does so.
    let ours = shelved.iter().filter(|shelved| held.contains(&shelved.hold));
    let rows: Vec<(i64, i64)> = ours.map(|shelved| (shelved.position, shelved.sequence)).collect();
    let busy = unshelve(&mut tx, statements, &rows, Keep::Delivered).await?;
    tx.commit().await?;
    Ok(busy)
}

/// Ends what is parked of these places and their events, which were delivered. Answers with the places of those whose
/// events are somebody's just now.
async fn unshelve(
    connection: &mut MySqlConnection,
    statements: &Statements,
    rows: &[(i64, i64)],
    keep: Keep,
) -> sqlx::Result<HashSet<i64>> {
    if rows.is_empty() {
        return Ok(HashSet::new());
    }
    let mut sequences: Vec<i64> = rows.iter().map(|(_, sequence)| *sequence).collect();
    sequences.sort_unstable();
    let query = sqlx::query_scalar(statements.there.sql()).bind(json!(sequences).to_string());
    let there: Vec<i64> = query.fetch_all(&mut *connection).await?;
    let free = free(connection, statements, &there).await?;
    let is_free: HashSet<&i64> = free.iter().collect();
    let busy: HashSet<i64> = there.into_iter().filter(|sequence| !is_free.contains(sequence)).collect();
    let (kept, ended): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, sequence)| busy.contains(sequence));
    if !ended.is_empty() {
        let places = json_text(ended.iter().map(|(position, _)| json!(position)));
        sqlx::query(statements.unpark.sql()).bind(places).execute(&mut *connection).await?;
    }
    finish(connection, statements, &free, keep).await?;
    Ok(kept.into_iter().map(|(position, _)| position).collect())
}

/// Locks those of these events that nobody else has locked, and says which.
async fn free(
    connection: &mut MySqlConnection,
    statements: &Statements,
    sequences: &[i64],
) -> sqlx::Result<Vec<i64>> {
    if sequences.is_empty() {
        return Ok(Vec::new());
    }
    let query = sqlx::query_scalar(statements.there_free.sql()).bind(json!(sequences).to_string());
    query.fetch_all(connection).await
}

/// Marks events as delivered or deletes them. One whose entry in an index somebody holds is kept in either case,
/// until it is purged: nobody is waited for.
pub(super) async fn finish(
    connection: &mut MySqlConnection,
    statements: &Statements,
    sequences: &[i64],
    keep: Keep,
) -> sqlx::Result<()> {
    let mut deleted: HashSet<i64> = HashSet::new();
    if keep == Keep::Nothing {
        let names: Vec<(i64, String, Option<String>, String, String)> =
            sqlx::query_as(statements.names.sql())
                .bind(json!(sequences).to_string())
                .fetch_all(&mut *connection)
                .await?;
        let ids = json_text(names.iter().map(|(_, id, ..)| json!(id)));
        let free: Vec<i64> =
            sqlx::query_scalar(statements.free_by_id.sql()).bind(ids).fetch_all(&mut *connection).await?;
        deleted.extend(free);
        let named: Vec<_> = names.iter().filter(|(_, _, dedupe_key, ..)| dedupe_key.is_some()).collect();
        if !named.is_empty() {
            let keys =
                json_text(named.iter().map(|(_, _, key, namespace, topic)| json!([key, namespace, topic])));
            let free: Vec<i64> = sqlx::query_scalar(statements.free_by_dedupe_key.sql())
                .bind(keys)
                .fetch_all(&mut *connection)
                .await?;
            let free: HashSet<i64> = free.into_iter().collect();
            named.iter().filter(|(sequence, ..)| !free.contains(sequence)).for_each(|(sequence, ..)| {
                deleted.remove(sequence);
            });
        }
    }
    let (deleted, marked): (Vec<i64>, Vec<i64>) =
        sequences.iter().partition(|sequence| deleted.contains(sequence));
    for (part, statement) in [(deleted, &statements.delete), (marked, &statements.mark_delivered)] {
        if !part.is_empty() {
            sqlx::query(statement.sql()).bind(json!(part).to_string()).execute(&mut *connection).await?;
        }
    }
    Ok(())
}

fn time(row: &MySqlRow, at: usize) -> sqlx::Result<OffsetDateTime> {
    Ok(row.try_get::<PrimitiveDateTime, _>(at)?.assume_utc())
}
