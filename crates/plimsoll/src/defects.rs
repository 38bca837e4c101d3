//! What is printed about a panic, and what it makes of the exit code.

use plimsoll_engine::defect;

use crate::console;
use crate::failure::Exit;

/// What a server calls them at its end, among what else it counted.
pub(crate) const COUNT: &str = "panics";

/// Reports every panic from here on, whichever thread it is on.
pub(crate) fn watch() {
    defect::watch(|what| {
        console::notice(format_args!(
            "an error in plimsoll, not in what it talks to: {what}\n\
             please report it: this message, the command or plan, the output of \
             `plimsoll --version`, and the run directory where there is one"
        ));
    });
}

/// `exit`, unless there was a defect: then nothing else that went wrong matters as much.
pub(crate) fn or(exit: Exit) -> Exit {
    match defect::seen() {
        0 => exit,
        _ => Exit::Defect,
    }
}
