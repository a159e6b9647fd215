//! Where the servers of the tests are: the environment says, or else the file that `cargo xtask services up` writes.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::envfile::EnvFile;

/// Returns a variable about the servers: from the environment, or else from the `services.env` of the target directory that this
/// program was built into.
pub fn setting(variable: &str) -> Result<String> {
    if let Ok(value) = std::env::var(variable) {
        return Ok(value);
    }
    let own = std::env::current_exe().context("this program does not know where it is")?;
    let files = own.ancestors().map(|directory| directory.join("services/services.env"));
    let value = files.filter_map(|file| in_file(file, variable)).next();
    value.with_context(|| {
        format!("{variable} is not set and no services.env has it: run `cargo xtask services up` first")
    })
}

fn in_file(file: PathBuf, variable: &str) -> Option<String> {
    EnvFile::read(&file).ok()??.get(variable).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_variable_is_an_error_that_says_what_to_do() -> Result<()> {
        assert!(setting("PATH").is_ok());
        let error = setting("POSTHASTE_TEST_NO_SUCH_SERVER_URL").err().context("it is not set")?.to_string();
        assert!(
            error.contains("POSTHASTE_TEST_NO_SUCH_SERVER_URL") && error.contains("services up"),
            "{error}"
        );
        Ok(())
    }
}
