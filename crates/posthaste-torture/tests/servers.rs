//! Where the servers are: the environment says, else the file that `cargo xtask services up` writes.

use std::path::Path;

use posthaste_torture::plan::Database;

/// The URL of a database's server; empty where there is none.
pub(crate) fn url(database: Database) -> String {
    match database {
        Database::Postgres => setting("POSTHASTE_TEST_POSTGRES_URL"),
        Database::MariaDb => setting("POSTHASTE_TEST_MARIADB_URL"),
        Database::Sqlite => String::new(),
    }
}

fn setting(variable: &str) -> String {
    let Some(found) = std::env::var(variable).ok().or_else(|| from_file(variable)) else {
        panic!("{variable} is not set and no services.env has it: run `cargo xtask services up` first")
    };
    found
}

fn from_file(variable: &str) -> Option<String> {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let text = std::fs::read_to_string(scratch.parent()?.join("services/services.env")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix('=').map(str::to_owned))
}
