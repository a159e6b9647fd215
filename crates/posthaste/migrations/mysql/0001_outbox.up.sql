-- The outbox table. A public contract: one plain INSERT of topic and payload is a complete event.
-- All times are UTC. The order of insertion is the clustered key, so that inserts append.
CREATE TABLE IF NOT EXISTS {table} (
    seq            BIGINT       NOT NULL AUTO_INCREMENT,
    id             BINARY(16)   NOT NULL DEFAULT (UNHEX(CONCAT(
                       LPAD(HEX(CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED)), 12, '0'),
                       '7', SUBSTR(SHA2(CONCAT(UUID(), RAND()), 256), 1, 3),
                       HEX(8 + FLOOR(RAND() * 4)), SUBSTR(SHA2(CONCAT(RAND(), UUID()), 256), 1, 15)))),
    created_at     DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    occurred_at    DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    available_at   DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    locked_until   DATETIME(6)  NULL,
    settled_at     DATETIME(6)  NULL,
    attempts       INT          NOT NULL DEFAULT 0,
    version        INT          NOT NULL DEFAULT 1,
    topic          VARCHAR(128) NOT NULL,
    event_type     VARCHAR(128) NULL,
    aggregate_type VARCHAR(128) NULL,
    aggregate_id   VARCHAR(255) NULL,
    namespace      VARCHAR(64)  NOT NULL DEFAULT 'default',
    tenant_id      VARCHAR(128) NULL,
    dedupe_key     VARCHAR(255) NULL,
    content_type   VARCHAR(128) NULL,
    headers        LONGTEXT     NULL,
    payload        LONGTEXT     NULL,
    payload_bytes  LONGBLOB     NULL,
    locked_by      VARCHAR(128) NULL,
    outcome        ENUM('delivered', 'dead') NULL,
    last_error     TEXT         NULL,
    PRIMARY KEY (seq),
    UNIQUE KEY `{name}_id` (id),
    UNIQUE KEY `{name}_dedupe` (dedupe_key, namespace, topic),
    KEY `{name}_claim` (outcome, available_at, seq),
    KEY `{name}_settled` (outcome, settled_at),
    CONSTRAINT `{name}_times_check` CHECK (
        LEAST(created_at, occurred_at, available_at) >= '1000-01-01 00:00:00'
        AND GREATEST(created_at, occurred_at, available_at) <= '9999-12-31 23:59:59.999999'),
    CONSTRAINT `{name}_topic_check` CHECK (topic <> ''),
    CONSTRAINT `{name}_headers_check` CHECK (headers IS NULL OR (JSON_VALID(headers) AND JSON_TYPE(headers) = 'OBJECT')),
    CONSTRAINT `{name}_json_check` CHECK (payload IS NULL OR JSON_VALID(payload)),
    CONSTRAINT `{name}_payload_check` CHECK ((payload IS NULL) <> (payload_bytes IS NULL)),
    CONSTRAINT `{name}_attempts_check` CHECK (attempts >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

CREATE OR REPLACE VIEW {view} AS
SELECT LOWER(CONCAT_WS('-', SUBSTR(HEX(id), 1, 8), SUBSTR(HEX(id), 9, 4), SUBSTR(HEX(id), 13, 4),
                            SUBSTR(HEX(id), 17, 4), SUBSTR(HEX(id), 21))) AS id, seq,
       CASE WHEN outcome IS NOT NULL THEN outcome
            WHEN locked_until > UTC_TIMESTAMP(6) THEN 'processing'
            ELSE 'pending' END AS status,
       topic, COALESCE(event_type, topic) AS event_type, aggregate_type, aggregate_id,
       namespace, tenant_id, dedupe_key, version, attempts, locked_by, locked_until,
       occurred_at, available_at, created_at, settled_at, last_error
  FROM {table};
