//! Processes that this program starts, and whose lines it reads.
//!
//! Invariant: none outlives the one that started it. It is killed when this is dropped, and one of this program stops
//! by itself at the end of its input.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::stopping;

/// How long a process that was killed may take to be gone.
const REAP_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Child {
    child: std::process::Child,
    /// `None` once nothing can be sent to it any more.
    pub(crate) stdin: Option<ChildStdin>,
}

impl Child {
    /// Starts it. `heard` is called on a thread of its own, with each line that it prints until that returns
    /// false, and with `None` where there will be no more.
    ///
    /// # Errors
    /// When it can't be started.
    pub(crate) fn start(
        command: &mut Command,
        mut heard: impl FnMut(Option<io::Result<String>>) -> bool + Send + 'static,
    ) -> io::Result<Child> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C reaches this process alone, which passes on what it means.
        let mut child = command.process_group(0).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let child = Child { child, stdin };
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

    pub(crate) fn kill(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.child.kill();
    }

    /// How it ended. A process that the kernel does not let go is not waited for.
    ///
    /// # Errors
    /// When the system does not say.
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

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.reap();
    }
}

/// A server, ended when it is dropped.
pub(crate) struct Served(pub(crate) std::process::Child);

impl Served {
    /// Has `spawn` start a server of this program. What it prints first; nothing where it ended before.
    ///
    /// # Errors
    /// When it can't be started.
    pub(crate) fn start(
        command: &mut Command,
        spawn: impl FnOnce(&mut Command) -> io::Result<std::process::Child>,
    ) -> io::Result<(Served, String)> {
        let command = stopping::end_with_us(command).stdout(Stdio::piped());
        let mut served = Served(spawn(command)?);
        let mut line = String::new();
        if let Some(stdout) = served.0.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        Ok((served, line))
    }

    pub(crate) fn end(&mut self) {
        // It may have ended by itself: a failure here changes nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}
