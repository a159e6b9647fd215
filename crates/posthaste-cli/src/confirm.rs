//! Before something is changed or deleted: the question, and who need not be asked.
//!
//! `--yes` answers the question. A database on another machine needs, beside the answer, the table's name
//! repeated with `--confirm`, so that a shell with the wrong URL in its environment deletes nothing.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::args::Consent;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::Target;

/// Shows what would happen and makes sure that it is wanted; an error if it is not.
pub(crate) fn confirm(consent: &Consent, target: &Target, would: &str) -> Result<(), Failure> {
    let mut err = io::stderr().lock();
    // Whoever does not read it may have agreed all the same.
    let _ = writeln!(err, "{would}");
    let table = target.table().to_string();
    match (&consent.confirm, target.remote_host()) {
        (Some(given), _) if *given != table => {
            return Err(refused(format!("--confirm names {given:?}, the table is {table:?}")));
        }
        (None, Some(host)) => {
            return Err(refused(format!(
                "the database is on {host}, not on this machine; repeat the table's name with --confirm {table}"
            )));
        }
        _ => {}
    }
    if consent.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !err.is_terminal() {
        return Err(refused("nobody can be asked, since this is not a terminal; agree with --yes"));
    }
    write!(err, "Proceed? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(refused("nothing was changed")) }
}

fn refused(why: impl Into<String>) -> Failure {
    Failure::new(Exit::Refused, why)
}
