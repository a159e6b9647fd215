-- An outbox table in stream mode. A public contract: one plain INSERT of topic and payload is a complete event.
-- Rows are never updated. xid says which transaction wrote a row: together with the snapshot up to which a lane was
-- read, that tells what is new. A row's lane is a hash of its aggregate, or of its id where it has none.
CREATE TABLE {table} (
    xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id             uuid        NOT NULL DEFAULT encode(set_bit(set_bit(overlay(
                                   uuid_send(gen_random_uuid())
                                   PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                                   FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid,  -- version 7: ordered by time
    seq            bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    occurred_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    available_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    version        integer     NOT NULL DEFAULT 1,
    lane           smallint    NOT NULL GENERATED ALWAYS AS
                                   ((hashtextextended(coalesce(aggregate_id, id::text), 0) & ({lanes} - 1))::smallint) STORED,
    topic          text        NOT NULL,
    event_type     text,
    aggregate_type text,
    aggregate_id   text,
    namespace      text        NOT NULL DEFAULT 'default',
    tenant_id      text,
    dedupe_key     text,
    content_type   text,
    headers        json,
    payload        json,
    payload_bytes  bytea,
    CONSTRAINT "{name}_pkey" PRIMARY KEY (id),
    -- Times that can be read everywhere: not infinite, of four digits' years.
    CONSTRAINT "{name}_times_check" CHECK (
        least(created_at, occurred_at, available_at) >= '1000-01-01 00:00:00+00'
        AND greatest(created_at, occurred_at, available_at) < '10000-01-01 00:00:00+00'),
    CONSTRAINT "{name}_topic_check" CHECK (char_length(topic) BETWEEN 1 AND 128),
    CONSTRAINT "{name}_headers_check" CHECK (json_typeof(headers) = 'object'),
    CONSTRAINT "{name}_payload_check" CHECK ((payload IS NULL) <> (payload_bytes IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE INDEX "{name}_seq" ON {table} (seq);
CREATE INDEX "{name}_xid" ON {table} (xid, seq);
CREATE UNIQUE INDEX "{name}_dedupe" ON {table} (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL;

-- Who owns a lane. system_id says which cluster's transactions its place is made of.
CREATE TABLE {lanes_table} (
    lane         smallint    NOT NULL PRIMARY KEY,
    fence        bigint      NOT NULL DEFAULT 0,
    owner        text,
    present      boolean     NOT NULL DEFAULT false,
    leased_until timestamptz,
    system_id    bigint
) WITH (fillfactor = 50);
INSERT INTO {lanes_table} (lane, system_id)
SELECT generate_series(0, {lanes} - 1), (SELECT system_identifier FROM pg_control_system());

-- How far a lane was read: the row with the highest step. Everything visible in base was; of what is visible in target
-- and was not in base, everything up to after_seq was; what was under way when the note was made is visible in noted, up to
-- noted_seq. Rows are added and deleted, never updated: while an old transaction keeps the versions of an updated row, finding
-- the last one takes longer and longer; finding the highest step does not.
CREATE TABLE {places_table} (
    lane         smallint    NOT NULL,
    step         bigint      NOT NULL,
    base         pg_snapshot NOT NULL DEFAULT '1:1:',
    base_seq     bigint      NOT NULL DEFAULT 0,
    target       pg_snapshot,
    after_seq    bigint      NOT NULL DEFAULT 0,
    noted        pg_snapshot,
    noted_seq    bigint,
    -- After a move to another cluster: rows up to anchor_seq are read by what recover and recover_seq say of them.
    anchor_seq   bigint      NOT NULL DEFAULT 0,
    recover      pg_snapshot,
    recover_seq  bigint,
    moved_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lane, step)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
INSERT INTO {places_table} (lane, step) SELECT generate_series(0, {lanes} - 1), 0;

CREATE TABLE {relays_table} (
    relay     text        NOT NULL PRIMARY KEY,
    joined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    until     timestamptz NOT NULL
);

-- What cannot be delivered now, and what waits behind it. Of one key the first is due at some time, the others
-- are not; claimed is the fence under which one is being tried.
CREATE TABLE {parked_table} (
    position   bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq        bigint      NOT NULL,
    id         uuid        NOT NULL,
    lane       smallint    NOT NULL,
    topic      text        NOT NULL,
    key        text        NOT NULL,
    blocks     boolean     NOT NULL,
    suspect    boolean     NOT NULL DEFAULT false,
    attempts   integer     NOT NULL DEFAULT 0,
    due        timestamptz,
    claimed    bigint,
    outcome    text,
    last_error text,
    parked_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at timestamptz,
    CONSTRAINT "{name}_parked_seq" UNIQUE (seq),
    CONSTRAINT "{name}_parked_attempts_check" CHECK (attempts >= 0),
    CONSTRAINT "{name}_parked_outcome_check" CHECK (outcome = 'dead')
);
CREATE INDEX "{name}_parked_key" ON {parked_table} (key, position);
CREATE INDEX "{name}_parked_due" ON {parked_table} (lane, due, position)
 WHERE due IS NOT NULL AND claimed IS NULL AND NOT suspect;
CREATE INDEX "{name}_parked_suspect" ON {parked_table} (lane, attempts, due, position)
 WHERE due IS NOT NULL AND claimed IS NULL AND suspect;
CREATE INDEX "{name}_parked_lane" ON {parked_table} (lane, claimed);
CREATE INDEX "{name}_parked_dead" ON {parked_table} (id) WHERE outcome = 'dead';
CREATE INDEX "{name}_parked_died" ON {parked_table} (settled_at, position) WHERE outcome = 'dead';

CREATE VIEW {view} AS
SELECT o.id, o.seq,
       CASE WHEN p.outcome IS NOT NULL THEN p.outcome
            WHEN p.claimed = l.fence AND l.leased_until > now() THEN 'processing'
            WHEN p.position IS NOT NULL THEN 'pending'
            WHEN o.seq <= l.anchor_seq AND (l.recover IS NULL OR o.seq <= l.after_seq
                 OR o.seq <= l.recover_seq AND pg_visible_in_snapshot(o.xid, l.recover)) THEN 'delivered'
            WHEN o.seq <= l.anchor_seq THEN 'pending'
            WHEN pg_visible_in_snapshot(o.xid, l.base) THEN 'delivered'
            WHEN l.target IS NOT NULL AND o.seq <= l.after_seq AND pg_visible_in_snapshot(o.xid, l.target) THEN 'delivered'
            WHEN l.noted IS NOT NULL AND o.seq <= l.noted_seq AND pg_visible_in_snapshot(o.xid, l.noted)
                 AND l.leased_until > now() THEN 'processing'
            ELSE 'pending' END AS status,
       o.topic, coalesce(o.event_type, o.topic) AS event_type, o.aggregate_type, o.aggregate_id,
       o.namespace, o.tenant_id, o.dedupe_key, o.version, coalesce(p.attempts, 0) AS attempts,
       o.lane, l.owner, p.due AS parked_until, p.position IS NOT NULL AS parked,
       o.occurred_at, o.available_at, o.created_at, p.settled_at, p.last_error
  FROM {table} o
  JOIN (SELECT * FROM {lanes_table} w
         CROSS JOIN LATERAL (SELECT base, base_seq, target, after_seq, noted, noted_seq, anchor_seq, recover, recover_seq
                               FROM {places_table} q WHERE q.lane = w.lane ORDER BY q.step DESC LIMIT 1) AS place) l ON l.lane = o.lane
  LEFT JOIN {parked_table} p ON p.seq = o.seq;
