-- The outbox table. A public contract: one plain INSERT of topic and payload is a complete event.
-- Times are microseconds since 1970, in UTC (SQLite's own clock counts milliseconds). Nothing here needs
-- more than SQLite 3.35, whatever version the programs bring that write to it.
CREATE TABLE {table} (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT    NOT NULL DEFAULT (printf('%08x-%04x-7%03x-%04x-%012x',
                       ({now} / 1000) >> 16,
                       ({now} / 1000) & 0xffff,
                       random() & 0xfff, 0x8000 | (random() & 0x3fff), random() & 0xffffffffffff)),
    created_at     INTEGER NOT NULL DEFAULT {now},
    occurred_at    INTEGER NOT NULL DEFAULT {now},
    available_at   INTEGER NOT NULL DEFAULT {now},
    locked_until   INTEGER,
    settled_at     INTEGER,
    attempts       INTEGER NOT NULL DEFAULT 0,
    version        INTEGER NOT NULL DEFAULT 1,
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
    locked_by      TEXT,
    outcome        TEXT,
    last_error     TEXT,
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
    CONSTRAINT "{name}_attempts_check" CHECK (typeof(attempts) = 'integer' AND attempts >= 0),
    CONSTRAINT "{name}_outcome_check" CHECK (outcome IN ('delivered', 'dead'))
);

CREATE INDEX "{name}_claim" ON {table} (available_at, seq) WHERE outcome IS NULL;
CREATE UNIQUE INDEX "{name}_dedupe" ON {table} (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX "{name}_dead" ON {table} (id) WHERE outcome = 'dead';
CREATE INDEX "{name}_delivered" ON {table} (settled_at) WHERE outcome = 'delivered';

CREATE VIEW {view} AS
SELECT id, seq,
       CASE WHEN outcome IS NOT NULL THEN outcome
            WHEN locked_until > {now} THEN 'processing'
            ELSE 'pending' END AS status,
       topic, coalesce(event_type, topic) AS event_type, aggregate_type, aggregate_id,
       namespace, tenant_id, dedupe_key, version, attempts, locked_by,
       strftime('%Y-%m-%dT%H:%M:%fZ', locked_until / 1000000.0, 'unixepoch') AS locked_until,
       strftime('%Y-%m-%dT%H:%M:%fZ', occurred_at / 1000000.0, 'unixepoch') AS occurred_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', available_at / 1000000.0, 'unixepoch') AS available_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', settled_at / 1000000.0, 'unixepoch') AS settled_at,
       last_error
  FROM {table};
