//! Name lookups without free descriptors, and connections without free ports. Each test runs in a process of
//! its own, because it changes limits of its process or network.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::process::Command;

use plimsoll_engine::transport::address::{Address, LocalResourceError, look_up};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CHILD_MARKER: &str = "PLIMSOLL_TEST_PROCESS";

/// Runs the test again in a child process with `command`. Returns `true` if it ran there or could not, and
/// `false` in the child, which must perform the test.
fn ran_in_child(test: &str, mut command: Command) -> bool {
    if env::var_os(CHILD_MARKER).is_some() {
        return false;
    }
    command.arg(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(CHILD_MARKER, "1");
    let output = command.output().unwrap();
    let (printed, problem) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) || problem.contains("unshare: ") {
        // Written directly, since the test harness captures print macros.
        let _ = writeln!(
            io::stderr(),
            "NOT TRIED: no network of its own is to be had here ({problem})"
        );
        return true;
    }
    let printed = String::from_utf8_lossy(printed);
    assert!(printed.contains("test result: ok. 1 passed"), "{output:?}");
    true
}

/// Returns a command that runs in a network namespace of its own, so that changes affect nothing else.
fn in_own_network() -> Command {
    let mut command = Command::new("unshare");
    let script = "ip link set lo up && test -w /proc/sys/net/ipv4/ip_local_port_range || exit 77; exec \"$0\" \"$@\"";
    command.args(["-Urn", "sh", "-c", script]);
    command
}

#[test]
fn lookup_without_descriptors_blames_no_name() {
    let test = "lookup_without_descriptors_blames_no_name";
    if ran_in_child(test, Command::new("env")) {
        return;
    }
    let usual = getrlimit(Resource::Nofile);
    let lowest = File::open("/dev/null").unwrap().as_raw_fd();
    let none = Rlimit {
        current: Some(u64::try_from(lowest).unwrap()),
        maximum: usual.maximum,
    };
    // The system's resolver opens its files at the first lookup, and has them loaded at the second.
    for _ in 0..2 {
        setrlimit(Resource::Nofile, none).unwrap();
        let looked_up = look_up(("localhost", 7));
        setrlimit(Resource::Nofile, usual).unwrap();
        let error = looked_up.unwrap_err();
        assert_eq!(
            LocalResourceError::from_io_error(&error),
            Some(LocalResourceError::Descriptors),
            "{error}"
        );
        assert!(error.to_string().contains("file descriptors"), "{error}");
        let found = look_up(("localhost", 7)).unwrap();
        assert!(found.iter().all(|address| address.port() == 7) && !found.is_empty());
    }
    let error = look_up(("no..name", 7)).unwrap_err();
    assert_eq!(LocalResourceError::from_io_error(&error), None, "{error}");
}

#[test]
fn port_exhaustion_blames_no_address() {
    if ran_in_child("port_exhaustion_blames_no_address", in_own_network()) {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    // The only allowed port is in use by the listener.
    let port = to.port();
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    fs::write(range, format!("{port} {port}")).unwrap();
    let local: IpAddr = to.ip();
    for source in [None, Some(local)] {
        let error = Address::Tcp(to).start_connect(source).unwrap_err();
        assert_eq!(
            LocalResourceError::from_io_error(&error),
            Some(LocalResourceError::Ports),
            "{source:?}: {error}"
        );
        let reported = Address::Tcp(to).describe_failure(&error);
        assert!(reported.contains("ran out of ports"), "{reported}");
    }
    let another: SocketAddr = "127.0.0.2:1".parse().unwrap();
    assert!(
        Address::Tcp(another)
            .start_connect(Some(another.ip()))
            .is_ok()
    );
    // No address of this family remains.
    let file = "/proc/sys/net/ipv6/conf/lo/disable_ipv6";
    if fs::exists(file).unwrap() {
        fs::write(file, "1").unwrap();
    }
    let error = Address::Tcp("[::1]:1".parse().unwrap())
        .start_connect(None)
        .unwrap_err();
    assert_eq!(
        LocalResourceError::from_io_error(&error),
        Some(LocalResourceError::Address),
        "{error}"
    );
}
