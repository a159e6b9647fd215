//! SQLite files and their directories that this user cannot read or write. The system is asked, and nothing is opened or
//! made: closing a file drops every lock that this process has on it, those of SQLite as well.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use posthaste::{Error, ErrorKind};

use crate::target::Target;

/// What keeps this error's file from being used.
pub(super) fn advice(error: &Error, target: &Target) -> Option<String> {
    wrong(target, *error.kind() == ErrorKind::ReadOnly)
}

/// What keeps a file from being written that can be read.
pub(super) fn unwritable(target: &Target) -> Option<String> {
    wrong(target, true)
}

/// What is wrong with the file, or with where it is.
fn wrong(target: &Target, read_only: bool) -> Option<String> {
    let file = target.file()?;
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let (name, place) = (file.display(), shown(&directory));
    let elsewhere = if target.is_embedded() {
        "work in a directory of your own, or name a file with --database sqlite:///path/to/outbox.db"
    } else {
        "name another file with --database"
    };
    match fs::metadata(&file) {
        Ok(found) if found.is_dir() => Some(format!("{name} is a directory, no database file; {elsewhere}")),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound && !directory.is_dir() => Some(format!(
            "cannot create the database file {name}: there is no directory {place}; create it, or {elsewhere}"
        )),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound && !may(&directory, Right::Make) => {
            Some(format!(
                "cannot create the database file {name}: this user may not write to directory {place}; let it write there, \
             or {elsewhere}"
            ))
        }
        Err(denied) if denied.kind() == io::ErrorKind::PermissionDenied => Some(format!(
            "cannot open the database file {name}: this user may not look into directory {place}; let it, or {elsewhere}"
        )),
        Err(_) => None,
        Ok(_) => opened(read_only, &file, &directory),
    }
}

/// What is wrong with a file that is there.
fn opened(read_only: bool, file: &Path, directory: &Path) -> Option<String> {
    let (name, place) = (file.display(), shown(directory));
    if !may(file, Right::Read) {
        return Some(format!(
            "cannot open the database file {name}: this user may not read it; let it read and write the file, or run \
             this as who owns it"
        ));
    }
    if !may(file, Right::Write) && may(directory, Right::Make) {
        return Some(format!(
            "cannot write to the database file {name}: this user may only read it; let it write the file, or run this as \
             who owns it"
        ));
    }
    if !may(directory, Right::Make) {
        // Even who only reads registers in a file beside it.
        return Some(format!(
            "cannot use the database file {name}: SQLite keeps files beside it, to read as well as to write, and this \
             user may not write to directory {place}; let it write there and to the file, or run this as who owns them"
        ));
    }
    read_only.then(|| {
        format!("cannot write to the database file {name}: it is opened for reading only; leave mode=ro and immutable out of --database")
    })
}

/// What a user does with a file, or in a directory.
#[derive(Debug, Clone, Copy)]
enum Right {
    Read,
    Write,
    /// Makes files in a directory.
    Make,
}

/// Whether this user may; what cannot be told keeps nobody from it.
#[cfg(unix)]
fn may(path: &Path, right: Right) -> bool {
    use rustix::fs::Access;
    use rustix::io::Errno;

    let access = match right {
        Right::Read => Access::READ_OK,
        Right::Write => Access::WRITE_OK,
        Right::Make => Access::WRITE_OK | Access::EXEC_OK,
    };
    !matches!(rustix::fs::access(path, access), Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// Whether this user may, as far as a file's attribute tells.
#[cfg(not(unix))]
fn may(path: &Path, right: Right) -> bool {
    let read_only = || fs::metadata(path).is_ok_and(|found| found.permissions().readonly());
    !matches!(right, Right::Write) || !read_only()
}

/// A directory as somebody finds it.
fn shown(directory: &Path) -> String {
    fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned()).display().to_string()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use rustix::fs::{FlockOperation, fcntl_lock};

    use super::*;

    #[test]
    fn op1_who_looks_at_a_file_leaves_its_locks_and_its_directory_alone() -> io::Result<()> {
        let directory = std::env::temp_dir().join(format!("posthaste-files-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let path = directory.join("outbox.db");
        let file = fs::File::create(&path)?;
        fcntl_lock(&file, FlockOperation::LockExclusive)?;
        let (inode, changed) = (file.metadata()?.ino(), fs::metadata(&directory)?);
        let is_locked =
            || fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&format!(":{inode} ")));
        assert!(is_locked());
        let said = opened(true, &path, &directory);
        assert!(said.is_some_and(|said| said.contains("it is opened for reading only")));
        assert!(is_locked(), "its lock is gone");
        let now = fs::metadata(&directory)?;
        let times = |found: &fs::Metadata| (found.mtime(), found.mtime_nsec());
        assert_eq!(times(&now), times(&changed), "something was made in its directory");
        fs::remove_dir_all(&directory)
    }
}
