-- An outbox table in stream mode. A public contract: one plain INSERT of topic and payload is a complete event.
-- All times are UTC. The lanes come first: how many there are is settled before a table is made that depends on it.

-- Who owns a lane; what was given out of it is at noted_seq or before.
CREATE TABLE IF NOT EXISTS {lanes_table} (
    lane         SMALLINT     NOT NULL,
    fence        BIGINT       NOT NULL DEFAULT 0,
    owner        VARCHAR(128) NULL,
    present      BOOLEAN      NOT NULL DEFAULT FALSE,
    leased_until DATETIME(6)  NULL,
    noted_seq    BIGINT       NULL,
    PRIMARY KEY (lane)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};
INSERT INTO {lanes_table} (lane)
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {lanes})
SELECT n FROM numbers WHERE NOT EXISTS (SELECT 1 FROM {lanes_table});

CREATE TABLE IF NOT EXISTS {relays_table} (
    relay     VARCHAR(128) NOT NULL,
    joined_at DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    seen_at   DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    `until`   DATETIME(6)  NOT NULL,
    PRIMARY KEY (relay)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

-- What cannot be delivered now, and what waits behind it. Of one key the first is due at some time, the others
-- are not; claimed is the fence under which one is being tried. One that was delivered while somebody had its row locked
-- stays here, as delivered, until that can be written to.
CREATE TABLE IF NOT EXISTS {parked_table} (
    position   BIGINT       NOT NULL AUTO_INCREMENT,
    seq        BIGINT       NOT NULL,
    id         BINARY(16)   NOT NULL,
    lane       SMALLINT     NOT NULL,
    topic      VARCHAR(128) NOT NULL,
    `key`      VARCHAR(512) NOT NULL,
    blocks     BOOLEAN      NOT NULL,
    suspect    BOOLEAN      NOT NULL DEFAULT FALSE,
    attempts   INT          NOT NULL DEFAULT 0,
    due        DATETIME(6)  NULL,
    claimed    BIGINT       NULL,
    outcome    ENUM('dead', 'delivered') NULL,
    last_error TEXT         NULL,
    parked_at  DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    settled_at DATETIME(6)  NULL,
    PRIMARY KEY (position),
    UNIQUE KEY `{name}_parked_seq` (seq),
    KEY `{name}_parked_key` (`key`, position),
    KEY `{name}_parked_due` (claimed, suspect, due, position),
    KEY `{name}_parked_dead` (outcome, id),
    CONSTRAINT `{name}_parked_attempts_check` CHECK (attempts >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

-- The order of insertion is the clustered key, so that inserts append. A row's lane is a hash of its aggregate, or
-- of its id where it has none.
CREATE TABLE IF NOT EXISTS {table} (
    seq            BIGINT       NOT NULL AUTO_INCREMENT,
    id             BINARY(16)   NOT NULL DEFAULT (UNHEX(CONCAT(
                       LPAD(HEX(CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED)), 12, '0'),
                       '7', SUBSTR(SHA2(CONCAT(UUID(), RAND()), 256), 1, 3),
                       HEX(8 + FLOOR(RAND() * 4)), SUBSTR(SHA2(CONCAT(RAND(), UUID()), 256), 1, 15)))),
    created_at     DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    occurred_at    DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    available_at   DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    settled_at     DATETIME(6)  NULL,
    version        INT          NOT NULL DEFAULT 1,
    lane           SMALLINT     GENERATED ALWAYS AS (CRC32(COALESCE(aggregate_id, HEX(id))) & ({lanes} - 1)) STORED,
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
    outcome        ENUM('delivered', 'parked') NULL,
    PRIMARY KEY (seq),
    UNIQUE KEY `{name}_id` (id),
    UNIQUE KEY `{name}_dedupe` (dedupe_key, namespace, topic),
    KEY `{name}_unsettled` (outcome, seq),
    KEY `{name}_settled` (outcome, settled_at),
    CONSTRAINT `{name}_times_check` CHECK (
        LEAST(created_at, occurred_at, available_at) >= '1000-01-01 00:00:00'
        AND GREATEST(created_at, occurred_at, available_at) <= '9999-12-31 23:59:59.999999'),
    CONSTRAINT `{name}_topic_check` CHECK (topic <> ''),
    CONSTRAINT `{name}_headers_check` CHECK (headers IS NULL OR (JSON_VALID(headers) AND JSON_TYPE(headers) = 'OBJECT')),
    CONSTRAINT `{name}_json_check` CHECK (payload IS NULL OR JSON_VALID(payload)),
    CONSTRAINT `{name}_payload_check` CHECK ((payload IS NULL) <> (payload_bytes IS NULL))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

CREATE OR REPLACE VIEW {view} AS
SELECT LOWER(CONCAT_WS('-', SUBSTR(HEX(o.id), 1, 8), SUBSTR(HEX(o.id), 9, 4), SUBSTR(HEX(o.id), 13, 4),
                            SUBSTR(HEX(o.id), 17, 4), SUBSTR(HEX(o.id), 21))) AS id, o.seq,
       CASE WHEN p.outcome IS NOT NULL THEN p.outcome
            WHEN p.claimed = l.fence AND l.leased_until > UTC_TIMESTAMP(6) THEN 'processing'
            WHEN p.position IS NOT NULL THEN 'pending'
            WHEN o.outcome = 'delivered' THEN 'delivered'
            WHEN o.outcome IS NULL AND o.seq <= l.noted_seq AND l.leased_until > UTC_TIMESTAMP(6) THEN 'processing'
            ELSE 'pending' END AS status,
       o.topic, COALESCE(o.event_type, o.topic) AS event_type, o.aggregate_type, o.aggregate_id,
       o.namespace, o.tenant_id, o.dedupe_key, o.version, COALESCE(p.attempts, 0) AS attempts,
       o.lane, l.owner, p.due AS parked_until,
       p.position IS NOT NULL AND NOT (p.outcome <=> 'delivered') AS parked,
       o.occurred_at, o.available_at, o.created_at, COALESCE(p.settled_at, o.settled_at) AS settled_at, p.last_error
  FROM {table} o JOIN {lanes_table} l ON l.lane = o.lane LEFT JOIN {parked_table} p ON p.seq = o.seq;
