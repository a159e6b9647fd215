//! `posthaste purge`: events that ended some time ago are deleted.

use std::io::Write;

use posthaste::Admin;
use posthaste::store::Ending;

use super::change::{self, Deed, Step};
use crate::args::Purge;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::{LOOK, Target};

/// Deletes what was delivered, what is dead, or both.
pub(super) async fn run(target: &Target, purge: Purge, out: &mut impl Write) -> Result<Exit, Failure> {
    let Purge { delivered, dead, older_than, limit, doing } = purge;
    let admin = Admin::new(target.open().await?).within(LOOK);
    let endings = [(delivered, Ending::Delivered), (dead, Ending::Dead)];
    let steps = endings.into_iter().filter(|(asked, _)| *asked).map(|(_, ending)| Step {
        kind: ending.as_str(),
        change: admin.purge(ending, older_than).limit(limit.unwrap_or(u64::MAX)),
    });
    change::carry_out(target, &admin, Deed::Purge, steps.collect(), &doing, out).await
}
