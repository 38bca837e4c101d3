//! Writes the run directory from the observations of a run.

use std::io;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_engine::transport::address::LocalResourceError;
use plimsoll_engine::{ConnectFailure, EngineError, Observation, RunCompletion, fault};
use plimsoll_model::formats::quantity::plural;
use plimsoll_model::runs::run::{self, Run, RunEnding, RunHeader, RunWriter};
use plimsoll_model::{FailureSource, Plan};

use super::ExecutionError;
use crate::failure::{Failure, message_with_causes};
use crate::load::multiprocess::ProcessLayout;
use crate::load::protocols;
use crate::reporter::Reporter;
use crate::screen::console;

/// Writer of one run directory.
pub(super) struct RunRecorder<'a> {
    writer: RunWriter,
    dir: &'a Path,
    /// Whether the directory existed before.
    existed: bool,
    /// Whether any interval was measured.
    has_intervals: bool,
}

impl<'a> RunRecorder<'a> {
    /// Creates the run directory and writes the plan into it.
    ///
    /// # Errors
    /// When the directory can't be written.
    pub(super) fn begin(
        plan: &Plan,
        plan_toml: &str,
        dir: &'a Path,
        spread: &ProcessLayout,
    ) -> Result<RunRecorder<'a>, Failure> {
        let mut header =
            RunHeader::for_plan(plan, plan_toml, env!("CARGO_PKG_VERSION"), Timestamp::now());
        header.processes = Some(spread.processes).filter(|&n| n > 1);
        header.notes.clone_from(&spread.notes);
        let replayed = plan.load.recording.iter();
        header
            .notes
            .extend(replayed.flat_map(|arrivals| arrivals.notes()));
        if has_never_begun(dir) {
            // Replace a run that never started, so that the user can repeat the command with the same directory.
            remove_run_files(dir, true);
        }
        let existed = dir.exists();
        let writer = RunWriter::create(dir, header, plan_toml)
            .and_then(|writer| writer.with_request_log(plan.keep_requests))
            .map_err(|e| save_failure(&e, dir))?;
        Ok(RunRecorder {
            writer,
            dir,
            existed,
            has_intervals: false,
        })
    }

    pub(super) fn log(&mut self, text: &str) {
        self.writer.log(text);
    }

    pub(super) fn log_and_show(&mut self, text: &str) {
        self.log(text);
        console::print_notice(text);
    }

    /// Records the CPU time of the live view.
    pub(super) fn record_live_view_cpu(&mut self, cpu: Duration) {
        self.writer.set_live_view_cpu(cpu);
    }

    /// Records connections, negotiated TLS parameters and server processes.
    pub(super) fn record_completion(&mut self, finished: &RunCompletion) {
        let established = &finished.established;
        let writer = &mut self.writer;
        if let Some(tls) = finished.negotiated.clone() {
            writer.set_negotiated_tls(tls);
        }
        writer.set_connection_heap(established.open, established.heap_bytes);
        if established.failed > 0 {
            let why = established.failure.as_ref().map_or_else(
                String::new,
                |ConnectFailure {
                     outcome, detail, ..
                 }| { format!(": {} ({detail})", outcome.code()) },
            );
            let text = format!(
                "{} of {} connections were not established{why}",
                established.failed,
                established.failed + established.open,
            );
            self.log_and_show(&text);
        }
        self.writer.set_server_processes(&finished.watched_pids);
    }

    /// Finishes the run directory of a load that did not fail.
    ///
    /// # Errors
    /// When the directory can't be written.
    pub(super) fn finish(mut self, ending: RunEnding) -> Result<Run, ExecutionError> {
        if let Some(reason) = &ending.reason {
            self.writer.log(reason);
        }
        let kept = self.writer.finish(ending);
        kept.map_err(|unsaved| ExecutionError {
            failure: save_failure(&unsaved.error, self.dir),
            unsaved: Some(unsaved.run),
        })
    }

    /// Finishes the run directory of a load that failed.
    ///
    /// # Errors
    /// When the load did not start, or the run can't be saved.
    pub(super) fn finish_failed_run(
        mut self,
        error: EngineError,
        plan: &Plan,
    ) -> Result<Run, ExecutionError> {
        if self.has_intervals {
            return self.finish(RunEnding::partial(error.to_string()));
        }
        let is_the_targets = is_target_unreachable(&error);
        let failure = protocols::start_failure(error, plan);
        if is_the_targets {
            let reason = format!("{NEVER_BEGAN_PREFIX}{failure}");
            self.writer.log(&reason);
            // Ignore errors of writing the directory, because the failure to start is reported.
            let _ = self.writer.finish(RunEnding::partial(reason));
        } else {
            // Nothing was measured: remove the files, so that the same command can be repeated.
            drop(self.writer);
            remove_run_files(self.dir, self.existed);
        }
        Err(failure.into())
    }
}

impl Reporter for RunRecorder<'_> {
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        match event {
            Observation::Connecting { .. } => {}
            Observation::Started {
                workers,
                connections,
                ..
            } => self.log(&format!(
                "started: {}, {}",
                plural(u64::from(*workers), "worker"),
                plural(*connections, "connection")
            )),
            Observation::Shards(shards) => self.writer.set_shards(shards.to_vec()),
            Observation::Interval(interval, requests) => {
                self.has_intervals = true;
                fault::point("interval");
                if let Err(e) = self.writer.add_interval(interval, requests) {
                    let remedy =
                        save_error_help(&e).map_or_else(String::new, |what| format!("; {what}"));
                    self.log_and_show(&format!(
                        "the run directory can't be written any more; totals are kept in memory only: {}{remedy}",
                        message_with_causes(&e)
                    ));
                }
            }
        }
        None
    }
}

/// Prefix of the reason that is stored in a run whose load never started.
const NEVER_BEGAN_PREFIX: &str = "the load did not begin: ";

/// Returns whether the load failed because the target was unreachable. That run is kept as a result, unlike a run that
/// failed because this machine ran out of resources.
fn is_target_unreachable(error: &EngineError) -> bool {
    match error {
        EngineError::NoConnection { failure, .. } => {
            failure.outcome.failure_source() != Some(FailureSource::Client)
        }
        EngineError::Resolve { source, .. } => LocalResourceError::from_io_error(source).is_none(),
        _ => false,
    }
}

/// Returns whether the directory contains a run that never started because its target was unreachable.
pub(super) fn has_never_begun(dir: &Path) -> bool {
    // Such a run has no intervals. Those of another run may be many, and are not read for this.
    let intervals = dir.join(run::file_name::INTERVALS);
    intervals.metadata().is_ok_and(|file| file.len() == 0)
        && Run::load(dir).is_ok_and(|run| {
            run.reason
                .is_some_and(|r| r.starts_with(NEVER_BEGAN_PREFIX))
        })
}

/// Removes the files of a run that never started.
fn remove_run_files(dir: &Path, existed: bool) {
    for name in [
        run::file_name::PLAN,
        run::file_name::RUN,
        run::file_name::INTERVALS,
        run::file_name::REQUESTS,
        run::file_name::LOG,
        run::file_name::REPORT,
    ] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    if !existed {
        let _ = std::fs::remove_dir(dir);
    }
}

/// Help text for a run directory that can't be written.
pub(super) const OUT_DIR_HELP: &str =
    "give a writable directory on a disk with free space, with --out";

/// Help text for a run directory with a file that has reached the size limit.
const FILE_SIZE_HELP: &str = "raise the limit of file sizes: `ulimit -f unlimited`";

/// Returns the help text for an error of writing a run directory; `None` if there is no specific help.
fn save_error_help(error: &run::RunError) -> Option<&'static str> {
    match error {
        run::RunError::Io { source, .. } => Some(match source.kind() {
            io::ErrorKind::FileTooLarge => FILE_SIZE_HELP,
            _ => OUT_DIR_HELP,
        }),
        _ => None,
    }
}

/// Converts an error of writing a run directory.
pub(crate) fn save_failure(error: &run::RunError, dir: &Path) -> Failure {
    let text = format!(
        "can't save the run in {}: {}",
        dir.display(),
        message_with_causes(error)
    );
    match save_error_help(error) {
        Some(remedy) => Failure::error_with_help(text, remedy),
        None => Failure::error(text),
    }
}
