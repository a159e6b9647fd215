//! `completions` and `man`: what a package brings beside the binary.
//!
//! Rows of the contract: OP1.

use std::fs;

use crate::support::Dir;

#[test]
fn op1_completions_are_printed_for_every_shell() {
    let dir = Dir::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = dir.run(["completions", shell]).exits(0).out;
        for word in ["posthaste", "replay", "migrate", "dry-run"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    dir.run(["completions", "tcsh"]).exits(2);
    assert!(dir.is_empty());
}

#[test]
fn op1_manual_pages_are_printed_or_written() {
    let dir = Dir::new();
    let mut command = dir.command(["man"]);
    command.env("OUTBOX_DATABASE_URL", "postgres://user:s3cret@localhost/shop");
    let page = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(page.contains(".TH posthaste 1") && page.contains("Exit codes:"), "{page}");
    assert!(!page.contains("s3cret"), "{page}");
    assert!(dir.is_empty());

    dir.run(["man", "pages/man1"]).exits(0);
    for page in ["posthaste", "posthaste-dead-replay", "posthaste-purge", "posthaste-migrate-up"] {
        let text = fs::read_to_string(dir.path().join(format!("pages/man1/{page}.1"))).unwrap();
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
    dir.write("file", "");
    dir.run(["man", "file/man1"]).fails(3, "cannot write manual pages into file/man1");
}
