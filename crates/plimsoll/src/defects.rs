//! What is printed about a panic, and what it makes of the exit code.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_engine::defect::{self, Cause};

use crate::console;
use crate::failure::Exit;

/// What a server calls them at its end, among what else it counted.
pub(crate) const PANICS_COUNTER: &str = "panics";

/// Whether all that this process does is done by an asynchronous runtime.
static ENDS_WITH_RUNTIME: AtomicBool = AtomicBool::new(false);

/// From here on, the process ends when its asynchronous runtime can wait for sockets no longer: the runtime reports that
/// to nobody but a thread of its own, and what it serves would hang.
pub(crate) fn end_with_runtime() {
    ENDS_WITH_RUNTIME.store(true, Ordering::Relaxed);
}

/// Reports every panic from here on, whichever thread it is on.
pub(crate) fn watch() {
    defect::watch(|cause, what| match cause {
        Cause::Defect => console::notice(format_args!(
            "an error in plimsoll, not in what it talks to: {what}\n\
             please report it: this message, the command or plan, the output of \
             `plimsoll --version`, and the run directory where there is one"
        )),
        Cause::Refusal | Cause::FatalRefusal => {
            console::notice(format_args!(
                "Error: this machine refused a thread or memory: {what}\n\
                 help: raise `ulimit -u` and the limit of memory, or ask for fewer workers"
            ));
            if cause == Cause::FatalRefusal {
                // The alternative is an abort. A run directory holds what was measured until now.
                std::process::exit(i32::from(Exit::Error.code()));
            }
        }
        Cause::RuntimeFailure => {
            console::notice(format_args!(
                "Error: waiting for sockets (epoll_wait): {what}"
            ));
            if ENDS_WITH_RUNTIME.load(Ordering::Relaxed) {
                std::process::exit(i32::from(Exit::Error.code()));
            }
        }
    });
}

/// `exit`, unless there was a defect: then nothing else that went wrong matters as much. A load that lacked a thread is
/// none that passed.
pub(crate) fn or(exit: Exit) -> Exit {
    match (defect::seen(), defect::refusals()) {
        (0, 0) => exit,
        (0, _) => exit.max(Exit::Error),
        _ => Exit::Defect,
    }
}
