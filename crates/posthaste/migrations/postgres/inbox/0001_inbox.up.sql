-- The inbox: which consumer has already taken which event.
CREATE TABLE {table} (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT "{name}_pkey" PRIMARY KEY (consumer, event_id)
);

CREATE INDEX "{name}_received" ON {table} (received_at);
