//! Where in memory processes lie whose costs are compared.
//!
//! The system puts each process at random addresses (ASLR), and the addresses decide what competes for the same cache
//! lines and branch predictors: two processes of the same server then differ by half a microsecond a call, for as long
//! as they live. At the same addresses they differ less.

use nix::sys::personality::{self, Persona};

/// Returns what `start` does. Processes that it starts lie at the same addresses as all others of their program: they
/// inherit that from the calling thread. Where the system refuses it, as some containers do, they lie at random ones.
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
        // Where that is refused, they start all the same.
        assert!(refused || (0..5).all(|_| alike(stack) == first));
        // The thread goes on as it was.
        assert_eq!(personality::get(), Ok(before));
    }
}
