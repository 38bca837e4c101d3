//! SIGINT and SIGTERM: the first asks for a graceful stop, the second for one at once,
//! the third leaves the process. SIGHUP: files are to be read again. SIGXFSZ: nothing, the write fails. And the end of
//! the standard input, for a process that another one has started.

use std::ffi::OsStr;
use std::io;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_protocols::serving::pages::SHUTDOWN_GRACE;
use plimsoll_protocols::serving::runtime;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::console;
use crate::defects;
use crate::failure::{Exit, Failure};
use crate::live;
use crate::threads;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Gracefully,
    AtOnce,
}

/// Set for a process whose standard input is a pipe from the one that started it.
pub(crate) const END_WITH_INPUT: &str = "PLIMSOLL_END_WITH_INPUT";

/// Makes a child stop when this process ends, even by SIGKILL: its standard input, which has to stay
/// open until then, ends with us.
pub(crate) fn end_with_us(child: &mut Command) -> &mut Command {
    child.env(END_WITH_INPUT, "true").stdin(Stdio::piped())
}

/// Lets a write beyond the limit of file sizes (`ulimit -f`) fail with an error, where the signal would end the process
/// without a word. Programs that this one starts have the signal's default again.
pub(crate) fn survive_file_size_limit() {
    // Where the system refuses the handler, the signal does what it does by default.
    if let Err(e) = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))) {
        tracing::debug!("can't handle SIGXFSZ: {e}");
    }
}

/// Calls `renew` for every SIGHUP, from a thread of its own.
///
/// # Errors
/// When the system refuses the handler.
pub(crate) fn on_hangup(mut renew: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    let failed = |e| Failure::error(format_args!("can't listen for signals: {e}"));
    let mut signals = Signals::new([SIGHUP]).map_err(failed)?;
    threads::start("hangups", move || signals.forever().for_each(|_| renew())).map(drop)
}

fn make(wished: &Mutex<impl FnMut(Wish)>, wish: Wish) {
    let mut wished = wished.lock().unwrap_or_else(PoisonError::into_inner);
    wished(wish);
}

/// Calls `wished` for the first two signals, from a thread of its own. Where the process ends with
/// its input, the input's end is a first wish, too, if it was not made before.
///
/// # Errors
/// When the system refuses the handlers.
pub(crate) fn on_signal(wished: impl FnMut(Wish) + Send + 'static) -> Result<(), Failure> {
    on_signal_reported(CALLS_MAY_END, wished)
}

/// What the first signal is answered with.
pub(crate) const CALLS_MAY_END: &str = "stopping: calls in flight may end (once more: at once)";

/// Completes when a server is to stop.
pub(crate) type Stopped = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs `serve` on `workers` threads until a signal, which is answered with `report`; a second one ends the
/// process.
///
/// # Errors
/// Those of `serve`, and when the system refuses handlers or threads.
pub(crate) fn until_stopped<T>(
    workers: Option<usize>,
    report: &'static str,
    serve: impl AsyncFnOnce(Stopped) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut sender = Some(sender);
    on_signal_reported(report, move |wish| {
        let stopped = sender.take().is_some_and(|sender| sender.send(()).is_ok());
        if wish == Wish::AtOnce || !stopped {
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
    })?;
    let stopped = Box::pin(async {
        let _ = receiver.await;
    });
    defects::end_with_runtime();
    let runtime = runtime(workers).map_err(Failure::error)?;
    let served = runtime.block_on(serve(stopped));
    // Work on other threads, such as a page in the making, can't be interrupted.
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    served
}

/// The same; the first signal is answered with `report`, where that says something.
///
/// # Errors
/// As [`on_signal`].
pub(crate) fn on_signal_reported(
    report: &'static str,
    mut wished: impl FnMut(Wish) + Send + 'static,
) -> Result<(), Failure> {
    let failed = |e| Failure::error(format_args!("can't listen for signals: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let mut asked = false;
    let wished = Arc::new(Mutex::new(move |wish| {
        if wish == Wish::AtOnce || !std::mem::replace(&mut asked, true) {
            wished(wish);
        }
    }));
    if std::env::var_os(END_WITH_INPUT).as_deref() == Some(OsStr::new("true")) {
        let wished = Arc::clone(&wished);
        threads::start("input", move || {
            // An input that can't be read has ended.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            make(&wished, Wish::Gracefully);
        })?;
    }
    threads::start("signals", move || {
        for (count, _) in signals.forever().enumerate() {
            match count {
                0 => {
                    if !report.is_empty() {
                        console::notice(report);
                    }
                    make(&wished, Wish::Gracefully);
                }
                1 => make(&wished, Wish::AtOnce),
                _ => {
                    live::restore();
                    std::process::exit(i32::from(Exit::Interrupted.code()));
                }
            }
        }
    })
    .map(drop)
}
