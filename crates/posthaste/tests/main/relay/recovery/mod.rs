//! Recovery: the database gone and back, relays that die, and one that takes over from another.

mod active;
mod cut;
mod orphans;
mod outage;
