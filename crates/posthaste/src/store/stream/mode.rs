//! Modes: how a table's events are delivered, chosen when it is migrated and its own from then on.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// How a table's events are delivered. Producers need not know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Rows are leased one by one: any number of relays, no order.
    #[default]
    Queue,
    /// Lanes of aggregates are owned: the events of one aggregate arrive in the order of their commits.
    Stream(Lanes),
}

impl Mode {
    /// A stream with this many lanes: a power of two from 1 to 256.
    ///
    /// ```
    /// use posthaste::store::Mode;
    ///
    /// assert!(Mode::stream(8).is_ok());
    /// assert!(Mode::stream(12).is_err());
    /// ```
    pub fn stream(lanes: u16) -> Result<Self> {
        Lanes::new(lanes).map(Self::Stream)
    }

    /// Its name: `queue` or `stream`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Stream(_) => "stream",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue => f.write_str("queue"),
            Self::Stream(lanes) if lanes.count() == 1 => f.write_str("stream with 1 lane"),
            Self::Stream(lanes) => write!(f, "stream with {} lanes", lanes.count()),
        }
    }
}

/// Into how many lanes a stream is divided: a lane is read by one relay at a time, so that no more relays than
/// lanes work at once. A power of two from 1 to 256, fixed when the table is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lanes(u16);

impl Lanes {
    /// Most lanes of a stream.
    pub const MOST: u16 = 256;

    /// This many lanes.
    pub fn new(lanes: u16) -> Result<Self> {
        if lanes.is_power_of_two() && lanes <= Self::MOST {
            return Ok(Self(lanes));
        }
        let message = format!(
            "a stream cannot have {lanes} lanes: their number is a power of two up to {}",
            Self::MOST
        );
        Err(Error::new(ErrorKind::InvalidSetting, message))
    }

    /// How many.
    pub fn count(self) -> u16 {
        self.0
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sm1_lanes_are_a_power_of_two_up_to_256() {
        for lanes in [1, 2, 8, 256] {
            assert_eq!(Lanes::new(lanes).map(Lanes::count).ok(), Some(lanes));
        }
        for lanes in [0, 3, 12, 257, 512, u16::MAX] {
            let refused = Lanes::new(lanes).err().map(|error| error.kind().clone());
            assert_eq!(refused, Some(ErrorKind::InvalidSetting), "{lanes}");
        }
    }
}
