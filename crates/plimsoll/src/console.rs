//! Where text goes: results to stdout, everything else to stderr.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;

/// Writes a result. A reader that went away early (`| head`) is no error.
///
/// # Errors
/// When stdout can't be written.
pub(crate) fn result(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = write!(out, "{text}").and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::error(format_args!("can't write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

/// What is told while the live view has the terminal.
static HELD: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn lines() -> MutexGuard<'static, Option<Vec<String>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells a person something. There is nowhere to report that stderr is gone.
pub(crate) fn tell(text: impl fmt::Display) {
    // Outside of the lock: what is told may be that this panicked.
    let text = text.to_string();
    match lines().as_mut() {
        Some(held) => held.push(text),
        None => {
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }
}

/// From here on what is told is kept, because the terminal shows something else.
pub(crate) fn hold() {
    lines().get_or_insert_default();
}

/// What has been kept so far.
pub(crate) fn held() -> Vec<String> {
    lines().clone().unwrap_or_default()
}

/// Tells what was kept.
pub(crate) fn release() {
    let held = lines().take();
    for text in held.into_iter().flatten() {
        tell(text);
    }
}

/// Tells what is written to it: a log line a write.
pub(crate) struct Teller;

impl Write for Teller {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        tell(String::from_utf8_lossy(line).trim_end_matches('\n'));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
