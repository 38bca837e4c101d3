//! Errors about lines that a tool's table can't read.

use super::LineTool;
use crate::interface::protocol_module::UsageError;

/// Why a line can't be read by a tool's table.
#[derive(Debug, PartialEq, Eq)]
pub enum LineError {
    /// A flag that the tool does not have.
    UnknownFlag(String),
    /// A flag whose value is missing or has the wrong form.
    InvalidValue(String),
}

impl LineError {
    /// Converts the error to a usage error about a line of `tool`; `ours` is Plimsoll's command.
    pub(crate) fn to_usage_error(&self, tool: &LineTool, ours: &str) -> UsageError {
        let name = tool.name();
        let help = format!("`plimsoll {ours} --help` lists our own flags");
        match self {
            LineError::UnknownFlag(flag) => {
                UsageError::new(format_args!("{name}: unknown flag `{flag}`"), &help)
            }
            LineError::InvalidValue(flag) => UsageError::new(
                format_args!("{name}: the value of `{flag}` is missing or invalid"),
                &help,
            ),
        }
    }
}
