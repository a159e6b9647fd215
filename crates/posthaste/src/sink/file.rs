//! A file of JSON lines, one event a line.
//!
//! A batch is one write and one `fdatasync`, and only then is it delivered. Made for one writer: two processes
//! that append to the same file may tear each other's lines apart.
//!
//! - **A line that a crash cut off** is ended before the next one is appended, so a reader meets one broken line
//!   and no more. Its event is delivered again, whole.
//! - **Rotation** is other programs' affair. When the path no longer leads to the open file (it was renamed or
//!   deleted), the next batch opens it anew. A file that is cut to nothing where it is goes on from its start.
//! - **Whatever the file system says no to** (full, read-only, directory gone) is the destination's failure: the sink
//!   is unavailable, no attempt is spent, and the file is opened anew for the next try.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::envelope::Envelope;
use super::{Delivery, Outcome, Sink};
use crate::error::{Error, ErrorKind, Result};

/// Appends events to a file as lines of JSON.
///
/// ```no_run
/// # async fn example(outbox: posthaste::testing::TestOutbox) -> posthaste::Result<()> {
/// use posthaste::sink::FileSink;
///
/// let relay = outbox.relay().sink(FileSink::open("events.jsonl")?).start().await?;
/// # let _ = relay; Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct FileSink {
    envelope: Envelope,
    target: Arc<Mutex<Target>>,
}

#[derive(Debug)]
struct Target {
    path: PathBuf,
    /// `None` until the first batch, and after a failure.
    open: Option<File>,
}

impl FileSink {
    /// A sink that appends to this file, which is made if it does not exist. Errors are those of the first look;
    /// later ones make the sink unavailable.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let mut target = Target { path: path.into(), open: None };
        if let Err(error) = target.prepare() {
            let what = format!("events cannot be appended to {}", target.path.display());
            return Err(Error::new(ErrorKind::InvalidSetting, what).because(error));
        }
        Ok(Self { envelope: Envelope::default(), target: Arc::new(Mutex::new(target)) })
    }

    /// What a line is: CloudEvents in one document, unless said otherwise.
    pub fn envelope(mut self, envelope: impl Into<Envelope>) -> Self {
        self.envelope = envelope.into();
        self
    }

    /// Does something with the file where blocking is allowed.
    async fn with_target(
        &self,
        work: impl FnOnce(&mut Target) -> io::Result<()> + Send + 'static,
    ) -> Result<(), String> {
        let target = Arc::clone(&self.target);
        // Should this future be dropped, the write goes on to its end: no half of a line is left behind.
        let done = tokio::task::spawn_blocking(move || {
            let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut target).map_err(|error| {
                target.open = None;
                format!("{}: {error}", target.path.display())
            })
        });
        done.await.unwrap_or_else(|error| Err(format!("writing did not end: {error}")))
    }
}

impl Target {
    /// The file that the path leads to now, with its last line ended.
    fn prepare(&mut self) -> io::Result<&mut File> {
        let current = match &self.open {
            Some(file) => leads_to(&self.path, &file.metadata()?),
            None => false,
        };
        if !current {
            self.open = None;
        }
        match &mut self.open {
            Some(file) => Ok(file),
            closed => Ok(closed.insert(open(&self.path)?)),
        }
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let file = self.prepare()?;
        file.write_all(lines)?;
        file.sync_data()
    }
}

/// Opens a file to append to, ends its last line and makes its name durable.
fn open(path: &Path) -> io::Result<File> {
    let is_new = !path.try_exists()?;
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if is_new {
        sync_directory(path)?;
    }
    if found.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

/// A new file is there after a crash only if its directory was written, too.
#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(not(unix))]
fn sync_directory(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// Whether the path still leads to the file that is open.
#[cfg(unix)]
fn leads_to(path: &Path, open: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    path.metadata().is_ok_and(|found| (found.dev(), found.ino()) == (open.dev(), open.ino()))
}

#[cfg(not(unix))]
fn leads_to(path: &Path, _open: &Metadata) -> bool {
    path.exists()
}

#[async_trait]
impl Sink for FileSink {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut lines = Vec::new();
        for delivery in batch {
            self.envelope.line(delivery, &mut lines);
        }
        let outcome = match self.with_target(move |target| target.append(&lines)).await {
            Ok(()) => Outcome::Delivered,
            Err(error) => Outcome::Unavailable { error },
        };
        vec![outcome; batch.len()]
    }

    /// One write of one batch: all of it, or nothing counts.
    fn keeps_order(&self) -> bool {
        true
    }

    async fn probe(&self) -> Result<(), String> {
        self.with_target(|target| target.prepare().map(drop)).await
    }
}
