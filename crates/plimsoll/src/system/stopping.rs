//! Handles signals. The first SIGINT or SIGTERM requests a graceful stop, the second an immediate stop, and the third
//! exits. SIGHUP reloads files. SIGXFSZ is caught, so that a write beyond the file size limit fails with an error
//! instead of killing the process. In child processes of this program, the end of standard input is a stop request,
//! too.

use std::ffi::OsStr;
use std::io;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_serving::build_runtime;
use plimsoll_serving::pages::SHUTDOWN_GRACE;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::failure::{Exit, Failure};
use crate::screen::console;
use crate::screen::defects;
use crate::screen::live;
use crate::system::threads;

/// The way in which a process must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownMode {
    Graceful,
    Immediate,
}

/// Environment variable that makes a process stop when its standard input, a pipe from its parent, ends.
pub(crate) const STOP_AT_INPUT_END_VARIABLE: &str = "PLIMSOLL_END_WITH_INPUT";

/// Makes a child stop when this process ends, even by SIGKILL, which closes the child's standard input. The caller must
/// keep the input open until the child may stop.
pub(crate) fn stop_with_parent(child: &mut Command) -> &mut Command {
    child
        .env(STOP_AT_INPUT_END_VARIABLE, "true")
        .stdin(Stdio::piped())
}

/// Makes writes beyond the file size limit (`ulimit -f`) fail with an error, instead of SIGXFSZ killing the process.
/// Child programs start with the default action of the signal.
pub(crate) fn ignore_file_size_signal() {
    // If the handler can't be installed, the signal keeps its default action.
    if let Err(e) = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))) {
        tracing::debug!("can't handle SIGXFSZ: {e}");
    }
}

/// Calls `renew` for every SIGHUP, on a separate thread.
///
/// # Errors
/// When the handler can't be installed.
pub(crate) fn on_hangup(mut renew: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    let failed = |e| Failure::error(format_args!("can't listen for signals: {e}"));
    let mut signals = Signals::new([SIGHUP]).map_err(failed)?;
    threads::start("hangups", move || signals.forever().for_each(|_| renew())).map(drop)
}

fn call_handler(wished: &Mutex<impl FnMut(ShutdownMode)>, wish: ShutdownMode) {
    let mut wished = wished.lock().unwrap_or_else(PoisonError::into_inner);
    wished(wish);
}

/// Calls `wished` on a separate thread for the first two signals. If [`STOP_AT_INPUT_END_VARIABLE`] is set, the end of
/// standard input counts as the first signal.
///
/// # Errors
/// When the handlers can't be installed.
pub(crate) fn on_signal(wished: impl FnMut(ShutdownMode) + Send + 'static) -> Result<(), Failure> {
    on_signal_with_notice(STOPPING_NOTICE, wished)
}

/// Message printed at the first signal.
pub(crate) const STOPPING_NOTICE: &str =
    "stopping: waiting for calls in flight (once more: stop at once)";

/// Future that completes when a server must stop.
pub(crate) type StopFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs `serve` on `workers` threads until it returns. At the first signal, `report` is printed, and the future that
/// was passed to `serve` completes; the second signal ends the process.
///
/// # Errors
/// When `serve` fails, or handlers or threads can't be created.
pub(crate) fn run_until_stopped<T>(
    workers: Option<usize>,
    report: &'static str,
    serve: impl AsyncFnOnce(StopFuture) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut sender = Some(sender);
    on_signal_with_notice(report, move |wish| {
        let stopped = sender.take().is_some_and(|sender| sender.send(()).is_ok());
        if wish == ShutdownMode::Immediate || !stopped {
            std::process::exit(i32::from(Exit::Interrupted.code()));
        }
    })?;
    let stopped = Box::pin(async {
        let _ = receiver.await;
    });
    defects::exit_if_runtime_fails();
    let runtime = build_runtime(workers).map_err(Failure::error)?;
    let served = runtime.block_on(serve(stopped));
    // Wait only for a limited time, because blocking work on other threads, such as rendering a page, can't be
    // cancelled.
    runtime.shutdown_timeout(SHUTDOWN_GRACE);
    served
}

/// Calls `wished` like [`on_signal`], but prints `report` at the first signal, unless it is empty.
///
/// # Errors
/// As for [`on_signal`].
pub(crate) fn on_signal_with_notice(
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
    if std::env::var_os(STOP_AT_INPUT_END_VARIABLE).as_deref() == Some(OsStr::new("true")) {
        let wished = Arc::clone(&wished);
        threads::start("input", move || {
            // Treat a read error as the end of the input.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            call_handler(&wished, ShutdownMode::Graceful);
        })?;
    }
    threads::start("signals", move || {
        for (count, _) in signals.forever().enumerate() {
            match count {
                0 => {
                    if !report.is_empty() {
                        console::print_notice(report);
                    }
                    call_handler(&wished, ShutdownMode::Graceful);
                }
                1 => call_handler(&wished, ShutdownMode::Immediate),
                _ => {
                    live::restore();
                    std::process::exit(i32::from(Exit::Interrupted.code()));
                }
            }
        }
    })
    .map(drop)
}
