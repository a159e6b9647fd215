//! The step that runs the examples of the library.
//!
//! Every file in `crates/posthaste/examples` is one; there is no list to forget one in. They are
//! built first, all at once, so that [`LIMIT`] is for running alone. An example that waits for
//! something that never comes would otherwise hold up the run for ever.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::step::{Run, show};

/// How long an example may run: it is to show something, not to be a service.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs all examples; the first that does not end with 0 is the error.
pub(crate) fn run(run: &Run<'_>) -> Result<()> {
    let names = names(&run.layout.root.join("crates/posthaste/examples"))?;
    if names.is_empty() {
        println!("the library has no examples");
        return Ok(());
    }
    run.cargo("build -p posthaste --all-features --examples")?;
    for name in names {
        one(run, &name)?;
    }
    Ok(())
}

fn one(run: &Run<'_>, name: &str) -> Result<()> {
    let mut command = run.command("run -p posthaste --all-features --example");
    command.arg(name).stdin(Stdio::null());
    let shown = show(&command);
    println!("$ {shown}");
    let mut child = command.spawn().with_context(|| format!("cannot run `{shown}`"))?;
    let mut ended = Ok(None);
    process::wait(LIMIT, || {
        ended = child.try_wait();
        !matches!(ended, Ok(None))
    });
    match ended.context("cannot wait for the example")? {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("`{shown}` ended with {status}"),
        None => {
            // Cargo has replaced itself with the example: this is the example's process.
            child.kill()?;
            child.wait()?;
            bail!("`{shown}` did not end within {LIMIT:?}")
        }
    }
}

/// The names of the examples in a directory, sorted: `NAME.rs` and `NAME/main.rs`.
fn names(dir: &Path) -> Result<Vec<String>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in dir.read_dir()? {
        let path = entry?.path();
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        if (is_source || path.join("main.rs").is_file())
            && let Some(name) = path.file_stem()
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_files_and_directories_with_a_main() -> Result<()> {
        let dir = std::env::temp_dir().join(format!("xtask-examples-{}", std::process::id()));
        assert!(names(&dir)?.is_empty());
        for sub in ["b_dir", "shared"] {
            std::fs::create_dir_all(dir.join(sub))?;
        }
        for file in ["c.rs", "a.rs", "README.md", "b_dir/main.rs", "shared/x.rs"] {
            std::fs::write(dir.join(file), "")?;
        }
        assert_eq!(names(&dir)?, ["a", "b_dir", "c"]);
        std::fs::remove_dir_all(&dir)?;
        Ok(())
    }
}
