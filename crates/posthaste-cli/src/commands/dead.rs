//! `posthaste dead`: events that were given up.
//!
//! What is replayed or discarded is what was shown, or less: an event that dies while somebody makes up their mind is
//! not touched.

use std::io::Write;

use posthaste::Admin;
use posthaste::store::{Filter, Page, Record, Status};
use uuid::Uuid;

use super::change::{self, Deed, Step};
use super::events::details;
use super::id::Id;
use crate::args::{Dead, DeadOnes, Listing, Which};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::json::{self, EventJson};
use crate::target::{LOOK, Target};

/// Runs one of its commands.
pub(super) async fn run(target: &Target, command: Dead, out: &mut impl Write) -> Result<Exit, Failure> {
    match command {
        Dead::List { which, listing } => list(target, *which, &listing, out).await,
        Dead::Show { id, json } => show(target, &id, json, out).await,
        Dead::Replay(ones) => mend(target, *ones, Deed::Replay, out).await,
        Dead::Discard(ones) => mend(target, *ones, Deed::Discard, out).await,
    }
}

async fn list(
    target: &Target,
    which: Which,
    listing: &Listing,
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    let all = which.is_all();
    let admin = Admin::new(target.open().await?).within(LOOK);
    let now = admin.now().await?;
    let page = Page { newest_first: !listing.oldest_first, ..Page::first(listing.limit) };
    let records = admin.dead_letters(&which.filter(now), page).await?;
    if listing.json {
        json::write(out, &records.iter().map(EventJson::new).collect::<Vec<_>>())?;
    } else if records.is_empty() {
        let which = if all { "no dead events" } else { "no such dead events" };
        writeln!(out, "table {} has {which}", target.table())?;
    } else {
        let waiting = change::waiting(&admin, &records).await?;
        out.write_all(change::dead(&records, &waiting, now).as_bytes())?;
    }
    Ok(Exit::Ok)
}

async fn show(target: &Target, id: &str, json: bool, out: &mut impl Write) -> Result<Exit, Failure> {
    let id = Id::read(id)?;
    let admin = Admin::new(target.open().await?);
    let id = id.resolve(target, &admin, &Filter::dead()).await?;
    let record = find(target, &admin, id).await?;
    if json {
        json::write(out, &EventJson::with_payload(&record))?;
        return Ok(Exit::Ok);
    }
    let mut text = String::new();
    for blocked in admin.blocked_by(&[id]).await? {
        let (waiting, reason) = (blocked.waiting, "wait until it is replayed or discarded");
        text += &format!("blocks        its aggregate: {waiting} later events {reason}\n");
    }
    out.write_all(details(&record, admin.now().await?, &text).as_bytes())?;
    Ok(Exit::Ok)
}

/// The dead event of this id; whatever else it is, is an error.
async fn find(target: &Target, admin: &Admin, id: Uuid) -> Result<Record, Failure> {
    let table = target.table();
    let message = match admin.show(id).await? {
        Some(record) if record.status == Status::Dead => return Ok(record),
        Some(record) => {
            let status = record.status;
            format!("event {id} of table {table} is {status}, not dead; see `posthaste events show {id}`")
        }
        None => format!("table {table} has no event {id}; list the dead ones with `posthaste dead list`"),
    };
    Err(Failure::new(Exit::Failed, message))
}

async fn mend(target: &Target, ones: DeadOnes, deed: Deed, out: &mut impl Write) -> Result<Exit, Failure> {
    let DeadOnes { id, which, all, limit, doing } = ones;
    let id = id.as_deref().map(Id::read).transpose()?;
    match (id.is_some(), !which.is_all(), all) {
        (true, false, false) | (false, true, false) | (false, false, true) => {}
        (false, false, false) => {
            let message =
                "no dead events are named; give an id, a filter such as --topic or --since, or --all";
            return Err(Failure::new(Exit::Usage, message));
        }
        _ => {
            let message = "an id, filters and --all exclude each other; give one of the three";
            return Err(Failure::new(Exit::Usage, message));
        }
    }
    let admin = Admin::new(target.open().await?).within(LOOK);
    let now = admin.now().await?;
    let filter = match id {
        Some(id) => {
            let id = id.resolve(target, &admin, &Filter::dead()).await?;
            find(target, &admin, id).await?;
            Filter::dead().id(id)
        }
        None => which.filter(now),
    };
    // What dies from here on has not been shown to anybody.
    let filter = filter.settled_before(now + time::Duration::MICROSECOND);
    let change = match deed {
        Deed::Replay => admin.replay(filter),
        Deed::Discard | Deed::Purge => admin.discard(filter),
    };
    let change = change.limit(limit.unwrap_or(u64::MAX));
    change::carry_out(target, &admin, deed, vec![Step { kind: "dead", change }], &doing, out).await
}
