//! Metrics: their names, and the few places that record them.
//!
//! They go through the [`metrics`] facade: a program that installs a recorder sees them, for others they cost
//! next to nothing. Labels are few and of few values: table, topic, result, sink, queue. Nothing here knows a
//! database or a sink; the seams call it, in batches.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::store::stream::LaneLag;
use crate::store::{Stats, TableName};

/// Events written, by table and topic; counted when written, so that a rollback leaves them counted.
pub const ENQUEUE_TOTAL: &str = "outbox_enqueue_total";
/// Dispatches that ended, by table, topic and result: `delivered`, `retry`, `dead` or `unavailable`.
pub const DISPATCH_TOTAL: &str = "outbox_dispatch_total";
/// Events that became dead, by table and topic.
pub const DEAD_TOTAL: &str = "outbox_dead_total";
/// Leases found lost, by table.
pub const LEASE_LOST_TOTAL: &str = "outbox_lease_lost_total";
/// Events handed from their commit to a relay in the same process, by table.
pub const HOT_ENQUEUED_TOTAL: &str = "outbox_hot_enqueued_total";
/// Events for which the hot path had no slot, by table: it was full, or its relay paused, standing by or resting.
pub const HOT_REJECTED_TOTAL: &str = "outbox_hot_rejected_total";
/// From the start of a dispatch to its end, by table and topic.
pub const DISPATCH_LATENCY: &str = "outbox_dispatch_latency_seconds";
/// From an event's commit (its writing, where the commit is not known) to its delivery, by table and topic.
pub const DELIVERY_LATENCY: &str = "outbox_delivery_latency_seconds";
/// Events waiting, by table; counted no further than a limit.
pub const PENDING: &str = "outbox_pending";
/// Events leased, by table; counted no further than a limit.
pub const LOCKED: &str = "outbox_locked";
/// Dead letters, by table; counted no further than a limit.
pub const DEAD: &str = "outbox_dead";
/// How long the oldest undelivered event has been available, by table.
pub const OLDEST_AGE: &str = "outbox_oldest_age_seconds";
/// Events in the relay's memory, by table and queue: `hot`, `claimed`, `running` or `settling`.
pub const QUEUE_DEPTH: &str = "outbox_queue_depth";
/// 1 where this relay is the active one, by table.
pub const RELAY_LEADER: &str = "outbox_relay_leader";
/// 1 where a sink rests because it is unavailable or somebody has paused it, by table and sink.
pub const SINK_PAUSED: &str = "outbox_sink_paused";

/// Lanes of a stream that this relay owns, by table.
pub const LANES_OWNED: &str = "outbox_lanes_owned";
/// Events of a lane that are not delivered yet and not parked, by table and lane; counted no further than a limit.
pub const LANE_LAG: &str = "outbox_lane_lag";
/// How long the oldest of them has been there, by table and lane.
pub const LANE_LAG_SECONDS: &str = "outbox_lane_lag_seconds";
/// Parked events of a stream, dead ones included, by table; counted no further than a limit.
pub const PARKED: &str = "outbox_parked";
/// Aggregates of a stream that wait for an operator, by table; counted no further than a limit.
pub const BLOCKED: &str = "outbox_blocked_aggregates";

/// Tells the installed recorder what each metric means. A program that installs one calls it once.
pub fn describe() {
    describe_counter!(ENQUEUE_TOTAL, Unit::Count, "Events written to an outbox");
    describe_counter!(DISPATCH_TOTAL, Unit::Count, "Dispatches that ended, by result");
    describe_counter!(DEAD_TOTAL, Unit::Count, "Events that became dead");
    describe_counter!(LEASE_LOST_TOTAL, Unit::Count, "Leases that somebody else took");
    describe_counter!(HOT_ENQUEUED_TOTAL, Unit::Count, "Events that went straight from commit to relay");
    describe_counter!(HOT_REJECTED_TOTAL, Unit::Count, "Events for which the hot path had no room");
    describe_histogram!(DISPATCH_LATENCY, Unit::Seconds, "Time from the start of a dispatch to its end");
    describe_histogram!(DELIVERY_LATENCY, Unit::Seconds, "Time from commit to delivery");
    describe_gauge!(PENDING, Unit::Count, "Events waiting, counted up to a limit");
    describe_gauge!(LOCKED, Unit::Count, "Events leased, counted up to a limit");
    describe_gauge!(DEAD, Unit::Count, "Dead letters, counted up to a limit");
    describe_gauge!(OLDEST_AGE, Unit::Seconds, "Age of the oldest undelivered event that is due");
    describe_gauge!(QUEUE_DEPTH, Unit::Count, "Events in the relay's memory, by queue");
    describe_gauge!(RELAY_LEADER, Unit::Count, "1 where this relay is the active one");
    describe_gauge!(LANES_OWNED, Unit::Count, "Lanes of a stream that this relay owns");
    describe_gauge!(LANE_LAG, Unit::Count, "Events of a lane not delivered yet, counted up to a limit");
    describe_gauge!(LANE_LAG_SECONDS, Unit::Seconds, "Age of the oldest event of a lane not delivered yet");
    describe_gauge!(PARKED, Unit::Count, "Parked events of a stream, counted up to a limit");
    describe_gauge!(BLOCKED, Unit::Count, "Aggregates of a stream that wait for an operator");
    describe_gauge!(
        SINK_PAUSED,
        Unit::Count,
        "1 where a sink rests because it is unavailable or somebody has paused it"
    );
}

fn shared(text: &Arc<str>) -> metrics::SharedString {
    metrics::SharedString::from_shared(Arc::clone(text))
}

/// Makes the counters of a table known that may never count anything: a rate over one that is not there is not 0.
pub(crate) fn begin(table: &Arc<str>) {
    for name in [LEASE_LOST_TOTAL, HOT_ENQUEUED_TOTAL, HOT_REJECTED_TOTAL] {
        counter!(name, "table" => shared(table)).increment(0);
    }
}

pub(crate) fn enqueued(table: &TableName, topic: &str, n: u64) {
    counter!(ENQUEUE_TOTAL, "table" => table.to_string(), "topic" => topic.to_owned()).increment(n);
}

pub(crate) fn hot(table: &TableName, taken: usize, refused: usize) {
    if taken > 0 {
        counter!(HOT_ENQUEUED_TOTAL, "table" => table.to_string()).increment(taken as u64);
    }
    if refused > 0 {
        counter!(HOT_REJECTED_TOTAL, "table" => table.to_string()).increment(refused as u64);
    }
}

pub(crate) fn dispatched(table: &Arc<str>, topic: &str, result: &'static str, n: u64) {
    counter!(DISPATCH_TOTAL, "table" => shared(table), "topic" => topic.to_owned(), "result" => result)
        .increment(n);
}

pub(crate) fn dead(table: &Arc<str>, topic: &str, n: u64) {
    counter!(DEAD_TOTAL, "table" => shared(table), "topic" => topic.to_owned()).increment(n);
}

pub(crate) fn lease_lost(table: &Arc<str>, n: u64) {
    counter!(LEASE_LOST_TOTAL, "table" => shared(table)).increment(n);
}

/// Where the times of one topic's dispatches and deliveries are recorded.
pub(crate) struct Latencies {
    pub(crate) dispatch: metrics::Histogram,
    pub(crate) delivery: metrics::Histogram,
}

pub(crate) fn latencies(table: &Arc<str>, topic: &str) -> Latencies {
    Latencies {
        dispatch: histogram!(DISPATCH_LATENCY, "table" => shared(table), "topic" => topic.to_owned()),
        delivery: histogram!(DELIVERY_LATENCY, "table" => shared(table), "topic" => topic.to_owned()),
    }
}

pub(crate) fn state(table: &Arc<str>, stats: &Stats) {
    let set = |name: &'static str, value: f64| gauge!(name, "table" => shared(table)).set(value);
    set(PENDING, stats.pending.n as f64);
    set(LOCKED, stats.processing.n as f64);
    set(DEAD, stats.dead.n as f64);
    set(OLDEST_AGE, stats.oldest_age.unwrap_or(Duration::ZERO).as_secs_f64());
}

pub(crate) fn depth(table: &Arc<str>, queue: &'static str, depth: usize) {
    gauge!(QUEUE_DEPTH, "table" => shared(table), "queue" => queue).set(depth as f64);
}

pub(crate) fn lanes(table: &Arc<str>, owned: usize) {
    gauge!(LANES_OWNED, "table" => shared(table)).set(owned as f64);
}

/// How far the lanes are behind that this relay owns, or nobody: each is said of by somebody. Those of others are said to be at
/// 0, or what this relay last said of a lane that it has handed over would stay for ever.
pub(crate) fn lag(table: &Arc<str>, lags: &[LaneLag], owned: &[u16]) {
    for lag in lags {
        let ours = Some(lag).filter(|lag| lag.owner.is_none() || owned.contains(&lag.lane));
        let labels = [("table", shared(table)), ("lane", lag.lane.to_string().into())];
        gauge!(LANE_LAG, &labels).set(ours.map_or(0, |lag| lag.events.n) as f64);
        let age = ours.and_then(|lag| lag.age).unwrap_or(Duration::ZERO);
        gauge!(LANE_LAG_SECONDS, &labels).set(age.as_secs_f64());
    }
    let sum = |of: fn(&LaneLag) -> u64| lags.iter().map(of).sum::<u64>() as f64;
    gauge!(PARKED, "table" => shared(table)).set(sum(|lag| lag.parked.n));
    gauge!(BLOCKED, "table" => shared(table)).set(sum(|lag| lag.blocked.n));
}

pub(crate) fn leader(table: &Arc<str>, leads: bool) {
    gauge!(RELAY_LEADER, "table" => shared(table)).set(f64::from(u8::from(leads)));
}

pub(crate) fn sink_paused(table: &Arc<str>, sink: &Arc<str>, paused: bool) {
    gauge!(SINK_PAUSED, "table" => shared(table), "sink" => shared(sink)).set(f64::from(u8::from(paused)));
}

#[cfg(test)]
mod tests {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;
    use crate::store::Count;

    #[test]
    fn op6_a_lane_that_was_handed_over_is_no_longer_said_to_be_behind() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let count = |n| Count { n, capped: false };
        let lag = |lane| LaneLag {
            lane,
            owner: if lane == 2 { None } else { Some("somebody".to_owned()) },
            events: count(5),
            age: Some(Duration::from_secs(3)),
            parked: count(2),
            blocked: count(1),
        };
        let table: Arc<str> = "outbox".into();
        metrics::with_local_recorder(&recorder, || {
            super::lag(&table, &[lag(0), lag(1)], &[0, 1]);
            super::lag(&table, &[lag(0), lag(1), lag(2)], &[1]);
        });
        let mut said = Vec::new();
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let (_, key) = key.into_parts();
            let lane = key.labels().find(|label| label.key() == "lane").map(|label| label.value().to_owned());
            if let DebugValue::Gauge(gauge) = value {
                said.push((key.name().to_owned(), lane.unwrap_or_default(), gauge.into_inner()));
            }
        }
        said.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
        let expected = [
            (BLOCKED, "", 3.0),
            (LANE_LAG, "0", 0.0),
            (LANE_LAG, "1", 5.0),
            (LANE_LAG, "2", 5.0),
            (LANE_LAG_SECONDS, "0", 0.0),
            (LANE_LAG_SECONDS, "1", 3.0),
            (LANE_LAG_SECONDS, "2", 3.0),
            (PARKED, "", 6.0),
        ];
        assert_eq!(said, expected.map(|(name, lane, value)| (name.to_owned(), lane.to_owned(), value)));
    }
}
