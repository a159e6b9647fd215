-- An outbox table in stream mode. A public contract: one plain INSERT of topic and payload is a complete event.
-- Times are microseconds since 1970, in UTC (SQLite's own clock counts milliseconds). Nothing here needs
-- more than SQLite 3.35, whatever version the programs bring that write to it.
-- A row's lane is a hash of its aggregate, or of its id where it has none. SQLite has no function for that: it is
-- made of the length, the last eight characters and the first four.
CREATE TABLE {table} (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT    NOT NULL DEFAULT (printf('%08x-%04x-7%03x-%04x-%012x',
                       ({now} / 1000) >> 16,
                       ({now} / 1000) & 0xffff,
                       random() & 0xfff, 0x8000 | (random() & 0x3fff), random() & 0xffffffffffff)),
    created_at     INTEGER NOT NULL DEFAULT {now},
    occurred_at    INTEGER NOT NULL DEFAULT {now},
    available_at   INTEGER NOT NULL DEFAULT {now},
    settled_at     INTEGER,
    version        INTEGER NOT NULL DEFAULT 1,
    lane           INTEGER NOT NULL GENERATED ALWAYS AS ((((
                       length(coalesce(aggregate_id, id)) * 7919
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), -1, 1)), 0) * 31337
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), -2, 1)), 0) * 27644437
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), -3, 1)), 0) * 16769023
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), -4, 1)), 0) * 2971215
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), -5, 1)), 0) * 39916801
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), -6, 1)), 0) * 6700417
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), -7, 1)), 0) * 99990001
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), -8, 1)), 0) * 1398269
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), 1, 1)), 0) * 524287
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), 2, 1)), 0) * 3010349
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), 3, 1)), 0) * 54018521
                       + coalesce(unicode(substr(coalesce(aggregate_id, id), 4, 1)), 0) * 370248451
                       ) % 2147483647 * 1640531527 % 2147483647) >> 7) & ({lanes} - 1)) STORED,
    topic          TEXT    NOT NULL,
    event_type     TEXT,
    aggregate_type TEXT,
    aggregate_id   TEXT,
    namespace      TEXT    NOT NULL DEFAULT 'default',
    tenant_id      TEXT,
    dedupe_key     TEXT,
    content_type   TEXT,
    headers        TEXT,
    payload        TEXT,
    payload_bytes  BLOB,
    outcome        TEXT,
    CONSTRAINT "{name}_id" UNIQUE (id),
    CONSTRAINT "{name}_id_check" CHECK (id GLOB '[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f]-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]'),
    -- Times that can be read everywhere: of four digits' years.
    CONSTRAINT "{name}_times_check" CHECK (
        typeof(created_at) = 'integer' AND typeof(occurred_at) = 'integer' AND typeof(available_at) = 'integer'
        AND min(created_at, occurred_at, available_at) >= -30610224000000000
        AND max(created_at, occurred_at, available_at) < 253402300800000000),
    CONSTRAINT "{name}_topic_check" CHECK (length(topic) BETWEEN 1 AND 128),
    CONSTRAINT "{name}_headers_check" CHECK (headers IS NULL OR (json_valid(headers) AND json_type(headers) = 'object')),
    CONSTRAINT "{name}_json_check" CHECK (payload IS NULL OR json_valid(payload)),
    CONSTRAINT "{name}_payload_check" CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CONSTRAINT "{name}_outcome_check" CHECK (outcome IN ('delivered', 'parked'))
);

CREATE INDEX "{name}_unsettled" ON {table} (seq) WHERE outcome IS NULL;
CREATE UNIQUE INDEX "{name}_dedupe" ON {table} (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX "{name}_delivered" ON {table} (settled_at) WHERE outcome = 'delivered';

-- Who owns a lane; what was given out of it is at noted_seq or before.
CREATE TABLE {lanes_table} (
    lane         INTEGER NOT NULL PRIMARY KEY,
    fence        INTEGER NOT NULL DEFAULT 0,
    owner        TEXT,
    present      INTEGER NOT NULL DEFAULT 0,
    leased_until INTEGER,
    noted_seq    INTEGER
);
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {lanes})
INSERT INTO {lanes_table} (lane) SELECT n FROM numbers;

CREATE TABLE {relays_table} (
    relay     TEXT    NOT NULL PRIMARY KEY,
    joined_at INTEGER NOT NULL DEFAULT {now},
    seen_at   INTEGER NOT NULL DEFAULT {now},
    until     INTEGER NOT NULL
);

-- What cannot be delivered now, and what waits behind it. Of one key the first is due at some time, the others
-- are not; claimed is the fence under which one is being tried.
CREATE TABLE {parked_table} (
    position   INTEGER PRIMARY KEY AUTOINCREMENT,
    seq        INTEGER NOT NULL,
    id         TEXT    NOT NULL,
    lane       INTEGER NOT NULL,
    topic      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    blocks     INTEGER NOT NULL,
    suspect    INTEGER NOT NULL DEFAULT 0,
    attempts   INTEGER NOT NULL DEFAULT 0,
    due        INTEGER,
    claimed    INTEGER,
    outcome    TEXT,
    last_error TEXT,
    parked_at  INTEGER NOT NULL DEFAULT {now},
    settled_at INTEGER,
    CONSTRAINT "{name}_parked_seq" UNIQUE (seq),
    CONSTRAINT "{name}_parked_attempts_check" CHECK (typeof(attempts) = 'integer' AND attempts >= 0),
    CONSTRAINT "{name}_parked_outcome_check" CHECK (outcome = 'dead')
);
CREATE INDEX "{name}_parked_key" ON {parked_table} (key, position);
CREATE INDEX "{name}_parked_due" ON {parked_table} (suspect, due, position) WHERE due IS NOT NULL AND claimed IS NULL;
CREATE INDEX "{name}_parked_dead" ON {parked_table} (id) WHERE outcome = 'dead';

CREATE VIEW {view} AS
SELECT o.id, o.seq,
       CASE WHEN p.outcome IS NOT NULL THEN p.outcome
            WHEN p.claimed = l.fence AND l.leased_until > {now} THEN 'processing'
            WHEN p.position IS NOT NULL THEN 'pending'
            WHEN o.outcome = 'delivered' THEN 'delivered'
            WHEN o.outcome IS NULL AND o.seq <= l.noted_seq AND l.leased_until > {now} THEN 'processing'
            ELSE 'pending' END AS status,
       o.topic, coalesce(o.event_type, o.topic) AS event_type, o.aggregate_type, o.aggregate_id,
       o.namespace, o.tenant_id, o.dedupe_key, o.version, coalesce(p.attempts, 0) AS attempts,
       o.lane, l.owner,
       strftime('%Y-%m-%dT%H:%M:%fZ', p.due / 1000000.0, 'unixepoch') AS parked_until,
       p.position IS NOT NULL AS parked,
       strftime('%Y-%m-%dT%H:%M:%fZ', o.occurred_at / 1000000.0, 'unixepoch') AS occurred_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', o.available_at / 1000000.0, 'unixepoch') AS available_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', o.created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(p.settled_at, o.settled_at) / 1000000.0, 'unixepoch') AS settled_at,
       p.last_error
  FROM {table} o JOIN {lanes_table} l ON l.lane = o.lane LEFT JOIN {parked_table} p ON p.seq = o.seq;
