//! Deleting events that ended some time ago.

use axum::extract::State;
use posthaste::store::Ending;

use super::change::{self, DOING, Step};
use crate::http::Served;
use crate::http::input::{At, Body, Query};
use crate::http::problem::{Answer, Problem};
use crate::when;

/// `POST /api/v1/tables/{table}/purge`
pub(in crate::http) async fn purge(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
    body: Body,
) -> Answer {
    query.none()?;
    let body = body.of(&[&["delivered", "dead", "older_than"], &DOING[..]].concat())?;
    let endings = [
        ("delivered", body.flag("delivered")?, Ending::Delivered),
        ("dead", body.flag("dead")?, Ending::Dead),
    ];
    if !endings.iter().any(|(_, asked, _)| *asked) {
        return Err(Problem::bad(
            "nothing is named to purge; give \"delivered\": true, \"dead\": true or both",
        ));
    }
    let older_than = body.parsed("older_than", when::duration)?.ok_or_else(|| {
        Problem::bad("older_than is missing; give a duration such as \"7d\", or \"0s\" for all of them")
    })?;
    let doing = served.doing(&body, &table, false)?;
    let opened = served.opened(&table)?;
    let steps = endings.into_iter().filter(|(_, asked, _)| *asked);
    let steps = steps.map(|(kind, _, ending)| Step { kind, change: opened.admin.purge(ending, older_than) });
    change::carry_out(&table, "purge", &doing, steps.collect()).await
}
