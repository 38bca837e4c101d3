//! Profiles: where sampled processes spent their CPU time, as folded stacks.
//!
//! A folded stack is a line `thread;outermost;…;innermost 12`: the frames of a stack, outermost first, and the number
//! of samples with this stack. Other tools (flamegraph.pl, inferno, speedscope) read and write the same format. The
//! `plimsoll` crate takes the samples; this module bounds, adds up, writes, reads and compares the stacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::BufReader;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::formats::document::{self, RunError, SCHEMA_VERSION};
use crate::formats::input::{self, LineEnd};
use crate::formats::output;
use crate::plan::{ProfiledEnd, StackUnwinding};
use crate::statistics::share::{difference_interval, share_interval};

/// The record's file name in a run directory.
pub const FILE_NAME: &str = "profile.json";

/// Maximum number of different stacks in a profile.
pub const MAX_STACKS: usize = 20_000;

/// Maximum length of a stack, in bytes. The kernel records at most 127 frames, unless its limit was raised.
pub const MAX_STACK_BYTES: usize = 32 << 10;

/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 1024;

/// Maximum number of notes about a profile, and maximum number of characters of each.
const NOTE_LIMITS: (usize, usize) = (20, 500);

/// Maximum size of a file of folded stacks, in bytes.
const MAX_FILE_BYTES: u64 = 32 << 20;

/// Maximum number of samples of a profile, so that sums can't overflow: more than 5,000 Hz on 1,000 cores for a year.
const MAX_SAMPLES: u64 = 1 << 48;

/// The frame that replaces stacks beyond the limits.
pub const OTHER_STACKS_FRAME: &str = "[other stacks]";

/// Returns the name of the file with an end's folded stacks.
pub fn folded_file_name(end: ProfiledEnd) -> &'static str {
    match end {
        ProfiledEnd::Server => "profile-server.folded",
        ProfiledEnd::Client => "profile-client.folded",
    }
}

/// The different stacks of a profile, each with its number of samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoldedStacks {
    counts: BTreeMap<String, u64>,
    samples: u64,
}

impl FoldedStacks {
    /// Adds `samples` of a stack whose frames are separated by `;`. Characters that could control a terminal are
    /// replaced. Once there are twice [`MAX_STACKS`] different stacks, the rarer half is counted as [`OTHER_STACKS_FRAME`].
    pub fn add(&mut self, stack: &str, samples: u64) {
        let samples = samples.min(MAX_SAMPLES - self.samples.min(MAX_SAMPLES));
        if samples == 0 {
            return;
        }
        self.samples += samples;
        *self.counts.entry(sanitize_stack(stack)).or_default() += samples;
        if self.counts.len() >= 2 * MAX_STACKS {
            self.merge_rare_stacks(MAX_STACKS);
        }
    }

    /// Adds all stacks of another profile.
    pub fn merge(&mut self, other: &FoldedStacks) {
        for (stack, samples) in &other.counts {
            self.add(stack, *samples);
        }
    }

    /// Returns the number of all samples.
    pub fn sample_count(&self) -> u64 {
        self.samples
    }

    /// Returns the number of samples whose stacks were beyond the limits.
    pub fn other_stack_sample_count(&self) -> u64 {
        self.counts.get(OTHER_STACKS_FRAME).copied().unwrap_or(0)
    }

    /// Returns the stacks with their samples, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts
            .iter()
            .map(|(stack, samples)| (stack.as_str(), *samples))
    }

    /// Counts all but the `most` most frequent stacks as [`OTHER_STACKS_FRAME`].
    fn merge_rare_stacks(&mut self, most: usize) {
        if self.counts.len() <= most {
            return;
        }
        let mut all: Vec<(String, u64)> = std::mem::take(&mut self.counts).into_iter().collect();
        // Equally frequent stacks are ordered alphabetically, so that the result is deterministic.
        all.sort_by(|(name, count), (other, of_other)| of_other.cmp(count).then(name.cmp(other)));
        let rest: u64 = all
            .split_off(most.saturating_sub(1))
            .iter()
            .map(|(_, n)| n)
            .sum();
        self.counts = all.into_iter().collect();
        *self
            .counts
            .entry(OTHER_STACKS_FRAME.to_owned())
            .or_default() += rest;
    }

    /// Returns the functions of all stacks, sorted by self samples, the most first. A sample is a self sample of the
    /// innermost frame of its stack.
    pub fn functions_by_self_samples(&self) -> Vec<FunctionUsage> {
        let mut found: BTreeMap<&str, FunctionUsage> = BTreeMap::new();
        for (stack, samples) in self.iter() {
            // The first frame names the thread; a stack that could not be unwound has no other frames.
            let frames: Vec<&str> = match stack.split_once(';') {
                Some((_, frames)) => frames.split(';').collect(),
                None if stack == OTHER_STACKS_FRAME => vec![OTHER_STACKS_FRAME],
                None => vec!["[unknown]"],
            };
            let innermost = frames.last().copied().unwrap_or_default();
            // A recursive function occurs several times in a stack, but counts once.
            for name in frames.into_iter().collect::<BTreeSet<_>>() {
                let function = found.entry(name).or_insert_with(|| FunctionUsage {
                    name: name.to_owned(),
                    self_samples: 0,
                    total_samples: 0,
                    samples: self.samples,
                });
                function.total_samples += samples;
                if name == innermost {
                    function.self_samples += samples;
                }
            }
        }
        let mut all: Vec<FunctionUsage> = found.into_values().collect();
        all.sort_by(|a, b| {
            b.self_samples
                .cmp(&a.self_samples)
                .then(a.name.cmp(&b.name))
        });
        all
    }

    /// Formats the stacks as text, one per line.
    fn to_text(&self) -> String {
        let mut text = String::new();
        for (stack, samples) in self.iter() {
            let _ = writeln!(text, "{stack} {samples}");
        }
        text
    }

    /// Reads a file of folded stacks, which may come from an untrusted source.
    fn read(path: &Path) -> Result<FoldedStacks, RunError> {
        let file = input::open_untrusted_file(path).map_err(RunError::io(path, "opening it"))?;
        let mut reader = BufReader::new(file);
        let mut stacks = FoldedStacks::default();
        let (mut line, mut bytes) = (Vec::new(), 0);
        for number in 1.. {
            let wrong = RunError::invalid_line(path, number);
            let end = match input::read_line(&mut reader, &mut line, MAX_STACK_BYTES + 32) {
                Ok(end) => end,
                Err(error) => return Err(wrong(error.to_string())),
            };
            bytes += line.len() as u64 + 1;
            if line.is_empty() && end == LineEnd::EndOfInput {
                break;
            }
            if bytes > MAX_FILE_BYTES || number > MAX_STACKS as u64 {
                return Err(wrong(format!(
                    "more than {MAX_STACKS} stacks or {MAX_FILE_BYTES} bytes"
                )));
            }
            let text = String::from_utf8_lossy(&line);
            let parsed = text.rsplit_once(' ').and_then(|(stack, samples)| {
                let samples: u64 = samples.parse().ok()?;
                Some((stack, samples)).filter(|_| samples <= MAX_SAMPLES)
            });
            match parsed {
                Some((stack, samples)) => stacks.add(stack, samples),
                None => return Err(wrong("not a folded stack: FRAME;FRAME SAMPLES".to_owned())),
            }
            if end == LineEnd::EndOfInput {
                break;
            }
        }
        Ok(stacks)
    }
}

/// Replaces control characters in a stack and shortens it to the limits: to its thread and its innermost frames, which
/// show where the time was spent.
fn sanitize_stack(stack: &str) -> String {
    let text = replace_control_characters(stack);
    if text.len() <= MAX_STACK_BYTES && text.matches(';').count() <= MAX_FRAMES {
        return text;
    }
    let (thread, frames) = text.split_once(';').unwrap_or(("", &text));
    let (mut kept, mut bytes) = (Vec::new(), thread.len());
    for frame in frames.rsplit(';').take(MAX_FRAMES) {
        bytes += frame.len() + 1;
        if bytes > MAX_STACK_BYTES {
            break;
        }
        kept.push(frame);
    }
    if kept.is_empty() {
        return OTHER_STACKS_FRAME.to_owned();
    }
    kept.push(thread);
    kept.reverse();
    kept.join(";")
}

/// Replaces characters that could control a terminal.
fn replace_control_characters(text: &str) -> String {
    let is_harmful = |c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
    let all = text.chars();
    all.map(|c| if is_harmful(c) { '\u{fffd}' } else { c })
        .collect()
}

/// The samples of one function in a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionUsage {
    /// The name of the function's symbol; without a symbol, the name of the file in brackets.
    pub name: String,
    /// Samples in the function itself.
    pub self_samples: u64,
    /// Samples in the function and in the functions that it called.
    pub total_samples: u64,
    /// All samples of the profile.
    #[serde(skip)]
    samples: u64,
}

impl FunctionUsage {
    /// Returns whether any sample was in the function itself.
    pub fn has_self_samples(&self) -> bool {
        self.self_samples > 0
    }

    /// Returns the share of samples in the function itself, with its 95 % interval: `[low, share, high]`, 0 to 1.
    pub fn self_share(&self) -> [f64; 3] {
        share_with_interval(self.self_samples, self.samples)
    }

    /// Returns the share of samples in the function and in the functions that it called, with its 95 % interval, like
    /// [`FunctionUsage::self_share`].
    pub fn total_share(&self) -> [f64; 3] {
        share_with_interval(self.total_samples, self.samples)
    }
}

fn share_with_interval(hits: u64, samples: u64) -> [f64; 3] {
    let [low, high] = share_interval(hits, samples);
    [low, hits as f64 / samples.max(1) as f64, high]
}

/// A profile, and the CPU time per call to which its samples are scaled.
#[derive(Clone, Copy, Debug)]
pub struct ScaledProfile<'a> {
    /// The samples.
    pub stacks: &'a FoldedStacks,
    /// CPU time of a call in µs, or 1 if shares are compared.
    pub scale: f64,
}

/// The CPU time of one function itself in two profiles, each scaled by [`ScaledProfile::scale`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionDifference {
    /// The function's name.
    pub name: String,
    /// CPU time of the function itself in the first profile.
    pub first: f64,
    /// CPU time of the function itself in the second profile.
    pub second: f64,
    /// Lower end of the 95 % interval of the difference.
    pub low: f64,
    /// Upper end of that interval.
    pub high: f64,
}

impl FunctionDifference {
    /// Returns by how much the CPU time of the function itself is higher in the second profile.
    pub fn increase(&self) -> f64 {
        self.second - self.first
    }

    /// Returns whether the difference may be due to chance: its interval contains zero.
    pub fn is_insignificant(&self) -> bool {
        self.low <= 0.0 && self.high >= 0.0
    }
}

/// Compares the functions of two profiles by the CPU time of each function itself. The largest change comes first.
pub fn compare_functions(
    first: ScaledProfile<'_>,
    second: ScaledProfile<'_>,
) -> Vec<FunctionDifference> {
    let own = |of: &FoldedStacks| -> BTreeMap<String, u64> {
        let all = of.functions_by_self_samples().into_iter();
        all.map(|function| (function.name, function.self_samples))
            .collect()
    };
    let (of_first, of_second) = (own(first.stacks), own(second.stacks));
    let names: BTreeSet<&String> = of_first.keys().chain(of_second.keys()).collect();
    let part = |profile: ScaledProfile<'_>, own: &BTreeMap<String, u64>, name: &String| {
        let hits = own.get(name).copied().unwrap_or(0);
        (profile.scale, hits, profile.stacks.sample_count())
    };
    let value =
        |(scale, hits, samples): (f64, u64, u64)| scale * hits as f64 / samples.max(1) as f64;
    let mut all: Vec<FunctionDifference> = names
        .into_iter()
        .map(|name| {
            let (a, b) = (part(first, &of_first, name), part(second, &of_second, name));
            let [low, high] = difference_interval(a, b);
            FunctionDifference {
                name: name.clone(),
                first: value(a),
                second: value(b),
                low,
                high,
            }
        })
        .filter(|difference| difference.first > 0.0 || difference.second > 0.0)
        .collect();
    all.sort_by(|a, b| {
        b.increase()
            .abs()
            .total_cmp(&a.increase().abs())
            .then(a.name.cmp(&b.name))
    });
    all
}

/// The settings with which a run's processes were sampled, with the results for each end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileRecord {
    /// The version of the run format.
    pub schema_version: u32,
    /// The event that was sampled, as perf names it.
    pub event: String,
    /// Samples per second of CPU time.
    pub frequency_hz: u32,
    /// How callers were found.
    pub unwinding: StackUnwinding,
    /// The ends that were sampled.
    pub ends: BTreeMap<ProfiledEnd, SampledEndRecord>,
}

/// How one end was sampled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampledEndRecord {
    /// The processes that were sampled, with their later threads and children.
    pub pids: Vec<i32>,
    /// Samples after the warm-up.
    pub samples: u64,
    /// CPU time of the sampling process until the load ended, its start included, µs; `None`: not known. The kernel's
    /// time for taking samples is part of the sampled processes' CPU time.
    pub sampler_cpu_us: Option<u64>,
    /// Limitations of the profile, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The profile of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunProfile {
    /// How the samples were taken.
    pub record: ProfileRecord,
    /// The stacks of each end.
    pub stacks: BTreeMap<ProfiledEnd, FoldedStacks>,
}

impl RunProfile {
    /// Writes the profile into a run directory.
    ///
    /// # Errors
    /// When a file can't be written.
    pub fn write(&mut self, dir: &Path) -> Result<(), RunError> {
        for (end, stacks) in &mut self.stacks {
            let mut most = MAX_STACKS;
            stacks.merge_rare_stacks(most);
            let mut text = stacks.to_text();
            while text.len() as u64 > MAX_FILE_BYTES {
                most /= 2;
                stacks.merge_rare_stacks(most);
                text = stacks.to_text();
            }
            let path = dir.join(folded_file_name(*end));
            output::write(&path, text).map_err(RunError::io(&path, "writing it"))?;
        }
        document::write(&dir.join(FILE_NAME), &self.record)
    }

    /// Reads the profile in a run directory; `None` if its processes were not sampled.
    ///
    /// # Errors
    /// When the files are not regular files, are too large, or do not contain a profile.
    pub fn read(dir: &Path) -> Result<Option<RunProfile>, RunError> {
        let path = dir.join(FILE_NAME);
        if path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let mut record: ProfileRecord = document::read(&path)?;
        record.event = replace_control_characters(&record.event);
        for end in record.ends.values_mut() {
            end.notes.truncate(NOTE_LIMITS.0);
            for note in &mut end.notes {
                *note = replace_control_characters(
                    &note.chars().take(NOTE_LIMITS.1).collect::<String>(),
                );
            }
        }
        let ends = record.ends.keys();
        let read =
            |end: &ProfiledEnd| Ok((*end, FoldedStacks::read(&dir.join(folded_file_name(*end)))?));
        let stacks = ends.map(read).collect::<Result<_, RunError>>()?;
        Ok(Some(RunProfile { record, stacks }))
    }

    /// Adds the samples of another run of the same rung.
    pub fn merge(&mut self, other: &RunProfile) {
        for (end, stacks) in &other.stacks {
            self.stacks.entry(*end).or_default().merge(stacks);
        }
        for (end, more) in &other.record.ends {
            let known = self.record.ends.entry(*end).or_default();
            known.samples = known.samples.saturating_add(more.samples).min(MAX_SAMPLES);
            known.pids.extend(&more.pids);
            known.sampler_cpu_us = match (known.sampler_cpu_us, more.sampler_cpu_us) {
                (Some(a), Some(b)) => Some(a.saturating_add(b)),
                _ => None,
            };
            for note in &more.notes {
                if !known.notes.contains(note) {
                    known.notes.push(note.clone());
                }
            }
        }
    }
}

impl ProfileRecord {
    /// Creates the record for the sampling that `plan` requests, without results.
    pub fn new(plan: &crate::plan::ProfilePlan, event: &str) -> ProfileRecord {
        ProfileRecord {
            schema_version: SCHEMA_VERSION,
            event: event.to_owned(),
            frequency_hz: plan.frequency_hz,
            unwinding: plan.unwinding,
            ends: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests;
