//! Processes and ports: which ones are alive, and how to end those that we started.
//!
//! A process is ours only when its number *and* an argument of its command line (the path of our
//! data directory) agree. A number alone proves nothing after a reboot, when it may belong to
//! anyone. What a killed server leaves behind is known by its program and by its current directory,
//! which is our data directory. Promise: no other process is ever signalled, and none by name.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often something that is waited for is looked at.
pub const POLL: Duration = Duration::from_millis(50);

/// Longest wait for the first bytes of a server that has accepted a connection.
const ANSWER: Duration = Duration::from_secs(2);

/// `true` if process `pid` lives and has `argument` on its command line.
///
/// A zombie has no command line any more and so counts as dead.
pub fn is_ours(pid: u32, argument: &str) -> bool {
    if Path::new("/proc/self/cmdline").exists() {
        return fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|b| *b == 0).any(|a| a == argument.as_bytes()));
    }
    Command::new("ps")
        .args(["-ww", "-o", "command=", "-p", &pid.to_string()])
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(argument))
}

/// Sends a signal; `true` if that worked. Signal `0` asks only whether the process exists.
///
/// `kill` of the shell, because a small machine may lack the program of that name.
pub fn signal(pid: u32, signal: &str) -> bool {
    Command::new("sh")
        .args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal])
        .arg(pid.to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Ends process `pid` if it is ours: asks with `gentle`, insists with `hard` when it has not gone
/// within 30 seconds, and returns once it is gone.
pub fn stop(pid: u32, argument: &str, gentle: &str, hard: &str) -> Result<()> {
    for kind in [gentle, hard] {
        if is_ours(pid, argument) && !signal(pid, kind) && is_ours(pid, argument) {
            bail!("may not send SIG{kind} to process {pid}: another user's?");
        }
        if wait(Duration::from_secs(30), || !is_ours(pid, argument)) {
            return Ok(());
        }
    }
    bail!("process {pid} does not end, not even on SIG{hard}")
}

/// The processes of the program `name` whose current directory is `dir`; none where the system does
/// not tell.
///
/// For what a killed server leaves behind: children that have given themselves another command
/// line.
pub fn living_in(dir: &Path, name: &str) -> Vec<u32> {
    let lives = |pid: &u32| {
        let link = |what| fs::read_link(format!("/proc/{pid}/{what}"));
        link("cwd").is_ok_and(|cwd| cwd == dir) && link("exe").is_ok_and(|exe| exe.ends_with(name))
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(lives).collect()
}

/// Polls until `done` or until the time is up; `true` if it was done.
pub fn wait(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(POLL);
    }
}

/// `true` if something accepts connections on this port of the loopback interface.
pub fn answers(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_secs(2)).is_ok()
}

/// Sends a greeting and returns the first six bytes that the server answers with.
pub fn first_bytes(port: u16, greeting: &[u8]) -> Option<[u8; 6]> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, ANSWER).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    stream.write_all(greeting).ok()?;
    let mut bytes = [0; 6];
    stream.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// A port for a server of a test's own, which nothing listens on: below the ports that systems hand out to clients, so that it
/// stays free while the server is down.
pub fn private_port() -> Result<u16> {
    let candidate = || 15_000 + (unique() % 15_000) as u16;
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    std::iter::repeat_with(candidate).take(1000).find(is_free).context("no port is free")
}

/// A number that differs at every call, in every process. The keys of a `RandomState` are random.
pub fn unique() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// A port of the loopback interface that nothing listens on: `wanted` if that is free, so that
/// URLs stay the same from one start to the next, or else one the system picks.
pub fn free_port(wanted: Option<u16>) -> Result<u16> {
    if let Some(port) = wanted
        && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    {
        return Ok(port);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// The last lines of a log, indented, for an error message.
pub fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(30)..];
    if last.is_empty() {
        return format!("    ({} is empty)", log.display());
    }
    format!("    {}", last.join("\n    "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ours_by_number_and_argument() -> Result<()> {
        let mut child = Command::new("sleep").arg("61.25").spawn()?;
        let pid = child.id();
        assert!(wait(Duration::from_secs(5), || is_ours(pid, "61.25")));
        assert!(!is_ours(pid, "61.26"));
        // Not ours by that argument: it must survive.
        stop(pid, "61.26", "KILL", "KILL")?;
        assert!(is_ours(pid, "61.25"));
        // A child that has not been waited for is a zombie, and that is dead.
        stop(pid, "61.25", "TERM", "KILL")?;
        assert!(!is_ours(pid, "61.25"));
        child.wait()?;
        Ok(())
    }

    #[test]
    fn a_process_lives_in_its_directory() -> Result<()> {
        let dir = std::env::temp_dir().join(format!("testkit-process-{}", std::process::id()));
        fs::create_dir(&dir)?;
        let dir = dir.canonicalize()?;
        let mut child = Command::new("sleep").arg("62").current_dir(&dir).spawn()?;
        let exe = fs::read_link(format!("/proc/{}/exe", child.id()));
        if let Some(name) = exe.ok().as_deref().and_then(Path::file_name) {
            let name = name.to_string_lossy();
            assert!(wait(Duration::from_secs(5), || { living_in(&dir, &name) == [child.id()] }));
            assert!(living_in(&dir, "postgres").is_empty());
        }
        child.kill()?;
        child.wait()?;
        fs::remove_dir(&dir)?;
        Ok(())
    }

    #[test]
    fn the_first_bytes_of_an_answer_are_read() -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let server = std::thread::spawn(move || -> Result<[u8; 2]> {
            let mut greeting = [0; 2];
            let (mut stream, _) = listener.accept()?;
            stream.read_exact(&mut greeting)?;
            stream.write_all(b"INFO {}")?;
            Ok(greeting)
        });
        assert_eq!(first_bytes(port, b"hi"), Some(*b"INFO {"));
        assert!(matches!(server.join(), Ok(Ok(greeting)) if greeting == *b"hi"));
        assert_eq!(first_bytes(port, b"hi"), None);
        Ok(())
    }

    #[test]
    fn private_ports_and_unique_numbers_differ() -> Result<()> {
        assert!((15_000..30_000).contains(&private_port()?));
        assert_ne!(unique(), unique());
        Ok(())
    }

    #[test]
    fn a_taken_port_is_not_picked() -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let taken = listener.local_addr()?.port();
        assert!(answers(taken));
        assert_ne!(free_port(Some(taken))?, taken);
        drop(listener);
        assert_eq!(free_port(Some(taken))?, taken);
        Ok(())
    }
}
