//! Runs a proxy, or the user's own service, as a child process: starts it, waits until it listens, measures its
//! resource usage including its children, and stops it.
//!
//! Invariant: the process does not outlive this program. When this program ends, the standard input of a watchdog
//! process is closed, and the watchdog kills the process.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use plimsoll_engine::host::resources::WatchedProcesses;
use plimsoll_engine::{Address, structures::memory_layout};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

use crate::system::child::ServerProcess;

/// Maximum number of polls for the proxy's listener, [`START_POLL_INTERVAL`] apart: one minute in total, far longer
/// than a proxy needs to start.
const MAX_START_POLLS: u32 = 6_000;
const START_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of polls for a process's exit, [`EXIT_POLL_INTERVAL`] apart, before it is killed. Three seconds are
/// enough, because the process has no calls in flight when it is stopped.
const MAX_EXIT_POLLS: u32 = 300;
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of polls for the exit of a shell's children, [`EXIT_POLL_INTERVAL`] apart.
const MAX_GROUP_EXIT_POLLS: u32 = 50;
/// How long a process must be idle before its start counts as finished.
const SETTLE_WINDOW: Duration = Duration::from_millis(100);
/// Maximum number of windows of [`SETTLE_WINDOW`] to wait until the process is idle in one of them.
const MAX_SETTLE_WINDOWS: u32 = 50;
/// Programs that listen on the host in place of a container's server and forward connections to it, by their names in
/// /proc/PID/comm.
const PORT_FORWARDERS: [&str; 6] = [
    "docker-proxy",
    "rootlessport",
    "rootlesskit",
    "slirp4netns",
    "pasta",
    "conmon",
];
/// Maximum number of lines, and of bytes, from the end of a log to quote in errors.
const MAX_QUOTED_LINES: usize = 8;
const MAX_QUOTED_BYTES: u64 = 4096;

/// The kind of a process, which decides how it is waited for and stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessKind {
    /// The process itself listens, and stops its children when it gets SIGTERM.
    Proxy,
    /// A shell command: a child or a container may listen in its place, and the whole process group gets SIGTERM.
    Service,
}

/// A running proxy or service; dropping it stops the process.
pub(crate) struct ManagedProcess {
    child: Child,
    kind: ProcessKind,
    log: PathBuf,
    exit_status: Option<ExitStatus>,
    /// The process that kills the proxy if this program ends; `None` once the proxy has stopped.
    watchdog: Option<ServerProcess>,
}

/// CPU and memory used by a proxy and its child processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessUsage {
    pub(crate) cpu_us: u64,
    /// Sum of the peak resident set sizes of the processes, bytes.
    pub(crate) rss_bytes_max: u64,
}

impl ProcessUsage {
    /// Returns the resource usage of the process `pid` and its children; `None` if there is no such process.
    pub(crate) fn from_process_tree(pid: u32) -> Option<ProcessUsage> {
        let watched = WatchedProcesses::process_tree(pid);
        let cpu_ns = watched.usage()?.cpu_ns;
        let highest = |pid: &i32| peak_rss_bytes(*pid);
        Some(ProcessUsage {
            cpu_us: cpu_ns / 1000,
            rss_bytes_max: watched.pids().iter().filter_map(highest).sum(),
        })
    }

    /// Returns the sum of two usages.
    pub(crate) fn plus(self, other: ProcessUsage) -> ProcessUsage {
        ProcessUsage {
            cpu_us: self.cpu_us + other.cpu_us,
            rss_bytes_max: self.rss_bytes_max + other.rss_bytes_max,
        }
    }
}

/// Why a proxy or service did not start, with the last lines of its output.
#[derive(Debug)]
pub(crate) struct ProcessStartError(String);

impl ProcessStartError {
    pub(crate) fn new(reason: String) -> ProcessStartError {
        ProcessStartError(reason)
    }
}

impl std::fmt::Display for ProcessStartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl ManagedProcess {
    /// Starts a proxy and waits until it listens on `listen`. Its output is appended to `log`.
    ///
    /// # Errors
    /// Returns an error if the proxy can't be started, exits, or does not listen in time.
    pub(crate) fn start(
        command: &mut Command,
        listen: SocketAddr,
        log: &Path,
    ) -> Result<ManagedProcess, ProcessStartError> {
        let limit = START_POLL_INTERVAL * MAX_START_POLLS;
        let mut wait = |waited: Duration| {
            if waited < limit {
                return Ok(());
            }
            let limit = limit.as_secs();
            Err(format!("does not listen at {listen} after {limit} s"))
        };
        ManagedProcess::start_with_wait(command, ProcessKind::Proxy, listen, log, &mut wait)
    }

    /// Starts a process like [`ManagedProcess::start`], but with a wait that the caller controls: `wait` is called
    /// repeatedly with the time waited so far, until the process listens. An error of `wait` ends the wait and is the
    /// reason shown.
    ///
    /// # Errors
    /// Returns an error if the process can't be started or exits, or `wait` returns an error.
    pub(crate) fn start_with_wait(
        command: &mut Command,
        kind: ProcessKind,
        listen: SocketAddr,
        log: &Path,
        wait: &mut dyn FnMut(Duration) -> Result<(), String>,
    ) -> Result<ManagedProcess, ProcessStartError> {
        let program = match kind {
            ProcessKind::Proxy => command.get_program().display().to_string(),
            ProcessKind::Service => "the command".to_owned(),
        };
        let failed = |e: io::Error| ProcessStartError(format!("can't start {program}: {e}"));
        let mut out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(|e| ProcessStartError(format!("can't write {}: {e}", log.display())))?;
        let begin = out.seek(SeekFrom::End(0)).map_err(failed)?;
        // Wait until no server listens on the address: a container may outlive the command that started it, and would
        // answer in place of the new server.
        let mut waited = Duration::ZERO;
        while kind == ProcessKind::Service && TcpStream::connect(listen).is_ok() {
            if wait(waited).is_err() {
                return Err(ProcessStartError(format!(
                    "something listens at {listen} already: the server before did not stop with its process group"
                )));
            }
            thread::sleep(START_POLL_INTERVAL);
            waited += START_POLL_INTERVAL;
        }
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out)
            // In its own process group the proxy gets no SIGINT from Ctrl-C, and can be killed with its children.
            .process_group(0);
        let child = memory_layout::run_with_fixed_layout(|| command.spawn()).map_err(failed)?;
        let mut running = ManagedProcess {
            child,
            kind,
            log: log.to_owned(),
            exit_status: None,
            watchdog: None,
        };
        running.watchdog = Some(start_watchdog(running.child.id()).map_err(failed)?);
        let mut waited = Duration::ZERO;
        loop {
            if let Some(status) = running.exit_status() {
                let said = quote_log(log, begin);
                return Err(ProcessStartError(format!(
                    "{program} exited before it listened ({}){said}",
                    describe_exit(status)
                )));
            }
            let may_listen = kind == ProcessKind::Service || running.may_listen_at(listen);
            if may_listen && TcpStream::connect(listen).is_ok() {
                return Ok(running);
            }
            if let Err(reason) = wait(waited) {
                let said = quote_log(log, begin);
                return Err(ProcessStartError(format!("{program} {reason}{said}")));
            }
            thread::sleep(START_POLL_INTERVAL);
            waited += START_POLL_INTERVAL;
        }
    }

    /// Returns the id of the process to measure: the started process if it or a descendant listens on `listen`,
    /// otherwise the process that listens there, for example in a container. `None` if the server can't be seen,
    /// because the listener belongs to another user, or only forwards connections to the server.
    pub(crate) fn find_serving_process(&self, listen: SocketAddr) -> Option<u32> {
        let own = WatchedProcesses::process_tree(self.child.id());
        let found = WatchedProcesses::listening_on(&[Address::from(listen)]);
        let listeners: Vec<i32> = found.map_or_else(Vec::new, |found| found.pids().to_vec());
        if listeners.iter().any(|pid| is_port_forwarder(*pid)) {
            return None;
        }
        if listeners.iter().any(|pid| own.pids().contains(pid)) {
            return Some(self.child.id());
        }
        match listeners.first() {
            Some(foreign) => u32::try_from(*foreign).ok(),
            // This user can't see any listener. If the process has descendants of another user, one of them may be the
            // server.
            None => own
                .pids()
                .iter()
                .any(|pid| are_descriptors_hidden(*pid))
                .then(|| self.child.id()),
        }
    }

    /// Returns whether the proxy itself listens on the address; also true if that can't be determined.
    fn may_listen_at(&self, listen: SocketAddr) -> bool {
        match WatchedProcesses::listening_on(&[Address::from(listen)]) {
            Some(found) => {
                let own = WatchedProcesses::process_tree(self.child.id());
                found.pids().iter().any(|pid| own.pids().contains(pid))
            }
            // There is no listener, or this user can't read its file descriptors. The caller then finds out by
            // connecting.
            None => true,
        }
    }

    /// Returns the resource usage of the proxy and its children since their start; `None` if the proxy has exited.
    pub(crate) fn usage(&self) -> Option<ProcessUsage> {
        ProcessUsage::from_process_tree(self.child.id())
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status; `None` if the process is running.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.exit_status.is_none() {
            self.exit_status = self.child.try_wait().ok().flatten();
        }
        self.exit_status
    }

    /// Describes how the process has exited, with the last lines of its log; `None` if it is running.
    pub(crate) fn describe_exit_with_log(&mut self) -> Option<String> {
        let status = self.exit_status()?;
        Some(format!(
            "{}{}",
            describe_exit(status),
            quote_log(&self.log, 0)
        ))
    }

    /// Stops the proxy and all its children.
    pub(crate) fn stop(&mut self) {
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else {
            return;
        };
        if self.exit_status().is_none() {
            // Ignore errors, which mean that the process has already exited.
            let _ = match self.kind {
                ProcessKind::Proxy => kill_process(pid, Signal::TERM),
                ProcessKind::Service => kill_process_group(pid, Signal::TERM),
            };
            for _ in 0..MAX_EXIT_POLLS {
                if self.exit_status().is_some() {
                    break;
                }
                thread::sleep(EXIT_POLL_INTERVAL);
            }
        }
        // A shell exits immediately, and its children later. The wait is limited, because a child that its parent does
        // not reap remains in the group.
        let is_left = || test_kill_process_group(pid).is_ok();
        let mut polls = 0;
        while self.kind == ProcessKind::Service && polls < MAX_GROUP_EXIT_POLLS && is_left() {
            thread::sleep(EXIT_POLL_INTERVAL);
            polls += 1;
        }
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
        self.watchdog = None;
    }
}

impl Drop for ManagedProcess {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_port_forwarder(pid: i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // The name of Podman's forwarder is "exe", so also check its first argument.
    let started_as = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = started_as.split(|byte| *byte == 0).next();
    let first = String::from_utf8_lossy(first.unwrap_or_default()).into_owned();
    let first = first.rsplit('/').next().unwrap_or_default();
    // Names in `PORT_FORWARDERS` have at most 15 bytes, because the kernel truncates process names to that length.
    PORT_FORWARDERS
        .iter()
        .any(|known| *known == name.trim_end() || *known == first)
}

/// Returns whether this user is not permitted to list the open files and sockets of a process.
fn are_descriptors_hidden(pid: i32) -> bool {
    let read = fs::read_dir(format!("/proc/{pid}/fd"));
    read.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
}

/// Waits until the process `pid` has finished starting, so that its startup is not measured: until its process tree has
/// not changed, and has used little CPU time, for [`SETTLE_WINDOW`], or until `is_over` returns true. Returns false if
/// the process was not idle in any of [`MAX_SETTLE_WINDOWS`] windows.
pub(crate) fn wait_until_settled(pid: u32, is_over: impl Fn() -> bool) -> bool {
    let mut before = WatchedProcesses::process_tree(pid);
    let cpu_ns = |watched: &WatchedProcesses| watched.usage().map_or(0, |used| used.cpu_ns);
    for _ in 0..MAX_SETTLE_WINDOWS {
        let used_ns = cpu_ns(&before);
        thread::sleep(SETTLE_WINDOW);
        let now = WatchedProcesses::process_tree(pid);
        let more = Duration::from_nanos(cpu_ns(&now).saturating_sub(used_ns));
        let is_same = now.pids() == before.pids();
        if is_over() || is_same && more <= SETTLE_WINDOW / 10 {
            return true;
        }
        before = now;
    }
    false
}

/// Starts a watchdog process, which kills a process group when its own standard input is closed.
pub(crate) fn start_watchdog(group: u32) -> io::Result<ServerProcess> {
    let script = "read -r _; kill -TERM -- \"-$0\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, &group.to_string()]);
    let quiet = command.stdin(Stdio::piped()).stdout(Stdio::null());
    let quiet = quiet.stderr(Stdio::null()).process_group(0);
    Ok(ServerProcess(quiet.spawn()?))
}

/// Returns the peak resident set size of a process, bytes (`VmHWM` in proc(5)).
fn peak_rss_bytes(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

pub(crate) fn describe_exit(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit code {}", status.code().unwrap_or(-1)),
    }
}

/// Returns the last lines of `log` as a suffix for a message; empty if there are none. Text before byte `begin` is
/// skipped.
pub(crate) fn quote_log(log: &Path, begin: u64) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(
            begin.max(end.saturating_sub(MAX_QUOTED_BYTES)),
        ))?;
        let mut bytes = Vec::new();
        file.take(MAX_QUOTED_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(MAX_QUOTED_LINES)..];
    if last.is_empty() {
        return String::new();
    }
    format!(": {}", last.join("\n"))
}

/// Returns an address of the loopback interface with a port that is free now.
///
/// # Errors
/// Returns an error if no port is free.
pub(crate) fn find_free_address() -> io::Result<SocketAddr> {
    TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))?.local_addr()
}
