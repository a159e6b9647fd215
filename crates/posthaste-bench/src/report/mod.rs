//! What was measured, and how it compares.

pub(crate) mod chart;
mod table;

pub(crate) use table::{number, text};

use std::collections::BTreeMap;

use serde::Serialize;

use crate::contender::{Class, Contender, Way};
use crate::scenario::Scenario;

/// Whether more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    More,
    Less,
}

/// One contender in one case of one scenario: a value for each run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) scenario: Scenario,
    /// Which part of the scenario: what it is compared within.
    pub(crate) case: String,
    pub(crate) contender: String,
    pub(crate) class: Class,
    pub(crate) way: Way,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) values: Vec<f64>,
    /// What else is known of it, by name with its unit.
    pub(crate) more: BTreeMap<&'static str, Vec<f64>>,
}

impl Figure {
    pub(crate) fn median(&self) -> f64 {
        median(&self.values)
    }

    /// More of it is better, whatever was measured.
    fn goodness(&self) -> f64 {
        match self.better {
            Better::More => self.median(),
            Better::Less => -self.median(),
        }
    }

    /// The lowest and the highest.
    pub(crate) fn spread(&self) -> (f64, f64) {
        let fold = |with: fn(f64, f64) -> f64, from| self.values.iter().copied().fold(from, with);
        (fold(f64::min, f64::INFINITY), fold(f64::max, f64::NEG_INFINITY))
    }

    /// How much better this is than another: 2 is twice as good, whichever way is better. The middle of the ratios of what was measured
    /// in the same round, so that a time in which the machine is slow is nobody's; if one of them has failed in any of the rounds, the
    /// ratio of the medians.
    pub(crate) fn ratio_to(&self, other: &Self, rounds: usize) -> f64 {
        let ratio = |mine: f64, theirs: f64| match self.better {
            // Nothing at all is as good as nothing at all.
            _ if mine == theirs => 1.0,
            Better::More => mine / theirs,
            Better::Less => theirs / mine,
        };
        if self.values.len() != rounds || other.values.len() != rounds {
            return ratio(self.median(), other.median());
        }
        let ratios: Vec<f64> =
            self.values.iter().zip(&other.values).map(|(mine, theirs)| ratio(*mine, *theirs)).collect();
        median(&ratios)
    }
}

/// Everything of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) command: String,
    pub(crate) date: String,
    pub(crate) machine: String,
    pub(crate) versions: Vec<String>,
    pub(crate) runs: usize,
    pub(crate) figures: Vec<Figure>,
    /// Who was left out of what, and why.
    pub(crate) left_out: Vec<String>,
}

/// One measured value.
pub(crate) struct Measured {
    pub(crate) case: String,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) value: f64,
    pub(crate) more: Vec<(&'static str, f64)>,
}

impl Report {
    /// Takes down one value of one run.
    pub(crate) fn add(&mut self, scenario: Scenario, contender: &dyn Contender, measured: Measured) {
        let named = (contender.name(), contender.class(), contender.way());
        self.add_as(scenario, named, measured);
    }

    /// The same of one that is no [`Contender`].
    pub(crate) fn add_as(&mut self, scenario: Scenario, named: (&str, Class, Way), measured: Measured) {
        let (name, class, way) = named;
        let Measured { case, unit, better, value, more } = measured;
        let same =
            |figure: &Figure| figure.scenario == scenario && figure.case == case && figure.contender == name;
        let figure = match self.figures.iter().position(same) {
            Some(at) => &mut self.figures[at],
            None => {
                let contender = name.to_owned();
                let (values, more) = (Vec::new(), BTreeMap::new());
                self.figures.push(Figure {
                    scenario,
                    case,
                    contender,
                    class,
                    way,
                    unit,
                    better,
                    values,
                    more,
                });
                let last = self.figures.len() - 1;
                &mut self.figures[last]
            }
        };
        figure.values.push(value);
        for (name, value) in more {
            figure.more.entry(name).or_default().push(value);
        }
    }

    /// The cases, in the order in which they were measured.
    pub(crate) fn cases(&self) -> Vec<(Scenario, &str)> {
        let mut cases = Vec::new();
        for figure in &self.figures {
            let case = (figure.scenario, figure.case.as_str());
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }

    /// The figures of a case, in the order of these names; others behind them.
    pub(crate) fn figures_of(&self, case: (Scenario, &str), order: &[&str]) -> Vec<&Figure> {
        let mut figures: Vec<&Figure> =
            self.figures.iter().filter(|figure| (figure.scenario, figure.case.as_str()) == case).collect();
        let place = |figure: &&Figure| order.iter().position(|name| *name == figure.contender);
        figures.sort_by_key(|figure| place(figure).unwrap_or(usize::MAX));
        figures
    }
}

/// What a figure is compared with, among those of its case.
pub(crate) struct Ratios {
    /// The limit of its own way.
    pub(crate) limit: Option<f64>,
    /// The best peer of any kind.
    pub(crate) peer: Option<f64>,
    /// The best peer that leases rows, for those that do.
    pub(crate) lease_peer: Option<f64>,
}

impl Ratios {
    pub(crate) fn of(figure: &Figure, case: &[&Figure]) -> Self {
        let limit = case.iter().find(|other| other.class == Class::Limit && other.way == figure.way);
        let best = |among: &dyn Fn(&Figure) -> bool| {
            let peers = case.iter().filter(|other| other.class == Class::Peer && among(other));
            peers.max_by(|a, b| a.goodness().total_cmp(&b.goodness())).copied()
        };
        let peer = best(&|_| true);
        let lease_peer = best(&|other| other.way.leases()).filter(|_| figure.way.leases());
        let rounds = case.iter().map(|one| one.values.len()).max().unwrap_or(0);
        let ratio = |other: &Figure| figure.ratio_to(other, rounds);
        Self {
            limit: limit.map(|limit| ratio(limit)),
            peer: peer.map(ratio),
            lease_peer: lease_peer.map(ratio),
        }
    }
}

/// The middle, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

/// The value below or at which this part of all lie; they must be sorted.
pub(crate) fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(class: Class, way: Way, better: Better, values: &[f64]) -> Figure {
        Figure {
            scenario: Scenario::Drain,
            case: "case".to_owned(),
            contender: format!("{class:?} {way:?} {values:?}"),
            class,
            way,
            unit: "events/s",
            better,
            values: values.to_vec(),
            more: BTreeMap::new(),
        }
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), 500.0);
        assert_eq!(percentile(&values, 0.99), 990.0);
        assert_eq!(percentile(&values, 0.999), 999.0);
        assert_eq!(percentile(&values, 1.0), 1000.0);
        assert_eq!(percentile(&[5.0], 0.5), 5.0);
        assert_eq!(percentile(&[5.0, 6.0], 0.0), 5.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_ratio_says_how_much_better() {
        let slow = figure(Class::Peer, Way::Lease, Better::More, &[50.0, 40.0, 60.0]);
        let fast = figure(Class::Posthaste, Way::Lease, Better::More, &[100.0]);
        assert_eq!(fast.ratio_to(&slow, 3), 2.0);
        let slow = figure(Class::Peer, Way::Lease, Better::Less, &[4.0]);
        let fast = figure(Class::Posthaste, Way::Lease, Better::Less, &[1.0]);
        assert_eq!(fast.ratio_to(&slow, 1), 4.0);
        assert_eq!(figure(Class::Peer, Way::Lease, Better::More, &[2.0, 1.0, 3.0]).spread(), (1.0, 3.0));
    }

    #[test]
    fn a_ratio_is_of_what_was_measured_in_the_same_round() {
        // By the medians it would be 2. The machine was slow in the second round.
        let one = figure(Class::Posthaste, Way::Lease, Better::More, &[100.0, 30.0, 120.0]);
        let other = figure(Class::Peer, Way::Lease, Better::More, &[50.0, 20.0, 100.0]);
        assert_eq!(one.ratio_to(&other, 3), 1.5);
        assert_eq!(other.ratio_to(&one, 3), 1.0 / 1.5);
        // Each has failed once, nobody knows in which round.
        assert_eq!(one.ratio_to(&other, 4), 2.0);
    }

    #[test]
    fn each_is_compared_with_its_own_limit_and_the_best_peers() {
        let limit = figure(Class::Limit, Way::Lease, Better::More, &[100.0]);
        let other = figure(Class::Limit, Way::Cursor, Better::More, &[300.0]);
        let queue = figure(Class::Posthaste, Way::Lease, Better::More, &[80.0]);
        let stream = figure(Class::Posthaste, Way::Cursor, Better::More, &[240.0]);
        let leases = figure(Class::Peer, Way::LeaseDeleting, Better::More, &[40.0]);
        let reads = figure(Class::Peer, Way::Cursor, Better::More, &[120.0]);
        let case = [&limit, &other, &queue, &stream, &leases, &reads];
        let of_queue = Ratios::of(&queue, &case);
        assert_eq!(of_queue.limit, Some(0.8));
        assert_eq!(of_queue.peer, Some(80.0 / 120.0));
        assert_eq!(of_queue.lease_peer, Some(2.0));
        let of_stream = Ratios::of(&stream, &case);
        assert_eq!((of_stream.limit, of_stream.peer, of_stream.lease_peer), (Some(0.8), Some(2.0), None));
        let alone = Ratios::of(&queue, &[&queue]);
        assert!(alone.limit.is_none() && alone.peer.is_none() && alone.lease_peer.is_none());
    }

    #[test]
    fn values_of_several_runs_come_together() {
        let mut report = Report {
            command: String::new(),
            date: String::new(),
            machine: String::new(),
            versions: Vec::new(),
            runs: 2,
            figures: Vec::new(),
            left_out: Vec::new(),
        };
        for (case, value) in [("a", 1.0), ("b", 5.0), ("a", 3.0)] {
            let measured = Measured {
                case: case.to_owned(),
                unit: "s",
                better: Better::Less,
                value,
                more: vec![("bytes", value * 2.0)],
            };
            report.add_as(Scenario::Drain, ("x", Class::Peer, Way::Lease), measured);
        }
        assert_eq!(report.cases(), [(Scenario::Drain, "a"), (Scenario::Drain, "b")]);
        let figures = report.figures_of((Scenario::Drain, "a"), &["x"]);
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].values, [1.0, 3.0]);
        assert_eq!(figures[0].more["bytes"], [2.0, 6.0]);
    }
}
