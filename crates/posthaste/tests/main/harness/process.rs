//! Tests in processes of their own, for what a process has only once: its memory, its log.

use std::process::Stdio;

use super::Kind;

/// Set in the process of one test; its value is the name of the test.
const ALONE: &str = "POSTHASTE_TEST_ALONE";

/// Runs a test in a process that runs no other test: this program, started again with the name of the test.
///
/// `test` is the path of the function, which the macros of the harness complete with the name of the database.
pub async fn alone(test: &str, kind: Kind, body: impl Future<Output = ()>) {
    let name = format!("{test}::{}", kind.name());
    if std::env::var(ALONE).is_ok_and(|alone| alone == name) {
        return body.await;
    }
    let output = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args([&name, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, &name)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} failed in its own process");
    assert!(printed.contains("1 passed"), "no test has the name {name}");
}
