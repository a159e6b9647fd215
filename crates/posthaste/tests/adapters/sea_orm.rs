//! SeaORM, on all three databases.
//!
//! Rows of the contract: EN1, EN2.

use std::marker::PhantomData;

use ::sea_orm::{
    DatabaseConnection, DatabaseTransaction, SqliteTransactionMode, TransactionOptions, TransactionTrait,
};
use posthaste::{Backend, Enqueue, ErrorKind, Inbox, Outbox};
use sqlx::{MySql, Pool, Postgres, Sqlite};
use uuid::Uuid;

use super::sites::{Place, Site, in_site};
use super::suite::{self, End, count, order};

struct SeaOrm<B>(DatabaseConnection, PhantomData<B>);

impl<B> suite::Client for SeaOrm<B>
where
    B: Place,
    Pool<B>: Into<DatabaseConnection>,
    DatabaseTransaction: Enqueue<B>,
{
    type Database = B;
    type Transaction<'c> = DatabaseTransaction;

    async fn connect(site: &Site<B>) -> Self {
        Self(site.pool.clone().into(), PhantomData)
    }

    async fn transaction<R>(&mut self, end: End, work: impl AsyncFnOnce(&mut DatabaseTransaction) -> R) -> R {
        // SQLite's plain `BEGIN` refuses to start writing once another connection has.
        let mode = Some(SqliteTransactionMode::Immediate);
        let options = TransactionOptions { sqlite_transaction_mode: mode, ..Default::default() };
        let mut transaction = self.0.begin_with_options(options).await.unwrap();
        let result = work(&mut transaction).await;
        match end {
            End::Commit => transaction.commit().await.unwrap(),
            End::Rollback => transaction.rollback().await.unwrap(),
            End::Lost => drop(transaction),
        }
        result
    }
}

/// The closures of SeaORM's own are given a shared reference.
async fn a_closure_enqueues_with_the_reference_it_is_given<B>(site: &Site<B>)
where
    B: Place,
    Pool<B>: Into<DatabaseConnection>,
    for<'t> &'t DatabaseTransaction: Enqueue<B>,
    Outbox<B>: Sync,
{
    let connection: DatabaseConnection = site.pool.clone().into();
    for keep in [false, true] {
        let outbox = site.outbox.clone();
        let done = connection
            .transaction_async::<_, (), anyhow::Error>(async |mut transaction: &DatabaseTransaction| {
                outbox.enqueue(&mut transaction, order(1)).await?;
                anyhow::ensure!(keep, "no stock");
                Ok(())
            })
            .await;
        assert_eq!(done.is_ok(), keep);
        assert_eq!(count(site).await, usize::from(keep));
    }
}

macro_rules! tests {
    ($database:ty) => {
        use super::*;

        suite!(SeaOrm<$database>);

        #[tokio::test]
        async fn en2_a_closure_enqueues_with_the_reference_it_is_given() {
            in_site(async |site: &Site<$database>| {
                a_closure_enqueues_with_the_reference_it_is_given(site).await
            })
            .await;
        }
    };
}

mod postgres {
    tests!(Postgres);
    suite!(SeaOrm<Postgres>: a_lost_connection_is_said_to_be_lost);
}

mod mariadb {
    use crate::sites::in_mariadb_site as in_site;

    tests!(MySql);
}

mod mysql {
    tests!(MySql);
}

mod sqlite {
    tests!(Sqlite);

    #[tokio::test]
    async fn en1_a_transaction_of_another_database_is_refused() {
        in_site::<Sqlite>(async |site| {
            let pool = sqlx::PgPool::connect_lazy("postgres://nowhere").unwrap();
            refused(
                site,
                Outbox::postgres(pool.clone()).build().unwrap(),
                Inbox::postgres(pool, "inbox").unwrap(),
            )
            .await;
            let pool = sqlx::MySqlPool::connect_lazy("mysql://nowhere").unwrap();
            refused(site, Outbox::mysql(pool.clone()).build().unwrap(), Inbox::mysql(pool, "inbox").unwrap())
                .await;
        })
        .await;
    }
}

#[tokio::test]
async fn en1_a_transaction_of_postgresql_is_refused_for_an_outbox_in_sqlite() {
    in_site::<Postgres>(async |site| {
        let pool = sqlx::SqlitePool::connect_lazy("sqlite::memory:").unwrap();
        refused(site, Outbox::sqlite(pool.clone()).build().unwrap(), Inbox::sqlite(pool, "inbox").unwrap())
            .await;
    })
    .await;
}

async fn refused<B: Place, Other: Backend>(site: &Site<B>, outbox: Outbox<Other>, inbox: Inbox<Other>)
where
    Pool<B>: Into<DatabaseConnection>,
    DatabaseTransaction: Enqueue<Other> + Enqueue<B>,
{
    let connection: DatabaseConnection = site.pool.clone().into();
    let before = count(site).await;
    let mut transaction = connection.begin().await.unwrap();
    let one = outbox.enqueue(&mut transaction, order(1)).await.unwrap_err();
    let many = outbox.enqueue_all(&mut transaction, [order(1), order(2)]).await.unwrap_err();
    let receipt = inbox.first(&mut transaction, "billing", Uuid::now_v7()).await.unwrap_err();
    for error in [one, many, receipt] {
        assert_eq!(error.kind(), &ErrorKind::WrongDatabase, "{error:?}");
    }
    // The transaction is none the worse for it.
    site.outbox.enqueue(&mut transaction, order(1)).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(count(site).await, before + 1);
}
