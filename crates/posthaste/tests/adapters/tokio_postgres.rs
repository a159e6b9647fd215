//! tokio-postgres.

use ::tokio_postgres::{Client, NoTls, Transaction};
use sqlx::Postgres;

use super::sites::{Site, in_site};
use super::suite::{self, End};

struct TokioPostgres(Client);

impl suite::Client for TokioPostgres {
    type Database = Postgres;
    type Transaction<'c> = Transaction<'c>;

    async fn connect(site: &Site<Postgres>) -> Self {
        let (client, connection) = ::tokio_postgres::connect(&site.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    async fn transaction<R>(&mut self, end: End, work: impl AsyncFnOnce(&mut Transaction<'_>) -> R) -> R {
        let mut transaction = self.0.transaction().await.unwrap();
        let result = work(&mut transaction).await;
        match end {
            End::Commit => transaction.commit().await.unwrap(),
            End::Rollback => transaction.rollback().await.unwrap(),
            End::Lost => drop(transaction),
        }
        result
    }
}

suite!(TokioPostgres);
suite!(TokioPostgres: a_lost_connection_is_said_to_be_lost);
