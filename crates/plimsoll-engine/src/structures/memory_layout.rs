//! Fixed memory layouts of processes whose costs are compared.
//!
//! The system loads each process at random addresses (ASLR), which determine what competes for the same cache lines and
//! branch predictors. Two processes of the same server can therefore differ by half a microsecond per call for their
//! whole lifetime. With equal addresses they differ less.

use nix::sys::personality::{self, Persona};

/// Runs `start` and returns its result. Address randomization is turned off for processes that `start` creates: they
/// inherit this setting from the calling thread. If the system refuses the setting, as in some containers, addresses
/// stay random.
pub fn run_with_fixed_layout<T>(start: impl FnOnce() -> T) -> T {
    let fixed = |before: Persona| personality::set(before | Persona::ADDR_NO_RANDOMIZE);
    let before = personality::get().and_then(fixed);
    let started = start();
    match before {
        Ok(before) => {
            // Resetting cannot fail, because setting succeeded above.
            let _ = personality::set(before);
        }
        Err(error) => tracing::debug!(%error, "memory layouts of processes stay random"),
    }
    started
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn spawned_processes_share_memory_layout() {
        let stack = || {
            let mut command = Command::new("grep");
            let shown = command.args(["stack", "/proc/self/maps"]).output();
            String::from_utf8(shown.expect("grep").stdout).expect("text")
        };
        let before = personality::get().expect("readable");
        let refused = personality::set(before | Persona::ADDR_NO_RANDOMIZE).is_err();
        let _ = personality::set(before);
        let first = run_with_fixed_layout(stack);
        assert!(first.contains("[stack]"), "{first}");
        // If fixed addresses are refused, processes start nevertheless.
        assert!(refused || (0..5).all(|_| run_with_fixed_layout(stack) == first));
        // The thread's own setting is restored.
        assert_eq!(personality::get(), Ok(before));
    }
}
