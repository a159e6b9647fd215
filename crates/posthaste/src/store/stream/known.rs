//! The mode of a table, once it is known: what operators do asks for it every time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::{Lanes, Mode};

/// Stands for a queue, which has no lanes; 0 stands for not knowing.
const QUEUE: u16 = u16::MAX;

/// What was last found out about a table's mode; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownMode(Arc<AtomicU16>);

impl KnownMode {
    pub(crate) fn get(&self) -> Option<Mode> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            QUEUE => Some(Mode::Queue),
            lanes => Lanes::new(lanes).ok().map(Mode::Stream),
        }
    }

    pub(crate) fn set(&self, mode: Mode) {
        let stored = match mode {
            Mode::Queue => QUEUE,
            Mode::Stream(lanes) => lanes.count(),
        };
        self.0.store(stored, Ordering::Relaxed);
    }

    /// The table may have been made anew.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sm1_a_known_mode_is_remembered_until_it_is_forgotten() -> crate::Result<()> {
        let known = KnownMode::default();
        assert_eq!(known.get(), None);
        for mode in [Mode::Queue, Mode::stream(1)?, Mode::stream(256)?] {
            known.clone().set(mode);
            assert_eq!(known.get(), Some(mode));
        }
        known.forget();
        assert_eq!(known.get(), None);
        Ok(())
    }
}
