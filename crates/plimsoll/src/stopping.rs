//! Handles signals. The first SIGINT or SIGTERM requests a graceful stop, the second an immediate one, the third
//! exits. SIGHUP reloads files. SIGXFSZ is caught, so that the write fails instead. For a process that another one
//! started, the end of its standard input is a stop request as well.

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

/// How a process is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownMode {
    Graceful,
    Immediate,
}

/// Variable of a process whose standard input is a pipe from its parent.
pub(crate) const END_WITH_INPUT: &str = "PLIMSOLL_END_WITH_INPUT";

/// Makes a child stop when this process ends, even by SIGKILL, because that closes the child's standard input. The
/// input has to stay open until then.
pub(crate) fn stop_with_parent(child: &mut Command) -> &mut Command {
    child.env(END_WITH_INPUT, "true").stdin(Stdio::piped())
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail with an error instead of killing the process by SIGXFSZ.
/// Child programs start with the default action again.
pub(crate) fn survive_file_size_limit() {
    // Without a handler, the signal keeps its default action.
    if let Err(e) = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))) {
        tracing::debug!("can't handle SIGXFSZ: {e}");
    }
}

/// Calls `renew` for every SIGHUP, on a separate thread.
///
/// # Errors
/// When the system refuses the handler.
pub(crate) fn on_hangup(mut renew: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    let failed = |e| Failure::error(format_args!("can't listen for signals: {e}"));
    let mut signals = Signals::new([SIGHUP]).map_err(failed)?;
    threads::start("hangups", move || signals.forever().for_each(|_| renew())).map(drop)
}

fn deliver(wished: &Mutex<impl FnMut(ShutdownMode)>, wish: ShutdownMode) {
    let mut wished = wished.lock().unwrap_or_else(PoisonError::into_inner);
    wished(wish);
}

/// Calls `wished` for the first two signals, on a separate thread. If the process stops with its input, the end of
/// the input counts as a first signal.
///
/// # Errors
/// When the system refuses the handlers.
pub(crate) fn on_signal(wished: impl FnMut(ShutdownMode) + Send + 'static) -> Result<(), Failure> {
    on_signal_reported(STOPPING_NOTICE, wished)
}

/// Message printed at the first signal.
pub(crate) const STOPPING_NOTICE: &str =
    "stopping: waiting for calls in flight (once more: stop at once)";

/// Future that completes when a server is to stop.
pub(crate) type StopFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs `serve` on `workers` threads until a signal, at which `report` is printed; a second signal ends the process.
///
/// # Errors
/// Those of `serve`, and when handlers or threads can't be created.
pub(crate) fn until_stopped<T>(
    workers: Option<usize>,
    report: &'static str,
    serve: impl AsyncFnOnce(StopFuture) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut sender = Some(sender);
    on_signal_reported(report, move |wish| {
        let stopped = sender.take().is_some_and(|sender| sender.send(()).is_ok());
        if wish == ShutdownMode::Immediate || !stopped {
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
    })?;
    let stopped = Box::pin(async {
        let _ = receiver.await;
    });
    defects::end_with_runtime();
    let runtime = runtime(workers).map_err(Failure::error)?;
    let served = runtime.block_on(serve(stopped));
    // Blocking work on other threads, such as rendering a page, can't be cancelled, so wait for a limited time.
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    served
}

/// Like [`on_signal`], printing `report`, if it is not empty, at the first signal.
///
/// # Errors
/// Those of [`on_signal`].
pub(crate) fn on_signal_reported(
    report: &'static str,
    mut wished: impl FnMut(ShutdownMode) + Send + 'static,
) -> Result<(), Failure> {
    let failed = |e| Failure::error(format_args!("can't listen for signals: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let mut asked = false;
    let wished = Arc::new(Mutex::new(move |wish| {
        if wish == ShutdownMode::Immediate || !std::mem::replace(&mut asked, true) {
            wished(wish);
        }
    }));
    if std::env::var_os(END_WITH_INPUT).as_deref() == Some(OsStr::new("true")) {
        let wished = Arc::clone(&wished);
        threads::start("input", move || {
            // A read error counts as the end of the input.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            deliver(&wished, ShutdownMode::Graceful);
        })?;
    }
    threads::start("signals", move || {
        for (count, _) in signals.forever().enumerate() {
            match count {
                0 => {
                    if !report.is_empty() {
                        console::notice(report);
                    }
                    deliver(&wished, ShutdownMode::Graceful);
                }
                1 => deliver(&wished, ShutdownMode::Immediate),
                _ => {
                    live::restore();
                    std::process::exit(i32::from(Exit::Interrupted.code()));
                }
            }
        }
    })
    .map(drop)
}
