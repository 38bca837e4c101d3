//! Reads the directory of a run that finished, was killed, or was cut short.

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Table;

use crate::formats::document;
use crate::formats::input::{self, LineEnd};
use crate::records::record::{RequestRecord, StageRecord};

use super::consistency::{IntervalOrder, check_stage_numbers};
use super::json::{RunDocument, StoredRunHead};
use super::{
    CountSum, IntervalRecord, RunError, RunHeader, RunState, RunSummary, RunTotals, StageSummary,
    file_name,
};

/// Maximum bytes of a line of `intervals.jsonl`. Even intervals with many stages, addresses and batches take less than
/// a tenth of this.
const MAX_INTERVAL_LINE_BYTES: usize = 16 << 20;

/// Maximum bytes of a line of `requests.jsonl.zst`; a call takes about 200.
const MAX_REQUEST_LINE_BYTES: usize = 1 << 20;

/// Maximum number of stages, since a stage's number is one byte.
const MAX_STAGES: usize = 256;

/// A run that has ended in any state, with its figures.
#[derive(Clone, Debug)]
pub struct Run {
    /// The directory from which the run was read, or to which it was written.
    pub dir: PathBuf,
    /// The state in which it ended.
    pub state: RunState,
    /// Why the run is not complete, a sentence.
    pub reason: Option<String>,
    /// The text of `plan.toml`.
    pub plan: String,
    /// The facts that were known before the first call.
    pub header: RunHeader,
    /// The figures of the run.
    pub summary: RunSummary,
    /// Whether `requests.jsonl.zst` exists.
    pub has_requests: bool,
    pub(super) totals: RunTotals,
}

impl Run {
    /// Returns the value of `key` in the plan's call section, whatever its protocol is.
    pub fn plan_call_value<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        let plan: Table = self.plan.parse().ok()?;
        let mut sections = plan.get("call")?.as_table()?.values();
        let value = sections.find_map(|section| section.get(key))?;
        value.clone().try_into().ok()
    }

    /// Returns the text of `key` in each step of the plan's journey, in order; empty if the plan has no journey.
    pub fn plan_step_texts(&self, key: &str) -> Vec<Option<String>> {
        let plan: Table = self.plan.parse().unwrap_or_default();
        let steps = plan.get("steps").and_then(|steps| steps.as_array());
        let text = |step: &toml::Value| Some(step.get(key)?.as_str()?.to_owned());
        steps.map_or_else(Vec::new, |steps| steps.iter().map(text).collect())
    }

    /// Reads the run directory `dir`. A run that was killed, or whose last line is truncated, is [`RunState::Partial`].
    pub fn load(dir: &Path) -> Result<Run, RunError> {
        let path = dir.join(file_name::RUN);
        let text = match input::untrusted_file_to_string(&path, document::MAX_DOCUMENT_BYTES) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound && dir.is_dir() => {
                return Err(RunError::NotARun(dir.to_owned()));
            }
            Err(e) => return Err(RunError::io(&path, "reading it")(e)),
        };
        let StoredRunHead {
            mut state,
            mut reason,
            header,
        } = document::parse(&text, &path)?;
        let stages = header.planned_stages.len();
        if stages > MAX_STAGES {
            return Err(RunError::InvalidDocument {
                path,
                problem: format!("{stages} planned stages, and a plan has at most {MAX_STAGES}"),
            });
        }
        let mut totals = RunTotals::default();
        let is_complete =
            for_each_interval(dir, stages, |interval| totals.add(&header, &interval))?;
        if state == RunState::Running {
            state = RunState::Partial;
            reason = Some(
                "the run has not ended, or was killed: only what was written until then is shown"
                    .to_owned(),
            );
        } else if !is_complete && state != RunState::Partial {
            state = RunState::Partial;
            reason = Some(format!(
                "the last line of {} is cut off",
                file_name::INTERVALS
            ));
        }
        Ok(Run {
            dir: dir.to_owned(),
            state,
            reason,
            plan: read_plan(dir)?,
            summary: RunSummary::from_totals(&header, &totals),
            header,
            has_requests: input::is_plain_file(&dir.join(file_name::REQUESTS)),
            totals,
        })
    }

    /// Returns the content of `run.json`, with the state that was determined when reading.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(RunDocument {
            state: self.state,
            reason: self.reason.as_deref(),
            header: &self.header,
            summary: &self.summary,
        })
        .expect("the document's keys are strings and its numbers finite")
    }

    /// Returns the merged record of the stages that are not warm-up.
    pub fn measured_record(&self) -> StageRecord {
        self.totals.measured_record(&self.header)
    }

    /// Returns each stage's figures with the record that they are computed from; warm-up included.
    pub fn stages(&self) -> impl Iterator<Item = (&StageSummary, &StageRecord)> {
        self.summary.stages.iter().zip(self.totals.stages())
    }

    /// Reads all intervals, in order.
    pub fn intervals(&self) -> Result<Vec<IntervalRecord>, RunError> {
        let mut intervals = Vec::new();
        self.for_each_interval(|i| intervals.push(i))?;
        Ok(intervals)
    }

    /// Calls `f` with every interval in order, without keeping them in memory.
    pub fn for_each_interval(&self, f: impl FnMut(IntervalRecord)) -> Result<(), RunError> {
        let stages = self.header.planned_stages.len();
        for_each_interval(&self.dir, stages, f).map(|_whole| ())
    }

    /// Calls `f` with the record of every call, in the order in which calls ended. For a killed run, reading stops
    /// where the file is truncated, or earlier: after as many calls as the run's intervals count.
    ///
    /// # Errors
    /// When the run has no log of its calls or it can't be read. Returns the errors of `f` as well.
    pub fn for_each_request(
        &self,
        f: impl FnMut(&RequestRecord) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        self.try_for_each_request(f)
    }

    /// Like [`Run::for_each_request`], with a callback that can fail.
    ///
    /// # Errors
    /// Returns the errors of [`Run::for_each_request`] and of the callback.
    pub fn try_for_each_request<E: From<RunError>>(
        &self,
        mut f: impl FnMut(&RequestRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.has_requests {
            return Err(RunError::NoRequests(self.dir.clone()).into());
        }
        let path = self.dir.join(file_name::REQUESTS);
        let opened =
            input::open_untrusted_file(&path).map_err(RunError::io(&path, "opening it"))?;
        let decoder =
            zstd::Decoder::new(opened).map_err(RunError::io(&path, "starting to decompress"))?;
        let mut reader = BufReader::new(decoder);
        let mut line = Vec::new();
        let may_be_truncated = self.state == RunState::Partial;
        // In a killed run, the last calls in the log may belong to an interval that was not written.
        let check = &self.summary.count_check;
        let counted = if may_be_truncated {
            check.ok + check.errors + check.cut_off
        } else {
            u64::MAX
        };
        for number in 1..=counted {
            match input::read_line(&mut reader, &mut line, MAX_REQUEST_LINE_BYTES) {
                Ok(LineEnd::EndOfInput) if line.is_empty() || may_be_truncated => return Ok(()),
                Ok(_) => {}
                Err(e) if may_be_truncated && e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(());
                }
                Err(e) => return Err(line_error(&path, number)(e).into()),
            }
            let record = parse_utf8(&line)
                .and_then(RequestRecord::from_line)
                .map_err(RunError::invalid_line(&path, number))?;
            f(&record)?;
        }
        Ok(())
    }
}

/// Reads `plan.toml` in the directory of a run, ladder or search.
///
/// # Errors
/// When there is none, or it can't be read.
pub fn read_plan(dir: &Path) -> Result<String, RunError> {
    let path = dir.join(file_name::PLAN);
    input::untrusted_file_to_string(&path, document::MAX_DOCUMENT_BYTES)
        .map_err(RunError::io(&path, "reading it"))
}

/// Reads `intervals.jsonl` of a run with this number of planned stages, line by line. Returns false if the last line is
/// truncated and was ignored.
fn for_each_interval(
    dir: &Path,
    stages: usize,
    mut f: impl FnMut(IntervalRecord),
) -> Result<bool, RunError> {
    let path = dir.join(file_name::INTERVALS);
    let opened = input::open_untrusted_file(&path).map_err(RunError::io(&path, "opening it"))?;
    let mut reader = BufReader::new(opened);
    let (mut sum, mut order) = (CountSum::default(), IntervalOrder::default());
    let mut check = |interval: &IntervalRecord| {
        sum.add(interval)?;
        order.check(interval)?;
        check_stage_numbers(interval, stages)
    };
    let mut line = Vec::new();
    for number in 1.. {
        let end = input::read_line(&mut reader, &mut line, MAX_INTERVAL_LINE_BYTES)
            .map_err(line_error(&path, number))?;
        if end == LineEnd::EndOfInput {
            return Ok(line.is_empty());
        }
        let interval = parse_utf8(&line)
            .and_then(IntervalRecord::from_line)
            .and_then(|interval| check(&interval).map(|()| interval))
            .map_err(RunError::invalid_line(&path, number))?;
        f(interval);
    }
    Ok(true)
}

fn parse_utf8(line: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(line).map_err(|e| e.to_string())
}

/// Creates the error for a line that can't be read: an invalid line, or an I/O error.
fn line_error(path: &Path, number: u64) -> impl FnOnce(io::Error) -> RunError {
    move |error| match error.kind() {
        io::ErrorKind::InvalidInput => RunError::invalid_line(path, number)(error.to_string()),
        _ => RunError::io(path, "reading it")(error),
    }
}

#[cfg(test)]
mod tests;
