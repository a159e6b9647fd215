//! Files of `KEY=VALUE` lines: `services.env` and the records of the servers.
//!
//! No quoting, no escapes: a value is everything after the first `=`, so a URL or a path stands
//! there as it is, and `set -a; . services.env` in a shell works for the URLs. Empty lines and
//! lines with `#` are skipped.
//!
//! Promise: a file is replaced as a whole (written beside, then renamed), so a reader never sees
//! half of one.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The lines of a file, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvFile(Vec<(String, String)>);

impl EnvFile {
    /// Adds a line; a key or value that would break the format is an error.
    pub fn push(&mut self, key: &str, value: impl ToString) -> Result<()> {
        let value = value.to_string();
        if key.is_empty() || key.contains(['=', '\n', '#']) || value.contains('\n') {
            bail!("{key:?}={value:?} cannot be a line of an environment file");
        }
        self.0.push((key.to_owned(), value));
        Ok(())
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// All lines.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Reads text; a line without `=` is an error that names the line.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                bail!("line {}: no `=` in {line:?}", number + 1);
            };
            lines.push(key, value)?;
        }
        Ok(lines)
    }

    /// The text that [`Self::parse`] reads back.
    pub fn render(&self) -> String {
        self.iter().map(|(k, v)| format!("{k}={v}\n")).collect()
    }

    /// Reads a file; `None` when there is none.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map(Some).with_context(|| format!("in {}", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Replaces a file as a whole.
    pub fn write(&self, path: &Path) -> Result<()> {
        let beside = path.with_extension("new");
        fs::write(&beside, self.render())
            .and_then(|()| fs::rename(&beside, path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() -> Result<()> {
        let mut lines = EnvFile::default();
        lines.push("URL", "postgres://u:p@127.0.0.1:1/db?a=b")?;
        lines.push("EMPTY", "")?;
        assert_eq!(EnvFile::parse(&lines.render())?, lines);
        assert_eq!(lines.get("URL"), Some("postgres://u:p@127.0.0.1:1/db?a=b"));
        assert_eq!(lines.get("NONE"), None);
        Ok(())
    }

    #[test]
    fn comments_and_empty_lines_are_skipped() -> Result<()> {
        let lines = EnvFile::parse("# a comment\n\n  A=1  \n")?;
        assert_eq!(lines.iter().collect::<Vec<_>>(), [("A", "1")]);
        Ok(())
    }

    #[test]
    fn a_line_that_is_none_is_an_error() {
        assert!(EnvFile::parse("A=1\nnonsense\n").is_err());
        assert!(EnvFile::default().push("A", "1\n2").is_err());
        assert!(EnvFile::default().push("A=B", "1").is_err());
        assert!(EnvFile::default().push("", "1").is_err());
    }

    #[test]
    fn a_missing_file_is_none() -> Result<()> {
        assert_eq!(EnvFile::read(Path::new("/no/such/file"))?, None);
        Ok(())
    }
}
