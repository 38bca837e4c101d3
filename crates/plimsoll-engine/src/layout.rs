//! How processes lie in memory that are compared with each other.
//!
//! The system puts each process at random addresses (ASLR), and with them some compete for the same cache lines
//! and branch predictors, and others do not: two processes of the very same server then differ by up to 0.6 µs a
//! call, for as long as they live. At the same addresses they differ less.

use nix::sys::personality::{self, Persona};

/// What `start` returns, the processes that it starts lying at the addresses where any other of their program does:
/// they inherit that from the thread that starts them. Where the system refuses, as some containers do, they lie
/// anywhere.
pub fn alike<T>(start: impl FnOnce() -> T) -> T {
    let fixed = |before: Persona| personality::set(before | Persona::ADDR_NO_RANDOMIZE);
    let before = personality::get().and_then(fixed);
    let started = start();
    match before {
        Ok(before) => {
            // It was allowed before.
            let _ = personality::set(before);
        }
        Err(error) => tracing::debug!(%error, "processes lie at random addresses"),
    }
    started
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn processes_lie_at_the_same_addresses() {
        let stack = || {
            let mut command = Command::new("grep");
            let shown = command.args(["stack", "/proc/self/maps"]).output();
            String::from_utf8(shown.expect("grep").stdout).expect("text")
        };
        let before = personality::get().expect("readable");
        let refused = personality::set(before | Persona::ADDR_NO_RANDOMIZE).is_err();
        let _ = personality::set(before);
        let first = alike(stack);
        assert!(first.contains("[stack]"), "{first}");
        // Where that is refused, they start all the same.
        assert!(refused || (0..5).all(|_| alike(stack) == first));
        // The thread goes on as it was.
        assert_eq!(personality::get(), Ok(before));
    }
}
