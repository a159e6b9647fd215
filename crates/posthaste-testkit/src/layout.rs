//! Where things are: the workspace, its target directory, and the directories of the servers.
//!
//! * The workspace is the nearest directory upwards that has `xtask/Cargo.toml`; when there is
//!   none, the parent of the manifest that `cargo run` names in `CARGO_MANIFEST_DIR`.
//! * `CARGO_TARGET_DIR` is honoured, so that two target directories have two sets of servers.
//! * Everything about the servers lies in `target/services`, with one exception: when the account
//!   a server runs as cannot enter that directory (a clone below a home directory of mode 700),
//!   its data goes to the system's temporary directory, see [`Layout::shelter`].

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::account::Account;

/// The directories of one workspace with one target directory.
#[derive(Debug)]
pub struct Layout {
    /// The root of the workspace.
    pub root: PathBuf,
    /// `target`: what cargo builds.
    pub target: PathBuf,
    /// `target/services`: records, locks, the environment file and, usually, the data.
    pub services: PathBuf,
}

impl Layout {
    /// Finds the workspace and makes `target/services`.
    pub fn find() -> Result<Self> {
        let here = std::env::current_dir().context("cannot tell the current directory")?;
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let root = root_above(&here)
            .or_else(|| manifest.as_deref().and_then(root_above))
            .with_context(|| format!("{} is not inside the workspace", here.display()))?
            .canonicalize()?;
        // Cargo, too, takes a relative CARGO_TARGET_DIR from the current directory.
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(dir) if !dir.is_empty() => here.join(dir),
            _ => root.join("target"),
        };
        let services = target.join("services");
        fs::create_dir_all(&services).with_context(|| format!("cannot make {}", services.display()))?;
        let (target, services) = (target.canonicalize()?, services.canonicalize()?);
        Ok(Self { root, target, services })
    }

    /// The file with the URLs of the servers.
    pub fn env_file(&self) -> PathBuf {
        self.services.join("services.env")
    }

    /// A short name that is this target directory's own: the same at every call, another one for
    /// another clone.
    pub fn tag(&self) -> String {
        format!("posthaste-{:016x}", fnv1a(self.services.as_os_str().as_encoded_bytes()))
    }

    /// The directory outside the workspace for a server whose account cannot enter `target`.
    ///
    /// Its name can be guessed, so a directory of another user there is refused.
    pub fn shelter(&self) -> Result<PathBuf> {
        let dir = std::env::temp_dir().join(self.tag());
        if let Err(error) = fs::DirBuilder::new().mode(0o755).create(&dir)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(error).with_context(|| format!("cannot make {}", dir.display()));
        }
        if !is_ours(&dir)? {
            bail!("{} exists and is not ours: remove it", dir.display());
        }
        Ok(dir.canonicalize()?)
    }
}

/// `true` if this is a directory, not a link to one, that belongs to the user of this process.
pub fn is_ours(dir: &Path) -> Result<bool> {
    let uid = Account::current()?.uid;
    Ok(fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == uid))
}

fn root_above(start: &Path) -> Option<PathBuf> {
    start
        .ancestors()
        .find(|dir| dir.join("xtask/Cargo.toml").is_file() && dir.join("Cargo.toml").is_file())
        .map(Path::to_path_buf)
}

/// FNV-1a, because the hashers of `std` may change between releases and this names a directory.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_found_from_below() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = root_above(&manifest.join("src"));
        assert_eq!(root.as_deref(), manifest.ancestors().nth(2));
        assert_eq!(root_above(Path::new("/")), None);
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
