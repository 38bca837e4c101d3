//! Prints results to stdout and everything else to stderr.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_model::{formats::output, formats::redaction};

use crate::failure::Failure;

/// Writes a result. A closed pipe (`| head`) is not an error.
///
/// # Errors
/// When stdout can't be written.
pub(crate) fn print_result(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = write!(out, "{text}").and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::error(format_args!("can't write to stdout: {e}")))
        }
        _ => Ok(()),
    }
}

/// Syncs stdout if it is a file, since some file systems report a full disk only then.
///
/// # Errors
/// When the data can't be stored.
pub(crate) fn sync_stdout() -> Result<(), Failure> {
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    // If stdout is closed, or no file descriptor is free to duplicate it, there is nothing to sync.
    let Ok(stdout) = stdout.map(File::from) else {
        return Ok(());
    };
    let settled = output::sync(&stdout);
    settled.map_err(|e| Failure::error(format_args!("can't write to stdout: {e}")))
}

/// Lines held back while the live view occupies the terminal; `None` while lines are printed immediately.
static HELD_LINES: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn lock_held_lines() -> MutexGuard<'static, Option<Vec<String>>> {
    HELD_LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether each line is printed as a JSON object.
static PRINTS_JSON: AtomicBool = AtomicBool::new(false);

/// Makes every later line a JSON object.
pub(crate) fn print_lines_as_json() {
    PRINTS_JSON.store(true, Ordering::Relaxed);
}

/// Whether only results and errors are printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses all following confirmations.
pub(crate) fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Reports that a requested action was done, unless `--quiet` is set.
pub(crate) fn print_confirmation(text: impl fmt::Display) {
    if !QUIET.load(Ordering::Relaxed) {
        print_notice(text);
    }
}

/// Prints a line to stderr. Write errors are ignored, since there is nowhere to report them.
pub(crate) fn print_notice(text: impl fmt::Display) {
    // Format before locking `HELD_LINES`: formatting may panic, and the panic hook takes the same lock.
    let text = text.to_string();
    print_line(if PRINTS_JSON.load(Ordering::Relaxed) {
        json_line("INFO", &text)
    } else {
        text
    });
}

/// Reports why a command failed.
pub(crate) fn print_failure(failure: &Failure) {
    let text = format!("{failure:?}");
    print_notice(format_args!("Error: {}", text.trim_start_matches('\n')));
}

/// Formats a message as a JSON object with the same keys as log lines.
pub(crate) fn json_line(level: &str, text: &str) -> String {
    serde_json::json!({
        "timestamp": jiff::Timestamp::now().to_string(),
        "level": level,
        "fields": { "message": text },
    })
    .to_string()
}

/// Prints a line to stderr with secrets in URLs masked.
pub(crate) fn print_line(text: String) {
    let text = redaction::mask_urls(&text).into_owned();
    match lock_held_lines().as_mut() {
        Some(held) => held.push(text),
        None => {
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }
}

/// Holds back all later lines, because the live view occupies the terminal.
pub(crate) fn defer_lines() {
    lock_held_lines().get_or_insert_default();
}

/// Returns the lines held back so far.
pub(crate) fn held_lines() -> Vec<String> {
    lock_held_lines().clone().unwrap_or_default()
}

/// Prints the lines held back, and stops holding lines back.
pub(crate) fn release_lines() {
    let held = lock_held_lines().take();
    for text in held.into_iter().flatten() {
        print_line(text);
    }
}

/// Writer for log output. Each call of `write` must pass one whole line.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self::print_line(text.trim_end_matches('\n').to_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
