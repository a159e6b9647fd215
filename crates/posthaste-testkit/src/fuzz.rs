//! Arbitrary input: the seeds of a directory, and what random changes make of them.
//!
//! | variable | default | why |
//! |---|---|---|
//! | `POSTHASTE_FUZZ_SECONDS` | the target's number of inputs, however long they take | the same inputs on every machine: a test does not fail on a quick one alone |
//! | `POSTHASTE_FUZZ_SEED` | 1 | the same inputs each time; another number tries others |
//!
//! A directory of `tests/corpus` is a target, a file in it a seed: one input as bytes. Every seed is tried first, as it is.
//!
//! An input stands in a file while it is tried, so that it is there whatever it does: one that fails or takes longer than
//! `PATIENCE`, but also one that never ends, or ends the process. The file's name is printed before the first of them; where
//! all went well, it is gone afterwards. Mend what an input shows and put it among the seeds.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long one input may take, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of the largest input: what takes time or memory by its size alone is not looked for here.
const LARGEST: usize = 128 * 1024;

/// Megabytes that a process may need for all of it.
const MEMORY: u64 = 1024;

/// What is put in anywhere: what readers of text, JSON, TOML, URLs and SQL stumble over.
const TOKENS: &[&[u8]] = &[
    b"\0",
    b"\r\n",
    b"\n",
    b"\t",
    b"\x7f",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    "\u{85}".as_bytes(),
    "\u{202e}".as_bytes(),
    "\u{10ffff}".as_bytes(),
    "é".as_bytes(),
    "🚀".as_bytes(),
    b"\\u0000",
    b"\\ud800",
    b"\\ud83d\\ude80",
    b"\\",
    b"\"",
    b"'",
    b"`",
    b"[",
    b"]",
    b"{",
    b"}",
    b"{{",
    b"}}",
    b":",
    b",",
    b".",
    b"/",
    b"..",
    b"*",
    b">",
    b"%00",
    b"%",
    b"=",
    b"&",
    b"#",
    b"null",
    b"1e400",
    b"-0",
    b"99999999999999999999999999",
    b"0.1e-9999",
    b"9999-12-31T23:59:59-23:59",
    b"'; DROP TABLE outbox; --",
    b"${HOME}",
];

/// Seeds of a crate's targets: `tests/corpus`, a directory per target.
#[derive(Debug, Clone, Copy)]
pub struct Corpus(&'static str);

impl Corpus {
    /// The corpus of the crate in this directory, `env!("CARGO_MANIFEST_DIR")`.
    pub const fn of_crate(directory: &'static str) -> Self {
        Self(directory)
    }

    /// Gives every seed of the target, and then so many random changes of them, to a check that panics if it is not content. The
    /// number is what takes about two seconds without optimisations.
    pub fn each_input(&self, target: &str, inputs: u64, mut check: impl FnMut(&[u8])) {
        let seeds = self.seeds(target);
        let mut run = Run::new(target);
        println!("{target}: the input that is tried is in {}", run.path.display());
        for seed in &seeds {
            run.try_one(seed.clone(), &mut check);
        }
        let mut random = fastrand::Rng::with_seed(number("POSTHASTE_FUZZ_SEED", 1));
        let time = std::env::var("POSTHASTE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
        let end = time.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut tried = 0;
        while end.map_or(tried < inputs, |end| Instant::now() < end) {
            run.try_one(changed(&seeds, &mut random), &mut check);
            tried += 1;
        }
        if let Some(megabytes) = most_memory() {
            assert!(megabytes < MEMORY, "{target}: it took {megabytes} MB");
        }
    }

    /// A target's seeds, in the order of their names.
    pub fn seeds(&self, target: &str) -> Vec<Vec<u8>> {
        let directory = Path::new(self.0).join("tests/corpus").join(target);
        let entries = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("no seeds in {}: {error}", directory.display()));
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "no seeds in {}", directory.display());
        files.iter().map(|file| std::fs::read(file).unwrap()).collect()
    }
}

/// The input as text, if it is some.
pub fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

/// The input that is being tried, and its file.
struct Run<'a> {
    target: &'a str,
    input: Vec<u8>,
    path: PathBuf,
    /// Open all the time: to open and close it for each input would take longer than many a check.
    file: File,
}

impl<'a> Run<'a> {
    fn new(target: &'a str) -> Self {
        /// Several tests of a process may have one target.
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let (process, run) = (std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("posthaste-{target}-{process}-{run}.input"));
        let file = File::create(&path)
            .unwrap_or_else(|error| panic!("no input can be kept in {}: {error}", path.display()));
        Self { target, input: Vec::new(), path, file }
    }

    fn try_one(&mut self, input: Vec<u8>, check: &mut impl FnMut(&[u8])) {
        self.input = input;
        self.file.rewind().unwrap();
        self.file.write_all(&self.input).unwrap();
        self.file.set_len(self.input.len() as u64).unwrap();
        let began = Instant::now();
        check(&self.input);
        let took = began.elapsed();
        assert!(took < PATIENCE, "{} bytes took {took:?}", self.input.len());
    }
}

/// Leaves the file of an input that has failed, and of no other.
impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_file(&self.path);
            return;
        }
        let mut shown = String::new();
        for byte in self.input.iter().take(400) {
            let _ = write!(shown, "{}", byte.escape_ascii());
        }
        // Seen where the test's own words are.
        println!("{}: this input failed ({}): {shown}", self.target, self.path.display());
    }
}

/// A seed with up to eight changes.
fn changed(seeds: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    let pick = |random: &mut fastrand::Rng| &seeds[random.usize(..seeds.len())];
    let mut input = pick(random).clone();
    for _ in 0..random.usize(1..=8) {
        let (from, to) = range(input.len(), random);
        match random.u8(..9) {
            0 => {
                if let Some(byte) = input.get_mut(from) {
                    *byte ^= 1 << random.u8(..8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(from) {
                    *byte = random.u8(..);
                }
            }
            2 => drop(input.drain(from..to)),
            3 => drop(input.splice(from..from, TOKENS[random.usize(..TOKENS.len())].iter().copied())),
            4 => drop(input.splice(from..to, TOKENS[random.usize(..TOKENS.len())].iter().copied())),
            5 => {
                let part = input[from..to].to_vec();
                let at = random.usize(..=input.len());
                drop(input.splice(at..at, part));
            }
            6 => {
                let other = pick(random);
                let (start, end) = range(other.len(), random);
                drop(input.splice(from..to, other[start..end].iter().copied()));
            }
            // Long keys, deep nesting: something short, very often.
            7 => {
                let part = input[from..to.min(from + random.usize(1..=8)).min(input.len())].to_vec();
                let times = 1 << random.u8(..15);
                drop(input.splice(from..from, part.repeat(times)));
            }
            _ => {
                let token = TOKENS[random.usize(..TOKENS.len())];
                let times = 1 << random.u8(..15);
                drop(input.splice(from..from, token.repeat(times)));
            }
        }
        input.truncate(LARGEST);
    }
    input
}

/// A part of so many bytes.
fn range(length: usize, random: &mut fastrand::Rng) -> (usize, usize) {
    let (one, other) = (random.usize(..=length), random.usize(..=length));
    (one.min(other), one.max(other))
}

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Megabytes that this process has had at most, where the system tells.
fn most_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also one that is shorter than the one before it.
    #[test]
    fn pr2_an_input_is_in_its_file_while_it_is_tried() {
        let mut run = Run::new("kept");
        let path = run.path.clone();
        for input in [&b"the first"[..], b"a longer one \0\xff", b"", b"short"] {
            let mut tried = false;
            run.try_one(input.to_vec(), &mut |given| {
                assert_eq!((given, std::fs::read(&path).unwrap().as_slice()), (input, input));
                tried = true;
            });
            assert!(tried);
        }
        drop(run);
        assert!(!path.exists());
    }

    #[test]
    fn pr2_an_input_that_fails_stays_in_its_file() {
        let mut run = Run::new("failed");
        let path = run.path.clone();
        let failed = std::thread::spawn(move || {
            run.try_one(b"good".to_vec(), &mut |_| {});
            run.try_one(b"bad".to_vec(), &mut |_| panic!("as it has to"));
        });
        assert!(failed.join().is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"bad");
        std::fs::remove_file(&path).unwrap();
    }
}
