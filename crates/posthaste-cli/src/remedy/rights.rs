//! Rights that PostgreSQL, MySQL and MariaDB deny: which, on what, and the statements that grant them, one for each
//! table. Nothing is granted on a whole database, where others keep tables of their own, and every name is in quotation
//! marks.

use posthaste::Error;
use posthaste::store::{Dialect, Store};

use super::Need;
use crate::target::Target;

/// The record of migrations.
const LEDGER: &str = "posthaste_migrations";

impl Need {
    /// The rights that it takes on one of the tables. Who makes tables on PostgreSQL owns them.
    fn rights(self, on: On) -> &'static str {
        match (self, on) {
            (Self::Migrate, On::Events | On::Beside) => "SELECT, CREATE, ALTER, DROP, INDEX",
            (Self::Migrate, On::Lanes) => "SELECT, INSERT, CREATE, ALTER, DROP, INDEX",
            (Self::Migrate, On::Ledger) => "SELECT, INSERT, DELETE, CREATE",
            // Nothing but CREATE can be granted on what is not there yet.
            (Self::Migrate, On::View) => "SELECT, CREATE, DROP, CREATE VIEW",
            (_, On::Ledger | On::View) | (Self::Look, _) => "SELECT",
            (Self::Produce, On::Events) => "SELECT, INSERT",
            (Self::Produce, On::Lanes | On::Beside) => "SELECT",
            (Self::Deliver, On::Events) => "SELECT, UPDATE, DELETE",
            (Self::Deliver, On::Lanes) => "SELECT, UPDATE",
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
    View,
    Lanes,
    Beside,
}

impl On {
    fn of(name: &str, target: &Target) -> Self {
        match name.strip_prefix(target.table().name()) {
            _ if name == LEDGER => Self::Ledger,
            Some("") => Self::Events,
            Some("_status") => Self::View,
            Some("_lanes") => Self::Lanes,
            _ => Self::Beside,
        }
    }
}

/// Rights on something, as SQL names it.
struct Grant {
    rights: String,
    on: String,
}

impl Grant {
    fn new(rights: impl Into<String>, on: impl Into<String>) -> Self {
        Self { rights: rights.into(), on: on.into() }
    }

    /// What somebody is to do who may grant them: in words where nobody knows to which account.
    fn all(grants: &[Self], account: Option<&str>) -> String {
        let each =
            |say: &dyn Fn(&Self) -> String, between| grants.iter().map(say).collect::<Vec<_>>().join(between);
        match account {
            Some(account) => {
                let say = |Self { rights, on }: &Self| format!("GRANT {rights} ON {on} TO {account}");
                format!("as somebody who may: {}", each(&say, "; "))
            }
            None => {
                let say = |Self { rights, on }: &Self| format!("{rights} on {on}");
                format!("let somebody who may grant its account {}", each(&say, ", and "))
            }
        }
    }
}

/// Whose rights the connection has, as a `GRANT` wants to read it. MySQL takes a user without its host for another
/// account, and which host it is the server alone can tell.
async fn account(target: &Target, store: Option<&dyn Store>) -> Option<String> {
    if let Some(health) = store.and_then(Store::health)
        && let Ok(access) = health.access().await
    {
        return access.account;
    }
    if target.dialect() == Dialect::Postgres {
        return Some(quoted(&target.user()?, '"'));
    }
    // Who is not let into the database may still ask the server.
    let store = target.open_server().await?;
    let access = match store.health() {
        Some(health) => health.access().await.ok(),
        None => None,
    };
    store.close().await;
    access?.account
}

/// The statement that grants a relay what it lacks.
pub(super) fn lacking(target: &Target, rights: &[&str], account: Option<&str>) -> Option<String> {
    let (table, user, rights) = (target.table(), target.user()?, rights.join(", "));
    let remedy = Grant::all(&[Grant::new(&*rights, beside(target, table.name()))], account);
    Some(format!("user {user} may not deliver events of table {table}: it lacks {rights}; {remedy}"))
}

/// What to say where MySQL hides the tables beside a stream, which then looks like a queue without its columns.
pub(super) async fn hidden_stream(target: &Target, store: &dyn Store, need: Need) -> Option<String> {
    if !matches!(target.dialect(), Dialect::MySql | Dialect::MariaDb) {
        return None;
    }
    let (table, user) = (target.table(), target.user()?);
    let own = |suffix: &str| format!("{}{suffix}", table.name());
    let names = match need {
        Need::Produce => vec![own(""), own("_lanes"), LEDGER.to_owned()],
        Need::Migrate => migrated(target, true),
        Need::Look | Need::Deliver => {
            vec![own(""), own("_lanes"), own("_relays"), own("_parked"), LEDGER.to_owned()]
        }
    };
    let remedy = Grant::all(&of_tables(target, need, &names), account(target, Some(store)).await.as_deref());
    Some(format!(
        "user {user} may not use table {table}: it seems to be a stream, and the user sees none of the tables beside it \
         ({table}_lanes, …, {LEDGER}); {remedy}"
    ))
}

/// What was denied and how to grant it, where the database's words say so.
pub(super) async fn advice(
    error: &Error,
    target: &Target,
    store: Option<&dyn Store>,
    need: Need,
) -> Option<String> {
    let user = target.user()?;
    let said = words(error)?;
    let denial = match target.dialect() {
        Dialect::Postgres => postgres(&said, target, need)?,
        Dialect::MySql | Dialect::MariaDb => mysql(&said, target, need)?,
        Dialect::Sqlite | Dialect::Memory => return None,
    };
    let (table, what) = (target.table(), &denial.what);
    let mut remedy = denial.instead.to_owned();
    if !denial.grants.is_empty() {
        remedy += &Grant::all(&denial.grants, account(target, store).await.as_deref());
    }
    if let Some(owned) = denial.owned {
        let account = account(target, store).await?;
        remedy += &format!("as somebody who may: ALTER {owned} OWNER TO {account}");
    }
    Some(format!("user {user} may not use table {table}: {what} ({said}); {remedy}"))
}

/// What a database denies.
#[derive(Default)]
struct Denial {
    /// What it takes.
    what: String,
    /// What to do without any further rights, before what else can be done.
    instead: &'static str,
    grants: Vec<Grant>,
    /// What only its owner may change.
    owned: Option<String>,
}

/// The database's own words.
fn words(error: &Error) -> Option<String> {
    let (_, said) = error.message().split_once('(')?;
    said.strip_suffix(')').map(str::to_owned)
}

/// PostgreSQL says what it denies, without quotation marks, and not which right.
fn postgres(said: &str, target: &Target, need: Need) -> Option<Denial> {
    if let Some((kind, name)) = said.strip_prefix("must be owner of ").and_then(|of| of.split_once(' ')) {
        let on = match kind {
            "schema" | "database" => quoted(name, '"'),
            _ => beside(target, name),
        };
        return Some(Denial {
            what: format!("{on} belongs to somebody else"),
            instead: "run the migration as its owner, or ",
            owned: Some(format!("{} {on}", kind.to_uppercase())),
            ..Denial::default()
        });
    }
    let (kind, name) = said.strip_prefix("permission denied for ")?.split_once(' ')?;
    let migrates = need == Need::Migrate;
    let table = beside(target, name);
    let (grant, instead) = match kind {
        "schema" => {
            let rights = if migrates { "USAGE, CREATE" } else { "USAGE" };
            let grant = Grant::new(rights, format!("SCHEMA {}", quoted(name, '"')));
            (grant, "run the migration as who owns the tables or, for a new one, ")
        }
        "database" => (
            Grant::new("CONNECT", format!("DATABASE {}", quoted(name, '"'))),
            "run the migration as who may connect, or ",
        ),
        "sequence" => {
            (Grant::new("USAGE, SELECT", format!("SEQUENCE {table}")), "run the migration as its owner, or ")
        }
        "table" | "view" | "relation" if migrates && On::of(name, target) == On::Ledger => (
            Grant::new("SELECT, INSERT, DELETE", table),
            "run the migration as who owns the tables or, for one of its own, ",
        ),
        "table" | "view" | "relation" if migrates => {
            return Some(Denial {
                what: format!("{table} belongs to somebody else"),
                instead: "run the migration as its owner",
                ..Denial::default()
            });
        }
        "table" | "view" | "relation" => (Grant::new(need.rights(On::of(name, target)), table), ""),
        _ => return None,
    };
    Some(Denial {
        what: format!("{} takes {} on {}", need.who(), grant.rights, grant.on),
        instead: if migrates { instead } else { "" },
        grants: vec![grant],
        owned: None,
    })
}

/// MySQL says which right on which table, or that there is none in the whole database.
fn mysql(said: &str, target: &Target, need: Need) -> Option<Denial> {
    let bare = |name: &str| name.replace(['\'', '`'], "").trim().to_owned();
    let (what, grants) = if let Some((right, rest)) = said.split_once(" command denied to user ") {
        let (_, table) = rest.rsplit_once(" table ")?;
        let table = bare(table);
        let name = table.rsplit_once('.').map_or(&*table, |(_, name)| name);
        let on = On::of(name, target);
        let grants = if need == Need::Migrate {
            of_tables(target, need, &migrated(target, matches!(on, On::Lanes | On::Beside)))
        } else {
            let mut rights: Vec<&str> = need.rights(on).split(", ").collect();
            rights
                .extend(right.split(", ").filter(|right| !need.rights(on).split(", ").any(|r| r == *right)));
            vec![Grant::new(rights.join(", "), beside(target, name))]
        };
        (format!("{} takes {right} on {}", need.who(), beside(target, name)), grants)
    } else {
        said.split_once(" to database ")?;
        let names = match need {
            Need::Migrate => migrated(target, false),
            _ => vec![target.table().name().to_owned()],
        };
        let grants = of_tables(target, need, &names);
        let first = grants.first()?;
        (format!("{} takes {} on {}", need.who(), first.rights, first.on), grants)
    };
    let instead = if need == Need::Migrate { "run the migration as who may make tables, or " } else { "" };
    Some(Denial { what, instead, grants, owned: None })
}

/// What a migration makes, and where it records it.
fn migrated(target: &Target, stream: bool) -> Vec<String> {
    let suffixes: &[&str] =
        if stream { &["", "_lanes", "_relays", "_parked", "_status"] } else { &["", "_status"] };
    let name = target.table().name();
    suffixes.iter().map(|suffix| format!("{name}{suffix}")).chain([LEDGER.to_owned()]).collect()
}

/// What it takes on each of these tables.
fn of_tables(target: &Target, need: Need, names: &[String]) -> Vec<Grant> {
    let grant = |name: &String| Grant::new(need.rights(On::of(name, target)), beside(target, name));
    names.iter().map(grant).collect()
}

/// The name of a table where the events are, as SQL wants it.
fn beside(target: &Target, name: &str) -> String {
    let (space, mark) = match target.dialect() {
        Dialect::MySql | Dialect::MariaDb => (target.space(), '`'),
        _ => (target.table().schema().map(str::to_owned), '"'),
    };
    match space {
        Some(space) => format!("{}.{}", quoted(&space, mark), quoted(name, mark)),
        None => quoted(name, mark),
    }
}

/// A name in quotation marks, whatever it is: some are words of SQL, others would lose their capitals.
fn quoted(name: &str, mark: char) -> String {
    format!("{mark}{}{mark}", name.replace(mark, &format!("{mark}{mark}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::key::Secrecy;
    use crate::config::secret::SecretUrl;
    use crate::config::settings::DatabaseSettings;

    fn target(url: &str, table: &str) -> Option<Target> {
        let url = SecretUrl::new(url, Secrecy::Password);
        let database =
            DatabaseSettings { url, embedded: false, table: table.to_owned(), configured: Vec::new() };
        Target::new(&database).ok()
    }

    /// What one statement grants.
    fn granted(denial: Option<Denial>) -> Option<(String, String)> {
        let mut grants = denial?.grants.into_iter();
        grants.next().filter(|_| grants.len() == 0).map(|grant| (grant.rights, grant.on))
    }

    #[test]
    fn op1_names_are_in_quotation_marks_and_qualified_once() {
        let postgres =
            |said, need| granted(super::postgres(said, &target("postgres://u@h/d", "Shop.order")?, need));
        let of = |rights: &str, on: &str| Some((rights.to_owned(), on.to_owned()));
        assert_eq!(
            postgres("permission denied for table order", Need::Produce),
            of("SELECT, INSERT", "\"Shop\".\"order\"")
        );
        assert_eq!(postgres("permission denied for schema Shop", Need::Look), of("USAGE", "SCHEMA \"Shop\""));
        for table in ["order", "shop.order"] {
            for said in [
                "INSERT command denied to user 'u'@'h' for table 'order'",
                "INSERT command denied to user 'u'@'h' for table `shop`.`order`",
                "INSERT command denied to user 'u'@'h' for column 'id' in table 'order'",
                "Access denied for user 'u'@'%' to database 'shop'",
            ] {
                let target = target("mysql://u@h/shop", table);
                let grants = granted(target.and_then(|target| mysql(said, &target, Need::Produce)));
                assert_eq!(grants, of("SELECT, INSERT", "`shop`.`order`"), "{table}: {said}");
            }
        }
    }

    #[test]
    fn op1_where_the_account_is_not_known_the_rights_are_said_in_words() {
        let grants = [Grant::new("SELECT, INSERT", "`shop`.`outbox`"), Grant::new("SELECT", "`shop`.`x`")];
        assert_eq!(
            Grant::all(&grants, None),
            "let somebody who may grant its account SELECT, INSERT on `shop`.`outbox`, and SELECT on `shop`.`x`"
        );
        assert_eq!(
            Grant::all(&grants, Some("`u`@`%`")),
            "as somebody who may: GRANT SELECT, INSERT ON `shop`.`outbox` TO `u`@`%`; GRANT SELECT ON `shop`.`x` TO `u`@`%`"
        );
    }
}
