//! Starts child processes and reads their output lines.
//!
//! Invariant: no child outlives this process. Dropping a child's handle kills the child, and children that run this
//! program stop when their standard input ends.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::system::stopping;

/// How long to wait for a killed process to be reaped.
const REAP_TIMEOUT: Duration = Duration::from_secs(2);

/// A child process whose output lines are read by a thread; dropping it kills the process.
pub(crate) struct PipedChild {
    child: std::process::Child,
    /// The child's standard input; `None` once it is closed.
    pub(crate) stdin: Option<ChildStdin>,
}

impl PipedChild {
    /// Starts the process. A separate thread calls `heard` with each line that the process prints, until the output
    /// ends or `heard` returns false, and then once with `None`.
    ///
    /// # Errors
    /// When it can't be started.
    pub(crate) fn start(
        command: &mut Command,
        mut heard: impl FnMut(Option<io::Result<String>>) -> bool + Send + 'static,
    ) -> io::Result<PipedChild> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // In its own process group the child gets no SIGINT from Ctrl-C; this process passes stop requests on.
        let mut child = command.process_group(0).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let child = PipedChild { child, stdin };
        let body = move || {
            let lines = stdout.map(BufReader::new).into_iter();
            let mut lines = lines.flat_map(BufRead::lines);
            while lines.next().is_some_and(|line| heard(Some(line))) {}
            heard(None);
        };
        let reader = thread::Builder::new().name("child's lines".to_owned());
        reader.spawn(body)?;
        Ok(child)
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status; `None` if the process is running.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends SIGINT to the process.
    pub(crate) fn interrupt(&self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Ignore errors, which mean that the process has already exited.
            let _ = kill_process(pid, Signal::INT);
        }
    }

    pub(crate) fn kill(&mut self) {
        // Ignore errors: the process may already have exited.
        let _ = self.child.kill();
    }

    /// Returns the exit status; `None` if the process is not reaped in time, for example in uninterruptible sleep.
    ///
    /// # Errors
    /// When waiting fails.
    pub(crate) fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        loop {
            match self.child.try_wait() {
                Ok(None) if waited < REAP_TIMEOUT => thread::sleep(EXIT_POLL_INTERVAL),
                ended => return ended,
            }
            waited += EXIT_POLL_INTERVAL;
        }
    }
}

impl Drop for PipedChild {
    fn drop(&mut self) {
        self.kill();
        let _ = self.reap();
    }
}

/// A server process, killed when it is dropped.
pub(crate) struct ServerProcess(pub(crate) std::process::Child);

impl ServerProcess {
    /// Starts a server of this program with `spawn`. Returns the process with the first line of its output, which is
    /// empty if it exited before printing one.
    ///
    /// # Errors
    /// When it can't be started.
    pub(crate) fn start(
        command: &mut Command,
        spawn: impl FnOnce(&mut Command) -> io::Result<std::process::Child>,
    ) -> io::Result<(ServerProcess, String)> {
        let command = stopping::stop_with_parent(command).stdout(Stdio::piped());
        let mut served = ServerProcess(spawn(command)?);
        let mut line = String::new();
        if let Some(stdout) = served.0.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        Ok((served, line))
    }

    pub(crate) fn kill(&mut self) {
        // Ignore errors: the process may already have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
