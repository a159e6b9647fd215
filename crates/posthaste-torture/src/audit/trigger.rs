//! Which changes are recorded, and what of them.
//!
//! | table | change | as |
//! |---|---|---|
//! | a queue | a row that is born leased; lease, attempts, outcome or its time changed; a row deleted | the event |
//! | a stream | its outcome or its time changed, a row deleted; PostgreSQL writes no row of a stream | the event |
//! | `…_parked` | a row added, deleted, claimed or given back, its attempts or outcome changed | the event |
//! | `…_lanes` | owner, lease or fence changed; on MySQL and SQLite the note, which is the position | the lane |
//! | `…_places` (PostgreSQL) | a row added: the position is the first transaction that its base does not cover | the lane |
//!
//! Of a stream's event the holder is the owner of its lane at that moment. Its fence before is the one under which it was
//! being tried, and after that the lane's. A lane that is not there is nobody's: the change is recorded all the same.
//!
//! A second settlement of a row may show in its time alone, which is why a change of that is recorded, too.

use super::Table;

/// When a trigger fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    /// A row is added, in which these columns are not null.
    Insert(&'static [&'static str]),
    /// One of these columns changes.
    Update(&'static [&'static str]),
    Delete,
}

/// What is recorded of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trigger {
    pub(super) name: String,
    /// The table it is on.
    pub(super) table: String,
    pub(super) on: On,
    /// The outbox table, event and lane, then the state before and the one after, as SQL.
    values: String,
    /// The lane that they are read from, `l`, where they are.
    from: String,
}

/// The columns of the record that a trigger says, behind when and by whom.
const COLUMNS: &str = "outbox, event, lane,
        holder_before, until_before, attempts_before, outcome_before, fence_before, position_before, gone_before,
        holder_after, until_after, attempts_after, outcome_after, fence_after, position_after, gone_after";

/// One row of the lane of a changed row, whether there is such a lane or not.
fn lane_of(table: &str, row: &str) -> String {
    format!("\n   FROM (SELECT 1 AS one) AS o LEFT JOIN {table}_lanes AS l ON l.lane = {row}.lane")
}

const NO_ROW: &str = "NULL, NULL, 0, NULL, NULL, NULL, 1";

impl Trigger {
    /// The statement that records the change: when and by whom is said by each database in its own way.
    pub(super) fn record(&self, at: &str, session: &str) -> String {
        let Self { values, from, .. } = self;
        format!(
            "INSERT INTO torture_audit (at, session, {COLUMNS})\n SELECT {at}, {session}, {values}{from};"
        )
    }
}

/// The triggers of an outbox table. With places, lanes have no note and a stream's rows are never written.
pub(super) fn triggers(table: &Table, places: bool) -> Vec<Trigger> {
    match (table.stream, places) {
        (false, _) => queue(&table.name),
        (true, true) => {
            [parked(&table.name), vec![lanes(&table.name, false)], vec![placed(&table.name)]].concat()
        }
        (true, false) => [parked(&table.name), vec![lanes(&table.name, true)], marked(&table.name)].concat(),
    }
}

fn queue(table: &str) -> Vec<Trigger> {
    let state =
        |row| format!("{row}.locked_by, {row}.locked_until, {row}.attempts, {row}.outcome, NULL, NULL, 0");
    let (old, new) = (state("OLD"), state("NEW"));
    let lease = &["locked_by", "locked_until", "attempts", "outcome", "settled_at"];
    let of = |what, on, row, before: &str, after: &str| Trigger {
        name: format!("{table}_audit_{what}"),
        table: table.to_owned(),
        on,
        values: format!("'{table}', {row}.id, NULL, {before}, {after}"),
        from: String::new(),
    };
    vec![
        of("born", On::Insert(&["locked_by"]), "NEW", NO_ROW, &new),
        of("changed", On::Update(lease), "NEW", &old, &new),
        of("gone", On::Delete, "OLD", &old, NO_ROW),
    ]
}

/// What is recorded of an event with its lane, `l`.
fn with_lane(table: &str, suffix: &str, what: &str, on: On, before: &str, after: &str) -> Trigger {
    let row = if on == On::Delete { "OLD" } else { "NEW" };
    Trigger {
        name: format!("{table}{suffix}_audit_{what}"),
        table: format!("{table}{suffix}"),
        on,
        values: format!(
            "'{table}', {row}.id, NULL, l.owner, l.leased_until, {before}, l.owner, l.leased_until, {after}"
        ),
        from: lane_of(table, row),
    }
}

fn parked(table: &str) -> Vec<Trigger> {
    let before = "OLD.attempts, OLD.outcome, OLD.claimed, NULL, 0";
    let after = "NEW.attempts, NEW.outcome, l.fence, NULL, 0";
    let of = |what, on, before, after| with_lane(table, "_parked", what, on, before, after);
    vec![
        of("added", On::Insert(&[]), "0, NULL, NULL, NULL, 1", after),
        of("changed", On::Update(&["attempts", "claimed", "outcome", "settled_at"]), before, after),
        of("gone", On::Delete, before, "0, NULL, l.fence, NULL, 1"),
    ]
}

/// A stream's rows where they are written.
fn marked(table: &str) -> Vec<Trigger> {
    let before = "0, OLD.outcome, NULL, NULL, 0";
    let of = |what, on, after| with_lane(table, "", what, on, before, after);
    vec![
        of("changed", On::Update(&["outcome", "settled_at"]), "0, NEW.outcome, l.fence, NULL, 0"),
        of("gone", On::Delete, "0, NULL, l.fence, NULL, 1"),
    ]
}

fn lanes(table: &str, noted: bool) -> Trigger {
    let state = |row: &str| {
        let position = if noted { format!("{row}.noted_seq") } else { "NULL".to_owned() };
        format!("{row}.owner, {row}.leased_until, 0, NULL, {row}.fence, {position}, 0")
    };
    let columns: &[&str] = if noted {
        &["owner", "leased_until", "fence", "noted_seq"]
    } else {
        &["owner", "leased_until", "fence"]
    };
    Trigger {
        name: format!("{table}_lanes_audit_changed"),
        table: format!("{table}_lanes"),
        on: On::Update(columns),
        values: format!("'{table}', NULL, NEW.lane, {}, {}", state("OLD"), state("NEW")),
        from: String::new(),
    }
}

fn placed(table: &str) -> Trigger {
    let position = |base: &str| format!("pg_snapshot_xmax({base})::text::bigint");
    let before = format!(
        "(SELECT {} FROM {table}_places AS p WHERE p.lane = NEW.lane AND p.step = NEW.step - 1)",
        position("p.base")
    );
    let state = |position: &str| format!("l.owner, l.leased_until, 0, NULL, l.fence, {position}, 0");
    let (before, after) = (state(&before), state(&position("NEW.base")));
    Trigger {
        name: format!("{table}_places_audit_added"),
        table: format!("{table}_places"),
        on: On::Insert(&[]),
        values: format!("'{table}', NULL, NEW.lane, {before}, {after}"),
        from: lane_of(table, "NEW"),
    }
}
