//! In the making.

use std::fmt;

use crate::history::{History, Micros};

#[derive(Debug, Clone)]
pub struct Rules {
    pub max_attempts: i64,
    pub lease: Micros,
    pub slack: Micros,
    pub streams: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub fn check(_history: &History, _rules: &Rules) -> Vec<Violation> {
    Vec::new()
}
