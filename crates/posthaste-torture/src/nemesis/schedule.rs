//! What is broken when: a pure function of the plan.

use std::time::Duration;

use crate::plan::{Kind, Plan, Sink};

/// Nothing is broken before relays and producers have begun.
const BEGINNING: Duration = Duration::from_secs(2);

/// A fault to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strike {
    /// When it begins, counted from the beginning of the run.
    pub at: Duration,
    pub lasts: Duration,
    pub kind: Kind,
    /// A relay, a producer, a table whose sink it is, or a server.
    pub whom: String,
    /// For what else chance decides of it.
    pub seed: u64,
}

/// What befalls processes, the ways between them and what they talk to, and that itself.
pub fn schedule(plan: &Plan) -> [Vec<Strike>; 3] {
    let lane_of = |kind: &Kind| match kind {
        Kind::Kill | Kind::KillProducer | Kind::Stop => 0,
        Kind::Cut | Kind::Slow | Kind::Hole | Kind::WayCut | Kind::WayHole => 1,
        Kind::Terminate
        | Kind::Restart
        | Kind::Broker
        | Kind::SinkSlow
        | Kind::SinkFailing
        | Kind::SinkLying
        | Kind::Fill => 2,
    };
    [0, 1, 2].map(|number| {
        let kinds = plan.possible_faults().into_iter().filter(|kind| lane_of(kind) == number);
        lane(plan, kinds.collect(), number)
    })
}

/// Whether something that begins at this time and lasts so long is over before the next calm.
pub(super) fn is_before_the_calm(plan: &Plan, at: Duration, lasts: Duration) -> bool {
    past_the_calm(plan, at, lasts) == at
}

/// One fault after the other. The kinds come like cards: each once before one comes again.
fn lane(plan: &Plan, kinds: Vec<Kind>, number: u64) -> Vec<Strike> {
    let mut random = fastrand::Rng::with_seed(plan.seed.wrapping_mul(31).wrapping_add(number));
    let mut strikes = Vec::new();
    let mut deck = Vec::new();
    let mut at = BEGINNING;
    if kinds.is_empty() {
        return strikes;
    }
    loop {
        at += between(&mut random, 300, 2500);
        if deck.is_empty() {
            deck.clone_from(&kinds);
            random.shuffle(&mut deck);
        }
        let Some(kind) = deck.pop() else { return strikes };
        let lasts = length(plan, kind, &mut random);
        at = past_the_calm(plan, at, lasts);
        if at + lasts > plan.length {
            return strikes;
        }
        strikes.push(Strike { at, lasts, kind, whom: victim(plan, kind, &mut random), seed: random.u64(..) });
        at += lasts;
    }
}

/// How long a fault lasts that begins at this time.
fn length(plan: &Plan, kind: Kind, random: &mut fastrand::Rng) -> Duration {
    match kind {
        Kind::Kill | Kind::KillProducer => between(random, 200, 4000),
        // Past the lease, or shorter now and then: it must go on with what it has.
        Kind::Stop if random.u8(..4) == 0 => between(random, 300, 2000),
        Kind::Stop => plan.settings.lease + between(random, 300, 5000),
        Kind::Terminate | Kind::Fill => Duration::ZERO,
        Kind::Restart | Kind::Broker => between(random, 100, 2500),
        Kind::Cut | Kind::WayCut => between(random, 50, 3000),
        Kind::Slow => between(random, 1000, 5000),
        Kind::Hole => between(random, 1000, 8000),
        // Past the time that a relay waits for an answer, mostly.
        Kind::WayHole => between(random, 500, 4000),
        Kind::SinkSlow | Kind::SinkFailing | Kind::SinkLying => between(random, 1000, 5000),
    }
}

/// The next time from which on this fits before the next calm.
fn past_the_calm(plan: &Plan, at: Duration, lasts: Duration) -> Duration {
    let calm = plan.calm;
    if calm.every.is_zero() {
        return at;
    }
    let round = at.as_millis() / calm.every.as_millis();
    let next = calm.every * u32::try_from(round + 1).unwrap_or(u32::MAX);
    if at + lasts > next.saturating_sub(calm.lasts) { next } else { at }
}

fn victim(plan: &Plan, kind: Kind, random: &mut fastrand::Rng) -> String {
    let mut one = |names: Vec<String>| random.choice(names).unwrap_or_default();
    match kind {
        Kind::Kill | Kind::Stop | Kind::WayCut | Kind::WayHole => one(plan.relay_names()),
        Kind::KillProducer | Kind::Fill => one(plan.producer_names()),
        Kind::Cut | Kind::Slow | Kind::Hole => {
            let mut clients = plan.relay_names();
            clients.extend(plan.producer_names());
            one(clients)
        }
        Kind::Terminate | Kind::Restart => plan.database.name().to_owned(),
        Kind::Broker => "NATS".to_owned(),
        Kind::SinkSlow | Kind::SinkFailing | Kind::SinkLying => {
            let tables = plan.tables.iter().filter(|table| table.sink == Sink::Http);
            one(tables.map(|table| table.name.clone()).collect())
        }
    }
}

fn between(random: &mut fastrand::Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(random.u64(least..most))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::plan::Database;

    fn plan(seed: u64, seconds: u64) -> Plan {
        Plan::new(Database::Postgres, seed, Duration::from_secs(seconds))
    }

    #[test]
    fn a_seed_says_all() {
        assert_eq!(schedule(&plan(7, 600)), schedule(&plan(7, 600)));
        assert_ne!(schedule(&plan(7, 600)), schedule(&plan(8, 600)));
    }

    #[test]
    fn half_an_hour_has_more_than_two_hundred_faults() {
        for seed in 0..20 {
            let count = schedule(&plan(seed, 1800)).concat().len();
            assert!(count > 300, "{count} with seed {seed}");
        }
    }

    #[test]
    fn a_short_run_has_every_kind() {
        for seed in 1..10 {
            let kinds: HashSet<Kind> =
                schedule(&plan(seed, 60)).concat().iter().map(|strike| strike.kind).collect();
            assert_eq!(kinds.len(), Kind::ALL.len(), "{kinds:?} with seed {seed}");
        }
    }

    #[test]
    fn faults_of_a_lane_follow_each_other_and_end_with_the_run() {
        let plan = plan(3, 1800);
        for lane in schedule(&plan) {
            for pair in lane.windows(2) {
                assert!(pair[0].at + pair[0].lasts <= pair[1].at, "{pair:?}");
            }
            assert!(lane.iter().all(|strike| strike.at + strike.lasts <= plan.length));
        }
    }

    #[test]
    fn nothing_is_broken_while_it_is_calm() {
        let plan = plan(4, 1800);
        for strike in schedule(&plan).concat() {
            let every = plan.calm.every.as_millis();
            let ends = (strike.at + strike.lasts).as_millis();
            let round = strike.at.as_millis() / every;
            assert!(ends <= (round + 1) * every - plan.calm.lasts.as_millis(), "{strike:?}");
        }
    }
}
