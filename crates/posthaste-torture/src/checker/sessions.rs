//! Whose sessions are whose, by who took leases in which name.
//!
//! A holder is a worker's name, `~` where the database knows its session, and `#` with the number of the claim; an owner of
//! lanes is the name alone. A process has a name of its own, and one name for all its sessions.
//!
//! A session is a connection: it ends with its process, with the server, or when the way between the two is cut. What is held
//! back on that way ends it, too: who hears nothing gives his session up after seconds. One who was stopped does so when he
//! goes on, but says so at once, and has another before anybody takes him for gone; not so where everything stood still.

use std::collections::{HashMap, HashSet};

use super::faults::Faults;
use crate::history::{Change, Fault, Leased, Micros, SEPARATOR};

/// The faults that end sessions.
const END_SESSIONS: [&str; 7] = ["kill", "kill_producer", "terminate", "restart", "cut", "hole", "stall"];

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

    /// Whether the database calls a session by this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.all.contains(name)
    }

    /// Whether a change may have been made by this holder: nobody knows of a change without a session, nor of a holder
    /// that was never seen to take anything.
    pub(super) fn may_be(&self, change: &Change, holder: &str) -> bool {
        change.session.is_empty()
            || self.of.get(worker(holder)).is_none_or(|sessions| sessions.contains(&*change.session))
    }

    /// Whether whoever made a change may have found that this holder's session is gone: the database knows of sessions, and a
    /// fault that ends them befell the holder, or everybody. Who took this lease, or renewed it, after the fault is back.
    pub(super) fn is_gone(&self, faults: &Faults<'_>, change: &Change, holder: &str, lease: Micros) -> bool {
        let ends = |fault: &Fault| {
            let is_back = change.before.until.is_some_and(|until| until - lease > fault.until);
            END_SESSIONS.contains(&&*fault.kind) && self.befell(fault, holder) && !is_back
        };
        !change.session.is_empty() && faults.felt_at(change.at).any(ends)
    }

    /// Whether a fault befell that holder: it names one of its sessions, or nobody's.
    fn befell(&self, fault: &Fault, holder: &str) -> bool {
        let is_named = fault.whom.split(SEPARATOR).any(|name| self.all.contains(name));
        let of_holder = self.of.get(worker(holder));
        !is_named || of_holder.is_some_and(|sessions| sessions.iter().any(|name| fault.befell(name)))
    }
}

/// Whether the database knew the session of whoever took a lease in this name.
pub(super) fn is_present(holder: &str) -> bool {
    holder.split('#').next().unwrap_or(holder).ends_with('~')
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
        assert_eq!(["4711-0a1b~#17", "4711-0a1b#18"].map(is_present), [true, false]);
    }
}
