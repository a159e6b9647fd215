//! Rights that PostgreSQL, MySQL and MariaDB deny: which, on what, and the statement that grants them.

use posthaste::Error;
use posthaste::store::Dialect;

use super::Need;
use crate::target::Target;

impl Need {
    /// The rights that it takes on the table, on the record of migrations, or on what is beside a stream.
    fn rights(self, on: On) -> &'static str {
        match (self, on) {
            (Self::Migrate, _) => "ALL",
            (_, On::Ledger) | (Self::Look, _) => "SELECT",
            (Self::Produce, _) => "SELECT, INSERT",
            (Self::Deliver, On::Events) => "SELECT, UPDATE, DELETE",
            (Self::Deliver, On::Beside) => "SELECT, INSERT, UPDATE, DELETE",
        }
    }

    fn who(self) -> &'static str {
        match self {
            Self::Produce => "writing events",
            Self::Look => "looking at it",
            Self::Deliver => "delivering and mending events",
            Self::Migrate => "making tables",
        }
    }
}

/// Which of its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    Events,
    Ledger,
    Beside,
}

impl On {
    fn of(name: &str, target: &Target) -> Self {
        match name {
            "posthaste_migrations" => Self::Ledger,
            name if name == unqualified(&target.table().to_string()) => Self::Events,
            _ => Self::Beside,
        }
    }
}

/// The statement that grants a relay what it lacks.
pub(super) fn lacking(target: &Target, rights: &[&str]) -> Option<String> {
    let (table, user, rights) = (target.table(), target.user()?, rights.join(", "));
    let who = quoted(&user, '"');
    Some(format!(
        "user {user} may not deliver events of table {table}: it lacks {rights}; as somebody who may: GRANT {rights} ON {table} TO {who}"
    ))
}

/// What to say where MySQL hides the tables beside a stream, which then looks like a queue without its columns.
pub(super) fn hidden_stream(target: &Target, need: Need) -> Option<String> {
    if !matches!(target.dialect(), Dialect::MySql | Dialect::MariaDb) {
        return None;
    }
    let (table, user, space) = (target.table(), target.user()?, target.space()?);
    let (rights, who) = (need.rights(On::Beside), quoted(&user, '`'));
    Some(format!(
        "user {user} may not use table {table}: it seems to be a stream, and the user sees none of the tables beside it \
         ({table}_lanes, …, posthaste_migrations); as somebody who may: GRANT {rights} ON {space}.* TO {who}"
    ))
}

/// What was denied and how to grant it, where the database's words say so.
pub(super) fn advice(error: &Error, target: &Target, need: Need) -> Option<String> {
    let user = target.user()?;
    let said = words(error)?;
    let (what, remedy) = match target.dialect() {
        Dialect::Postgres => postgres(&said, target, &user, need)?,
        Dialect::MySql | Dialect::MariaDb => mysql(&said, target, &user, need)?,
        Dialect::Sqlite | Dialect::Memory => return None,
    };
    let table = target.table();
    Some(format!("user {user} may not use table {table}: {what} ({said}); as somebody who may: {remedy}"))
}

/// The database's own words.
fn words(error: &Error) -> Option<String> {
    let (_, said) = error.message().split_once('(')?;
    said.strip_suffix(')').map(str::to_owned)
}

/// PostgreSQL says what it denies, and not which right.
fn postgres(said: &str, target: &Target, user: &str, need: Need) -> Option<(String, String)> {
    let table = target.table().to_string();
    let beside = |name: &str| match table.split_once('.') {
        Some((schema, _)) => format!("{schema}.{name}"),
        None => name.to_owned(),
    };
    let user = quoted(user, '"');
    if let Some((kind, name)) = said.strip_prefix("must be owner of ").and_then(|of| of.split_once(' ')) {
        let (kind, name) = (kind.to_uppercase(), beside(name));
        return Some((
            format!("{name} belongs to somebody else"),
            format!("run the migration as its owner, or ALTER {kind} {name} OWNER TO {user}"),
        ));
    }
    let (kind, name) = said.strip_prefix("permission denied for ")?.split_once(' ')?;
    let name = name.trim_matches('"');
    let (rights, on) = match (kind, need) {
        ("schema", Need::Migrate) => ("USAGE, CREATE", format!("SCHEMA {name}")),
        ("schema", _) => ("USAGE", format!("SCHEMA {name}")),
        ("sequence", _) => ("USAGE, SELECT", format!("SEQUENCE {}", beside(name))),
        ("database", Need::Migrate) => ("CONNECT, CREATE", format!("DATABASE {name}")),
        ("database", _) => ("CONNECT", format!("DATABASE {name}")),
        ("table" | "view" | "relation", _) => (need.rights(On::of(name, target)), beside(name)),
        _ => return None,
    };
    let owner = if need == Need::Migrate { "run the migration as who owns the tables, or " } else { "" };
    let what = format!("{} takes {rights} on {on}", need.who());
    Some((what, format!("{owner}GRANT {rights} ON {on} TO {user}")))
}

/// MySQL says which right on which table, or that there is none in the whole database.
fn mysql(said: &str, target: &Target, user: &str, need: Need) -> Option<(String, String)> {
    let user = quoted(user, '`');
    if let Some((right, rest)) = said.split_once(" command denied to user ") {
        let (_, table) = rest.rsplit_once("for table ")?;
        let table = table.replace(['\'', '`'], "");
        let (right, table) = (right.trim(), table.trim());
        let rights = need.rights(On::of(unqualified(table), target));
        let (rights, on) = match (need, table.split_once('.')) {
            (Need::Migrate, Some((database, _))) => (rights, format!("{database}.*")),
            _ if rights.contains(right) => (rights, table.to_owned()),
            _ => (right, table.to_owned()),
        };
        return Some((
            format!("{} takes {right} on {table}", need.who()),
            format!("GRANT {rights} ON {on} TO {user}"),
        ));
    }
    let (_, database) = said.split_once(" to database ")?;
    let database = database.replace(['\'', '`'], "");
    let rights = need.rights(On::Events);
    let on = if need == Need::Migrate {
        format!("{database}.*")
    } else {
        format!("{database}.{}", target.table())
    };
    Some((format!("{} takes {rights} on {on}", need.who()), format!("GRANT {rights} ON {on} TO {user}")))
}

/// A table's name without its schema.
fn unqualified(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, name)| name)
}

/// A name as SQL wants it: in quotation marks where it is not a plain one.
fn quoted(name: &str, mark: char) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if plain {
        name.to_owned()
    } else {
        format!("{mark}{}{mark}", name.replace(mark, &format!("{mark}{mark}")))
    }
}
