//! Where text goes: results to stdout, everything else to stderr.

use std::fmt;
use std::io::{self, Write};

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

/// Tells a person something. There is nowhere to report that stderr is gone.
pub(crate) fn tell(text: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
