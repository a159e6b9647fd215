//! diesel-async, on PostgreSQL and on MySQL.
//!
//! Rows of the contract: EN1, EN2.

use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncMysqlConnection, AsyncPgConnection, SimpleAsyncConnection,
    TransactionManager,
};
use posthaste::{Enqueue, ErrorKind};
use uuid::Uuid;

use super::sites::{Place, Site, in_site};
use super::suite::{Client, End, count, order};

struct Diesel<C>(C);

impl<C> Client for Diesel<C>
where
    C: AsyncConnection<TransactionManager = AnsiTransactionManager> + Of + Enqueue<C::Database>,
{
    type Database = C::Database;
    type Transaction<'c> = C;

    async fn connect(site: &Site<C::Database>) -> Self {
        Self(C::establish(&site.url).await.unwrap())
    }

    async fn transaction<R>(&mut self, end: End, work: impl AsyncFnOnce(&mut C) -> R) -> R {
        AnsiTransactionManager::begin_transaction(&mut self.0).await.unwrap();
        let result = work(&mut self.0).await;
        match end {
            End::Commit => AnsiTransactionManager::commit_transaction(&mut self.0).await.unwrap(),
            End::Rollback => AnsiTransactionManager::rollback_transaction(&mut self.0).await.unwrap(),
            End::Lost => {}
        }
        result
    }
}

/// The database of a connection.
trait Of {
    type Database: Place;
}

impl Of for AsyncPgConnection {
    type Database = sqlx::Postgres;
}

impl Of for AsyncMysqlConnection {
    type Database = sqlx::MySql;
}

async fn outside_of_a_transaction_nothing_is_written<C>(site: &Site<C::Database>)
where
    C: AsyncConnection + Of + Enqueue<C::Database>,
{
    let mut connection = C::establish(&site.url).await.unwrap();
    let one = site.outbox.enqueue(&mut connection, order(1)).await.unwrap_err();
    let many = site.outbox.enqueue_all(&mut connection, [order(1), order(2)]).await.unwrap_err();
    let id = Uuid::now_v7();
    let receipt = site.inbox.first(&mut connection, "billing", id).await.unwrap_err();
    for error in [one, many, receipt] {
        assert_eq!(error.kind(), &ErrorKind::NotInTransaction, "{error:?}");
    }
    assert_eq!(count(site).await, 0);

    // Neither is it once a transaction has ended.
    let first = connection
        .transaction::<_, anyhow::Error, _>(async |connection| {
            Ok(site.inbox.first(connection, "billing", id).await?)
        })
        .await;
    assert!(first.unwrap());
    let late = site.outbox.enqueue(&mut connection, order(1)).await.unwrap_err();
    assert_eq!(late.kind(), &ErrorKind::NotInTransaction);
    assert_eq!(count(site).await, 0);
}

async fn a_closure_that_fails_takes_its_events_with_it<C>(site: &Site<C::Database>)
where
    C: AsyncConnection + Of + Enqueue<C::Database>,
{
    let mut connection = C::establish(&site.url).await.unwrap();
    let failed = connection
        .transaction::<(), anyhow::Error, _>(async |connection| {
            site.outbox.enqueue(connection, order(1)).await?;
            anyhow::bail!("no stock")
        })
        .await;
    assert_eq!(failed.unwrap_err().to_string(), "no stock");
    // A savepoint is a transaction in the transaction.
    let kept = connection
        .transaction::<_, anyhow::Error, _>(async |connection| {
            let inner = connection
                .transaction::<(), anyhow::Error, _>(async |connection| {
                    site.outbox.enqueue(connection, order(2)).await?;
                    anyhow::bail!("no stock")
                })
                .await;
            assert!(inner.is_err());
            Ok(site.outbox.enqueue(connection, order(3)).await?)
        })
        .await;
    assert!(!kept.unwrap().duplicate);
    assert_eq!(count(site).await, 1);
}

macro_rules! tests {
    ($connection:ty) => {
        use super::*;

        suite!(Diesel<$connection>);

        #[tokio::test]
        async fn en1_outside_of_a_transaction_nothing_is_written() {
            in_site(async |site| outside_of_a_transaction_nothing_is_written::<$connection>(site).await)
                .await;
        }

        #[tokio::test]
        async fn en2_a_closure_that_fails_takes_its_events_with_it() {
            in_site(async |site| a_closure_that_fails_takes_its_events_with_it::<$connection>(site).await)
                .await;
        }
    };
}

mod postgres {
    tests!(AsyncPgConnection);
    suite!(Diesel<AsyncPgConnection>: a_lost_connection_is_said_to_be_lost);
}

mod mariadb {
    use crate::sites::in_mariadb_site as in_site;

    tests!(AsyncMysqlConnection);
}

mod mysql {
    tests!(AsyncMysqlConnection);

    #[tokio::test]
    async fn a_lost_connection_is_said_to_be_lost() {
        in_site::<sqlx::MySql>(async |site| {
            let mut client = Diesel::<AsyncMysqlConnection>::connect(site).await;
            let lost = client.transaction(End::Lost, async |connection| {
                site.outbox.enqueue(connection, order(1)).await.unwrap();
                connection.batch_execute("KILL CONNECTION_ID()").await.unwrap_err();
                site.outbox.enqueue(connection, order(2)).await
            });
            let error = lost.await.unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Unreachable, "{error:?}");
            assert_eq!(count(site).await, 0);
        })
        .await;
    }
}
