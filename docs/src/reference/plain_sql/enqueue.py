"""An order and its event in one transaction, with nothing but SQL.

    python enqueue.py URL TOPIC PAYLOAD [--rollback]

URL is postgres://..., mysql://... or the path of an SQLite file. PAYLOAD is a JSON object with the
order's number and total, such as {"order": 42, "total": "9.90"}; it is stored as it is given. The
tables `orders` and `outbox` exist already. With --rollback, neither row is kept.

Only errors are printed. PostgreSQL needs psycopg (version 3), MySQL and MariaDB need PyMySQL.
"""

import json
import sys
from urllib.parse import quote, unquote, urlsplit


def connect(url):
    """A connection, and what stands for a value in its statements."""
    parts = urlsplit(url)
    if parts.scheme in ("postgres", "postgresql"):
        import psycopg

        return psycopg.connect(url), "%s"
    if parts.scheme in ("mysql", "mariadb"):
        import pymysql

        connection = pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=parts.path.lstrip("/"),
            charset="utf8mb4",
        )
        return connection, "%s"
    import sqlite3

    path = url.removeprefix("sqlite:").removeprefix("//")
    # Without mode=rw, a mistyped path would become a new file. IMMEDIATE takes the write lock first.
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rw", uri=True, timeout=10, isolation_level="IMMEDIATE"
    )
    return connection, "?"


def place_order(url, topic, payload, rollback=False):
    """Writes both rows, or neither."""
    order = json.loads(payload)
    connection, value = connect(url)
    try:
        # None of the three libraries commits by itself: the first statement begins a transaction.
        cursor = connection.cursor()
        cursor.execute(
            f"INSERT INTO orders (id, total) VALUES ({value}, {value})", (order["order"], order["total"])
        )
        cursor.execute(f"INSERT INTO outbox (topic, payload) VALUES ({value}, {value})", (topic, payload))
        if rollback:
            connection.rollback()
        else:
            connection.commit()
    finally:
        connection.close()  # An open transaction is rolled back.


if __name__ == "__main__":
    arguments = sys.argv[1:]
    rollback = arguments[3:] == ["--rollback"]
    if len(arguments) != 3 and not rollback:
        print("usage: enqueue.py URL TOPIC PAYLOAD [--rollback]", file=sys.stderr)
        sys.exit(2)
    try:
        place_order(*arguments[:3], rollback=rollback)
    except Exception as error:
        sys.exit(f"enqueue.py: {type(error).__name__}: {error}")
