//! Reports panics and turns them into an exit code.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_engine::defect::{self, PanicCause};

use crate::failure::Exit;
use crate::screen::console;

/// Name of the panic counter in the final counts of servers.
pub(crate) const PANICS_COUNTER: &str = "panics";

/// Whether all work of this process runs on an asynchronous runtime, so that the process must exit if the runtime
/// fails.
static EXITS_IF_RUNTIME_FAILS: AtomicBool = AtomicBool::new(false);

/// Makes the process exit if its asynchronous runtime can no longer poll sockets. The runtime reports this failure only
/// by a panic in one of its threads. If the process did not exit, connections would hang.
pub(crate) fn exit_if_runtime_fails() {
    EXITS_IF_RUNTIME_FAILS.store(true, Ordering::Relaxed);
}

/// Installs a panic hook that reports every panic of any thread.
pub(crate) fn install_panic_hook() {
    defect::install_panic_hook(|cause, what| match cause {
        PanicCause::Defect => console::print_notice(format_args!(
            "a bug in plimsoll, not in the target: {what}\n\
             please report it: this message, the command or plan, the output of \
             `plimsoll --version`, and the run directory where there is one"
        )),
        PanicCause::Refusal | PanicCause::FatalRefusal => {
            console::print_notice(format_args!(
                "Error: this machine refused a thread or memory: {what}\n\
                 help: raise `ulimit -u` and the limit of memory, or ask for fewer workers"
            ));
            if cause == PanicCause::FatalRefusal {
                // Exit instead of aborting. All measurements up to now are already in the run directory.
                std::process::exit(i32::from(Exit::Error.code()));
            }
        }
        PanicCause::RuntimeFailure => {
            console::print_notice(format_args!(
                "Error: waiting for sockets (epoll_wait): {what}"
            ));
            if EXITS_IF_RUNTIME_FAILS.load(Ordering::Relaxed) {
                std::process::exit(i32::from(Exit::Error.code()));
            }
        }
    });
}

/// Returns [`Exit::Defect`] after a panic, at least [`Exit::Error`] if the system refused a thread or memory (the load
/// was then incomplete), and otherwise `exit`.
pub(crate) fn final_exit(exit: Exit) -> Exit {
    match (defect::panic_count(), defect::refusal_count()) {
        (0, 0) => exit,
        (0, _) => exit.max(Exit::Error),
        _ => Exit::Defect,
    }
}
