//! Breaks everything around posthaste, writes down what happened, and checks it: a run's [`history`] is all that the
//! checker knows.
//!
//! A [`plan`] says what a run is, and with a seed everything that chance decides. [`run`] starts a [`cluster`] of real
//! servers and processes, lets the [`nemesis`] loose on it while each [`producer`] writes, and collects what the
//! [`recorder`], the [`subscriber`] and the database have seen. The [`checker`] says which promises were broken, the
//! [`coverage`] whether there was anything to break them, the [`report`] how much of what happened.
#![allow(missing_docs, reason = "an unpublished crate: names and the modules' first lines say it")]

pub mod audit;
pub mod checker;
pub mod cluster;
pub mod coverage;
pub mod crash;
pub mod history;
pub mod ledger;
pub mod nemesis;
pub mod plan;
pub mod producer;
pub mod program;
pub mod proxy;
pub mod recorder;
pub mod report;
pub mod run;
pub mod subscriber;
