//! `/api/v1`: what the command line can do, a file for each noun.

pub(super) mod dead;
pub(super) mod events;
pub(super) mod purge;
pub(super) mod relays;
pub(super) mod sinks;
pub(super) mod status;
pub(super) mod stream;

mod change;
mod which;

use posthaste::Relay;

use super::Served;
use super::problem::{Kind, Problem, quoted};
use crate::config::nearest;
use crate::daemon::{Opened, Table};

impl Served {
    /// The table of this name.
    fn table(&self, name: &str) -> Result<&Table, Problem> {
        let tables = self.daemon().tables();
        tables.get(name).ok_or_else(|| {
            let names = tables.keys().map(String::as_str);
            let meant = match nearest(name, names.clone()) {
                Some(meant) => format!("do you mean {meant}?"),
                None => format!("there are {}", names.collect::<Vec<_>>().join(", ")),
            };
            Problem::missing(format!("this daemon has no table {}; {meant}", quoted(name)))
        })
    }

    /// The table of this name, once its database has been reached.
    fn opened(&self, name: &str) -> Result<&Opened, Problem> {
        let table = self.table(name)?;
        table.opened().ok_or_else(|| {
            let waits = table.waits_for().unwrap_or_else(|| "try again in a moment".to_owned());
            Problem::new(
                Kind::Unavailable,
                format!("the database of table {name} has not been reached yet; {waits}"),
            )
        })
    }

    /// The relay of this table.
    fn relay(&self, name: &str) -> Result<&Relay, Problem> {
        let table = self.table(name)?;
        if !table.settings().relayed {
            return Err(Problem::missing(format!(
                "table {name} is not relayed by this daemon; ask the one that relays it"
            )));
        }
        table.relay().ok_or_else(|| {
            let message = format!("the relay of table {name} has not started yet; try again in a moment");
            Problem::new(Kind::Unavailable, message)
        })
    }
}
