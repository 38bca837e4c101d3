//! A value that is refreshed during a run: the output of a command.
//!
//! This crate runs no commands: the first value is set when the plan is resolved ([`CommandOutput::new`]), and the run sets
//! the following ones ([`CommandOutput::set`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

/// Maximum length of a value, in bytes.
pub const MAX_COMMAND_OUTPUT_BYTES: usize = 16 << 10;

/// The output of a command that is refreshed during the run.
#[derive(Debug)]
pub struct CommandOutput {
    /// The command that prints the value.
    pub command: String,
    /// The interval between two runs of the command; `None`: it is not run again.
    pub refresh: Option<Duration>,
    text: RwLock<String>,
    /// The number of values so far.
    generation: AtomicU64,
}

impl PartialEq for CommandOutput {
    /// Two values are equal if their commands and intervals are the same, whatever the last outputs are.
    fn eq(&self, other: &CommandOutput) -> bool {
        (&self.command, self.refresh) == (&other.command, other.refresh)
    }
}

impl Eq for CommandOutput {}

impl CommandOutput {
    /// Creates the value from the command's first output.
    ///
    /// # Errors
    /// Returns why `text` can't be the value of a header field or metadata entry.
    pub fn new(
        command: &str,
        refresh: Option<Duration>,
        text: &str,
    ) -> Result<CommandOutput, &'static str> {
        let value = CommandOutput {
            command: command.to_owned(),
            refresh,
            text: RwLock::default(),
            generation: AtomicU64::new(0),
        };
        value.set(text)?;
        Ok(value)
    }

    /// Sets the next value, which all following calls use.
    ///
    /// # Errors
    /// Returns the errors of [`CommandOutput::new`]; the value is then unchanged.
    pub fn set(&self, text: &str) -> Result<(), &'static str> {
        if text.is_empty() {
            return Err("it printed nothing");
        }
        if text.len() > MAX_COMMAND_OUTPUT_BYTES {
            return Err("it printed more than 16 KiB");
        }
        let is_ascii = text.bytes().all(|b| (0x20..=0x7e).contains(&b));
        if !is_ascii || text.trim() != text {
            return Err("what it printed is not one line of printable ASCII");
        }
        let mut value = self.text.write().unwrap_or_else(PoisonError::into_inner);
        if *value != text {
            text.clone_into(&mut value);
            self.generation.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Returns a number that changes whenever the value may have changed.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Appends the value.
    pub fn write(&self, out: &mut Vec<u8>) {
        let value = self.text.read().unwrap_or_else(PoisonError::into_inner);
        out.extend_from_slice(value.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_value_is_last_valid_update() {
        let value = CommandOutput::new("token", None, "first").unwrap();
        let text = || {
            let mut out = Vec::new();
            value.write(&mut out);
            String::from_utf8(out).unwrap()
        };
        for wrong in [
            "",
            " x",
            "a\nb",
            "\u{e9}",
            &"x".repeat(MAX_COMMAND_OUTPUT_BYTES + 1),
        ] {
            assert!(value.set(wrong).is_err(), "{wrong:?}");
            assert!(CommandOutput::new("token", None, wrong).is_err());
        }
        assert_eq!(text(), "first");
        let generation = value.generation();
        value.set("first").unwrap();
        assert_eq!(value.generation(), generation);
        value.set("Bearer second").unwrap();
        assert_ne!(value.generation(), generation);
        assert_eq!(text(), "Bearer second");
    }
}
