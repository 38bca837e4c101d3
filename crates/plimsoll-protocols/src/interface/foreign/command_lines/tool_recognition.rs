//! Decides which tool a line without a tool's name belongs to.

use super::{FlagStyle, LineTool};

/// Long flags that Plimsoll and other tools have. A line that contains one of them and no tool's name is taken as a
/// Plimsoll line.
const SHARED_LONG_FLAGS: [&str; 6] = [
    "clients",
    "calls",
    "rate",
    "connections",
    "duration",
    "header",
];

/// Long flags of other tools that no Plimsoll command has. A line that contains one of them may belong to another tool,
/// whatever [`SHARED_LONG_FLAGS`] it contains.
const FOREIGN_LONG_FLAGS: [&str; 5] = ["vus", "iterations", "stage", "call", "num-prompts"];

impl LineTool {
    /// Returns whether the tool has all flags of a line, and accepts their values.
    pub fn accepts_line(&self, words: &[String]) -> bool {
        self.parse(words).is_ok()
    }

    /// Returns whether the tool has a flag of this name, without dashes.
    pub fn has_flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag.names.contains(&name))
    }

    /// Returns whether a line contains one of this tool's flags of several letters, written with one dash.
    pub fn has_long_flag_with_one_dash(&self, words: &[String]) -> bool {
        self.style == FlagStyle::Go
            && words.iter().any(|word| {
                let name = word.strip_prefix('-').unwrap_or_default();
                let name = name.split('=').next().unwrap_or_default();
                name.len() > 2 && self.has_flag(name)
            })
    }

    /// Returns whether a line without a tool's name belongs to this tool.
    pub fn recognises_line(&self, words: &[String]) -> bool {
        let Ok(line) = self.parse(words) else {
            return false;
        };
        let long = |name: &&str| {
            let mut longs = words.iter().filter_map(|word| word.strip_prefix("--"));
            longs.any(|long| long.split('=').next() == Some(name))
        };
        if SHARED_LONG_FLAGS.iter().any(long) && !FOREIGN_LONG_FLAGS.iter().any(long) {
            return false;
        }
        let has = |name: &&str| line.typed_flags.iter().any(|(known, _)| known == name);
        self.marker_flags.iter().any(|set| set.iter().all(has))
    }
}
