//! Trying again where the database ended a statement in favour of another.
//!
//! Claims, extensions and settlements are whole in themselves and fenced, so that a deadlock or a
//! serialisation failure (a database whose default is REPEATABLE READ has those) is no reason to bother the
//! caller at once.

use crate::error::{Error, ErrorKind, Result};

/// How often; a conflict that persists is the caller's to know of.
const MOST: u32 = 5;

/// Counts the tries of one call.
#[derive(Debug, Default)]
pub(crate) struct Tries(u32);

impl Tries {
    /// Whether to try again after this error.
    pub(crate) fn again(&mut self, error: &Error) -> bool {
        self.0 += 1;
        *error.kind() == ErrorKind::Conflict && self.0 < MOST
    }
}

/// Calls until it succeeds or another call would not help.
pub(crate) async fn insist<A, F>(mut call: impl FnMut() -> F) -> Result<A>
where
    F: Future<Output = Result<A>>,
{
    let mut tries = Tries::default();
    loop {
        match call().await {
            Err(error) if tries.again(&error) => {}
            answer => return answer,
        }
    }
}
