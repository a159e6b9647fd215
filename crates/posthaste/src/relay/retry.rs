//! Retries: when a failed delivery is tried again, and how often.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `base` | 1 s | a hiccup is over by then |
//! | `max` | 60 s | what has recovered is noticed within a minute |
//! | jitter | equal | what failed together does not come back together, and nothing comes back at once |
//! | `max_attempts` | 25 | about a quarter of an hour before somebody must look |

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::store::AttemptLimits;

/// Says when a failed delivery is tried again, and how often. [`Backoff`] is the usual one. The relay asks after each failure, and
/// nothing else goes on before it is answered.
///
/// ```
/// use std::time::Duration;
/// use posthaste::relay::retry::RetryPolicy;
///
/// /// Every ten minutes, for a day.
/// struct Patient;
///
/// impl RetryPolicy for Patient {
///     fn delay(&self, _attempt: u32, _random: f64) -> Duration {
///         Duration::from_secs(600)
///     }
///
///     fn max_attempts(&self) -> u32 {
///         144
///     }
/// }
/// ```
pub trait RetryPolicy: Send + Sync + 'static {
    /// How long to wait after this attempt, the first being 1; `random` is in `[0, 1)`.
    fn delay(&self, attempt: u32, random: f64) -> Duration;

    /// After how many attempts an event is dead; at least 1.
    fn max_attempts(&self) -> u32;
}

/// Waits twice as long after each attempt: `min(base · 2^(attempt − 1), max)`, with jitter.
///
/// ```
/// use std::time::Duration;
/// use posthaste::Backoff;
/// use posthaste::relay::retry::RetryPolicy;
///
/// let secs = Duration::from_secs;
/// let backoff = Backoff::exponential(secs(1), secs(60)).no_jitter().max_attempts(25);
/// assert_eq!([1, 2, 3, 7, 25].map(|attempt| backoff.delay(attempt, 0.5)), [1, 2, 4, 60, 60].map(secs));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    jitter: Jitter,
    max_attempts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Jitter {
    None,
    Additive(Duration),
    Equal,
    Scaled,
}

impl Backoff {
    /// From `base` up to `max`; with equal jitter and 25 attempts unless said otherwise.
    pub fn exponential(base: Duration, max: Duration) -> Self {
        Self { base, max, jitter: Jitter::Equal, max_attempts: 25 }
    }

    /// Exactly the computed time.
    #[must_use]
    pub fn no_jitter(self) -> Self {
        Self { jitter: Jitter::None, ..self }
    }

    /// The computed time and a random part of this range on top, beyond `max` too.
    #[must_use]
    pub fn additive_jitter(self, range: Duration) -> Self {
        Self { jitter: Jitter::Additive(range), ..self }
    }

    /// Between half of the computed time and all of it.
    #[must_use]
    pub fn equal_jitter(self) -> Self {
        Self { jitter: Jitter::Equal, ..self }
    }

    /// Between half of the computed time and one and a half of it, beyond `max` too.
    #[must_use]
    pub fn scaled_jitter(self) -> Self {
        Self { jitter: Jitter::Scaled, ..self }
    }

    /// After how many attempts an event is dead; at least 1.
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        Self { max_attempts: attempts.max(1), ..self }
    }

    /// The time before jitter.
    fn computed(&self, attempt: u32) -> Duration {
        let (base, max) = (self.base.as_nanos(), self.max.as_nanos());
        let doubled =
            1u128.checked_shl(attempt.saturating_sub(1)).and_then(|factor| base.checked_mul(factor));
        match doubled {
            Some(doubled) => nanos(doubled.min(max)),
            // Beyond any length of time there is, unless it never grows.
            None if base == 0 => Duration::ZERO,
            None => self.max,
        }
    }
}

/// One second to a minute, equal jitter, 25 attempts.
impl Default for Backoff {
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1), Duration::from_secs(60))
    }
}

impl RetryPolicy for Backoff {
    fn delay(&self, attempt: u32, random: f64) -> Duration {
        let computed = self.computed(attempt);
        match self.jitter {
            Jitter::None => computed,
            Jitter::Additive(range) => computed.saturating_add(part(range, random)),
            Jitter::Equal => (computed - computed / 2).saturating_add(part(computed / 2, random)),
            Jitter::Scaled => (computed / 2).saturating_add(part(computed, random)),
        }
    }

    fn max_attempts(&self) -> u32 {
        self.max_attempts
    }
}

/// This share of a length of time; whole numbers, so that it is never longer than all of it.
fn part(whole: Duration, share: f64) -> Duration {
    const ONE: u64 = 1 << 32;
    // What is no number counts as none of it.
    let share = ((share.clamp(0.0, 1.0) * ONE as f64) as u64).min(ONE);
    nanos((whole.as_nanos() * u128::from(share)) >> 32)
}

fn nanos(nanos: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    match u64::try_from(nanos / SECOND) {
        Ok(seconds) => Duration::new(seconds, (nanos % SECOND) as u32),
        Err(_) => Duration::MAX,
    }
}

/// Where jitter comes from: the relay asks once per retry. A function is one, for tests:
///
/// ```
/// use posthaste::relay::retry::{Random, SystemRandom};
///
/// let always_half = || 0.5;
/// assert_eq!(always_half.next(), 0.5);
/// assert!((0.0..1.0).contains(&SystemRandom.next()));
/// ```
pub trait Random: Send + Sync + 'static {
    /// The next number, in `[0, 1)`.
    fn next(&self) -> f64;
}

impl<F: Fn() -> f64 + Send + Sync + 'static> Random for F {
    fn next(&self) -> f64 {
        self()
    }
}

/// Random numbers that differ from process to process and from thread to thread. They are for jitter, never
/// for secrets.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn next(&self) -> f64 {
        fastrand::f64()
    }
}

/// The policy of every topic.
///
/// ```
/// use std::time::Duration;
/// use posthaste::Backoff;
/// use posthaste::relay::retry::Retries;
///
/// let retries = Retries::default().topic("mail.sent.v1", Backoff::default().max_attempts(3));
/// assert_eq!(retries.policy("mail.sent.v1").max_attempts(), 3);
/// assert_eq!(retries.policy("order.placed.v1").max_attempts(), 25);
/// ```
#[derive(Clone)]
pub struct Retries {
    default: Arc<dyn RetryPolicy>,
    topics: HashMap<String, Arc<dyn RetryPolicy>>,
}

impl Retries {
    /// The same policy for every topic.
    pub fn new(policy: impl RetryPolicy) -> Self {
        Self { default: Arc::new(policy), topics: HashMap::new() }
    }

    /// Another policy for topics that have none of their own.
    #[must_use]
    pub fn policy_of_others(mut self, policy: impl RetryPolicy) -> Self {
        self.default = Arc::new(policy);
        self
    }

    /// Another policy for one topic, by its exact name.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>, policy: impl RetryPolicy) -> Self {
        self.topics.insert(topic.into(), Arc::new(policy));
        self
    }

    /// The policy of this topic.
    pub fn policy(&self, topic: &str) -> &dyn RetryPolicy {
        &**self.topics.get(topic).unwrap_or(&self.default)
    }

    /// After how many attempts events are dead, as the store is told at each claim.
    pub fn attempt_limits(&self) -> AttemptLimits {
        let limits = AttemptLimits::new(self.default.max_attempts());
        self.topics.iter().fold(limits, |limits, (topic, policy)| limits.topic(topic, policy.max_attempts()))
    }
}

/// [`Backoff::default`] for every topic.
impl Default for Retries {
    fn default() -> Self {
        Self::new(Backoff::default())
    }
}

impl std::fmt::Debug for Retries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Retries").field("attempts", &self.attempt_limits()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rt1_each_wait_is_twice_the_one_before_up_to_the_longest() {
        let backoff = Backoff::exponential(SECOND, 10 * SECOND).no_jitter();
        let waits: Vec<u64> = (0..=7).map(|attempt| backoff.delay(attempt, 0.9).as_secs()).collect();
        assert_eq!(waits, [1, 1, 2, 4, 8, 10, 10, 10]);
    }

    #[test]
    fn rt1_each_jitter_has_its_range() {
        let backoff = Backoff::exponential(SECOND, 60 * SECOND);
        let millis = |backoff: Backoff, random| backoff.delay(3, random).as_millis();
        for (random, none, additive, equal, scaled) in
            [(0.0, 4000, 4000, 2000, 2000), (0.5, 4000, 5000, 3000, 4000), (1.0, 4000, 6000, 4000, 6000)]
        {
            assert_eq!(millis(backoff.clone().no_jitter(), random), none);
            assert_eq!(millis(backoff.clone().additive_jitter(2 * SECOND), random), additive);
            assert_eq!(millis(backoff.clone().equal_jitter(), random), equal);
            assert_eq!(millis(backoff.clone().scaled_jitter(), random), scaled);
        }
    }

    #[test]
    fn rt1_small_steps_reach_the_longest_wait_one_by_one() {
        let backoff = Backoff::exponential(Duration::from_nanos(1), Duration::MAX).no_jitter();
        assert_eq!(backoff.delay(41, 0.0), Duration::from_nanos(1 << 40));
        assert_eq!(backoff.delay(u32::MAX, 0.0), Duration::MAX);
        let none = Backoff::exponential(Duration::ZERO, SECOND);
        assert_eq!(none.delay(u32::MAX, 0.9), Duration::ZERO);
    }

    #[test]
    fn rt1_the_random_source_can_be_replaced() {
        let sources: [Arc<dyn Random>; 2] = [Arc::new(SystemRandom), Arc::new(|| 0.25)];
        assert_eq!(sources[1].next(), 0.25);
        let numbers: Vec<f64> = (0..100).map(|_| sources[0].next()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn rt2_defaults_are_equal_jitter_one_second_to_a_minute_and_25_attempts() {
        assert_eq!(
            Backoff::default(),
            Backoff::exponential(SECOND, 60 * SECOND).equal_jitter().max_attempts(25)
        );
        assert_eq!(Retries::default().attempt_limits(), AttemptLimits::default());
    }

    #[test]
    fn rt2_a_topic_has_a_policy_and_limit_of_its_own() {
        let retries = Retries::new(Backoff::default().max_attempts(0))
            .topic("a", Backoff::exponential(9 * SECOND, 9 * SECOND).no_jitter().max_attempts(3));
        assert_eq!(retries.policy("a").delay(1, 0.0), 9 * SECOND);
        assert_eq!(retries.policy("a.b").max_attempts(), 1);
        assert_eq!(retries.attempt_limits(), AttemptLimits::new(1).topic("a", 3));
        let others = retries.policy_of_others(Backoff::default()).attempt_limits();
        assert_eq!((others.of("a"), others.of("b")), (3, 25));
    }

    fn duration() -> impl Strategy<Value = Duration> {
        let any =
            (any::<u64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos));
        prop_oneof![any, (0..100_000_000_000u64).prop_map(Duration::from_nanos)]
    }

    fn config() -> ProptestConfig {
        ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn rt1_waits_stay_within_their_range(
            base in duration(), max in duration(), range in duration(),
            attempt in prop_oneof![0..200u32, any::<u32>()], random in prop_oneof![0.0..1.0f64, any::<f64>()],
        ) {
            let backoff = Backoff::exponential(base, max);
            let exact = backoff.clone().no_jitter().delay(attempt, random);
            prop_assert!(exact <= max && exact >= base.min(max));
            let additive = backoff.clone().additive_jitter(range).delay(attempt, random);
            prop_assert!(additive >= exact && additive <= exact.saturating_add(range));
            let equal = backoff.clone().equal_jitter().delay(attempt, random);
            prop_assert!(equal >= exact / 2 && equal <= exact);
            let scaled = backoff.scaled_jitter().delay(attempt, random);
            prop_assert!(scaled >= exact / 2 && scaled <= exact.saturating_add(exact / 2));
        }

        #[test]
        fn rt1_waits_never_shrink_and_double_until_the_longest(
            base in duration(), max in duration(), attempt in 1..200u32,
        ) {
            let backoff = Backoff::exponential(base, max).no_jitter();
            let (this, next) = (backoff.delay(attempt, 0.0), backoff.delay(attempt + 1, 0.0));
            prop_assert!(this <= next);
            prop_assert_eq!(next, this.saturating_mul(2).min(max));
        }
    }
}
