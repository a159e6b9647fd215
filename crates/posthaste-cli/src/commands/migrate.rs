//! `posthaste migrate`: the table's making, its state, and its end.

use std::io::{self, Write};

use posthaste::ErrorKind;
use posthaste::store::{Dialect, Difference, Filter, MigrationState, Mode, Status, Store, migration_sql_as};
use serde_json::json;

use crate::args::{Consent, Making, Migrate, ModeName, Switch};
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::table::Column::Rigid;
use crate::target::Target;
use crate::{json, table, when};

/// How far the events that would be dropped are counted.
const CAP: u32 = 10_000;

/// Runs one of its commands.
pub(super) async fn run(target: &Target, command: Migrate, out: &mut impl Write) -> Result<Exit, Failure> {
    match command {
        Migrate::Up { making, notify_on_insert } => up(target, mode(&making)?, notify_on_insert, out).await,
        Migrate::Down { to, consent } => down(target, to, &consent, out).await,
        Migrate::Print { dialect, from, making } => {
            let mode = mode(&making)?.unwrap_or_default();
            let dialect = dialect.unwrap_or_else(|| derived(target));
            out.write_all(migration_sql_as(dialect, target.table(), mode, from).as_bytes())?;
            Ok(Exit::Ok)
        }
        Migrate::Status { json } => status(target, json, out).await,
        Migrate::Validate { json } => validate(target, json, out).await,
    }
}

/// The mode that is asked for, if one is.
fn mode(making: &Making) -> Result<Option<Mode>, Failure> {
    match (making.mode, making.lanes) {
        (None, _) => Ok(None),
        (Some(ModeName::Queue), None) => Ok(Some(Mode::Queue)),
        (Some(ModeName::Queue), Some(_)) => Err(Failure::new(
            Exit::BadInput,
            "a queue has no lanes; leave --lanes away, or ask for --mode stream",
        )),
        (Some(ModeName::Stream), lanes) => Ok(Some(Mode::stream(lanes.unwrap_or(1))?)),
    }
}

/// The dialect of the URL. Only a connection could tell MariaDB behind a mysql:// URL, and none is made.
fn derived(target: &Target) -> Dialect {
    let dialect = target.dialect();
    if dialect == Dialect::MySql {
        // A remark, that must not get into the SQL.
        let _ = writeln!(io::stderr(), "printed for MySQL; MariaDB has other collations: --dialect mariadb");
    }
    dialect
}

async fn up(
    target: &Target,
    mode: Option<Mode>,
    notify_on_insert: Option<Switch>,
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    let table = target.table();
    if notify_on_insert.is_some() && target.dialect() != Dialect::Postgres {
        let message =
            format!("table {table}: only PostgreSQL has notifications; leave --notify-on-insert away");
        return Err(Failure::new(Exit::BadInput, message));
    }
    let store = target.open_or_create().await?;
    let applied = match mode {
        Some(mode) => {
            refuse_mode(target, &*store, mode).await?;
            store.migrate_up_as(mode).await?
        }
        None => store.migrate_up().await?,
    };
    if applied.is_empty() {
        writeln!(out, "table {table} is up to date")?;
    }
    for version in applied {
        writeln!(out, "table {table}: applied migration {version}")?;
    }
    if let Some(switch) = notify_on_insert {
        store.notify_on_insert(switch == Switch::On).await?;
        let now = if switch == Switch::On { "wakes" } else { "does not wake" };
        writeln!(out, "table {table}: an insert {now} relays by itself")?;
    }
    Ok(Exit::Ok)
}

/// Refuses another mode than the table has, with what can be done instead. The migration itself refuses it, too.
async fn refuse_mode(target: &Target, store: &dyn Store, asked: Mode) -> Result<(), Failure> {
    // Whatever else is wrong is for the migration to say.
    let Ok(Some(found)) = store.mode().await else { return Ok(()) };
    if found == asked {
        return Ok(());
    }
    let table = target.table();
    let again = match asked {
        Mode::Stream(lanes) => format!("--mode stream --lanes {}", lanes.count()),
        other => format!("--mode {}", other.as_str()),
    };
    let message = format!(
        "table {table} is a {found}, not a {asked}: the mode of a table is fixed when it is made; leave --mode away to \
         bring it up as it is, or make another table (`posthaste migrate up --table {table}_2 {again}`), write to that one, and \
         drop this one with `posthaste migrate down --table {table} --to 0` once its events are delivered"
    );
    Err(Failure::new(Exit::Table, message))
}

async fn down(
    target: &Target,
    to: Option<u32>,
    consent: &Consent,
    out: &mut impl Write,
) -> Result<Exit, Failure> {
    let table = target.table();
    let store = target.open().await?;
    let states = store.migrations().await?;
    refuse_newer(&*store, &states)?;
    let newest = states.iter().filter(|s| s.applied_at.is_some()).map(|s| s.version).max().unwrap_or(0);
    let to = to.unwrap_or_else(|| newest.saturating_sub(1));
    if newest == 0 {
        writeln!(out, "table {table}: nothing to revert, no migration has been applied")?;
        return Ok(Exit::Ok);
    }
    if newest <= to {
        writeln!(out, "table {table}: nothing to revert, it is at migration {newest}")?;
        return Ok(Exit::Ok);
    }
    let would = if to == 0 {
        format!("Would drop table {table} and every event in it: {}.", contents(&*store).await?)
    } else {
        format!("Would take table {table} from migration {newest} back to {to}.")
    };
    confirm(consent, target, &would)?;
    for version in store.migrate_down(to).await? {
        writeln!(out, "table {table}: reverted migration {version}")?;
    }
    if to == 0 {
        writeln!(out, "table {table} is dropped")?;
    }
    Ok(Exit::Ok)
}

/// How many events the table has, in each state. Whoever dropped it by hand can still revert the record.
async fn contents(store: &dyn Store) -> Result<String, Failure> {
    let stats = match store.stats(CAP).await {
        Ok(stats) => stats,
        Err(error) if *error.kind() == ErrorKind::TableMissing => return Ok("it is gone already".to_owned()),
        Err(error) if *error.kind() == ErrorKind::SchemaMismatch => {
            return Ok("they cannot be counted".to_owned());
        }
        Err(error) => return Err(error.into()),
    };
    let delivered = store.count(&Filter::status(Status::Delivered), CAP).await?;
    Ok(format!(
        "{} pending, {} processing, {} dead, {delivered} delivered",
        stats.pending, stats.processing, stats.dead
    ))
}

async fn status(target: &Target, json: bool, out: &mut impl Write) -> Result<Exit, Failure> {
    let store = target.open().await?;
    let states = store.migrations().await?;
    let mode = store.mode().await?;
    if json {
        let states: Vec<_> = states
            .iter()
            .map(|s| {
                json!({
                    "version": s.version,
                    "name": s.name,
                    "applied_at": s.applied_at.map(when::rfc3339),
                })
            })
            .collect();
        let lanes = match mode {
            Some(Mode::Stream(lanes)) => Some(lanes.count()),
            _ => None,
        };
        json::write(
            out,
            &json!({
                "table": target.table().to_string(),
                "mode": mode.map(Mode::as_str),
                "lanes": lanes,
                "migrations": states,
            }),
        )?;
        return Ok(Exit::Ok);
    }
    if let Some(mode) = mode {
        writeln!(out, "table {} is a {mode}", target.table())?;
    }
    let rows = states.into_iter().map(|s| {
        [s.version.to_string(), s.name, s.applied_at.map_or_else(|| "not applied".to_owned(), when::stamp)]
    });
    out.write_all(table::columns([Rigid("VERSION"), Rigid("NAME"), Rigid("APPLIED")], rows).as_bytes())?;
    Ok(Exit::Ok)
}

async fn validate(target: &Target, json: bool, out: &mut impl Write) -> Result<Exit, Failure> {
    let table = target.table();
    let store = target.open().await?;
    refuse_newer(&*store, &store.migrations().await?)?;
    let differences = store.validate().await?;
    if json {
        let texts: Vec<_> = differences.iter().map(ToString::to_string).collect();
        json::write(out, &json!({ "table": table.to_string(), "differences": texts }))?;
    } else if differences.is_empty() {
        writeln!(out, "table {table} is as its migrations make it")?;
    } else {
        for difference in &differences {
            writeln!(out, "table {table}: {difference}")?;
        }
    }
    Ok(match differences[..] {
        [] => Exit::Ok,
        [Difference::Table] => Exit::Table,
        _ => Exit::Failed,
    })
}

/// Refuses a table that a newer posthaste has migrated, before anything is said of it or done to it.
fn refuse_newer(store: &dyn Store, states: &[MigrationState]) -> Result<(), Failure> {
    match states.iter().find(|state| !state.known) {
        None => Ok(()),
        Some(state) => Err(Failure::new(
            Exit::Table,
            format!(
                "table {} has migration {}, which this version of posthaste does not know; use a version \
                 of posthaste at least as new as the one that migrated it",
                store.table(),
                state.version
            ),
        )),
    }
}
