//! Writes a run directory during the run.
//!
//! Invariant: data that was written before an error stays readable. A file whose last line could not be written
//! completely is truncated to its last complete line and not written to again; the run goes on and its totals stay
//! complete in memory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::formats::{document, output, redaction};
use crate::records::record::RequestRecord;

use super::json::RunDocument;
use super::{
    CertificateAcceptance, IntervalRecord, NegotiatedTls, Run, RunEnding, RunError, RunHeader,
    RunState, RunSummary, RunTotals, ShardFigures, UnsavedRun, file_name,
};

/// Minimum number of connections for a memory figure: with fewer, single pages and one-time allocations of the process
/// dominate.
pub const MIN_CONNECTIONS_FOR_MEMORY: u32 = 100;

/// A file to which complete lines are appended, and which is not written to again after the first error.
struct AppendOnlyFile {
    path: PathBuf,
    file: File,
    /// Total size of the complete lines, in bytes.
    complete_bytes: u64,
}

impl AppendOnlyFile {
    fn create(path: PathBuf) -> Result<AppendOnlyFile, RunError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(RunError::io(&path, "creating it"))?;
        Ok(AppendOnlyFile {
            path,
            file,
            complete_bytes: 0,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), RunError> {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.complete_bytes += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Truncate the partial line, which needs no disk space. If even this fails, readers ignore the partial
                // line.
                let _cut = self.file.set_len(self.complete_bytes);
                Err(RunError::io(&self.path, "writing to it")(error))
            }
        }
    }

    /// Syncs the file to disk. Some file systems report only now that the disk is full.
    fn close(self) -> Result<(), RunError> {
        output::sync(&self.file).map_err(RunError::io(&self.path, "writing to it"))
    }
}

/// A writer of one run directory.
pub struct RunWriter {
    dir: PathBuf,
    header: RunHeader,
    plan: String,
    totals: RunTotals,
    /// The file of intervals; `None` once writing has failed.
    intervals: Option<AppendOnlyFile>,
    requests: Option<zstd::Encoder<'static, AppendOnlyFile>>,
    keep_requests: bool,
    log: Option<AppendOnlyFile>,
    /// The first error, which is the reason for a partial run.
    failure: Option<String>,
}

impl Write for AppendOnlyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl RunWriter {
    /// Creates the directory `dir`, or uses it if it is empty, and writes the facts that are known before the first
    /// call. `plan_toml` is the resolved plan without secrets.
    ///
    /// # Errors
    /// When the directory is not empty or can't be written.
    pub fn create(dir: &Path, header: RunHeader, plan_toml: &str) -> Result<RunWriter, RunError> {
        fs::create_dir_all(dir).map_err(RunError::io(dir, "making the run directory"))?;
        let mut entries = fs::read_dir(dir).map_err(RunError::io(dir, "reading it"))?;
        if entries.next().is_some() {
            return Err(RunError::NotEmpty(dir.to_owned()));
        }
        let plan_path = dir.join(file_name::PLAN);
        output::write(&plan_path, plan_toml).map_err(RunError::io(&plan_path, "writing it"))?;
        let log = AppendOnlyFile::create(dir.join(file_name::LOG))?;
        let intervals = AppendOnlyFile::create(dir.join(file_name::INTERVALS))?;
        let writer = RunWriter {
            dir: dir.to_owned(),
            header,
            plan: plan_toml.to_owned(),
            totals: RunTotals::default(),
            intervals: Some(intervals),
            requests: None,
            keep_requests: false,
            log: Some(log),
            failure: None,
        };
        let summary = writer.summary();
        write_run_json(dir, RunState::Running, None, &writer.header, &summary)?;
        Ok(writer)
    }

    /// Writes a run of which only totals are known, as a single interval.
    ///
    /// # Errors
    /// Returns the errors of [`RunWriter::create`], and one when the interval can't be written.
    pub fn from_interval(
        dir: &Path,
        header: RunHeader,
        interval: &IntervalRecord,
    ) -> Result<Run, RunError> {
        let mut writer = RunWriter::create(dir, header, "")?;
        writer.add_interval(interval, &[])?;
        let finished = writer.finish(RunEnding::complete());
        finished.map_err(|unsaved| unsaved.error)
    }

    /// Sets whether one record per call is written. Must be called before the first interval.
    ///
    /// # Errors
    /// When the file of the records can't be created.
    pub fn with_request_log(mut self, keep: bool) -> Result<RunWriter, RunError> {
        if keep {
            let growing = AppendOnlyFile::create(self.dir.join(file_name::REQUESTS))?;
            let path = growing.path.clone();
            let level = 1; // a worker's second of calls must not cost a core
            let encoder = zstd::Encoder::new(growing, level);
            self.requests = Some(encoder.map_err(RunError::io(&path, "starting to compress"))?);
        }
        self.keep_requests = keep;
        Ok(self)
    }

    /// Returns the run directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the header with the facts that are known so far.
    pub fn header(&self) -> &RunHeader {
        &self.header
    }

    /// Records the heap size of the connections that were made before the load, if known. It is ignored for few
    /// connections, where one-time allocations of the process dominate.
    pub fn set_connection_heap(&mut self, connections: u32, heap_bytes: Option<u64>) {
        if let Some(bytes) = heap_bytes.filter(|_| connections >= MIN_CONNECTIONS_FOR_MEMORY) {
            let each = bytes as f64 / f64::from(connections);
            self.header.heap_bytes_per_connection = Some((each * 10.0).round() / 10.0);
        }
    }

    /// Records the parameters that the TLS handshakes negotiated.
    pub fn set_negotiated_tls(&mut self, tls: NegotiatedTls) {
        // An unchecked certificate is reported as a health problem instead of a note.
        let unusual = tls.certificate.iter();
        let taken = unusual.filter(|how| **how != CertificateAcceptance::Unchecked);
        let taken = taken.map(|how| format!("the server's certificate {}", how.sentence()));
        self.header.notes.extend(taken);
        if tls.renewed > 0 {
            self.header.notes.push(format!(
                "the client's certificate was replaced on disk and reloaded ({}×): new connections used the new one",
                tls.renewed
            ));
        }
        // Add a note with the HTTP version that servers chose, where they had a choice.
        let mut chosen: Vec<&str> = tls
            .handshakes
            .iter()
            .filter_map(|handshakes| handshakes.chosen.as_deref())
            .collect();
        chosen.sort_unstable();
        chosen.dedup();
        if !chosen.is_empty() {
            self.header.version = Some(chosen.join(", "));
        }
        self.header.tls = Some(tls);
    }

    /// Records how much of the client's CPU time the live view used.
    pub fn set_live_view_cpu(&mut self, cpu: std::time::Duration) {
        self.header.live_view_cpu_us = u64::try_from(cpu.as_micros()).ok();
    }

    /// Records the watched processes of the server.
    pub fn set_server_processes(&mut self, pids: &[i32]) {
        self.header.server_pids = pids.to_vec();
    }

    /// Records the figures of each shard.
    pub fn set_shards(&mut self, shards: Vec<ShardFigures>) {
        self.header.shards = shards;
    }

    /// Returns the figures so far.
    pub fn summary(&self) -> RunSummary {
        RunSummary::from_totals(&self.header, &self.totals)
    }

    /// Adds an interval, with the records of the calls that ended in it, where calls are logged. An error is returned
    /// only once: the file is no longer written to, and the figures stay complete in memory.
    pub fn add_interval(
        &mut self,
        interval: &IntervalRecord,
        requests: &[RequestRecord],
    ) -> Result<(), RunError> {
        self.totals.add(&self.header, interval);
        let mut outcome = Ok(());
        // Write the calls before the line that counts them, so that a killed run never counts a call that is missing in
        // the log.
        if let Some(encoder) = &mut self.requests
            && !requests.is_empty()
            && let Err(error) = write_requests(encoder, requests)
        {
            let error = RunError::io(&self.dir.join(file_name::REQUESTS), "writing to it")(error);
            self.requests = None;
            outcome = Err(error);
        }
        if let Some(file) = &mut self.intervals {
            let mut line = interval.to_line();
            line.push('\n');
            if let Err(error) = file.append(line.as_bytes()) {
                self.intervals = None;
                outcome = outcome.and(Err(error));
            }
        }
        if let Err(error) = &outcome {
            self.failure
                .get_or_insert_with(|| describe_write_error(error));
        }
        outcome
    }

    /// Adds a line to `log.txt`, without secrets. After a failure, the log is no longer written, and the run is partial.
    pub fn log(&mut self, line: &str) {
        let line = redaction::mask_urls(line);
        if let Some(log) = &mut self.log
            && let Err(error) = log.append(format!("{line}\n").as_bytes())
        {
            self.log = None;
            self.failure
                .get_or_insert_with(|| describe_write_error(&error));
        }
    }

    /// Ends the run and writes the final `run.json`. A complete run whose health problems invalidate it becomes
    /// [`RunState::Invalid`]; one that could not be written completely becomes [`RunState::Partial`].
    ///
    /// # Errors
    /// When `run.json` can't be written; the error contains the figures.
    pub fn finish(mut self, ending: RunEnding) -> Result<Run, UnsavedRun> {
        let requests = self.requests.take().map(|encoder| {
            let path = self.dir.join(file_name::REQUESTS);
            encoder
                .finish()
                .map_err(RunError::io(&path, "writing to it"))
                .and_then(AppendOnlyFile::close)
        });
        let others = [self.intervals.take(), self.log.take()];
        let others = others.into_iter().flatten().map(AppendOnlyFile::close);
        for error in requests.into_iter().chain(others).filter_map(Result::err) {
            self.failure
                .get_or_insert_with(|| describe_write_error(&error));
        }
        let summary = self.summary();
        let (mut state, reason) = determine_final_state(ending, self.failure, &summary);
        // The reason may contain an excerpt of an answer.
        let mut reason = reason.map(|reason| redaction::mask_urls(&reason).into_owned());
        let written = write_run_json(&self.dir, state, reason.as_deref(), &self.header, &summary);
        if let Err(error) = &written {
            state = RunState::Partial;
            reason = Some(describe_write_error(error));
        }
        let run = Run {
            dir: self.dir,
            state,
            reason,
            plan: self.plan,
            has_requests: self.keep_requests,
            header: self.header,
            totals: self.totals,
            summary,
        };
        match written {
            Ok(()) => Ok(run),
            Err(error) => Err(UnsavedRun {
                run: Box::new(run),
                error,
            }),
        }
    }
}

fn describe_write_error(error: &RunError) -> String {
    match error {
        RunError::Io { source, .. } => format!("{error}: {source}"),
        other => other.to_string(),
    }
}

/// Returns the final state and its reason.
fn determine_final_state(
    ending: RunEnding,
    failure: Option<String>,
    summary: &RunSummary,
) -> (RunState, Option<String>) {
    if ending.state != RunState::Complete {
        return (ending.state, ending.reason);
    }
    if let Some(failure) = failure {
        return (RunState::Partial, Some(failure));
    }
    let problems = &summary.health.problems;
    match problems.iter().find(|p| p.invalidates) {
        None => (RunState::Complete, ending.reason),
        Some(p) if p.kind.is_generator_limit() => (
            RunState::Invalid,
            Some(format!("generator-limited: {}", p.text)),
        ),
        Some(p) => (RunState::Invalid, Some(p.text.clone())),
    }
}

/// Writes one line per call and flushes the compressed block, so that the calls of a killed run can be read.
fn write_requests(
    encoder: &mut zstd::Encoder<'static, AppendOnlyFile>,
    requests: &[RequestRecord],
) -> io::Result<()> {
    let mut lines = Vec::with_capacity(requests.len() * 160);
    for request in requests {
        serde_json::to_writer(&mut lines, &request)?;
        lines.push(b'\n');
    }
    encoder.write_all(&lines)?;
    encoder.flush()
}

/// Writes `run.json` atomically.
fn write_run_json(
    dir: &Path,
    state: RunState,
    reason: Option<&str>,
    header: &RunHeader,
    summary: &RunSummary,
) -> Result<(), RunError> {
    let run = RunDocument {
        state,
        reason,
        header,
        summary,
    };
    document::write(&dir.join(file_name::RUN), &run)
}

#[cfg(test)]
mod tests;
