-- The inbox: which consumer has already taken which event. Times are UTC.
CREATE TABLE IF NOT EXISTS {table} (
    consumer    VARCHAR(128) NOT NULL,
    event_id    BINARY(16)   NOT NULL,
    received_at DATETIME(6)  NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (consumer, event_id),
    KEY `{name}_received` (received_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

-- A table of that name that is something else is not taken over.
SELECT consumer, event_id, received_at FROM {table} LIMIT 0;
