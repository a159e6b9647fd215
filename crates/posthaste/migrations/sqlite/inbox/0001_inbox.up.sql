-- The inbox: which consumer has already taken which event. Times are microseconds since 1970, in UTC.
CREATE TABLE {table} (
    consumer    TEXT    NOT NULL,
    event_id    TEXT    NOT NULL,
    received_at INTEGER NOT NULL DEFAULT {now},
    PRIMARY KEY (consumer, event_id)
) WITHOUT ROWID;

CREATE INDEX "{name}_received" ON {table} (received_at);
