//! Whether an event's id was made just now for whoever writes it, so that no other can have it and the database need not look for one.
//!
//! Only an outbox makes such events, in the call that writes them ([`ToWrite`]), and it gives them to nobody: a copy has lost it, and
//! so has what hooks have seen. It is no part of what an event says.

#[derive(Debug, Default)]
pub(crate) struct Novelty(bool);

impl Novelty {
    /// Of an event whose id nobody but its owner has seen.
    pub(super) const NEW: Self = Self(true);

    pub(crate) fn is_new(&self) -> bool {
        self.0
    }
}

impl Clone for Novelty {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl PartialEq for Novelty {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Novelty {}

/// Who is shown this writes the event at once, and shows it to nobody before.
#[derive(Debug)]
pub struct ToWrite(pub(crate) ());
