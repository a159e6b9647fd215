//! What changes or deletes events: shown, agreed to, then done in batches.

use std::collections::HashMap;
use std::io::Write;

use posthaste::Admin;
use posthaste::admin::{Change, Preview};
use posthaste::store::{Count, Mode, Record};
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::args::Doing;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::json::{self, EventJson};
use crate::progress::Progress;
use crate::table::Column::{Rigid, Soft, Spare};
use crate::target::Target;
use crate::tone::Tone;
use crate::{table, when};

/// What is done to events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Replay,
    Discard,
    Purge,
}

impl Deed {
    fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Discard => "discard",
            Self::Purge => "purge",
        }
    }

    fn doing(self) -> &'static str {
        match self {
            Self::Replay => "replaying",
            Self::Discard => "discarding",
            Self::Purge => "purging",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Discard => "discarded",
            Self::Purge => "purged",
        }
    }

    /// What becomes of the aggregates of a stream that such an event blocks.
    fn unblocks(self) -> &'static str {
        match self {
            Self::Replay => "is tried again with it, and what waits behind it follows in order",
            Self::Discard | Self::Purge => "goes on without it: what waits behind it is delivered in order",
        }
    }
}

/// One kind of events that something is done to.
pub(super) struct Step {
    /// Which, such as `dead`.
    pub(super) kind: &'static str,
    pub(super) change: Change,
}

/// Shows what the steps would touch, makes sure that it is wanted, and does it.
pub(super) async fn carry_out(
    target: &Target,
    admin: &Admin,
    deed: Deed,
    steps: Vec<Step>,
    doing: &Doing,
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    let mut previews = Vec::with_capacity(steps.len());
    for step in &steps {
        previews.push(step.change.dry_run().await?);
    }
    let blocked = match admin.mode().await? {
        Some(Mode::Stream(_)) => Some(admin.blocked_count().await?),
        _ => None,
    };
    let kinds: Vec<&str> = steps.iter().map(|step| step.kind).collect();
    if doing.dry_run && doing.json {
        let steps: Vec<_> =
            kinds.iter().zip(&previews).map(|(kind, preview)| preview_json(kind, preview)).collect();
        json::write(
            out,
            &json!({
                "table": target.table().to_string(),
                "action": deed.name(),
                "dry_run": true,
                "would_touch": steps,
                "blocked_aggregates": blocked.map(|blocked| blocked.n),
            }),
        )?;
        return Ok(Exit::Ok);
    }
    // What fits may be beyond what is counted; a sample is looked for everywhere.
    if previews.iter().all(|preview| preview.sample.is_empty()) {
        return nothing(target, deed, &kinds, doing, out);
    }
    let shown = shown(target, admin, deed, &kinds, &previews, blocked).await?;
    if doing.dry_run {
        writeln!(out, "{shown}\nNothing was changed, since this is a dry run.")?;
        return Ok(Exit::Ok);
    }
    confirm(&doing.consent, target, &shown)?;

    let mut touched = Vec::with_capacity(steps.len());
    for (step, preview) in steps.into_iter().zip(previews) {
        let progress = Progress::start(deed.doing(), preview.count);
        touched.push(step.change.on_progress(progress.told()).run().await?);
    }
    let blocked = match blocked {
        Some(_) => Some(admin.blocked_count().await?),
        None => None,
    };
    if doing.json {
        json::write(out, &answer_json(target, deed, touched.iter().sum(), blocked))?;
        return Ok(Exit::Ok);
    }
    for (kind, touched) in kinds.iter().zip(touched) {
        writeln!(out, "{} {touched} {kind} {} of table {}", deed.done(), events(touched), target.table())?;
    }
    if let Some(blocked) = blocked {
        writeln!(out, "{}", left(blocked))?;
    }
    Ok(Exit::Ok)
}

fn nothing(
    target: &Target,
    deed: Deed,
    kinds: &[&str],
    doing: &Doing,
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    if doing.json {
        json::write(out, &answer_json(target, deed, 0, None))?;
    } else {
        writeln!(
            out,
            "table {} has no such {} events: nothing to {}",
            target.table(),
            kinds.join(" or "),
            deed.name()
        )?;
    }
    Ok(Exit::Ok)
}

fn answer_json(target: &Target, deed: Deed, touched: u64, blocked: Option<Count>) -> serde_json::Value {
    json!({
        "table": target.table().to_string(),
        "action": deed.name(),
        "dry_run": false,
        "touched": touched,
        "blocked_aggregates": blocked.map(|blocked| blocked.n),
    })
}

fn preview_json(kind: &str, preview: &Preview) -> serde_json::Value {
    json!({
        "kind": kind,
        "count": preview.count.n,
        "capped": preview.count.capped,
        "sample": preview.sample.iter().map(EventJson::new).collect::<Vec<_>>(),
    })
}

/// What would be touched, for people.
async fn shown(
    target: &Target,
    admin: &Admin,
    deed: Deed,
    kinds: &[&str],
    previews: &[Preview],
    blocked: Option<Count>,
) -> Result<String, Failure> {
    let now = admin.now().await?;
    let mut text = String::new();
    for (kind, preview) in kinds.iter().zip(previews) {
        let Preview { count, sample, .. } = preview;
        if sample.is_empty() {
            continue;
        }
        if !text.is_empty() {
            text += "\n";
        }
        let shown = sample.len() as u64;
        let n = count.n.max(shown);
        let many = if count.capped { format!("at least {n}") } else { n.to_string() };
        let end = if n == shown && !count.capped { ":" } else { ", such as:" };
        text += &format!(
            "Would {} {many} {kind} {} of table {}{end}\n\n",
            deed.name(),
            events(n),
            target.table()
        );
        text += &if *kind == "dead" {
            dead(sample, &waiting(admin, sample).await?, now)
        } else {
            table::events(sample, now)
        };
    }
    if let Some(blocked) = blocked.filter(|blocked| *blocked != Count::default() && kinds.contains(&"dead")) {
        text += &format!(
            "\n{blocked} {} of this stream {} blocked. One that an event among these blocks {}.\n",
            if blocked.n == 1 { "aggregate" } else { "aggregates" },
            if blocked.n == 1 { "is" } else { "are" },
            deed.unblocks(),
        );
    }
    Ok(text)
}

/// How the stream stands afterwards.
fn left(blocked: Count) -> String {
    match blocked.n {
        0 => "no aggregate is blocked any more".to_owned(),
        1 => "1 aggregate is still blocked: see `posthaste blocked`".to_owned(),
        _ => format!("{blocked} aggregates are still blocked: see `posthaste blocked`"),
    }
}

fn events(n: u64) -> &'static str {
    if n == 1 { "event" } else { "events" }
}

/// How many events wait behind each of these, of those that block their aggregate.
pub(super) async fn waiting(admin: &Admin, records: &[Record]) -> Result<HashMap<Uuid, Count>, Failure> {
    let ids: Vec<Uuid> = records.iter().map(|record| record.id).collect();
    let blocked = admin.blocked_by(&ids).await?;
    Ok(blocked.into_iter().map(|blocked| (blocked.event_id, blocked.waiting)).collect())
}

/// A table of dead events; what waits behind them is a column where something is known of it.
pub(super) fn dead(records: &[Record], waiting: &HashMap<Uuid, Count>, now: OffsetDateTime) -> String {
    let age = |record: &Record| match record.settled_at {
        Some(at) => format!("{} ago", when::length(when::since(at, now))),
        None => "-".to_owned(),
    };
    let error = |record: &Record| {
        let text = record.last_error.as_deref().unwrap_or("-");
        table::Cell::new(text.split_whitespace().collect::<Vec<_>>().join(" "), Tone::Bad)
    };
    let others = |record: &Record| {
        [
            record.id.to_string().into(),
            table::topic(record).into(),
            table::aggregate_of(record).into(),
            record.attempts.to_string().into(),
            age(record).into(),
        ]
    };
    let [id, topic, aggregate, attempts, died] =
        [Rigid("ID"), Soft("TOPIC"), Soft("AGGREGATE"), Spare("ATTEMPTS"), Rigid("DIED")];
    if waiting.is_empty() {
        let rows = records.iter().map(|record| (others(record), error(record)));
        return table::columns_with_remarks([id, topic, aggregate, attempts, died], "LAST ERROR", rows);
    }
    let rows = records.iter().map(|record| {
        let [id, topic, aggregate, attempts, died] = others(record);
        let waiting = waiting.get(&record.id).map_or_else(|| "-".to_owned(), ToString::to_string);
        ([id, topic, aggregate, attempts, died, waiting.into()], error(record))
    });
    let names = [id, topic, aggregate, attempts, died, Rigid("WAITING")];
    table::columns_with_remarks(names, "LAST ERROR", rows)
}
