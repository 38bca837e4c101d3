//! Fixed memory layouts of processes whose costs are compared.
//!
//! The system loads each process at random addresses (ASLR), which decide what competes for the same cache
//! lines and branch predictors: two processes of the same server then differ by half a microsecond per call
//! for as long as they live. At equal addresses they differ less.

use nix::sys::personality::{self, Persona};

/// Runs `start` and returns its result. Processes that `start` starts inherit a setting of the calling thread, by
/// which all processes of one program have the same addresses. Where the system refuses that, as in some containers,
/// addresses stay random.
pub fn alike<T>(start: impl FnOnce() -> T) -> T {
    let fixed = |before: Persona| personality::set(before | Persona::ADDR_NO_RANDOMIZE);
    let before = personality::get().and_then(fixed);
    let started = start();
    match before {
        Ok(before) => {
            // Cannot fail: the same call succeeded above.
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
        let first = alike(stack);
        assert!(first.contains("[stack]"), "{first}");
        // If fixed addresses are refused, processes start nevertheless.
        assert!(refused || (0..5).all(|_| alike(stack) == first));
        // The thread's own setting is restored.
        assert_eq!(personality::get(), Ok(before));
    }
}
