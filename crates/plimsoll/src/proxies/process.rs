//! Runs a proxy process: starts it, waits until it listens, measures it with its children, and stops it.
//!
//! Invariant: the proxy does not outlive this program. A watchdog process kills it when this program ends, which
//! closes the watchdog's input.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use plimsoll_engine::resources::WatchedProcesses;
use plimsoll_engine::{Address, layout};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::child::ServerProcess;

/// Maximum number of polls for the proxy's start, [`START_POLL_INTERVAL`] apart: one minute in all, far more than a
/// start takes.
const MAX_START_POLLS: u32 = 6_000;
const START_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of polls for a proxy's exit, [`EXIT_POLL_INTERVAL`] apart, before it is killed; its calls have ended
/// by then.
const MAX_EXIT_POLLS: u32 = 300;
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How much of a log's end is quoted in errors.
const MAX_QUOTED_LINES: usize = 8;
const MAX_QUOTED_BYTES: u64 = 4096;

/// A running proxy; dropping it stops the proxy.
pub(crate) struct ProxyProcess {
    child: Child,
    log: PathBuf,
    exit_status: Option<ExitStatus>,
    /// Held for as long as the proxy runs.
    watchdog: Option<ServerProcess>,
}

/// CPU and memory used by a proxy and its child processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessUsage {
    pub(crate) cpu_us: u64,
    /// Sum of the peak resident sets of its processes.
    pub(crate) rss_bytes_max: u64,
}

impl ProcessUsage {
    /// Returns the usage of the process `pid` and its children; `None` if there is no such process.
    pub(crate) fn by(pid: u32) -> Option<ProcessUsage> {
        let watched = WatchedProcesses::pid(pid);
        let cpu_ns = watched.usage()?.cpu_ns;
        let highest = |pid: &i32| peak_rss_bytes(*pid);
        Some(ProcessUsage {
            cpu_us: cpu_ns / 1000,
            rss_bytes_max: watched.pids().iter().filter_map(highest).sum(),
        })
    }

    /// Returns the sum of both.
    pub(crate) fn plus(self, other: ProcessUsage) -> ProcessUsage {
        ProcessUsage {
            cpu_us: self.cpu_us + other.cpu_us,
            rss_bytes_max: self.rss_bytes_max + other.rss_bytes_max,
        }
    }
}

/// Why a proxy did not start, with its output.
#[derive(Debug)]
pub(crate) struct ProxyStartError(String);

impl ProxyStartError {
    pub(crate) fn new(reason: String) -> ProxyStartError {
        ProxyStartError(reason)
    }
}

impl std::fmt::Display for ProxyStartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl ProxyProcess {
    /// Starts a proxy and waits until it listens at `listen`. Its output is appended to `log`.
    ///
    /// # Errors
    /// When it can't be started, exits, or does not listen in time.
    pub(crate) fn start(
        command: &mut Command,
        listen: SocketAddr,
        log: &Path,
    ) -> Result<ProxyProcess, ProxyStartError> {
        let program = command.get_program().display().to_string();
        let failed = |e: io::Error| ProxyStartError(format!("can't start {program}: {e}"));
        let mut out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(|e| ProxyStartError(format!("can't write {}: {e}", log.display())))?;
        let begin = out.seek(SeekFrom::End(0)).map_err(failed)?;
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out)
            // Keep Ctrl-C from reaching the proxy, and allow killing its children by their group.
            .process_group(0);
        let child = layout::alike(|| command.spawn()).map_err(failed)?;
        let mut running = ProxyProcess {
            child,
            log: log.to_owned(),
            exit_status: None,
            watchdog: None,
        };
        running.watchdog = Some(watchdog(running.child.id()).map_err(failed)?);
        for _ in 0..MAX_START_POLLS {
            if let Some(status) = running.ended() {
                let said = quote(log, begin);
                return Err(ProxyStartError(format!(
                    "{program} exited before it listened ({}){said}",
                    describe_exit(status)
                )));
            }
            if running.listens_at(listen) && TcpStream::connect(listen).is_ok() {
                return Ok(running);
            }
            thread::sleep(START_POLL_INTERVAL);
        }
        let said = quote(log, begin);
        Err(ProxyStartError(format!(
            "{program} does not listen at {listen} after {} s{said}",
            (START_POLL_INTERVAL * MAX_START_POLLS).as_secs()
        )))
    }

    /// Returns whether the proxy itself listens there: another program may have taken the address.
    fn listens_at(&self, listen: SocketAddr) -> bool {
        match WatchedProcesses::listening_on(&[Address::from(listen)]) {
            Some(found) => {
                let own = WatchedProcesses::pid(self.child.id());
                found.pids().iter().any(|pid| own.pids().contains(pid))
            }
            // No listener, or one whose descriptors this user can't read: let the connection attempt decide.
            None => true,
        }
    }

    /// Returns the usage of the proxy and its children since their start; `None` if it has ended.
    pub(crate) fn used(&self) -> Option<ProcessUsage> {
        ProcessUsage::by(self.child.id())
    }

    /// Returns its exit status if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        if self.exit_status.is_none() {
            self.exit_status = self.child.try_wait().ok().flatten();
        }
        self.exit_status
    }

    /// Returns how it ended, with the last lines of its log; `None` if it is running.
    pub(crate) fn death(&mut self) -> Option<String> {
        let status = self.ended()?;
        Some(format!("{}{}", describe_exit(status), quote(&self.log, 0)))
    }

    /// Stops the proxy and all its children.
    pub(crate) fn end(&mut self) {
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else {
            return;
        };
        if self.ended().is_none() {
            // Errors mean that the process has already ended.
            let _ = kill_process(pid, Signal::TERM);
            for _ in 0..MAX_EXIT_POLLS {
                if self.ended().is_some() {
                    break;
                }
                thread::sleep(EXIT_POLL_INTERVAL);
            }
        }
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
        self.watchdog = None;
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a watchdog that kills a process group when the watchdog's input ends.
fn watchdog(group: u32) -> io::Result<ServerProcess> {
    let script = "read -r _; kill -TERM -- \"-$0\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, &group.to_string()]);
    let quiet = command.stdin(Stdio::piped()).stdout(Stdio::null());
    let quiet = quiet.stderr(Stdio::null()).process_group(0);
    Ok(ServerProcess(quiet.spawn()?))
}

/// Returns the peak resident set of a process, bytes (`VmHWM` of proc(5)).
fn peak_rss_bytes(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn describe_exit(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit code {}", status.code().unwrap_or(-1)),
    }
}

/// Returns the last lines of `log` from `begin` on as a suffix of a message; empty if there are none.
fn quote(log: &Path, begin: u64) -> String {
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

/// Returns a currently free port of the loopback interface.
///
/// # Errors
/// When the system has none.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))?.local_addr()
}
