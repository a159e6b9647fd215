//! `posthaste lanes` and `posthaste blocked`: how a stream stands.

use std::io::Write;

use posthaste::Admin;
use posthaste::store::Filter;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::table::Column::{Rigid, Soft, Spare};
use crate::target::Target;
use crate::{json, table, when};

/// Shows every lane.
pub(super) async fn lanes(target: &Target, json: bool, out: &mut impl Write) -> Result<Exit, Failure> {
    let lanes = open(target).await?.lanes().await?;
    if json {
        json::write(out, &lanes.iter().map(json::lane).collect::<Vec<_>>())?;
        return Ok(Exit::Ok);
    }
    let rows = lanes.into_iter().map(|lane| {
        [
            lane.lane.to_string(),
            lane.owner.unwrap_or_else(|| "-".to_owned()),
            lane.events.to_string(),
            lane.age.map_or_else(|| "-".to_owned(), when::length),
            lane.parked.to_string(),
            lane.blocked.to_string(),
        ]
    });
    let names =
        [Rigid("LANE"), Soft("OWNER"), Rigid("WAITING"), Rigid("OLDEST"), Rigid("PARKED"), Rigid("BLOCKED")];
    out.write_all(table::columns(names, rows).as_bytes())?;
    Ok(Exit::Ok)
}

/// Lists what waits for an operator.
pub(super) async fn blocked(
    target: &Target,
    limit: u32,
    json: bool,
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    let blocked = open(target).await?.blocked(limit).await?;
    if json {
        json::write(out, &blocked.iter().map(json::blocked).collect::<Vec<_>>())?;
    } else if blocked.is_empty() {
        writeln!(out, "table {} has no blocked aggregates", target.table())?;
    } else {
        let rows = blocked.into_iter().map(|blocked| {
            let row = [
                format!("{}/{}", blocked.aggregate_type.unwrap_or_default(), blocked.aggregate_id),
                blocked.namespace,
                blocked.event_id.to_string(),
                blocked.topic,
                when::stamp(blocked.since),
                blocked.waiting.to_string(),
            ];
            (row.map(Into::into), blocked.reason.into())
        });
        let names = [
            Soft("AGGREGATE"),
            Spare("NAMESPACE"),
            Rigid("EVENT"),
            Soft("TOPIC"),
            Spare("SINCE"),
            Rigid("WAITING"),
        ];
        out.write_all(table::columns_with_remarks(names, "REASON", rows).as_bytes())?;
    }
    Ok(Exit::Ok)
}

/// The operator's view of a table that is a stream.
async fn open(target: &Target) -> Result<Admin, Failure> {
    let store = target.open().await?;
    if store.stream().await?.is_some() {
        return Ok(Admin::new(store));
    }
    // A table that is not there is neither.
    store.count(&Filter::all(), 1).await?;
    let message = format!(
        "table {} is a queue, which has no lanes and blocks no aggregates; a stream is made with `posthaste migrate up --mode stream`",
        target.table()
    );
    Err(Failure::new(Exit::Table, message))
}
