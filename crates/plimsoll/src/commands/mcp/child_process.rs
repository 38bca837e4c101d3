//! Runs this program as a child process, whose loads are subject to the MCP server's limits.
//!
//! Invariant: no child outlives its tool call. When a call is cancelled or its future is dropped, its child is stopped:
//! first by closing the child's standard input, which acts like one SIGINT, and after [`STOP_GRACE`] by SIGKILL.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll_engine::Clock;
use tokio::sync::{mpsc, oneshot};

use crate::failure::Failure;
use crate::settings::load_limits::{LIMITS_VARIABLE, LoadLimits};
use crate::{system::stopping, system::threads};

/// How often to check whether a child has exited or must stop.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time that a stopped child has for writing its measurements.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// Maximum number of a child's last stderr lines to keep; they explain a failure.
const MAX_STDERR_LINES: usize = 100;

/// The exit code and the output of a child that has ended.
pub(super) struct ChildResult {
    /// The exit code; `None` if a signal ended the child.
    pub(super) code: Option<i32>,
    /// The child's whole standard output.
    pub(super) stdout: String,
    /// The last lines of the child's standard error, at most [`MAX_STDERR_LINES`].
    pub(super) messages: Vec<String>,
}

/// An event of a child process.
pub(super) enum ChildEvent {
    /// The child printed a line to standard error, such as its progress.
    Line(String),
    End(ChildResult),
}

/// A running child process; dropping it stops the child.
pub(super) struct ChildProcess {
    lines: mpsc::UnboundedReceiver<String>,
    end: oneshot::Receiver<io::Result<ChildResult>>,
    stop: Arc<AtomicBool>,
}

impl ChildProcess {
    /// Starts this program with the arguments `words`.
    ///
    /// # Errors
    /// When the program can't be started.
    pub(super) fn start(words: &[String], limits: &LoadLimits) -> Result<ChildProcess, Failure> {
        let failed =
            |e: io::Error| Failure::error(format_args!("can't start a child process: {e}"));
        let limits = serde_json::to_string(limits).map_err(Failure::error)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(words)
            .env(LIMITS_VARIABLE, limits)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = stopping::stop_with_parent(&mut command)
            .spawn()
            .map_err(failed)?;
        let (line_sender, lines) = mpsc::unbounded_channel();
        let (end_sender, end) = oneshot::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (out, err) = (child.stdout.take(), child.stderr.take());
        threads::start("child's end", move || {
            let printed = thread::spawn(move || read_all(out));
            let messages = thread::spawn(move || read_lines(err, &line_sender));
            let ended = wait_or_stop(child, &stopped).map(|status| ChildResult {
                code: status.code(),
                stdout: printed.join().unwrap_or_default(),
                messages: messages.join().unwrap_or_default(),
            });
            // Sending fails if the tool call was dropped, so nobody needs the result.
            let _ = end_sender.send(ended);
        })?;
        Ok(ChildProcess { lines, end, stop })
    }

    /// Asks the child to stop and to write what it has measured.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the child's next line or its exit. No event is lost if the future is dropped.
    ///
    /// # Errors
    /// When the system fails to wait for the child.
    pub(super) async fn next_event(&mut self) -> Result<ChildEvent, Failure> {
        let ended = tokio::select! {
            biased;
            Some(line) = self.lines.recv() => return Ok(ChildEvent::Line(line)),
            ended = &mut self.end => ended,
        };
        match ended {
            Ok(Ok(end)) => Ok(ChildEvent::End(end)),
            Ok(Err(e)) => Err(Failure::error(format_args!(
                "can't wait for the child process: {e}"
            ))),
            Err(_) => Err(Failure::error("the child process is not watched any more")),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits until `child` exits, and stops it once `stop` is set.
fn wait_or_stop(mut child: Child, stop: &AtomicBool) -> io::Result<std::process::ExitStatus> {
    let clock = Clock::new();
    let mut kill_at = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) {
            drop(child.stdin.take());
            let at = *kill_at.get_or_insert_with(|| clock.now() + STOP_GRACE);
            if clock.now() >= at {
                child.kill()?;
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn read_all(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // After a read error, use the bytes read before it.
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends each line to `sender` as it is read; returns the last [`MAX_STDERR_LINES`] lines.
fn read_lines(from: Option<impl Read>, sender: &mpsc::UnboundedSender<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let lines = from.map(BufReader::new).into_iter();
    for line in lines.flat_map(BufRead::lines).map_while(Result::ok) {
        if kept.len() == MAX_STDERR_LINES {
            kept.remove(0);
        }
        kept.push(line.clone());
        // Sending fails if the tool call was dropped; keep reading, so that the child does not block.
        let _ = sender.send(line);
    }
    kept
}
