//! Starts and terminates processes that outlive the process that started them. They are identified by process id and
//! start time.

use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time that a process may take to exit after a signal.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(15);

/// A process of a stack.
#[derive(Debug, Serialize, Deserialize)]
pub struct StackProcess {
    /// A name that is unique in the stack: `redis`, `backend-1`, …
    pub name: String,
    /// The process id, which another process may have by now: see [`StackProcess::is_alive`].
    pub pid: i32,
    /// The start time in clock ticks since boot (proc(5), `starttime`).
    began_ticks: u64,
    /// The address at which the process listens.
    pub address: SocketAddr,
    /// The file to which the process's output is written.
    pub log: PathBuf,
    /// The child process; present only in the process that started it, which has to reap it.
    #[serde(skip)]
    child: Option<Child>,
}

/// The reason why a process could not be started.
#[derive(Debug, thiserror::Error)]
#[error("starting {name}: {source}")]
pub struct ProcessError {
    name: String,
    source: io::Error,
}

impl StackProcess {
    /// Starts a process in its own process group, so that Ctrl-C at the terminal does not stop it.
    ///
    /// # Errors
    /// Returns an error if the process can't be started.
    pub(super) fn start(
        name: &str,
        address: SocketAddr,
        log: &Path,
        command: &mut Command,
    ) -> Result<StackProcess, ProcessError> {
        let mut start = || -> io::Result<StackProcess> {
            let output = OpenOptions::new().create(true).append(true).open(log)?;
            let child = command
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                .process_group(0)
                .spawn()?;
            let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
            Ok(StackProcess {
                name: name.to_owned(),
                pid,
                began_ticks: start_ticks(pid).unwrap_or(0),
                address,
                log: log.to_owned(),
                child: Some(child),
            })
        };
        start().map_err(|source| ProcessError {
            name: name.to_owned(),
            source,
        })
    }

    /// Returns whether the process is still running.
    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.began_ticks)
    }

    /// Asks the process to exit, and kills it if it does not.
    pub(super) fn terminate(&mut self) {
        for signal in [Signal::TERM, Signal::KILL] {
            let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) else {
                break;
            };
            // The process may have just exited, so an error is ignored.
            let _ = kill_process(pid, signal);
            let mut waited = Duration::ZERO;
            while self.is_alive() && waited < TERMINATION_TIMEOUT {
                if let Some(child) = &mut self.child {
                    let _ = child.try_wait();
                }
                thread::sleep(EXIT_POLL_INTERVAL);
                waited += EXIT_POLL_INTERVAL;
            }
        }
    }
}

/// Returns the start time of a running process; `None` if there is no such process, or if it is a zombie.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = procfs::process::Process::new(pid).ok()?.stat().ok()?;
    (stat.state != 'Z').then_some(stat.starttime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_kills_only_started_process() {
        let dir = tempfile::tempdir().unwrap();
        let address = ([127, 0, 0, 1], 1).into();
        let mut command = Command::new("sleep");
        let log = dir.path().join("log");
        let mut process = StackProcess::start("sleep", address, &log, command.arg("60")).unwrap();
        assert!(process.is_alive());
        // Another process with the same id is not ours.
        let text = serde_json::to_string(&process).unwrap();
        let mut other: StackProcess = serde_json::from_str(&text).unwrap();
        other.began_ticks += 1;
        assert!(!other.is_alive());
        other.terminate();
        assert!(process.is_alive());
        process.terminate();
        assert!(!process.is_alive());
    }
}
