//! Profiles in words and tables: where sampled processes spent their CPU time, and in which functions the rungs
//! (variants) of a ladder differ.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use plimsoll_model::comparisons::ladder::{LadderMetric, LadderRecord, Rung};
use plimsoll_model::formats::input;
use plimsoll_model::plan::ProfiledEnd;
use plimsoll_model::runs::profile::{
    FoldedStacks, FunctionDifference, ProfileRecord, RunProfile, SampledEndRecord, ScaledProfile,
    compare_functions,
};
use plimsoll_model::runs::run::{Run, RunError};
use serde_json::{Value, json};

use crate::quantity::{plural, signed_time, time};
use crate::sections::table::TextTable;

/// Number of functions in the tables on the terminal.
pub(crate) const MAX_TERMINAL_FUNCTIONS: usize = 5;

/// Number of functions in the tables of pages and documents.
pub(crate) const MAX_PAGE_FUNCTIONS: usize = 25;

/// Maximum number of characters of a function's name on the terminal.
const MAX_NAME_CHARS: usize = 60;

/// Number of samples below which a note says that the shares are rough.
const MIN_RELIABLE_SAMPLES: u64 = 100;

/// A note that explains the intervals of shares.
pub(crate) const SHARES_NOTE: &str = "Intervals are binomial (95 %), of the number of samples alone. With callees: what the function called is included.";

/// A note that explains the intervals of differences.
pub(crate) const DIFFERENCES_NOTE: &str = "Differences are of the functions themselves, with 95 % intervals of their samples alone; the CPU time of a call is taken as measured.";

/// Returns the heading of the profile of an end (client or server).
pub(crate) fn heading(end: ProfiledEnd) -> String {
    format!("CPU time of {}", end.words())
}

/// Returns at most `most` functions, those with the largest shares.
pub(crate) fn function_table(stacks: &FoldedStacks, most: usize) -> TextTable {
    let all = stacks.functions_by_self_samples().into_iter().take(most);
    let rows = all
        .filter(|function| function.has_self_samples())
        .map(|function| {
            let [low, share, high] = function.self_share();
            let interval = format!("{} – {}", format_percent(low), format_percent(high));
            let total = format_percent(function.total_share()[1]);
            [function.name, format_percent(share), interval, total]
        });
    TextTable::new(
        ["function", "itself", "95 % interval", "with callees"],
        &[0],
        rows,
    )
}

fn format_percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Describes how an end was sampled and the cost of sampling. The parameter `measured_us` is the end's CPU time,
/// measured independently of the samples.
pub(crate) fn sampling_facts(
    record: &ProfileRecord,
    end: &SampledEndRecord,
    measured_us: Option<f64>,
) -> Vec<String> {
    let hz = record.frequency_hz.max(1);
    let sampled_us = end.samples as f64 / f64::from(hz) * 1e6;
    let of = measured_us.map_or_else(String::new, |us| format!(" of {} measured", time(us)));
    let sampler = end.sampler_cpu_us.map_or_else(
        || "the sampler's own CPU time is not known".to_owned(),
        |us| format!("the sampler took {} of CPU time itself", time(us as f64)),
    );
    let how = format!(
        "{} at {hz} Hz of CPU time ({}), callers by {}: they stand for {}{of}; {sampler}",
        plural(end.samples, "sample"),
        record.event,
        record.unwinding.words(),
        time(sampled_us),
    );
    let few = (end.samples < MIN_RELIABLE_SAMPLES).then(|| {
        format!(
            "{} are few: shares are rough; measure for longer, or with a higher watch.profile_hz",
            plural(end.samples, "sample")
        )
    });
    [how]
        .into_iter()
        .chain(few)
        .chain(end.notes.iter().cloned())
        .collect()
}

/// Returns the measured CPU time of an end, in µs.
pub(crate) fn measured_cpu_us(run: &Run, end: ProfiledEnd) -> Option<f64> {
    let total = &run.summary.total;
    let used = match end {
        ProfiledEnd::Server => total.server,
        ProfiledEnd::Client => total.client,
    }?;
    Some(used.cpu_user_us + used.cpu_system_us?)
}

/// Returns the profile of a run as a part of its document; `None` if its processes were not sampled.
pub(crate) fn document(dir: &Path) -> Option<Value> {
    match RunProfile::read(dir) {
        Ok(profile) => Some(profile_json(&profile?)),
        Err(problem) => Some(json!({ "problem": problem.to_string() })),
    }
}

fn profile_json(profile: &RunProfile) -> Value {
    let mut document = json!({
        "event": profile.record.event,
        "frequency_hz": profile.record.frequency_hz,
        "unwinding": profile.record.unwinding,
    });
    for (end, stacks) in &profile.stacks {
        let all = stacks
            .functions_by_self_samples()
            .into_iter()
            .take(MAX_PAGE_FUNCTIONS);
        let functions = all.map(|function| {
            let mut value = json!(function);
            value["self_share"] = json!(function.self_share());
            value["total_share"] = json!(function.total_share());
            value
        });
        let mut of_end = json!(profile.record.ends.get(end));
        of_end["functions"] = functions.collect();
        document[end.name()] = of_end;
    }
    document
}

/// Shortens the names of functions, which have hundreds of characters in some languages.
pub(crate) fn shorten_names(mut table: TextTable) -> TextTable {
    for name in table.rows.iter_mut().filter_map(|row| row.first_mut()) {
        if name.chars().count() > MAX_NAME_CHARS {
            *name = name.chars().take(MAX_NAME_CHARS - 1).chain(['…']).collect();
        }
    }
    table
}

/// The profiles of a ladder's rungs.
#[derive(Clone, Debug)]
pub(crate) struct LadderProfiles {
    rungs: Vec<Option<RungProfile>>,
}

/// The merged profiles of all slices or replicates of a rung.
#[derive(Clone, Debug)]
struct RungProfile {
    profile: RunProfile,
    /// The CPU time in µs that was measured in these runs, and the number of calls that it was spent on, by end.
    measured: BTreeMap<ProfiledEnd, (f64, u64)>,
}

impl RungProfile {
    /// Adds the CPU time measured in a run.
    fn add_measured(&mut self, run: &Run) {
        let calls = run.summary.total.ok;
        for end in self.profile.record.ends.keys() {
            if let Some(us) = measured_cpu_us(run, *end) {
                let known = self.measured.entry(*end).or_default();
                known.0 += us;
                known.1 = known.1.saturating_add(calls);
            }
        }
    }

    /// Returns the CPU time of a call at an end, in µs. The server's CPU time includes the proxies', because they are
    /// sampled together.
    fn cpu_us(&self, rung: &Rung, end: ProfiledEnd) -> Option<f64> {
        let (metric, proxies) = match end {
            ProfiledEnd::Server => (
                LadderMetric::ServerCpu,
                rung.median(LadderMetric::SidecarCpu).unwrap_or(0.0),
            ),
            ProfiledEnd::Client => (LadderMetric::ClientCpu, 0.0),
        };
        // A server that the ladder did not start may also do other work. That work is sampled, although the calls do
        // not cause it.
        let whole = || {
            let (us, calls) = self.measured.get(&end)?;
            (*calls > 0).then(|| us / *calls as f64)
        };
        let us = rung.median(metric).or_else(whole)? + proxies;
        (us.is_finite() && us > 0.0).then_some(us)
    }
}

/// The profiles of the first rung and of another one, scaled to the CPU time of a call.
pub(crate) struct RungComparison<'a> {
    pub(crate) end: ProfiledEnd,
    pub(crate) name: &'a str,
    pub(crate) first: ScaledProfile<'a>,
    pub(crate) second: ScaledProfile<'a>,
    /// Whether the profiles are scaled to µs of CPU time per call; otherwise shares are compared.
    pub(crate) is_time: bool,
}

impl LadderProfiles {
    /// Reads the profiles of the ladder in `dir`; returns `None` if nothing was sampled.
    ///
    /// # Errors
    /// When a profile, or the run that it belongs to, can't be read.
    pub(crate) fn read(
        record: &LadderRecord,
        dir: &Path,
    ) -> Result<Option<LadderProfiles>, RunError> {
        let mut rungs = Vec::new();
        for rung in &record.rungs {
            let mut all: Option<RungProfile> = None;
            for slice in &rung.slices {
                // The record may come from an untrusted source, and name any folder.
                let Ok(folder) = input::resolve_subfolder(dir, &slice.run) else {
                    continue;
                };
                let Some(profile) = RunProfile::read(&folder)? else {
                    continue;
                };
                let known = match &mut all {
                    Some(known) => {
                        known.profile.merge(&profile);
                        known
                    }
                    None => all.insert(RungProfile {
                        profile,
                        measured: BTreeMap::new(),
                    }),
                };
                known.add_measured(&Run::load(&folder)?);
            }
            rungs.push(all);
        }
        let is_profiled = rungs.iter().any(Option::is_some);
        Ok(is_profiled.then_some(LadderProfiles { rungs }))
    }

    /// Returns each sampled rung with its profile.
    pub(crate) fn rungs<'a>(
        &'a self,
        record: &'a LadderRecord,
    ) -> impl Iterator<Item = (&'a Rung, &'a RunProfile)> {
        let all = record.rungs.iter().zip(&self.rungs);
        all.filter_map(|(rung, profile)| Some((rung, &profile.as_ref()?.profile)))
    }

    /// Compares each rung with the first one, at each end (client or server) at which both were sampled.
    pub(crate) fn comparisons<'a>(&'a self, record: &'a LadderRecord) -> Vec<RungComparison<'a>> {
        let mut rungs = record.rungs.iter().zip(&self.rungs);
        let Some((first_rung, Some(first))) = rungs.next() else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for (rung, profile) in rungs {
            let Some(other) = profile else {
                continue;
            };
            for (end, stacks) in &other.profile.stacks {
                let Some(of_first) = first.profile.stacks.get(end) else {
                    continue;
                };
                if stacks.sample_count() == 0 || of_first.sample_count() == 0 {
                    continue;
                }
                let scales = first.cpu_us(first_rung, *end).zip(other.cpu_us(rung, *end));
                let (a, b) = scales.unwrap_or((1.0, 1.0));
                all.push(RungComparison {
                    end: *end,
                    name: &rung.name,
                    first: ScaledProfile {
                        stacks: of_first,
                        scale: a,
                    },
                    second: ScaledProfile { stacks, scale: b },
                    is_time: scales.is_some(),
                });
            }
        }
        all
    }

    /// Returns the profiles as a part of the ladder's document.
    pub(crate) fn document(&self, record: &LadderRecord) -> Value {
        let rungs = self.rungs(record).map(|(rung, profile)| {
            let mut document = profile_json(profile);
            document["rung"] = json!(rung.name);
            document
        });
        let compared = self.comparisons(record).into_iter().map(|compared| {
            json!({
                "rung": compared.name,
                "end": compared.end.name(),
                "unit": if compared.is_time { "us_per_call" } else { "share" },
                "functions": compared.differences(MAX_PAGE_FUNCTIONS),
            })
        });
        json!({ "rungs": rungs.collect::<Vec<_>>(), "differences": compared.collect::<Vec<_>>() })
    }
}

/// Describes how the client and the server of a rung were sampled.
pub(crate) fn rung_facts(rung: &Rung, profile: &RunProfile) -> Vec<String> {
    let ends = profile.record.ends.iter();
    ends.flat_map(|(end, record)| {
        let all = sampling_facts(&profile.record, record, None).into_iter();
        all.map(|fact| format!("{}, {}: {fact}", rung.name, end.words()))
            .collect::<Vec<_>>()
    })
    .collect()
}

impl RungComparison<'_> {
    /// Returns at most `most` functions, those that differ most.
    fn differences(&self, most: usize) -> Vec<FunctionDifference> {
        let mut all = compare_functions(self.first, self.second);
        all.truncate(most);
        all
    }

    /// Returns a table of the functions that differ most. `first`: the name of the first rung.
    pub(crate) fn table(&self, first: &str, most: usize) -> TextTable {
        let show = |value: f64| {
            if self.is_time {
                time(value)
            } else {
                format_percent(value)
            }
        };
        let signed = |value: f64| {
            let sign = if value < 0.0 { "−" } else { "+" };
            if self.is_time {
                signed_time(value)
            } else {
                format!("{sign}{}", format_percent(value.abs()))
            }
        };
        let rows = self.differences(most).into_iter().map(|function| {
            let interval = format!("{} … {}", signed(function.low), signed(function.high));
            let added = if function.is_insignificant() {
                "no difference seen".to_owned()
            } else {
                signed(function.increase())
            };
            [
                function.name.clone(),
                show(function.first),
                show(function.second),
                added,
                interval,
            ]
        });
        let unit = if self.is_time {
            "function (CPU time of a call)"
        } else {
            "function (share)"
        };
        TextTable::new(
            [unit, first, self.name, "difference", "95 % interval"],
            &[0],
            rows,
        )
    }

    /// Returns both profiles as lines of folded stacks with two counts each: nanoseconds of CPU time per call, or
    /// millionths of all samples.
    pub(crate) fn folded_lines(&self) -> Vec<String> {
        let factor = if self.is_time { 1e3 } else { 1e6 };
        let parts = |profile: ScaledProfile<'_>| -> BTreeMap<String, u64> {
            let each = factor * profile.scale / profile.stacks.sample_count().max(1) as f64;
            let all = profile.stacks.iter();
            all.map(|(stack, samples)| (stack.to_owned(), (each * samples as f64).round() as u64))
                .collect()
        };
        let (mut first, mut second) = (parts(self.first), parts(self.second));
        merge_thread_names(&mut first, &mut second);
        let names: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
        let of =
            |parts: &BTreeMap<String, u64>, name: &String| parts.get(name).copied().unwrap_or(0);
        names
            .into_iter()
            .map(|name| format!("{name} {} {}", of(&first, name), of(&second, name)))
            .collect()
    }

    /// Returns the unit of the counts in [`RungComparison::folded_lines`].
    pub(crate) fn unit(&self) -> &'static str {
        if self.is_time {
            "ns a call"
        } else {
            "ppm of samples"
        }
    }
}

/// Gives one name to the threads that only one of the profiles has, if each profile has such threads. The program then
/// names its threads differently in the two runs, and their stacks would not match.
fn merge_thread_names(first: &mut BTreeMap<String, u64>, second: &mut BTreeMap<String, u64>) {
    let threads = |of: &BTreeMap<String, u64>| -> BTreeSet<String> {
        of.keys()
            .map(|stack| thread_name(stack).to_owned())
            .collect()
    };
    let (of_first, of_second) = (threads(first), threads(second));
    if of_first.is_subset(&of_second) || of_second.is_subset(&of_first) {
        return;
    }
    for stacks in [first, second] {
        let mut renamed = BTreeMap::new();
        for (stack, count) in std::mem::take(stacks) {
            let thread = thread_name(&stack);
            let is_in_both = of_first.contains(thread) && of_second.contains(thread);
            let name = if is_in_both {
                stack
            } else {
                format!("{MERGED_THREADS_NAME}{}", &stack[thread.len()..])
            };
            *renamed.entry(name).or_default() += count;
        }
        *stacks = renamed;
    }
}

/// The common name of threads whose names the profiles do not share.
const MERGED_THREADS_NAME: &str = "[threads of other names]";

fn thread_name(stack: &str) -> &str {
    stack.split(';').next().unwrap_or(stack)
}

/// Formats the number of samples: `1,200 samples`.
pub(crate) fn format_samples(stacks: &FoldedStacks) -> String {
    plural(stacks.sample_count(), "sample")
}

#[cfg(test)]
mod tests;
