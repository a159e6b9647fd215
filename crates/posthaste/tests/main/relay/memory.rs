//! A backlog of any size holds memory flat.
//!
//! Rows of the contract: RE4.

use std::process::Command;

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, Recorder};

/// Events of the small and of the large backlog.
const BACKLOGS: [usize; 2] = [2_000, 200_000];
/// How much more memory the large one may take.
const MOST: f64 = 1.2;

conformance_sql_by_kind!(re4_memory_does_not_grow_with_the_backlog);

streams!(; by_kind: re4_memory_does_not_grow_with_the_backlog);

/// Each measurement is a process of its own, so that nothing else's memory counts.
async fn re4_memory_does_not_grow_with_the_backlog(kind: Kind) {
    let mut peaks = Vec::new();
    for events in BACKLOGS {
        let db = Db::new(kind).await;
        fill(&db, events).await;
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["relay::memory::drain_in_a_process_of_its_own", "--exact", "--ignored", "--nocapture"])
            .env("POSTHASTE_TEST_DRAIN", format!("{events} {}", db.url()))
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
        let peak = output.lines().find_map(|line| line.strip_prefix("peak ")).unwrap();
        peaks.push(peak.parse::<f64>().unwrap());
        db.drop_everything().await;
    }
    println!(
        "{kind:?}: peak of {} kB for {} events, {} kB for {}",
        peaks[0], BACKLOGS[0], peaks[1], BACKLOGS[1]
    );
    assert!(peaks[1] <= peaks[0] * MOST, "{peaks:?}");
}

/// Writes events by SQL, 300 bytes each.
async fn fill(db: &Db, events: usize) {
    let numbers = match db.handle() {
        Handle::Postgres(_) => format!("SELECT n FROM generate_series(1, {events}) n"),
        // Digits instead of a recursion, of which MySQL allows 1 000 levels.
        Handle::MySql(_) => {
            let digit = "(SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4
                          UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)";
            let (names, powers) = (["a", "b", "c", "d", "e", "f"], [1, 10, 100, 1_000, 10_000, 100_000]);
            let sum: Vec<String> =
                names.iter().zip(powers).map(|(name, power)| format!("{name}.n * {power}")).collect();
            let tables: Vec<String> = names.iter().map(|name| format!("{digit} {name}")).collect();
            let sum = sum.join(" + ");
            format!("SELECT {sum} AS n FROM {} WHERE {sum} < {events}", tables.join(", "))
        }
        Handle::Sqlite(_) => format!(
            "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {events}) SELECT n FROM s"
        ),
        Handle::Memory(_) => panic!("memory has no other process"),
    };
    let payload = format!("{{\"text\": \"{}\"}}", "x".repeat(285));
    db.execute(format!(
        "INSERT INTO outbox (topic, payload) SELECT 'a', '{payload}' FROM ({numbers}) AS numbers"
    ))
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by re4_memory_does_not_grow_with_the_backlog, in a process of its own"]
async fn drain_in_a_process_of_its_own() {
    let task = std::env::var("POSTHASTE_TEST_DRAIN").unwrap();
    let (events, url) = task.split_once(' ').unwrap();
    let store = posthaste::store::connect(url, "outbox").await.unwrap();
    let recorder = Recorder::counting();
    let relay = posthaste::Relay::on(store).handler(recorder.clone()).start().await.unwrap();
    recorder.wait_for(events.parse().unwrap()).await;
    relay.stop().await;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("peak {}", peak.trim().trim_end_matches(" kB"));
}
