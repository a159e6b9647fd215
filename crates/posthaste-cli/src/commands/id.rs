//! The id on a command line: whole, or so much of its beginning that only one event has it.
//!
//! Ids are ordered by their bytes, so those that begin alike are a range, which the table's key finds.

use posthaste::Admin;
use posthaste::event::parse_id;
use posthaste::store::{Filter, Page};
use uuid::Uuid;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::Target;

/// Digits that a beginning has at least.
const LEAST: usize = 8;

/// Digits of a whole one.
const WHOLE: usize = 32;

/// Most that are named where several fit.
const NAMED: u32 = 3;

/// What was written, checked before the database is touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Id {
    Whole(Uuid),
    /// The lowest and the highest that begin so.
    Beginning(String, Uuid, Uuid),
}

impl Id {
    /// Reads it.
    pub(super) fn read(text: &str) -> Result<Self, Failure> {
        let error = match parse_id(text) {
            Ok(id) => return Ok(Self::Whole(id)),
            Err(error) => error,
        };
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let is_part = digits.len() < WHOLE && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let (Some(low), Some(high)) = (filled(&digits, '0'), filled(&digits, 'f')) else {
            return Err(error.into());
        };
        match is_part && digits.len() >= LEAST {
            true => Ok(Self::Beginning(text.to_owned(), low, high)),
            false if is_part => Err(Failure::new(
                Exit::BadInput,
                format!(
                    "{text:?} is neither a UUID nor a ULID; give it whole, or at least its first {LEAST} characters"
                ),
            )),
            false => Err(error.into()),
        }
    }

    /// The one event that is meant among those that fit, or else among all: what it is not is said by who looks at it.
    pub(super) async fn resolve(
        &self,
        target: &Target,
        admin: &Admin,
        among: &Filter,
    ) -> Result<Uuid, Failure> {
        let (text, low, high) = match self {
            Self::Whole(id) => return Ok(*id),
            Self::Beginning(text, low, high) => (text, *low, *high),
        };
        let mut found = range(admin, among, low, high).await?;
        if found.is_empty() && *among != Filter::all() {
            found = range(admin, &Filter::all(), low, high).await?;
        }
        let table = target.table();
        let message = match found[..] {
            [only] => return Ok(only),
            [] => format!(
                "table {table} has no event whose id begins with {text}; list them with `posthaste events list`"
            ),
            _ => {
                let mut names: Vec<String> = found.iter().take(NAMED as usize).map(Uuid::to_string).collect();
                if found.len() > NAMED as usize {
                    names.push("…".to_owned());
                }
                let names = names.join(", ");
                format!(
                    "several events of table {table} have an id that begins with {text}: {names}; give more of it"
                )
            }
        };
        Err(Failure::new(Exit::Failed, message))
    }
}

/// The first ids from `low` to `high`.
async fn range(admin: &Admin, among: &Filter, low: Uuid, high: Uuid) -> Result<Vec<Uuid>, Failure> {
    let page = Page::first(NAMED + 1);
    let page = match low.as_u128().checked_sub(1) {
        Some(before) => page.behind(Uuid::from_u128(before)),
        None => page,
    };
    let records = admin.list(among, page).await?;
    Ok(records.into_iter().map(|record| record.id).filter(|id| *id <= high).collect())
}

/// A whole id of these digits, the others being this one.
fn filled(digits: &str, with: char) -> Option<Uuid> {
    let missing = WHOLE.checked_sub(digits.len())?;
    let digits: String = digits.chars().chain(std::iter::repeat_n(with, missing)).collect();
    Uuid::try_parse(&digits).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op1_a_beginning_of_an_id_is_a_range() {
        let range = match Id::read("0190a6b0-00") {
            Ok(Id::Beginning(_, low, high)) => [low, high].map(|id| id.to_string()),
            _ => Default::default(),
        };
        assert_eq!(range, ["0190a6b0-0000-0000-0000-000000000000", "0190a6b0-00ff-ffff-ffff-ffffffffffff"]);
        assert!(matches!(Id::read("01ARZ3NDEKTSV4RRFFQ69G5FAV"), Ok(Id::Whole(_))));
        assert!(matches!(Id::read("0190A6B0"), Ok(Id::Beginning(..))));
        for text in ["", "7", "0190a6b", "order/42", "0190a6b0-zzzz", "0190a6b0 0000"] {
            assert!(Id::read(text).is_err(), "{text:?}");
        }
    }
}
