//! Facts that a server prints when it starts.

use std::sync::{Arc, Mutex, PoisonError};

/// Name-value pairs that a server prints with its addresses when it starts. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct StartupFacts(Arc<Mutex<Vec<(&'static str, String)>>>);

impl StartupFacts {
    /// Adds a fact.
    pub fn add(&self, name: &'static str, value: impl Into<String>) {
        let mut facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        facts.push((name, value.into()));
    }

    /// Returns all facts, in the order in which they were added.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        facts.clone()
    }
}
