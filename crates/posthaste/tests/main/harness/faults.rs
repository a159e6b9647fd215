//! What a server does to a session: ended by it, found by what it holds.

use posthaste::store::WorkerId;

use super::{Db, Kind};

impl Db {
    /// The end of a worker's session as the server decides it.
    pub async fn kill_session(&self, worker: &WorkerId) {
        let session = self.session_of(worker.as_str()).await;
        assert!(self.kill(session.unwrap()).await);
    }

    /// The connection of a worker's session, as the server numbers it.
    pub async fn session_of(&self, worker: &str) -> Option<i64> {
        self.connection_that_holds(&format!("'{worker}'")).await
    }

    /// The connection of the active relay's session.
    pub async fn leader(&self) -> Option<i64> {
        match self.kind() {
            Kind::Postgres => {
                let class = 0x7068_0002;
                self.locked_by(&format!("classid = {class} AND objid = 'outbox'::regclass::oid")).await
            }
            _ => self.connection_that_holds("'outbox', 'leader'").await,
        }
    }

    /// Ends a connection; whether it was there.
    pub async fn kill(&self, connection: i64) -> bool {
        match self.kind() {
            Kind::Postgres => {
                self.number(format!("SELECT pg_terminate_backend({connection})::int::bigint")).await == 1
            }
            Kind::MySql | Kind::MariaDb => self.execute(format!("KILL {connection}")).await.is_ok(),
            Kind::Sqlite | Kind::Memory => panic!("no server"),
        }
    }

    /// The table of MySQL's or MariaDB's connections.
    pub fn process_list(&self) -> &'static str {
        process_list(self.kind())
    }

    async fn connection_that_holds(&self, lock: &str) -> Option<i64> {
        match self.kind() {
            Kind::Postgres => self.locked_by(&format!("objid = hashtext({lock})::oid")).await,
            Kind::MySql | Kind::MariaDb => {
                let name =
                    format!("CONCAT('posthaste.', LEFT(SHA2(CONCAT_WS('/', DATABASE(), {lock}), 256), 48))");
                let id =
                    self.number(format!("SELECT CAST(COALESCE(IS_USED_LOCK({name}), 0) AS SIGNED)")).await;
                (id != 0).then_some(id)
            }
            Kind::Sqlite | Kind::Memory => panic!("no server"),
        }
    }

    /// Whose advisory lock it is in PostgreSQL.
    async fn locked_by(&self, lock: &str) -> Option<i64> {
        let pid = self.number(format!(
            "SELECT coalesce(max(pid), 0)::bigint FROM pg_locks
              WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND {lock}"
        ));
        Some(pid.await).filter(|pid| *pid != 0)
    }
}

/// The table of MySQL's or MariaDB's connections. MySQL's table in the information schema fails while any connection executes
/// a statement whose text has bytes that are not UTF-8.
pub fn process_list(kind: Kind) -> &'static str {
    match kind {
        Kind::MySql => "performance_schema.processlist",
        _ => "information_schema.processlist",
    }
}
