//! Accounts whose password MySQL's default plugin keeps, with and without TLS.
//!
//! Rows of the contract: ST1.

use std::fs::File;
use std::path::Path;

use crate::support::{Answer, Db, Kind};

/// An account that nobody has logged in to, so that its first login sends the whole password; dropped at the end.
struct Account<'a> {
    db: &'a Db,
    name: String,
}

impl<'a> Account<'a> {
    fn new(db: &'a Db) -> Self {
        let name = crate::support::unique();
        let name = name[..name.len().min(30)].to_owned();
        db.sql(&format!(
            "CREATE USER {name} IDENTIFIED WITH caching_sha2_password BY 's3cr3t'; GRANT ALL ON *.* TO {name}"
        ));
        Self { db, name }
    }

    /// Runs the binary under this account.
    fn run(&self, password: &str, options: &str, arguments: &[&str]) -> Answer {
        let url = self.db.url();
        let (_, server) = url.rsplit_once('@').unwrap();
        let url = format!("mysql://{}:{password}@{server}{options}", self.name);
        let mut command = self.db.command(arguments.iter().copied());
        let answer: Answer = command.env("OUTBOX_DATABASE_URL", url).output().unwrap().into();
        assert!(!answer.err.contains(password), "{answer:?}");
        answer
    }
}

impl Drop for Account<'_> {
    fn drop(&mut self) {
        self.db.sql(&format!("DROP USER {}", self.name));
    }
}

#[test]
fn st1_mysql_takes_passwords_of_its_default_plugin_with_and_without_tls() {
    let db = Db::with_table(Kind::MySql, "queue");
    for options in ["?ssl-mode=DISABLED", "?ssl-mode=REQUIRED", ""] {
        let account = Account::new(&db);
        let denied = account.run("wr0ng", options, &["enqueue", "a", "1"]);
        denied.fails(4, "check user, password and privileges");
        // With the whole password, and with a proof of it.
        account.run("s3cr3t", options, &["enqueue", "a", "1"]).exits(0);
        account.run("s3cr3t", options, &["status"]).exits(0);
    }
    assert_eq!(db.sql("SELECT count(*) FROM outbox"), "3");
}

#[test]
fn st1_mysql_with_a_certificate_of_its_own_is_refused_where_it_is_to_be_verified() {
    let db = Db::with_table(Kind::MySql, "queue");
    let account = Account::new(&db);
    for mode in ["VERIFY_CA", "VERIFY_IDENTITY"] {
        let refused = account.run("s3cr3t", &format!("?ssl-mode={mode}"), &["status"]);
        refused.fails(4, "name the file with its authority's certificate in the URL: ssl-ca=");
    }
    // The certificate names no host, so only its authority can be checked. A server elsewhere keeps the file to itself.
    let authority = Path::new(&db.sql("SELECT @@datadir")).join("ca.pem");
    if File::open(&authority).is_ok() {
        let verified = |mode| format!("?ssl-mode={mode}&ssl-ca={}", authority.display());
        account.run("s3cr3t", &verified("VERIFY_CA"), &["status"]).exits(0);
        let refused = account.run("s3cr3t", &verified("VERIFY_IDENTITY"), &["status"]);
        refused.fails(4, "connect by a name that the certificate has");
    }
}
