//! `posthaste completions` and `posthaste man`: what a package brings beside the binary.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::exit::Exit;
use crate::failure::Failure;

/// Prints the script for a shell.
pub(super) fn script(shell: Shell, out: &mut impl Write) -> Result<Exit, Failure> {
    // It panics where it cannot write, so that it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "posthaste", &mut script);
    out.write_all(&script)?;
    Ok(Exit::Ok)
}

/// Prints the first page, or writes every page into a directory.
pub(super) fn manual(directory: Option<&Path>, out: &mut impl Write) -> Result<Exit, Failure> {
    let Some(directory) = directory else {
        clap_mangen::Man::new(Args::command()).render(out)?;
        return Ok(Exit::Ok);
    };
    let unwritable = |error: io::Error| {
        let directory = directory.display();
        Failure::new(
            Exit::BadInput,
            format!("cannot write manual pages into {directory} ({error}); check its name and permissions"),
        )
    };
    fs::create_dir_all(directory).map_err(unwritable)?;
    clap_mangen::generate_to(Args::command(), directory).map_err(unwritable)?;
    writeln!(out, "wrote the manual pages into {}", directory.display())?;
    Ok(Exit::Ok)
}
