-- The outbox table. A public contract: one plain INSERT of topic and payload is a complete event.
-- A claim writes locked_by, locked_until and attempts only, none of which an index mentions, so that it
-- stays a heap-only update; the fillfactor leaves each page room for a second version of its rows, each a
-- little longer for the lease.
CREATE TABLE {table} (
    id             uuid        NOT NULL DEFAULT encode(set_bit(set_bit(overlay(
                                   uuid_send(gen_random_uuid())
                                   PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                                   FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid,  -- version 7: ordered by time
    seq            bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    occurred_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    available_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    locked_until   timestamptz,
    settled_at     timestamptz,
    attempts       integer     NOT NULL DEFAULT 0,
    version        integer     NOT NULL DEFAULT 1,
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
    locked_by      text,
    outcome        text,
    last_error     text,
    CONSTRAINT "{name}_pkey" PRIMARY KEY (id),
    -- Times that can be read everywhere: not infinite, of four digits' years.
    CONSTRAINT "{name}_times_check" CHECK (
        least(created_at, occurred_at, available_at) >= '1000-01-01 00:00:00+00'
        AND greatest(created_at, occurred_at, available_at) < '10000-01-01 00:00:00+00'),
    CONSTRAINT "{name}_topic_check" CHECK (char_length(topic) BETWEEN 1 AND 128),
    CONSTRAINT "{name}_headers_check" CHECK (json_typeof(headers) = 'object'),
    CONSTRAINT "{name}_payload_check" CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CONSTRAINT "{name}_attempts_check" CHECK (attempts >= 0),
    CONSTRAINT "{name}_outcome_check" CHECK (outcome IN ('delivered', 'dead'))
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE INDEX "{name}_claim" ON {table} (available_at, seq) WHERE outcome IS NULL;
CREATE UNIQUE INDEX "{name}_dedupe" ON {table} (namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX "{name}_dead" ON {table} (id) WHERE outcome = 'dead';
CREATE INDEX "{name}_delivered" ON {table} (settled_at) WHERE outcome = 'delivered';
CREATE INDEX "{name}_created" ON {table} USING brin (created_at) WITH (autosummarize = on);

CREATE VIEW {view} AS
SELECT id, seq,
       CASE WHEN outcome IS NOT NULL THEN outcome
            WHEN locked_until > now() THEN 'processing'
            ELSE 'pending' END AS status,
       topic, coalesce(event_type, topic) AS event_type, aggregate_type, aggregate_id,
       namespace, tenant_id, dedupe_key, version, attempts, locked_by, locked_until,
       occurred_at, available_at, created_at, settled_at, last_error
  FROM {table};
