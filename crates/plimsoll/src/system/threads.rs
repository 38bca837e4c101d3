//! Starts threads with names, which `top -H` and debuggers show.

use std::thread::{Builder, JoinHandle};

use crate::failure::Failure;

/// Starts a thread with a name.
///
/// # Errors
/// When the thread can't be started.
pub(crate) fn start(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Failure> {
    let started = Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|e| Failure::error(format_args!("can't start the thread `{name}`: {e}")))
}
