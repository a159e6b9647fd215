//! Breaks everything around posthaste, writes down what happened, and checks it: a run's [`history`] is all that the
//! checker knows.
#![allow(missing_docs, reason = "an unpublished crate: names and the modules' first lines say it")]

pub mod audit;
pub mod checker;
pub mod crash;
pub mod history;
pub mod ledger;
pub mod plan;
