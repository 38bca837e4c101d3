//! SIGINT and SIGTERM: the first asks for a graceful stop, the second for one at once,
//! the third leaves the process. SIGHUP: files are to be read again.

use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::console;
use crate::failure::{Exit, Failure};
use crate::live;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Gracefully,
    AtOnce,
}

/// Calls `renew` for every SIGHUP, from a thread of its own.
///
/// # Errors
/// When the system refuses the handler.
pub(crate) fn on_hangup(mut renew: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    let failed = |e| Failure::error(format_args!("can't listen for signals: {e}"));
    let mut signals = Signals::new([SIGHUP]).map_err(failed)?;
    thread::Builder::new()
        .name("hangups".into())
        .spawn(move || signals.forever().for_each(|_| renew()))
        .map_err(failed)?;
    Ok(())
}

/// Calls `wished` for the first two signals, from a thread of its own.
///
/// # Errors
/// When the system refuses the handlers.
pub(crate) fn on_signal(mut wished: impl FnMut(Wish) + Send + 'static) -> Result<(), Failure> {
    let failed = |e| Failure::error(format_args!("can't listen for signals: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for (count, _) in signals.forever().enumerate() {
                match count {
                    0 => {
                        console::notice("stopping: calls in flight may end (once more: at once)");
                        wished(Wish::Gracefully);
                    }
                    1 => wished(Wish::AtOnce),
                    _ => {
                        live::restore();
                        std::process::exit(i32::from(Exit::Interrupted.code()));
                    }
                }
            }
        })
        .map_err(failed)?;
    Ok(())
}
