//! The command line before a command runs: parsing, help, suggestions, and the command lines of other tools.

pub(crate) mod arguments;
pub(crate) mod bare_words;
pub(crate) mod foreign_commands;
pub(crate) mod foreign_lines;
pub(crate) mod foreign_plans;
pub(crate) mod foreign_words;
pub(crate) mod guide;
pub(crate) mod help;
pub(crate) mod httpie;
pub(crate) mod misread_flags;
pub(crate) mod piped_report;
pub(crate) mod possible_translations;
pub(crate) mod quoting;
pub(crate) mod single_dash;
pub(crate) mod synonyms;
pub(crate) mod variables;
