//! Tests that change settings of their whole process or network; each runs in a process of its own.

use std::env;
use std::io::{self, Write};
use std::process::Command;

/// Runs the named test in a process of its own, started by `command`; returns `false` inside that
/// process.
pub(crate) fn is_run_by_itself(test: &str, mut command: Command) -> bool {
    const CHILD_MARKER: &str = "PLIMSOLL_TEST_BY_ITSELF";
    /// No network namespace is available.
    const NONE: i32 = 77;
    if env::var_os(CHILD_MARKER).is_some() {
        return false;
    }
    let output = command
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD_MARKER, "1")
        .output()
        .unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NONE) || problem.starts_with("unshare: ") {
        let _ = writeln!(
            io::stderr(),
            "NOT TRIED: this user may have no network of its own ({problem})"
        );
        return true;
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("test result: ok. 1 passed"), "{output:?}");
    true
}

/// Returns the command that starts the process without changes.
pub(crate) fn unchanged() -> Command {
    Command::new("env")
}

/// Returns the command that starts it in a network namespace of its own.
pub(crate) fn in_own_network() -> Command {
    let mut command = Command::new("unshare");
    let script = "ip link set lo up && test -w /proc/sys/net/ipv4/ip_local_port_range || exit 77; exec \"$0\" \"$@\"";
    command.args(["-Urn", "sh", "-c", script]);
    command
}
