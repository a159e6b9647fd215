//! Standard output, as a pipe that somebody reads.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use posthaste::sink::{Format, Outcome, Sink, StdoutSink};
use posthaste::{Event, testing};

use super::conformance::conforms;
use super::destination::*;
use super::file::lines;

/// A pipe and what has come out of it.
pub struct Pipe {
    writer: PipeWriter,
    read: Arc<Mutex<Vec<u8>>>,
}

fn read_on(mut reader: PipeReader) -> Arc<Mutex<Vec<u8>>> {
    let read = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&read);
    std::thread::spawn(move || {
        let mut part = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut part) {
            into.lock().unwrap().extend_from_slice(&part[..count]);
        }
    });
    read
}

#[async_trait]
impl Destination for Pipe {
    const DEDUPES: bool = false;

    async fn start() -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        Self { writer, read: read_on(reader) }
    }

    async fn sink(&self, format: Format) -> Arc<dyn Sink> {
        Arc::new(StdoutSink::to(self.writer.try_clone().unwrap()).envelope(format))
    }

    /// What was flushed is in the pipe, and soon out of it.
    async fn arrived(&self) -> Vec<Arrived> {
        let mut before = usize::MAX;
        loop {
            let read = self.read.lock().unwrap().clone();
            if read.len() == before {
                return lines(&String::from_utf8(read).unwrap());
            }
            before = read.len();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn stop(&mut self) {
        panic!("a pipe that is gone does not come back");
    }

    async fn start_again(&mut self) {
        panic!("a pipe that is gone does not come back");
    }
}

conforms!(crate::stdout::Pipe:
    si1_what_is_delivered_is_there,
    si2_a_batch_is_answered_one_by_one_and_in_order,
    si3_metadata_and_id_arrive,
    si3_every_format_arrives,
    si3_anything_in_an_event_arrives,
    si3_a_second_try_carries_the_same_id,
    re8_a_publish_that_is_dropped_leaves_the_sink_whole,
);

#[tokio::test]
async fn rt3_a_pipe_that_nobody_reads_any_more_is_unavailable() {
    let (reader, writer) = std::io::pipe().unwrap();
    let sink = StdoutSink::to(writer);
    drop(reader);
    let outcomes = sink.publish(&deliveries(3)).await;
    assert!(outcomes.len() == 3 && outcomes.iter().all(is_unavailable), "{outcomes:?}");
}

/// More than a pipe holds: the writer waits on a thread of its own, and the runtime goes on.
#[tokio::test]
async fn re9_a_pipe_that_is_full_holds_up_nobody_else() {
    let (reader, writer) = std::io::pipe().unwrap();
    let sink = StdoutSink::to(writer);
    let large = Event::json("t", &"x".repeat(512 * 1024)).unwrap().build().unwrap();
    let large = [testing::delivery(large)];
    let publish = tokio::time::timeout(Duration::from_millis(100), sink.publish(&large)).await;
    assert!(publish.is_err(), "nobody reads, and it says {publish:?}");

    // Somebody reads again: the dropped publish ends, and the next is whole.
    let read = read_on(reader);
    let next = deliveries(2);
    assert_eq!(sink.publish(&next).await, [Outcome::Delivered, Outcome::Delivered]);
    drop(sink);
    let whole = async {
        loop {
            let text = String::from_utf8(read.lock().unwrap().clone()).unwrap();
            if lines(&text).len() == 3 {
                return lines(&text);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let arrived = tokio::time::timeout(MINUTE, whole).await.unwrap();
    assert_eq!(arrived[0].id, large[0].event.id().to_string());
    assert_eq!([arrived[1].id.clone(), arrived[2].id.clone()], ids(&next)[..]);
}

/// A terminal that is full for a moment: it takes a part, and then nothing until it is asked again.
struct Stutters {
    taken: Arc<Mutex<Vec<u8>>>,
    left: usize,
}

impl Write for Stutters {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.left = usize::MAX;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = bytes.len().min(self.left);
        self.left -= count;
        self.taken.lock().unwrap().extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn si1_a_line_that_was_torn_is_ended_first() {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let sink = StdoutSink::to(Stutters { taken: Arc::clone(&taken), left: 40 });
    let batch = deliveries(2);
    let outcomes = sink.publish(&batch).await;
    assert!(outcomes.len() == 2 && outcomes.iter().all(is_unavailable), "{outcomes:?}");
    assert_eq!(sink.publish(&batch).await, [Outcome::Delivered, Outcome::Delivered]);
    let text = String::from_utf8(taken.lock().unwrap().clone()).unwrap();
    let (torn, whole) = text.split_once('\n').unwrap();
    assert_eq!(torn.len(), 40);
    assert_eq!(lines(whole).into_iter().map(|one| one.id).collect::<Vec<_>>(), ids(&batch));
}
