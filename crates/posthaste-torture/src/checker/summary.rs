//! The figures of a run.

use std::collections::BTreeMap;
use std::fmt;

use super::Rules;
use super::duplicate::{self, repeated};
use super::index::{Index, is_dead};
use crate::history::{Ending, History, Micros};

/// What happened in a run, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events that producers wrote, whatever became of their transactions.
    pub events: usize,
    pub committed: usize,
    pub rolled_back: usize,
    /// Of committed and other ones: those whose producers never learned the end.
    pub unknown: usize,
    /// Enqueued a second time on purpose.
    pub duplicates: usize,
    /// How often a sink was given an event.
    pub deliveries: usize,
    /// How often a sink had an event that it already had.
    pub repeated: usize,
    /// Deliveries that nothing explains.
    pub unexplained: usize,
    /// Events that are dead at the end.
    pub dead: usize,
    pub faults: BTreeMap<String, usize>,
    /// In the order in which the faults began.
    pub recoveries: Vec<Recovery>,
}

/// How long it took after a fault's end until any sink had an event again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    pub kind: String,
    pub whom: String,
    /// None: nothing was delivered afterwards.
    pub after: Option<Micros>,
}

impl Summary {
    pub fn of(history: &History, rules: &Rules) -> Self {
        let index = Index::of(history, rules);
        let mut summary = Self { unexplained: duplicate::check(&index).len(), ..Self::default() };
        let mut accepted: Vec<Micros> = Vec::new();
        for event in index.events.values() {
            summary.deliveries += event.deliveries.len();
            summary.repeated += repeated(event);
            accepted.extend(event.accepted().map(|delivery| delivery.at));
            summary.dead += usize::from(event.row.is_some_and(|row| is_dead(row.outcome.as_deref())));
            let Some(intent) = event.intent else { continue };
            summary.events += 1;
            summary.duplicates += usize::from(intent.duplicate);
            summary.committed += usize::from(event.is_committed());
            summary.rolled_back += usize::from(event.ending == Some(Ending::RolledBack));
            summary.unknown += usize::from(event.ending.is_none());
        }
        accepted.sort_unstable();
        for fault in index.faults.all() {
            *summary.faults.entry(fault.kind.clone()).or_default() += 1;
            let next = accepted.partition_point(|at| *at < fault.until);
            let after = accepted.get(next).map(|at| at - fault.until);
            summary.recoveries.push(Recovery { kind: fault.kind.clone(), whom: fault.whom.clone(), after });
        }
        summary
    }

    /// Of each kind of fault: the median time until the next delivery, and the longest; none if there never was one.
    pub fn recovery_by_kind(&self) -> BTreeMap<&str, Option<(Micros, Micros)>> {
        let mut by_kind: BTreeMap<&str, Vec<Micros>> = BTreeMap::new();
        for recovery in &self.recoveries {
            by_kind.entry(&recovery.kind).or_default().extend(recovery.after);
        }
        let middle = |mut times: Vec<Micros>| {
            times.sort_unstable();
            Some((*times.get(times.len() / 2)?, *times.last()?))
        };
        by_kind.into_iter().map(|(kind, times)| (kind, middle(times))).collect()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, committed, rolled_back, unknown, duplicates, .. } = self;
        writeln!(f, "events       {events}: {committed} committed, {rolled_back} rolled back")?;
        writeln!(f, "             {unknown} of unknown end, {duplicates} duplicated on purpose")?;
        let Self { deliveries, repeated, unexplained, dead, .. } = self;
        writeln!(f, "deliveries   {deliveries}, of which {repeated} again, {unexplained} without a reason")?;
        writeln!(f, "dead         {dead}")?;
        write!(f, "faults       {}", self.faults.values().sum::<usize>())?;
        for (kind, recovery) in self.recovery_by_kind() {
            let count = self.faults.get(kind).copied().unwrap_or_default();
            write!(f, "\n  {kind:<10} {count}: ")?;
            match recovery {
                Some((median, longest)) => {
                    let (median, longest) = (median as f64 / 1e6, longest as f64 / 1e6);
                    write!(f, "next delivery {median:.3} s after its end, at most {longest:.3} s")?;
                }
                None => write!(f, "no delivery after its end")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{MILLI, SECOND, Story, rules};
    use super::*;
    use crate::history::Answer;

    #[test]
    fn pr2_a_run_is_told_in_numbers() {
        let mut story = Story::new();
        let [delivered, twice] = [1, 2].map(|number| story.commit("queue", "a", number));
        let poison = story.poison("queue", "a", 3);
        let rolled_back = story.intend("queue", "a", 4);
        story.roll_back(rolled_back);
        story.intend("queue", "a", 4);
        story.commit_with("queue", "a", 4, |intent| intent.duplicate = true);
        story.deliver(delivered, Answer::Accepted);
        story.deliver(twice, Answer::Lied);
        story.deliver(twice, Answer::Accepted);
        story.deliver(twice, Answer::Accepted);
        story.fault("kill", "relay-1");
        story.wait(SECOND);
        story.deliver(delivered, Answer::Accepted);
        story.fault("kill", "relay-1");
        story.deliver(poison, Answer::Rejected);
        story.row(poison, "dead");
        let summary = Summary::of(&story.history(), &rules());
        let counts =
            [summary.events, summary.committed, summary.rolled_back, summary.unknown, summary.duplicates];
        assert_eq!(counts, [6, 4, 1, 1, 1]);
        assert_eq!([summary.deliveries, summary.repeated, summary.unexplained, summary.dead], [6, 3, 1, 1]);
        assert_eq!(summary.faults, BTreeMap::from([("kill".to_owned(), 2)]));
        let after: Vec<_> = summary.recoveries.iter().map(|recovery| recovery.after).collect();
        assert_eq!(after, [Some(SECOND + MILLI), None]);
        let longest = Some((SECOND + MILLI, SECOND + MILLI));
        assert_eq!(summary.recovery_by_kind(), BTreeMap::from([("kill", longest)]));
        assert!(
            summary.to_string().contains("kill       2: next delivery 1.001 s after its end"),
            "{summary}"
        );
    }
}
