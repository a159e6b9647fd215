//! The step that runs the examples of the library.
//!
//! * Every file in `crates/posthaste/examples` is one; there is no list to forget one in.
//! * They are built as the tests are, whose step has then built them already. `cargo run` takes one
//!   package alone, for which half of the dependencies would be built again with other features.
//! * Each is run with `--self-test`: one that serves until it is told to stop then tries itself and
//!   ends. The others have no use for it.
//! * An example that waits for something that never comes is ended after [`LIMIT`].

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::step::Run;

/// How long an example may run: it is to show something, not to be a service.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs all examples; the first that does not end with 0 is the error.
pub(crate) fn run(run: &Run<'_>) -> Result<()> {
    let names = names(&run.layout.root.join("crates/posthaste/examples"))?;
    if names.is_empty() {
        println!("the library has no examples");
        return Ok(());
    }
    run.cargo("build --workspace --all-features --examples")?;
    for name in names {
        let program = run.layout.target.join("debug/examples").join(&name);
        println!("\n-- {name}");
        // Whatever database somebody works with in this shell is not theirs to write to.
        one(run.program(program).arg("--self-test").env_remove("DATABASE_URL"), &name)?;
    }
    Ok(())
}

fn one(command: &mut Command, name: &str) -> Result<()> {
    let mut child =
        command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot run the example {name}"))?;
    let mut ended = Ok(None);
    process::wait(LIMIT, || {
        ended = child.try_wait();
        !matches!(ended, Ok(None))
    });
    match ended.with_context(|| format!("cannot wait for the example {name}"))? {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("the example {name} ended with {status}"),
        None => {
            child.kill()?;
            child.wait()?;
            bail!("the example {name} did not end within {LIMIT:?}")
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
