DROP VIEW IF EXISTS {view};
DROP TABLE IF EXISTS {parked_table};
DROP TABLE IF EXISTS {relays_table};
DROP TABLE IF EXISTS {lanes_table};
DROP TABLE IF EXISTS {table};
