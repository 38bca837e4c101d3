//! Reports panics and turns them into an exit code.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_engine::defect::{self, PanicCause};

use crate::console;
use crate::failure::Exit;

/// Name of the panic counter in the final counts of servers.
pub(crate) const PANICS_COUNTER: &str = "panics";

/// Whether all of this process's work runs on an asynchronous runtime.
static ENDS_WITH_RUNTIME: AtomicBool = AtomicBool::new(false);

/// Ends the process from here on if its asynchronous runtime can no longer poll sockets: the runtime reports that
/// only as a panic of one of its threads, and connections would hang.
pub(crate) fn end_with_runtime() {
    ENDS_WITH_RUNTIME.store(true, Ordering::Relaxed);
}

/// Reports every panic of any thread from here on.
pub(crate) fn watch() {
    defect::watch(|cause, what| match cause {
        PanicCause::Defect => console::notice(format_args!(
            "a bug in plimsoll, not in the target: {what}\n\
             please report it: this message, the command or plan, the output of \
             `plimsoll --version`, and the run directory where there is one"
        )),
        PanicCause::Refusal | PanicCause::FatalRefusal => {
            console::notice(format_args!(
                "Error: this machine refused a thread or memory: {what}\n\
                 help: raise `ulimit -u` and the limit of memory, or ask for fewer workers"
            ));
            if cause == PanicCause::FatalRefusal {
                // Exit cleanly instead of aborting; the run directory holds all measurements up to now.
                std::process::exit(i32::from(Exit::Error.code()));
            }
        }
        PanicCause::RuntimeFailure => {
            console::notice(format_args!(
                "Error: waiting for sockets (epoll_wait): {what}"
            ));
            if ENDS_WITH_RUNTIME.load(Ordering::Relaxed) {
                std::process::exit(i32::from(Exit::Error.code()));
            }
        }
    });
}

/// Returns `exit`, overridden by [`Exit::Defect`] after a panic, and at least [`Exit::Error`] if a thread or memory
/// was refused, because the load was then incomplete.
pub(crate) fn final_exit(exit: Exit) -> Exit {
    match (defect::panic_count(), defect::refusal_count()) {
        (0, 0) => exit,
        (0, _) => exit.max(Exit::Error),
        _ => Exit::Defect,
    }
}
