//! Writes a JSON line for every call that ended, or for every connection of a TCP route. Off by
//! default.
//!
//! Lines are written by a separate thread, because a file can block its writer and the data path
//! must not. Lines that this thread cannot keep up with are dropped and counted: the log never
//! delays a call.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::config::SidecarConfig;
use super::{SidecarError, start_thread};

/// Maximum number of lines in the queue.
const MAX_QUEUED_LINES: usize = 16_384;

/// How long a line may stay in the write buffer.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// One line. Fields that are unknown or have no meaning for the protocol are omitted.
#[derive(Debug, Default, Serialize)]
pub(super) struct AccessLogEntry {
    pub(super) time: Timestamp,
    pub(super) route: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) upstream: Option<String>,
    /// gRPC: the path. Bolt: the id that the client chose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<String>,
    /// The outcome, as a status of the protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<String>,
    /// The response came from the sidecar, not from the service.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) by_sidecar: bool,
    pub(super) took_us: u64,
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
}

/// The workers' end of the log's queue.
#[derive(Clone, Debug)]
pub(super) struct AccessLog(SyncSender<AccessLogEntry>);

/// A log, and the thread that writes it; both `None` if there is no log.
type OpenedLog = (Option<AccessLog>, Option<JoinHandle<()>>);

impl AccessLog {
    /// Opens the log that the config asks for, if any, and starts the thread that writes it. The thread ends when every
    /// clone of the log is dropped. `-` means standard output; a file is appended to.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(super) fn open(config: &SidecarConfig) -> Result<OpenedLog, SidecarError> {
        let Some(path) = &config.access_log else {
            return Ok((None, None));
        };
        let out: Box<dyn Write + Send> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            let opened = File::options().create(true).append(true).open(path);
            let place = || format!("access_log {}", path.display());
            Box::new(opened.map_err(|e| SidecarError::new(place(), e))?)
        };
        let (log, lines) = sync_channel(MAX_QUEUED_LINES);
        let path = path.to_owned();
        let writer = start_thread("access log", move || {
            write(&lines, BufWriter::new(out), &path);
        })?;
        Ok((Some(AccessLog(log)), Some(writer)))
    }

    /// Queues a line; returns `false` if the queue is full.
    pub(super) fn write_lines(&self, line: AccessLogEntry) -> bool {
        self.0.try_send(line).is_ok()
    }
}

fn write(lines: &Receiver<AccessLogEntry>, mut out: BufWriter<Box<dyn Write + Send>>, path: &Path) {
    let mut failed = false;
    let mut written = |result: io::Result<()>| {
        if let Err(e) = result
            && !std::mem::replace(&mut failed, true)
        {
            tracing::error!("access log {}: {e}: lines are lost", path.display());
        }
    };
    loop {
        match lines.recv_timeout(FLUSH_INTERVAL) {
            Ok(line) => {
                let text = serde_json::to_string(&line).unwrap_or_default();
                written(writeln!(out, "{text}"));
            }
            Err(RecvTimeoutError::Timeout) => written(out.flush()),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    written(out.flush());
}
