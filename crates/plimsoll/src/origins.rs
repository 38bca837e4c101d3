//! Records where flag values came from; a more explicit origin takes precedence.

use std::collections::BTreeMap;

/// Precedence of an origin, the highest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Precedence {
    File,
    Alias,
    Variable,
    CommandLine,
}

/// Origins of the current command's values, by argument id.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlagOrigins(pub(crate) BTreeMap<String, (Precedence, String)>);

impl FlagOrigins {
    pub(crate) fn strength(&self, id: &str) -> Option<Precedence> {
        self.0.get(id).map(|(strength, _)| *strength)
    }

    /// Returns the variable that set a value.
    pub(crate) fn variable(&self, id: &str) -> Option<&str> {
        self.0.get(id).map(|(_, variable)| variable.as_str())
    }

    /// Returns the variables that took effect.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0
            .values()
            .filter(|(strength, _)| *strength != Precedence::CommandLine)
            .map(|(_, variable)| variable.as_str())
    }
}
