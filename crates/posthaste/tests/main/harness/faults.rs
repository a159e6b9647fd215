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
            Kind::MySql => self.execute(format!("KILL {connection}")).await.is_ok(),
            Kind::Sqlite | Kind::Memory => panic!("no server"),
        }
    }

    async fn connection_that_holds(&self, lock: &str) -> Option<i64> {
        match self.kind() {
            Kind::Postgres => self.locked_by(&format!("objid = hashtext({lock})::oid")).await,
            Kind::MySql => {
                let name = format!("CONCAT('posthaste.', MD5(CONCAT_WS('/', DATABASE(), {lock})))");
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
