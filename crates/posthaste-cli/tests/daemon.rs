//! Running the relay as a program, and destinations that remember what arrived.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take that has been asked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until this says something.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < end, "no {what} within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A relay that runs; killed when it is dropped.
pub(crate) struct Daemon {
    child: Child,
    out: Lines,
    err: Lines,
}

/// Lines that somebody writes.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let into = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                into.0.lock().unwrap().push(line);
            }
        });
        lines
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Daemon {
    /// Starts it and waits until it says that it is ready.
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut daemon = Self::spawn(command);
        daemon.said("ready; Ctrl-C stops it");
        daemon
    }

    /// Starts it.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (Lines::of(child.stdout.take().unwrap()), Lines::of(child.stderr.take().unwrap()));
        Self { child, out, err }
    }

    /// Waits until it has said this on standard error.
    #[track_caller]
    pub(crate) fn said(&mut self, words: &str) -> String {
        let mut end = Instant::now() + PATIENCE;
        loop {
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() {
                // What it said last may still be on its way.
                end = end.min(Instant::now() + Duration::from_secs(5));
            }
            let lines = self.err.all();
            if let Some(line) = lines.iter().find(|line| line.contains(words)) {
                return line.clone();
            }
            assert!(Instant::now() < end, "it does not say {words:?}: {ended:?} {lines:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it has said.
    pub(crate) fn err(&self) -> Vec<String> {
        self.err.all()
    }

    /// What it has answered.
    pub(crate) fn out(&self) -> Vec<String> {
        self.out.all()
    }

    /// Waits until so many events have come out of standard output.
    #[track_caller]
    pub(crate) fn events(&self, count: usize) -> Vec<Value> {
        let lines = wait_for(&format!("{count} events on standard output"), || {
            Some(self.out.all()).filter(|lines| lines.len() >= count)
        });
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Megabytes that it has had at most.
    pub(crate) fn most_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
    }

    /// Waits for its end; its exit code.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> i32 {
        let status = wait_for("end", || self.child.try_wait().unwrap());
        status.code().expect("ended by a signal")
    }

    /// Stops it as a service manager does.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.ends(), 0, "{:#?}", self.err());
        self.said("stopped");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = writeln!(std::io::stderr(), "it said: {:#?}", self.err());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a webhook got.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    /// Names in small letters.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

/// A receiver of webhooks. It answers when it is let.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    answers: Arc<(Mutex<bool>, Condvar)>,
}

impl Receiver {
    pub(crate) fn new(answers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            answers: Arc::new((Mutex::new(answers), Condvar::new())),
        };
        let (requests, answers) = (Arc::clone(&receiver.requests), Arc::clone(&receiver.answers));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (requests, answers) = (Arc::clone(&requests), Arc::clone(&answers));
                thread::spawn(move || serve(stream, &requests, &answers));
            }
        });
        receiver
    }

    /// Waits for so many posts.
    #[track_caller]
    pub(crate) fn posts(&self, count: usize) -> Vec<Request> {
        wait_for(&format!("{count} posts"), || {
            Some(self.requests.lock().unwrap().clone()).filter(|requests| requests.len() >= count)
        })
    }

    /// Answers from now on.
    pub(crate) fn answer(&self) {
        *self.answers.0.lock().unwrap() = true;
        self.answers.1.notify_all();
    }
}

fn serve(stream: TcpStream, requests: &Mutex<Vec<Request>>, answers: &(Mutex<bool>, Condvar)) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let mut words = line.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if method == "POST" {
            let body = String::from_utf8_lossy(&body).into_owned();
            requests.lock().unwrap().push(Request { path, headers, body });
            let answering = answers.0.lock().unwrap();
            drop(answers.1.wait_while(answering, |answers| !*answers).unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

/// Leads every connection to this address on to another one, but ends the first that asks for something with these words
/// in it.
pub(crate) fn forward_but_once(listener: TcpListener, to: SocketAddr, words: &'static str) {
    let ended = Arc::new(AtomicBool::new(false));
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut other = TcpStream::connect(to).unwrap();
            let (mut from, mut back) = (other.try_clone().unwrap(), stream.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut back);
                let _ = back.shutdown(std::net::Shutdown::Both);
            });
            let ended = Arc::clone(&ended);
            thread::spawn(move || {
                let mut piece = [0; 16 * 1024];
                while let Ok(read @ 1..) = stream.read(&mut piece) {
                    let asks = piece[..read].windows(words.len()).any(|some| some == words.as_bytes());
                    if asks && !ended.swap(true, Ordering::SeqCst) || other.write_all(&piece[..read]).is_err()
                    {
                        break;
                    }
                }
                let _ = other.shutdown(std::net::Shutdown::Both);
            });
        }
    });
}

/// Leads every connection to this address on to another one.
pub(crate) fn forward(listener: TcpListener, to: SocketAddr) {
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let other = TcpStream::connect(to).unwrap();
            for (mut from, mut to) in [
                (stream.try_clone().unwrap(), other.try_clone().unwrap()),
                (other.try_clone().unwrap(), stream.try_clone().unwrap()),
            ] {
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
}
