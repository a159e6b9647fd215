//! Files of JSON lines.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use posthaste::sink::{FileSink, Format, Outcome, Sink};
use posthaste::{Event, testing};
use uuid::Uuid;

use super::conformance::conforms;
use super::destination::*;

/// A directory with a file in it, removed with the test.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("file-{}", Uuid::now_v7().simple()));
        std::fs::create_dir_all(path.join("out")).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("out/events.jsonl")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.file()).unwrap_or_default()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The lines that are complete.
pub fn lines(text: &str) -> Vec<Arrived> {
    let complete = text.rfind('\n').map_or(0, |end| end + 1);
    text[..complete].lines().map(Arrived::line).collect()
}

#[async_trait]
impl Destination for Directory {
    const DEDUPES: bool = false;

    async fn start() -> Self {
        Self::new()
    }

    async fn sink(&self, format: Format) -> Arc<dyn Sink> {
        Arc::new(FileSink::open(self.file()).unwrap().envelope(format))
    }

    async fn arrived(&self) -> Vec<Arrived> {
        lines(&self.text())
    }

    /// As when a file system is unmounted.
    async fn stop(&mut self) {
        std::fs::rename(self.0.join("out"), self.0.join("away")).unwrap();
    }

    async fn start_again(&mut self) {
        std::fs::rename(self.0.join("away"), self.0.join("out")).unwrap();
    }
}

conforms!(crate::file::Directory:
    si1_what_is_delivered_is_there,
    si2_a_batch_is_answered_one_by_one_and_in_order,
    si3_metadata_and_id_arrive,
    si3_every_format_arrives,
    si3_anything_in_an_event_arrives,
    si3_a_second_try_carries_the_same_id,
    rt3_a_destination_that_is_gone_is_unavailable,
    re11_a_relay_outlives_its_destination,
    sm1_a_stream_keeps_its_order_through_an_outage,
    re8_a_publish_that_is_dropped_leaves_the_sink_whole,
);

#[tokio::test]
async fn si1_a_line_that_a_crash_cut_off_is_ended_first() {
    let directory = Directory::new();
    std::fs::write(directory.file(), "{\"id\":\"whole\"}\n{\"id\":\"ha").unwrap();
    let sink = FileSink::open(directory.file()).unwrap();
    let batch = deliveries(2);
    assert_eq!(sink.publish(&batch).await, [Outcome::Delivered, Outcome::Delivered]);
    let text = directory.text();
    let text: Vec<&str> = text.lines().collect();
    assert_eq!(text[..2], ["{\"id\":\"whole\"}", "{\"id\":\"ha"]);
    assert_eq!(text[2..].iter().map(|line| Arrived::line(line).id).collect::<Vec<_>>(), ids(&batch));
}

#[tokio::test]
async fn si1_a_rotated_file_is_opened_anew() {
    let directory = Directory::new();
    let sink = FileSink::open(directory.file()).unwrap();
    let batch = deliveries(4);
    let publish = async |at: usize| assert_eq!(sink.publish(&batch[at..=at]).await, [Outcome::Delivered]);

    publish(0).await;
    std::fs::rename(directory.file(), directory.0.join("out/events.1")).unwrap();
    publish(1).await;
    // Somebody else has made the new file already.
    std::fs::rename(directory.file(), directory.0.join("out/events.2")).unwrap();
    std::fs::write(directory.file(), "").unwrap();
    publish(2).await;
    // Cut to nothing where it is.
    OpenOptions::new().write(true).open(directory.file()).unwrap().set_len(0).unwrap();
    publish(3).await;

    let read = |name: &str| {
        let text = std::fs::read_to_string(directory.0.join("out").join(name)).unwrap();
        lines(&text).into_iter().map(|one| one.id).collect::<Vec<_>>()
    };
    assert_eq!(read("events.1"), ids(&batch[0..1]));
    assert_eq!(read("events.2"), ids(&batch[1..2]));
    assert_eq!(read("events.jsonl"), ids(&batch[3..4]));
}

#[tokio::test]
async fn sm1_a_batch_may_hold_several_events_of_an_aggregate() {
    let directory = Directory::new();
    let sink = FileSink::open(directory.file()).unwrap();
    assert!(sink.keeps_order());
    let batch: Vec<_> = (0..50)
        .map(|number| {
            testing::delivery(Event::json("t", &number).unwrap().aggregate("order", 1).build().unwrap())
        })
        .collect();
    assert_eq!(sink.publish(&batch).await, vec![Outcome::Delivered; 50]);
    let arrived: Vec<String> = directory.arrived().await.into_iter().map(|one| one.id).collect();
    assert_eq!(arrived, ids(&batch));
}

#[tokio::test]
async fn a_file_that_cannot_be_is_refused_at_once() {
    let directory = Directory::new();
    for wrong in [directory.0.join("nowhere/events.jsonl"), directory.0.clone(), PathBuf::from("/dev/null")] {
        let error = FileSink::open(&wrong).unwrap_err();
        assert!(error.message().contains(&wrong.display().to_string()), "{error}");
    }
    // An empty line is no harm either.
    let mut file = std::fs::File::create(directory.file()).unwrap();
    file.write_all(b"\n").unwrap();
    assert!(FileSink::open(directory.file()).is_ok());
    assert_eq!(directory.text(), "\n");
}
