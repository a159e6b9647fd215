//! What was broken, and for how long that may be felt: until a lease later, and some.

use crate::history::{Fault, History, Micros, Record};

use super::Rules;

/// The faults of a run.
pub(super) struct Faults<'a> {
    all: Vec<&'a Fault>,
    /// How long after its end one may be felt.
    after: Micros,
}

impl<'a> Faults<'a> {
    pub(super) fn of(history: &'a History, rules: &Rules) -> Self {
        let fault = |record: &'a Record| match record {
            Record::Fault(fault) => Some(fault),
            _ => None,
        };
        let mut all: Vec<&Fault> = history.records.iter().filter_map(fault).collect();
        all.sort_by_key(|fault| fault.from);
        Self { all, after: rules.lease + rules.slack }
    }

    /// Those that were felt at some time from one moment to another.
    pub(super) fn felt_between(&self, from: Micros, until: Micros) -> impl Iterator<Item = &'a Fault> + '_ {
        let begun = self.all.partition_point(|fault| fault.from <= until);
        let after = self.after;
        let felt =
            move |fault: &&&Fault| breaks_something(fault) && fault.until.saturating_add(after) >= from;
        self.all[..begun].iter().filter(felt).copied()
    }

    /// Those that were felt at a moment.
    pub(super) fn felt_at(&self, at: Micros) -> impl Iterator<Item = &'a Fault> + '_ {
        self.felt_between(at, at)
    }
}

/// Very many events at once are a burden, and no reason to deliver any of them twice.
fn breaks_something(fault: &Fault) -> bool {
    fault.kind != "fill"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(faults: &[(Micros, Micros)]) -> History {
        let fault = |(from, until): &(Micros, Micros)| {
            Record::Fault(Fault { kind: "kill".into(), whom: "relay-1".into(), from: *from, until: *until })
        };
        History { records: faults.iter().map(fault).collect() }
    }

    #[test]
    fn pr2_very_many_events_at_once_excuse_nothing() {
        let mut history = history(&[(100, 110)]);
        for record in &mut history.records {
            let Record::Fault(fault) = record else { continue };
            fault.kind = "fill".to_owned();
        }
        let faults = Faults::of(&history, &Rules { lease: 30, slack: 10, ..Rules::default() });
        assert_eq!(faults.felt_between(0, 1000).count(), 0);
        assert_eq!(faults.all.len(), 1);
    }

    #[test]
    fn pr2_a_fault_is_felt_for_a_lease_and_the_slack_after_its_end() {
        let history = history(&[(100, 110), (500, 510), (505, 506)]);
        let faults = Faults::of(&history, &Rules { lease: 30, slack: 10, ..Rules::default() });
        let felt = |from, until| faults.felt_between(from, until).count();
        assert_eq!(felt(0, 99), 0);
        assert_eq!([felt(0, 100), felt(150, 400), felt(0, 1000), felt(120, 130)], [1, 1, 3, 1]);
        assert_eq!(felt(151, 499), 0);
        assert_eq!([felt(547, 600), felt(550, 600), felt(551, 600)], [1, 1, 0]);
        assert_eq!([150, 151, 506].map(|at| faults.felt_at(at).count()), [1, 0, 2]);
    }
}
