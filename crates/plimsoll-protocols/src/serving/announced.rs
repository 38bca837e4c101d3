//! What servers say of themselves when they begin.

use std::sync::{Arc, Mutex, PoisonError};

/// What a server says of itself when it begins, besides where it listens: names and values. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Announced(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Announced {
    /// Adds a fact.
    pub(crate) fn say(&self, name: &'static str, value: impl Into<String>) {
        let mut facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        facts.push((name, value.into()));
    }

    /// Returns what there is to say, in order.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        facts.clone()
    }
}
