// An order and its event in one transaction, with nothing but SQL.
//
//     node enqueue.mjs URL TOPIC PAYLOAD [--rollback]
//
// URL is postgres://..., mysql://... or the path of an SQLite file. PAYLOAD is a JSON object with the
// order's number and total, such as {"order": 42, "total": "9.90"}; it is stored as it is given. The
// tables `orders` and `outbox` exist already. With --rollback, neither row is kept.
//
// Only errors are printed. PostgreSQL needs pg, MySQL and MariaDB need mysql2. SQLite needs Node's own
// node:sqlite (from Node 22.5 on) or @photostructure/sqlite, which has the same interface.

import { accessSync } from "node:fs";

// How to send a statement, and what stands for two values in it.
async function connect(url) {
  if (/^postgres(ql)?:/.test(url)) {
    const { default: pg } = await import("pg");
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    return { begin: "BEGIN", values: "($1, $2)", run: (...sql) => client.query(...sql), close: () => client.end() };
  }
  if (/^(mysql|mariadb):/.test(url)) {
    const { createConnection } = await import("mysql2/promise");
    const client = await createConnection(url.replace(/^mariadb:/, "mysql:"));
    const run = (sql, values) => (values ? client.execute(sql, values) : client.query(sql));
    return { begin: "BEGIN", values: "(?, ?)", run, close: () => client.end() };
  }
  const { DatabaseSync } = await import("node:sqlite").catch(() => import("@photostructure/sqlite"));
  const path = url.replace(/^sqlite:(\/\/)?/, "");
  accessSync(path); // A mistyped path would become a new file.
  const database = new DatabaseSync(path);
  database.exec("PRAGMA busy_timeout = 10000");
  const run = (sql, values = []) => database.prepare(sql).run(...values);
  // IMMEDIATE takes the write lock first.
  return { begin: "BEGIN IMMEDIATE", values: "(?, ?)", run, close: () => database.close() };
}

// Writes both rows, or neither.
async function placeOrder(url, topic, payload, rollback) {
  const { order, total } = JSON.parse(payload);
  const { begin, values, run, close } = await connect(url);
  try {
    await run(begin);
    await run(`INSERT INTO orders (id, total) VALUES ${values}`, [order, total]);
    await run(`INSERT INTO outbox (topic, payload) VALUES ${values}`, [topic, payload]);
    await run(rollback ? "ROLLBACK" : "COMMIT");
  } finally {
    await close(); // An open transaction is rolled back.
  }
}

const [url, topic, payload, option, ...rest] = process.argv.slice(2);
if (payload === undefined || rest.length > 0 || ![undefined, "--rollback"].includes(option)) {
  console.error("usage: enqueue.mjs URL TOPIC PAYLOAD [--rollback]");
  process.exit(2);
}
try {
  await placeOrder(url, topic, payload, option === "--rollback");
} catch (error) {
  console.error(`enqueue.mjs: ${error.name}: ${error.message}`);
  process.exit(1);
}
