//! Where text goes: results to stdout, everything else to stderr.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;
use crate::logging::json_line;

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

/// Whether what is told is a JSON object a line.
static IN_JSON: AtomicBool = AtomicBool::new(false);

/// From here on what is told is a JSON object a line.
pub(crate) fn in_json() {
    IN_JSON.store(true, Ordering::Relaxed);
}

/// Tells a person something. There is nowhere to report that stderr is gone.
pub(crate) fn tell(text: impl fmt::Display) {
    // Outside of the lock: what is told may be that this panicked.
    let text = text.to_string();
    line(match IN_JSON.load(Ordering::Relaxed) {
        true => json_line("INFO", &text),
        false => text,
    });
}

/// The same of a line that is as it is to be.
pub(crate) fn line(text: String) {
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
        line(text);
    }
}

/// Tells what is written to it: a log line a write.
pub(crate) struct Teller;

impl Write for Teller {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self::line(text.trim_end_matches('\n').to_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
