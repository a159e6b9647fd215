//! Named places between two steps, at which a process can be made to die: for this project's own tests.
//!
//! `failpoint!("claim.answered");` stands where one step has ended and the next has not begun. Without the feature
//! `__failpoints` it is nothing at all; with it, and with nothing said, it is a look at an empty table. A process is told by
//! the variable `POSTHASTE_FAILPOINT` what happens at one of them:
//!
//! | value | what happens |
//! |---|---|
//! | `claim.answered` | it dies when it first gets there |
//! | `claim.answered:3` | the third time |
//! | `claim.answered=1*sleep(3000)` | whatever else the crate `fail` can do: here one thread stands still once, for so long |
//!
//! To die is to abort: no destructor runs, nothing is written any more. A value that makes no sense is death at the first
//! place of all, so that no test goes on with nothing to be tested. A process that was told something says so when it gets to a
//! place for the first time, and before it dies: on standard error, and the first to its log as well.

/// A place between two steps.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "__failpoints")]
        $crate::failpoint::reached($name);
    };
}

#[cfg(feature = "__failpoints")]
pub(crate) use on::reached;
#[cfg(feature = "__failpoints")]
pub use on::{ALL, VARIABLE};

#[cfg(feature = "__failpoints")]
mod on {
    use std::io::Write;
    use std::sync::Once;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The variable that says what happens where.
    pub const VARIABLE: &str = "POSTHASTE_FAILPOINT";

    /// Every place, in the order of the steps. A test holds it to what the sources say.
    pub const ALL: &[&str] = &[
        // A table is made.
        "migrate.locked",
        "migrate.statement",
        "migrate.ran",
        "migrate.recorded",
        "migrate.ended",
        // An event is written, and its transaction commits.
        "enqueue.checked",
        "enqueue.inserted",
        "enqueue.duplicate",
        "enqueue.written",
        "commit.verified",
        "commit.committed",
        "commit.handed_over",
        // It is claimed.
        "claim.asked",
        "claim.locked",
        "claim.leased",
        "claim.answered",
        "claim.handed_on",
        // Its lease is renewed.
        "renew.due",
        "renew.locked",
        "renew.written",
        "renew.answered",
        // It is published.
        "publish.leased",
        "publish.answered",
        "publish.judged",
        // That is settled.
        "settle.gathered",
        "settle.locked",
        "settle.written",
        "settle.answered",
        // What is old goes.
        "purge.found",
        "purge.locked",
        "purge.selected",
        "purge.written",
        "purge.dead_locked",
        "purge.dead_deleted",
        "purge.answered",
        "purge.unlocked",
        // Lanes of a stream are owned.
        "lanes.due",
        "lanes.joined",
        "lanes.renewed",
        "lanes.beaten",
        "lanes.fenced",
        "lanes.taken",
        "lanes.opened",
        "lanes.flushed",
        "lanes.released",
        "lanes.left",
        // A page of them is read.
        "page.read",
        "page.noted",
        "page.placed",
        "page.given_out",
        // What cannot be delivered now is parked, and comes up.
        "park.locked",
        "park.inserted",
        "park.written",
        "park.answered",
        "parked.claiming",
        "parked.claimed",
        "parked.ending",
        "parked.ended",
        // A page is done.
        "place.due",
        "place.marked",
        "place.written",
    ];

    /// What a process says on standard error before it dies at a place.
    fn last_words(name: &str) -> String {
        format!("failpoint {name}: the process dies here")
    }

    /// A process is at this place.
    pub(crate) fn reached(name: &'static str) {
        static ARMED: Once = Once::new();
        ARMED.call_once(|| {
            let said = std::env::var(VARIABLE).unwrap_or_default();
            if said.is_empty() {
                return;
            }
            if arm(&said).is_none() {
                die(&format!(
                    "{VARIABLE} is {said:?}, which names no failpoint or nothing that could happen there"
                ));
            }
            tracing::warn!("{VARIABLE} is {said:?}: this process breaks on purpose");
            say(&format!("{VARIABLE} is {said:?}: this process breaks on purpose"));
        });
        fail::fail_point!(name);
    }

    fn arm(said: &str) -> Option<()> {
        if let Some((name, action)) = said.split_once('=') {
            let name = ALL.iter().find(|known| **known == name)?;
            return fail::cfg(*name, action).ok();
        }
        let (name, time) = match said.split_once(':') {
            Some((name, time)) => (name, time.parse().ok()?),
            None => (said, 1),
        };
        let name = *ALL.iter().find(|known| **known == name)?;
        let times = AtomicU64::new(0);
        let count = move || {
            if times.fetch_add(1, Ordering::Relaxed) + 1 == time {
                die(&last_words(name));
            }
        };
        fail::cfg_callback(name, count).ok()
    }

    fn die(words: &str) -> ! {
        say(words);
        std::process::abort()
    }

    /// Who starts processes that break has to read something; if it cannot be said, it is done all the same.
    fn say(words: &str) {
        writeln!(std::io::stderr(), "{words}").ok();
    }
}

#[cfg(all(test, feature = "__failpoints"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeSet;
    use std::path::Path;

    use super::ALL;

    fn named_below(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                named_below(&path, found);
            } else if !path.ends_with("failpoint.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let named = text.split("failpoint!(\"").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(named.map(str::to_owned));
            }
        }
    }

    #[test]
    fn pr2_the_list_of_failpoints_is_what_the_sources_name() {
        let mut found = BTreeSet::new();
        named_below(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
        let listed: BTreeSet<String> = ALL.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(found, listed);
        assert_eq!(listed.len(), ALL.len(), "a name is listed twice");
    }
}
