//! SQLite files and their directories that this user cannot read or write.

use std::fs::{self, OpenOptions};
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
        Err(missing) if missing.kind() == io::ErrorKind::NotFound && !is_writable(&directory) => {
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
    let is = |opened: io::Result<fs::File>, kind| opened.is_err_and(|error| error.kind() == kind);
    let denied = io::ErrorKind::PermissionDenied;
    if is(OpenOptions::new().read(true).open(file), denied) {
        return Some(format!(
            "cannot open the database file {name}: this user may not read it; let it read and write the file, or run \
             this as who owns it"
        ));
    }
    let written = OpenOptions::new().append(true).open(file);
    if is(written, denied) && is_writable(directory) {
        return Some(format!(
            "cannot write to the database file {name}: this user may only read it; let it write the file, or run this as \
             who owns it"
        ));
    }
    if !is_writable(directory) {
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

/// Whether this user may make files there. There is no asking but trying.
fn is_writable(directory: &Path) -> bool {
    let probe = directory.join(format!(".posthaste-{}", std::process::id()));
    let made = OpenOptions::new().write(true).create_new(true).open(&probe);
    if made.is_ok() {
        let _ = fs::remove_file(&probe);
    }
    made.is_ok()
}

/// A directory as somebody finds it.
fn shown(directory: &Path) -> String {
    fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned()).display().to_string()
}
