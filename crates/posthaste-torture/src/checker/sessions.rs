//! Whose sessions are whose, by who took leases in which name.
//!
//! A holder is a worker's name, `~` where the database knows its session, and `#` with the number of the claim; an owner of
//! lanes is the name alone. A process has a name of its own, and one name for all its sessions.

use std::collections::{HashMap, HashSet};

use crate::history::{Change, Leased};

/// In whose name leases were taken, by which sessions.
#[derive(Default)]
pub(super) struct Sessions<'a> {
    of: HashMap<&'a str, HashSet<&'a str>>,
    all: HashSet<&'a str>,
}

impl<'a> Sessions<'a> {
    /// Learns from a change by which somebody took a lease.
    pub(super) fn learn(&mut self, change: &'a Change) {
        if change.session.is_empty() {
            return;
        }
        self.all.insert(&change.session);
        let is_lane = matches!(change.of, Leased::Lane(_));
        let taken = change.after.holder != change.before.holder
            || is_lane && change.after.fence > change.before.fence;
        if let Some(holder) = change.after.holder.as_deref().filter(|_| taken) {
            self.of.entry(worker(holder)).or_default().insert(&change.session);
        }
    }

    /// Whether a change may have been made by this holder: nobody knows of a change without a session, nor of a holder
    /// that was never seen to take anything.
    pub(super) fn may_be(&self, change: &Change, holder: &str) -> bool {
        change.session.is_empty()
            || self.of.get(worker(holder)).is_none_or(|sessions| sessions.contains(&*change.session))
    }

    /// Whether what befell this one befell that holder: it is the name of its session, or of nobody's.
    pub(super) fn befell(&self, whom: &str, holder: &str) -> bool {
        !self.all.contains(whom)
            || self.of.get(worker(holder)).is_some_and(|sessions| sessions.contains(whom))
    }
}

fn worker(holder: &str) -> &str {
    holder.split('#').next().unwrap_or(holder).trim_end_matches('~')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pr2_a_worker_is_the_same_with_and_without_its_session_and_for_all_claims() {
        assert_eq!(worker("4711-0a1b~#17"), "4711-0a1b");
        assert_eq!(worker("4711-0a1b#18"), "4711-0a1b");
        assert_eq!(worker("4711-0a1b"), "4711-0a1b");
    }
}
