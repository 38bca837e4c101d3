//! Records where flag values came from: the command line, an environment variable or a file. A more explicit origin
//! takes precedence.

use std::collections::BTreeMap;

/// Origin of a value, in ascending order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Precedence {
    File,
    Alias,
    Variable,
    CommandLine,
}

/// Origin of each value of the current command, with the name of the environment variable if one set it, by argument
/// id.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlagOrigins(pub(crate) BTreeMap<String, (Precedence, String)>);

impl FlagOrigins {
    pub(crate) fn precedence(&self, id: &str) -> Option<Precedence> {
        self.0.get(id).map(|(strength, _)| *strength)
    }

    /// Returns the environment variable that set a value; `None` if it has another origin.
    pub(crate) fn variable(&self, id: &str) -> Option<&str> {
        self.0.get(id).map(|(_, variable)| variable.as_str())
    }

    /// Returns the environment variables whose values are in use.
    pub(crate) fn used_variables(&self) -> impl Iterator<Item = &str> {
        self.0
            .values()
            .filter(|(strength, _)| *strength != Precedence::CommandLine)
            .map(|(_, variable)| variable.as_str())
    }
}
