//! The process of a proxy: started, waited for until it listens, watched with all that it starts, and ended.
//!
//! Invariant: it does not outlive this program. A watchdog, whose input ends with this program, ends it if nothing else
//! could.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use plimsoll_engine::resources::Watched;
use plimsoll_engine::{Address, layout};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::child::Served;

/// How often the start is looked for, this far apart: for a minute, which is far more than it takes.
const MAX_START_POLLS: u32 = 6_000;
const START_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a proxy may take to end by itself: calls are over by then.
const MAX_EXIT_POLLS: u32 = 300;
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How much of a log's end is quoted.
const MAX_QUOTED_LINES: usize = 8;
const MAX_QUOTED_BYTES: u64 = 4096;

/// A proxy that runs. Dropped, it ends.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
    /// Kept for as long as the proxy is.
    watchdog: Option<Served>,
}

/// What was used by a proxy and all that it has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cpu_us: u64,
    /// The highest resident sets of its processes, added up.
    pub(crate) rss_bytes_max: u64,
}

impl Used {
    /// What the process `pid` and those that it has started have used; `None` where there are none.
    pub(crate) fn by(pid: u32) -> Option<Used> {
        let watched = Watched::pid(pid);
        let cpu_ns = watched.usage()?.cpu_ns;
        let highest = |pid: &i32| peak_rss_bytes(*pid);
        Some(Used {
            cpu_us: cpu_ns / 1000,
            rss_bytes_max: watched.pids().iter().filter_map(highest).sum(),
        })
    }

    /// Both together.
    pub(crate) fn plus(self, other: Used) -> Used {
        Used {
            cpu_us: self.cpu_us + other.cpu_us,
            rss_bytes_max: self.rss_bytes_max + other.rss_bytes_max,
        }
    }
}

/// Why a proxy did not start; a sentence, with what the proxy printed.
#[derive(Debug)]
pub(crate) struct StartError(String);

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Running {
    /// Starts a proxy and waits until it listens at `listen`. What it prints is added to `log`.
    ///
    /// # Errors
    /// When it can't be started, ends, or does not listen.
    pub(crate) fn start(
        command: &mut Command,
        listen: SocketAddr,
        log: &Path,
    ) -> Result<Running, StartError> {
        let program = command.get_program().display().to_string();
        let failed = |e: io::Error| StartError(format!("can't start {program}: {e}"));
        let mut out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(|e| StartError(format!("can't write {}: {e}", log.display())))?;
        let begin = out.seek(SeekFrom::End(0)).map_err(failed)?;
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out)
            // Ctrl-C reaches this process alone. All that the proxy starts can be told by its group.
            .process_group(0);
        let child = layout::alike(|| command.spawn()).map_err(failed)?;
        let mut running = Running {
            child,
            log: log.to_owned(),
            ended: None,
            watchdog: None,
        };
        running.watchdog = Some(watchdog(running.child.id()).map_err(failed)?);
        for _ in 0..MAX_START_POLLS {
            if let Some(status) = running.ended() {
                let said = quote(log, begin);
                return Err(StartError(format!(
                    "{program} ended before it listened ({}){said}",
                    in_words(status)
                )));
            }
            if running.listens_at(listen) && TcpStream::connect(listen).is_ok() {
                return Ok(running);
            }
            thread::sleep(START_POLL_INTERVAL);
        }
        let said = quote(log, begin);
        Err(StartError(format!(
            "{program} does not listen at {listen} after {} s{said}",
            (START_POLL_INTERVAL * MAX_START_POLLS).as_secs()
        )))
    }

    /// Another program may have taken the address.
    fn listens_at(&self, listen: SocketAddr) -> bool {
        match Watched::listening_on(&[Address::from(listen)]) {
            Some(found) => {
                let own = Watched::pid(self.child.id());
                found.pids().iter().any(|pid| own.pids().contains(pid))
            }
            // Nobody, or somebody whose descriptors this user may not see: the connection decides.
            None => true,
        }
    }

    /// The CPU and memory that it and its processes have used since they began; `None` where it has ended.
    pub(crate) fn used(&self) -> Option<Used> {
        Used::by(self.child.id())
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// How it ended, in words, with the last lines of its log; `None`: it runs.
    pub(crate) fn death(&mut self) -> Option<String> {
        let status = self.ended()?;
        Some(format!("{}{}", in_words(status), quote(&self.log, 0)))
    }

    /// Ends it with all that it has started.
    pub(crate) fn end(&mut self) {
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else {
            return;
        };
        if self.ended().is_none() {
            // Whatever fails here has ended by itself.
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

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends the processes of a group once its own input has ended.
fn watchdog(group: u32) -> io::Result<Served> {
    let script = "read -r _; kill -TERM -- \"-$0\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, &group.to_string()]);
    let quiet = command.stdin(Stdio::piped()).stdout(Stdio::null());
    let quiet = quiet.stderr(Stdio::null()).process_group(0);
    Ok(Served(quiet.spawn()?))
}

/// The highest resident set of a process so far (`VmHWM` of proc(5)).
fn peak_rss_bytes(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn in_words(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit code {}", status.code().unwrap_or(-1)),
    }
}

/// The last lines of `log` from `begin` on, as the end of a message; empty where there are none.
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

/// A port of the loopback interface that is free at the moment.
///
/// # Errors
/// When the system has none.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))?.local_addr()
}
