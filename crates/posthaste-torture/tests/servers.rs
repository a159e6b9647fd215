//! URLs of the shared servers.

use posthaste_testkit::environment;
use posthaste_torture::plan::Database;

/// The URL of a database's server; empty where there is none.
pub(crate) fn url(database: Database) -> String {
    match database {
        Database::Postgres => setting("POSTHASTE_TEST_POSTGRES_URL"),
        Database::MySql => setting("POSTHASTE_TEST_MYSQL_URL"),
        Database::MariaDb => setting("POSTHASTE_TEST_MARIADB_URL"),
        Database::Sqlite => String::new(),
    }
}

/// Returns a variable about the servers under test.
pub(crate) fn setting(variable: &str) -> String {
    environment::setting(variable).unwrap_or_else(|error| panic!("{error}"))
}
