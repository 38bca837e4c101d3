//! A value that is made anew while a run goes on: what a command prints.
//!
//! The model runs nothing: who makes the plan gives the first value ([`LiveValue::new`]), and who runs
//! it the next ones ([`LiveValue::set`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

/// The longest value. Bytes.
pub const MAX_LIVE: usize = 16 << 10;

/// See the module's text.
#[derive(Debug)]
pub struct LiveValue {
    /// Prints the value.
    pub command: String,
    /// How often it is run again; `None`: never.
    pub refresh: Option<Duration>,
    text: RwLock<String>,
    /// Values that it has had.
    generation: AtomicU64,
}

impl PartialEq for LiveValue {
    /// The same command, whatever it printed last.
    fn eq(&self, other: &LiveValue) -> bool {
        (&self.command, self.refresh) == (&other.command, other.refresh)
    }
}

impl Eq for LiveValue {}

impl LiveValue {
    /// # Errors
    /// Why `text` can't be the value of a header field or metadata entry.
    pub fn new(
        command: &str,
        refresh: Option<Duration>,
        text: &str,
    ) -> Result<LiveValue, &'static str> {
        let value = LiveValue {
            command: command.to_owned(),
            refresh,
            text: RwLock::default(),
            generation: AtomicU64::new(0),
        };
        value.set(text)?;
        Ok(value)
    }

    /// The next value: every call that begins from now on has it.
    ///
    /// # Errors
    /// As [`LiveValue::new`]; the value stays as it was.
    pub fn set(&self, text: &str) -> Result<(), &'static str> {
        if text.is_empty() {
            return Err("it printed nothing");
        }
        if text.len() > MAX_LIVE {
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

    /// Another number than before where the value may be another.
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
        let value = LiveValue::new("token", None, "first").unwrap();
        let text = || {
            let mut out = Vec::new();
            value.write(&mut out);
            String::from_utf8(out).unwrap()
        };
        for wrong in ["", " x", "a\nb", "\u{e9}", &"x".repeat(MAX_LIVE + 1)] {
            assert!(value.set(wrong).is_err(), "{wrong:?}");
            assert!(LiveValue::new("token", None, wrong).is_err());
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
