//! What only MySQL can show: logins of accounts whose password the server's default plugin keeps.
//!
//! Rows of the contract: ST1.

use posthaste::store::{Store, connect};
use posthaste::{ErrorKind, Result};
use uuid::Uuid;

use crate::harness::{Db, Kind};

/// A password with characters that a URL has to escape, and as it is in a URL.
const PASSWORD: (&str, &str) = ("p@ss:w/rd", "p%40ss%3Aw%2Frd");

/// An account that nobody has logged in to. The first login sends the whole password, since the server has nothing in its
/// cache to compare a proof with.
struct Account<'a> {
    db: &'a Db,
    name: String,
}

impl<'a> Account<'a> {
    async fn new(db: &'a Db) -> Self {
        let name = format!("u_{}", &Uuid::now_v7().simple().to_string()[..28]);
        let account = format!("CREATE USER {name} IDENTIFIED WITH caching_sha2_password BY '{}'", PASSWORD.0);
        db.execute(account).await.unwrap();
        db.execute(format!("GRANT ALL ON {}.* TO {name}", db.place())).await.unwrap();
        Self { db, name }
    }

    async fn connect(&self, password: &str, options: &str) -> Result<std::sync::Arc<dyn Store>> {
        let url = self.db.url();
        let (_, server) = url.rsplit_once('@').unwrap();
        connect(&format!("mysql://{}:{password}@{server}{options}", self.name), &self.db.table()).await
    }

    /// Logs in twice: with the whole password, and with a proof of it.
    async fn logs_in(&self, options: &str) {
        for _ in 0..2 {
            let store = self.connect(PASSWORD.1, options).await.unwrap();
            assert!(store.mode().await.unwrap().is_some());
            store.close().await;
        }
    }

    async fn drop(self) {
        self.db.execute(format!("DROP USER {}", self.name)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st1_a_password_of_the_default_plugin_works_without_tls() {
    let db = Db::new(Kind::MySql).await;
    for options in ["?ssl-mode=DISABLED", ""] {
        let account = Account::new(&db).await;
        account.logs_in(options).await;
        account.drop().await;
    }
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st1_a_wrong_password_of_the_default_plugin_is_denied() {
    let db = Db::new(Kind::MySql).await;
    let account = Account::new(&db).await;
    for _ in ["of an account that is not in the cache", "of one that is"] {
        let error = account.connect("wrong", "?ssl-mode=DISABLED").await.err().unwrap();
        assert_eq!(*error.kind(), ErrorKind::AccessDenied, "{error:?}");
        assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
        account.logs_in("?ssl-mode=DISABLED").await;
    }
    account.drop().await;
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st1_a_password_of_the_default_plugin_works_with_tls() {
    let db = Db::new(Kind::MySql).await;
    let account = Account::new(&db).await;
    match account.connect(PASSWORD.1, "?ssl-mode=REQUIRED").await {
        Ok(store) => {
            store.close().await;
            account.logs_in("?ssl-mode=REQUIRED").await;
        }
        // Built without the binary, whose features switch TLS on.
        Err(error) => assert!(error.message().contains("without TLS support"), "{error:?}"),
    }
    account.drop().await;
    db.drop_everything().await;
}
