//! The run directory as a reader of what happens in a run.

use std::io;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_engine::address::Lack;
use plimsoll_engine::{EngineError, Finished, Observation, fault};
use plimsoll_model::run::{self, Ending, Run, RunHeader, RunWriter};
use plimsoll_model::{Blame, Plan};

use super::ExecutionError;
use crate::console;
use crate::failure::{Failure, chain};
use crate::protocols;
use crate::reporter::Reporter;
use crate::spread::Spread;

/// Writes one run.
pub(super) struct Recording<'a> {
    writer: RunWriter,
    dir: &'a Path,
    /// The directory was there before.
    existed: bool,
    /// Something was measured.
    has_intervals: bool,
}

impl<'a> Recording<'a> {
    /// # Errors
    /// When the directory can't be written.
    pub(super) fn begin(
        plan: &Plan,
        plan_toml: &str,
        dir: &'a Path,
        spread: &Spread,
    ) -> Result<Recording<'a>, Failure> {
        let mut header =
            RunHeader::of(plan, plan_toml, env!("CARGO_PKG_VERSION"), Timestamp::now());
        header.processes = Some(spread.processes).filter(|&n| n > 1);
        header.notes.clone_from(&spread.notes);
        let replayed = plan.load.recording.iter();
        header
            .notes
            .extend(replayed.flat_map(|arrivals| arrivals.notes()));
        if never_began(dir) {
            // So that the same command can be given again.
            discard(dir, true);
        }
        let existed = dir.exists();
        let writer = RunWriter::create(dir, header, plan_toml)
            .and_then(|writer| writer.keeping_requests(plan.keep_requests))
            .map_err(|e| cannot_keep(&e, dir))?;
        Ok(Recording {
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
        console::notice(text);
    }

    /// What the live view took of a processor.
    pub(super) fn live_view(&mut self, cpu: Duration) {
        self.writer.live_view(cpu);
    }

    /// Keeps what was learned on the way.
    pub(super) fn note(&mut self, finished: &Finished) {
        let established = &finished.established;
        let writer = &mut self.writer;
        if let Some(tls) = finished.negotiated.clone() {
            writer.negotiated(tls);
        }
        writer.connecting_took(established.open, established.heap_bytes);
        if established.failed > 0 {
            let why = established
                .failure
                .as_ref()
                .map_or_else(String::new, |(outcome, detail)| {
                    format!(": {} ({detail})", outcome.code())
                });
            let text = format!(
                "{} of {} connections did not come up{why}",
                established.failed,
                established.failed + established.open,
            );
            self.log_and_show(&text);
        }
        self.writer.server_processes(&finished.watched_pids);
    }

    /// The run, which came to its end.
    ///
    /// # Errors
    /// When it can't be kept.
    pub(super) fn finish(mut self, ending: Ending) -> Result<Run, ExecutionError> {
        if let Some(reason) = &ending.reason {
            self.writer.log(reason);
        }
        let kept = self.writer.finish(ending);
        kept.map_err(|unsaved| ExecutionError {
            failure: cannot_keep(&unsaved.error, self.dir),
            unsaved: Some(unsaved.run),
        })
    }

    /// The run of a load that failed.
    ///
    /// # Errors
    /// When it did not begin, or can't be kept.
    pub(super) fn failed(mut self, error: EngineError, plan: &Plan) -> Result<Run, ExecutionError> {
        if self.has_intervals {
            return self.finish(Ending::partial(error.to_string()));
        }
        let is_the_targets = is_the_targets(&error);
        let failure = protocols::could_not_begin(error, plan);
        if is_the_targets {
            let reason = format!("{NOT_BEGUN}{failure}");
            self.writer.log(&reason);
            // What can't be kept either is the lesser problem.
            let _ = self.writer.finish(Ending::partial(reason));
        } else {
            // Nothing was measured, so nothing is kept, and the same command can be given again.
            drop(self.writer);
            discard(self.dir, self.existed);
        }
        Err(failure.into())
    }
}

impl Reporter for Recording<'_> {
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        match event {
            Observation::Connecting { .. } => {}
            Observation::Started {
                workers,
                connections,
            } => self.log(&format!(
                "started: {workers} workers, {connections} connections"
            )),
            Observation::Shards(shards) => self.writer.shards(shards.to_vec()),
            Observation::Interval(interval, requests) => {
                self.has_intervals = true;
                fault::point("interval");
                if let Err(e) = self.writer.interval(interval, requests) {
                    let remedy = remedy_of(&e).map_or_else(String::new, |what| format!("; {what}"));
                    self.log_and_show(&format!(
                        "from here on the run directory is not written, and the totals are in memory: {}{remedy}",
                        chain(&e)
                    ));
                }
            }
        }
        None
    }
}

/// How the reason begins of a run without a load.
const NOT_BEGUN: &str = "the load did not begin: ";

/// The target was not to be reached: a result, though there is nothing to measure. What this machine lacked is none.
fn is_the_targets(error: &EngineError) -> bool {
    match error {
        EngineError::NoConnection { outcome, .. } => outcome.blame() != Some(Blame::Client),
        EngineError::Resolve { source, .. } => Lack::of(source).is_none(),
        _ => false,
    }
}

/// The directory is that of a run whose target was not to be reached.
pub(super) fn never_began(dir: &Path) -> bool {
    Run::load(dir).is_ok_and(|run| run.reason.is_some_and(|r| r.starts_with(NOT_BEGUN)))
}

/// Takes away the files of a run that never began.
fn discard(dir: &Path, existed: bool) {
    for name in [
        run::file::PLAN,
        run::file::RUN,
        run::file::INTERVALS,
        run::file::REQUESTS,
        run::file::LOG,
        run::file::REPORT,
    ] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    if !existed {
        let _ = std::fs::remove_dir(dir);
    }
}

/// What to do where a directory can't be written.
pub(super) const OTHER_DISK: &str =
    "give a directory on a disk with room, which this user may write to, with --out";

/// What to do where a file may not grow any further.
const RAISE_FILE_SIZE: &str = "raise the limit of file sizes: `ulimit -f unlimited`";

/// Returns what to do about an error of writing to a run directory, where that is known.
fn remedy_of(error: &run::RunError) -> Option<&'static str> {
    match error {
        run::RunError::Io { source, .. } => Some(match source.kind() {
            io::ErrorKind::FileTooLarge => RAISE_FILE_SIZE,
            _ => OTHER_DISK,
        }),
        _ => None,
    }
}

/// The run directory can't be written.
pub(crate) fn cannot_keep(error: &run::RunError, dir: &Path) -> Failure {
    let text = format!("can't keep the run in {}: {}", dir.display(), chain(error));
    match remedy_of(error) {
        Some(remedy) => Failure::error_with_help(text, remedy),
        None => Failure::error(text),
    }
}
