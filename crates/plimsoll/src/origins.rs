//! Where the values that were typed came from: what was asked for more directly wins.

use std::collections::BTreeMap;

/// How much a value means, the strongest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Strength {
    File,
    Alias,
    Variable,
    CommandLine,
}

/// Where the values of the chosen command came from, by argument id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(pub(crate) BTreeMap<String, (Strength, String)>);

impl Origins {
    pub(crate) fn strength(&self, id: &str) -> Option<Strength> {
        self.0.get(id).map(|(strength, _)| *strength)
    }

    /// The variable that a value came from.
    pub(crate) fn variable(&self, id: &str) -> Option<&str> {
        self.0.get(id).map(|(_, variable)| variable.as_str())
    }

    /// The variables that took effect, for a person to see.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0
            .values()
            .filter(|(strength, _)| *strength != Strength::CommandLine)
            .map(|(_, variable)| variable.as_str())
    }
}
