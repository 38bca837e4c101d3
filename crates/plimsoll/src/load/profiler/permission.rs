//! Determines what the kernel permits this user to sample, and explains how to get more permissions.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek};

use rustix::process::geteuid;

use crate::failure::Failure;

/// Help text with the packages that contain perf.
const PERF_PACKAGES_HELP: &str =
    "install it: linux-perf (Debian), linux-tools-generic (Ubuntu), perf (Fedora, Arch, Alpine)";

/// Maximum number of bytes of perf's messages to quote.
const MAX_QUOTED_BYTES: u64 = 4096;

/// The kernel's restrictions on sampling for this user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelRules {
    /// The value of kernel.perf_event_paranoid; `None` if it can't be read.
    paranoid: Option<i64>,
    /// The value of kernel.kptr_restrict; `None` if it can't be read.
    kptr_restrict: Option<i64>,
    is_root: bool,
    /// Whether the kernel shows the addresses of its functions to this user; they are needed to symbolise samples.
    shows_kernel_addresses: bool,
}

impl KernelRules {
    pub(super) fn read() -> KernelRules {
        let value = |name: &str| {
            let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
            text.trim().parse().ok()
        };
        KernelRules {
            paranoid: value("perf_event_paranoid"),
            kptr_restrict: value("kptr_restrict"),
            is_root: geteuid().is_root(),
            shows_kernel_addresses: shows_kernel_addresses(),
        }
    }

    /// Returns sentences about what is missing from a profile because of these restrictions.
    pub(super) fn notes(&self) -> Vec<String> {
        let paranoid = self.paranoid.filter(|value| *value > 1 && !self.is_root);
        if let Some(value) = paranoid {
            return vec![format!(
                "time in the kernel was not sampled: kernel.perf_event_paranoid is {value}, and has to be 1 or less for that (sysctl kernel.perf_event_paranoid=1)"
            )];
        }
        if self.shows_kernel_addresses {
            return Vec::new();
        }
        let value = self
            .kptr_restrict
            .map_or("not known".to_owned(), |value| value.to_string());
        vec![format!(
            "functions of the kernel have no names: kernel.kptr_restrict is {value}, and has to be 0 for that (sysctl kernel.kptr_restrict=0)"
        )]
    }
}

/// Returns whether the first function of /proc/kallsyms has an address other than 0.
fn shows_kernel_addresses() -> bool {
    let Ok(file) = File::open("/proc/kallsyms") else {
        return false;
    };
    let mut first = String::new();
    let is_read = BufReader::new(file.take(256)).read_line(&mut first);
    is_read.is_ok()
        && first
            .split(' ')
            .next()
            .is_some_and(|at| at.bytes().any(|b| b != b'0'))
}

/// Returns the error for a sampler that could not attach. `said` is perf's output, or the error of starting perf.
pub(super) fn start_failure(
    said: &str,
    kind: io::ErrorKind,
    pids: &[i32],
    rules: &KernelRules,
) -> Failure {
    let (message, help) = explain(said, kind, pids, rules);
    Failure::error_with_help(format_args!("watch.profile (--profile): {message}"), &help)
}

/// Returns the reason why the sampler could not attach, and advice for the user.
fn explain(said: &str, kind: io::ErrorKind, pids: &[i32], rules: &KernelRules) -> (String, String) {
    if kind == io::ErrorKind::NotFound {
        return (
            "`perf` was not found on PATH".to_owned(),
            PERF_PACKAGES_HELP.to_owned(),
        );
    }
    let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
    let pids = pids.join(", ");
    let is_refused = ["Permission", "not permitted", "paranoid", "Access"];
    if is_refused.iter().any(|word| said.contains(word)) {
        let value = rules
            .paranoid
            .map_or("not known".to_owned(), |value| value.to_string());
        let kptr = rules
            .kptr_restrict
            .map_or("not known".to_owned(), |value| value.to_string());
        let message = format!(
            "the kernel does not let this user sample process {pids}: kernel.perf_event_paranoid is {value}, kernel.kptr_restrict is {kptr}"
        );
        let help = match rules.paranoid {
            // A user may sample other users' processes only if ptrace would permit access to them, too.
            Some(..=2) if !rules.is_root => {
                "sample as the user of that process, or as root; for functions of the kernel set kernel.perf_event_paranoid to 1 and kernel.kptr_restrict to 0"
            }
            Some(..=2) => {
                "a container may forbid perf_event_open (seccomp): start it with the capability CAP_PERFMON, or measure outside of it"
            }
            _ => {
                "set it to 1 or less (2 leaves the kernel's functions out): sysctl kernel.perf_event_paranoid=1, and for names of the kernel's functions sysctl kernel.kptr_restrict=0; or run as root"
            }
        };
        return (message, help.to_owned());
    }
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let said = lines.take(3).collect::<Vec<_>>().join(" ");
    if said.contains("cannot execute") || said.contains("not found for kernel") {
        // On Ubuntu `perf` is a script that looks for the perf version of the running kernel, and has not found it.
        return (
            format!("`perf` does not start: {said}"),
            PERF_PACKAGES_HELP.to_owned(),
        );
    }
    (
        format!("`perf record` did not begin to sample process {pids}: {said}"),
        "perf 5.10 or later is needed; `perf record -e cpu-clock -p PID` shows the whole message"
            .to_owned(),
    )
}

/// Returns the first [`MAX_QUOTED_BYTES`] bytes of the messages that perf has written to `file`.
pub(super) fn read_messages(file: &mut File) -> String {
    let mut text = Vec::new();
    // Ignore read errors: even without messages, perf's exit status shows that it failed.
    let _ = file.rewind();
    let _ = file.take(MAX_QUOTED_BYTES).read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: KernelRules = KernelRules {
        paranoid: Some(4),
        kptr_restrict: Some(1),
        is_root: false,
        shows_kernel_addresses: false,
    };

    fn explained(said: &str, rules: &KernelRules) -> String {
        let (message, help) = explain(said, io::ErrorKind::Other, &[7, 8], rules);
        format!("{message}\n{help}")
    }

    #[test]
    fn refusal_names_sysctl_and_its_value() {
        let said =
            "Error:\nAccess to performance monitoring and observability operations is limited.\n";
        let text = explained(said, &RULES);
        assert!(
            text.contains("process 7, 8: kernel.perf_event_paranoid is 4"),
            "{text}"
        );
        assert!(text.contains("kernel.kptr_restrict is 1"), "{text}");
        assert!(
            text.contains("sysctl kernel.perf_event_paranoid=1"),
            "{text}"
        );
        let allowed = KernelRules {
            paranoid: Some(1),
            ..RULES
        };
        assert!(explained(said, &allowed).contains("as the user of that process"));
        let root = KernelRules {
            is_root: true,
            ..allowed
        };
        assert!(explained(said, &root).contains("CAP_PERFMON"));
    }

    #[test]
    fn missing_perf_names_packages() {
        let (message, help) = explain("", io::ErrorKind::NotFound, &[7], &RULES);
        assert!(
            message.contains("`perf`") && help.contains("linux-perf"),
            "{message} {help}"
        );
        let other = explained("unknown option `control'\n\n usage: perf record", &RULES);
        assert!(
            other.contains("unknown option") && other.contains("5.10"),
            "{other}"
        );
    }

    #[test]
    fn hidden_kernel_is_noted() {
        let hidden = RULES.notes().remove(0);
        assert!(
            hidden.contains("kernel.perf_event_paranoid is 4"),
            "{hidden}"
        );
        let nameless = KernelRules {
            paranoid: Some(1),
            ..RULES
        };
        assert!(nameless.notes()[0].contains("kernel.kptr_restrict is 1"));
        let whole = KernelRules {
            shows_kernel_addresses: true,
            ..nameless
        };
        assert!(whole.notes().is_empty());
    }
}
