//! Starts threads with names, which `top -H` and debuggers show.

use std::thread::{Builder, JoinHandle};

use crate::failure::Failure;

/// Starts a thread with a name.
///
/// # Errors
/// When the thread can't be started.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    let started = Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|e| Failure::error(format_args!("can't start the thread `{name}`: {e}")))
}
