//! Where text goes: results to stdout, everything else to stderr.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_model::{output, redaction};

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

/// Waits until what was written to stdout is kept, where that is a file: its file system may report only then that
/// there was no room.
///
/// # Errors
/// When it can't be kept.
pub(crate) fn settle() -> Result<(), Failure> {
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    // A process that can't have one more descriptor, or has no stdout, has printed nothing there.
    let Ok(stdout) = stdout.map(File::from) else {
        return Ok(());
    };
    let settled = output::settle(&stdout);
    settled.map_err(|e| Failure::error(format_args!("can't write to stdout: {e}")))
}

/// Lines that wait while the live view has the terminal.
static HELD_LINES: Mutex<Option<Vec<String>>> = Mutex::new(None);

fn lines() -> MutexGuard<'static, Option<Vec<String>>> {
    HELD_LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether each line is a JSON object.
static IN_JSON: AtomicBool = AtomicBool::new(false);

/// Makes each line a JSON object from here on.
pub(crate) fn in_json() {
    IN_JSON.store(true, Ordering::Relaxed);
}

/// Whether only results and errors are printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses confirmations from here on.
pub(crate) fn keep_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Reports that something asked for was done, unless only results and errors are wanted.
pub(crate) fn confirmation(text: impl fmt::Display) {
    if !QUIET.load(Ordering::Relaxed) {
        notice(text);
    }
}

/// Prints a line for people. There is nowhere to report that stderr is gone.
pub(crate) fn notice(text: impl fmt::Display) {
    // Outside of the lock: formatting may panic, and the report of that comes here, too.
    let text = text.to_string();
    line(if IN_JSON.load(Ordering::Relaxed) {
        json_line("INFO", &text)
    } else {
        text
    });
}

/// Reports why a command could not do its work.
pub(crate) fn failure(failure: &Failure) {
    let text = format!("{failure:?}");
    notice(format_args!("Error: {}", text.trim_start_matches('\n')));
}

/// A message as the other lines have it.
pub(crate) fn json_line(level: &str, text: &str) -> String {
    serde_json::json!({
        "timestamp": jiff::Timestamp::now().to_string(),
        "level": level,
        "fields": { "message": text },
    })
    .to_string()
}

/// Prints a line, but for what is secret in its URLs.
pub(crate) fn line(text: String) {
    let text = redaction::masked(&text).into_owned();
    match lines().as_mut() {
        Some(held) => held.push(text),
        None => {
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }
}

/// From here on lines are kept, because the terminal shows something else.
pub(crate) fn keep_lines() {
    lines().get_or_insert_default();
}

/// What has been kept so far.
pub(crate) fn held() -> Vec<String> {
    lines().clone().unwrap_or_default()
}

/// Prints what was kept.
pub(crate) fn release() {
    let held = lines().take();
    for text in held.into_iter().flatten() {
        line(text);
    }
}

/// Prints what is written to it: a log line a write.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self::line(text.trim_end_matches('\n').to_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
