//! Resolves `load.replay` and `load.arrivals = { file = … }` to recorded arrivals and their stages.

use std::str::FromStr;
use std::time::Duration;

use super::arrivals::ARRIVALS_TABLE_HELP;
use super::resolve::DEFAULT_SEED;
use super::{
    ArrivalsSpec, LoadSpec, Problems, ResolveContext, Spec, objective, resolve_target_url,
};
use crate::formats::units::Period;
use crate::plan::LoadStage;
use crate::rows::recording::{Recording, RecordingFormat, RecordingOptions};
use crate::rows::template::Rows;

/// The valid range of replay speeds.
const SPEED_RANGE: std::ops::RangeInclusive<f64> = 0.001..=1_000.0;

impl LoadSpec {
    /// Returns the key that names a file of arrivals, if any.
    pub fn recording_key(&self) -> Option<&'static str> {
        let times = self.arrivals.as_ref().and_then(ArrivalsSpec::file);
        match (&self.replay, times) {
            (Some(_), _) => Some("load.replay"),
            (None, Some(_)) => Some("load.arrivals"),
            (None, None) => None,
        }
    }
}

/// Reads recorded arrivals. Of a recording with requests to the plan's target and to other hosts, only those to the
/// target are replayed, unless a filter chooses hosts, or the plan has the checksum of all requests.
///
/// # Errors
/// Returns the errors of [`ResolveContext::read_recording`].
fn read_own_requests(
    spec: &Spec,
    request: RecordingOptions,
    surroundings: &dyn ResolveContext,
) -> Result<Recording, String> {
    let recording = surroundings.read_recording(&request)?;
    // Such a plan was saved when the requests to all hosts were replayed.
    if spec.load.checksum.as_ref() == Some(&recording.checksum()) {
        return Ok(recording);
    }
    let chooses_hosts = request
        .filters
        .iter()
        .any(|filter| filter.column() == "host");
    let target = spec.target.as_deref().filter(|_| !chooses_hosts);
    let target = target.and_then(|url| resolve_target_url(url, spec).ok());
    let own_host = target.map(|(target, _)| target.authority());
    match own_host.filter(|own| recording.hosts().includes_others_than(own)) {
        None => Ok(recording),
        own_host => surroundings.read_recording(&RecordingOptions {
            own_host,
            ..request
        }),
    }
}

impl Problems {
    /// Resolves the recorded arrivals; `None`: the plan has none, or they can't be read.
    pub(super) fn resolve_recording(
        &mut self,
        spec: &Spec,
        surroundings: &dyn ResolveContext,
    ) -> Option<Recording> {
        let load = &spec.load;
        let Some(key) = load.recording_key() else {
            self.report_unused_replay_keys(load);
            return None;
        };
        let request = self.resolve_recording_options(spec)?;
        let recording = self.ok_or_report(key, read_own_requests(spec, request, surroundings))?;
        let is_other = load
            .checksum
            .as_ref()
            .filter(|asked| **asked != recording.checksum());
        if let Some(asked) = is_other {
            let problem = format!(
                "{}: the replayed part has changed since the plan was saved (checksum {asked}, now {}): remove load.checksum to replay it anyway",
                recording.file(),
                recording.checksum(),
            );
            self.add("load.checksum", problem);
        }
        Some(recording)
    }

    fn report_unused_replay_keys(&mut self, load: &LoadSpec) {
        let given = [
            ("replay_format", load.replay_format.is_some()),
            ("time_column", load.time_column.is_some()),
            ("speed", load.speed.is_some()),
            ("window", load.window.is_some()),
            ("filter", load.filter.is_some()),
            ("sample", load.sample.is_some()),
            ("loop", load.repeat == Some(true)),
            ("checksum", load.checksum.is_some()),
        ];
        for (key, _) in given.into_iter().filter(|(_, given)| *given) {
            self.add(
                format!("load.{key}"),
                "for recorded arrivals: name their file (load.replay)",
            );
        }
    }

    /// Resolves how the recorded file is read, and which part of it is replayed; `None`: there was a problem.
    fn resolve_recording_options(&mut self, spec: &Spec) -> Option<RecordingOptions> {
        let load = &spec.load;
        let before = self.0.len();
        let times = load.arrivals.as_ref().and_then(ArrivalsSpec::file);
        if load.replay.is_some() && load.arrivals.is_some() {
            self.add(
                "load.arrivals",
                "can't be combined with load.replay, whose times say when calls are due: use one of the two",
            );
        }
        if let Some(ArrivalsSpec::Table(table)) = &load.arrivals
            && table.gamma.is_some()
        {
            self.add("load.arrivals", ARRIVALS_TABLE_HELP);
        }
        let file = load.replay.as_ref().or(times)?.clone();
        let named = load.replay_format.as_deref();
        let format = match named {
            Some(_) => Some(self.resolve_choice(
                "load.replay_format",
                named,
                &RecordingFormat::ALL,
                RecordingFormat::name,
            )),
            // `load.arrivals = { file = … }` implies the format.
            None if load.replay.is_none() => Some(RecordingFormat::Times),
            None => None,
        };
        let speed = load.speed.as_deref().map(|typed| self.resolve_speed(typed));
        let window = self.parse_or_report("load.window", load.window.as_deref());
        let filters = load.filter.iter().flatten().enumerate();
        let filters = filters.filter_map(|(n, typed)| {
            self.parse_or_report(&format!("load.filter.{n}"), Some(typed.as_str()))
        });
        let filters = filters.collect();
        let sample = load
            .sample
            .as_deref()
            .and_then(|typed| self.resolve_client_sample(typed));
        (self.0.len() == before).then_some(RecordingOptions {
            file,
            format,
            time_column: load.time_column.clone(),
            speed: speed.unwrap_or(1.0),
            window,
            filters,
            sample,
            seed: spec.seed.unwrap_or(DEFAULT_SEED),
            own_host: None,
        })
    }

    fn parse_or_report<T: FromStr<Err = String>>(
        &mut self,
        key: &str,
        typed: Option<&str>,
    ) -> Option<T> {
        self.ok_or_report(key, typed?.parse())
    }

    fn resolve_speed(&mut self, typed: &str) -> f64 {
        let number = typed.trim().trim_end_matches(['x', 'X']);
        let speed = number
            .parse()
            .ok()
            .filter(|speed| SPEED_RANGE.contains(speed));
        speed.unwrap_or_else(|| {
            self.add(
                "load.speed",
                format!("`{typed}` is not a speed: use 0.001x to 1000x, such as \"2x\""),
            );
            1.0
        })
    }

    fn resolve_client_sample(&mut self, typed: &str) -> Option<f64> {
        let share =
            objective::parse_percent(typed.trim()).filter(|share| *share > 0.0 && *share <= 1.0);
        if share.is_none() {
            self.add("load.sample", format!("`{typed}` is not a share of the clients: use a percentage above 0 % and up to 100 %, such as \"10%\""));
        }
        share
    }

    /// Returns the rows of the recording, if it has any and the plan names no others.
    pub(super) fn recorded_rows(
        &self,
        spec: &Spec,
        surroundings: &dyn ResolveContext,
    ) -> Option<Rows> {
        // Problems of the request are ignored here, because they are reported when the load is resolved.
        let request = Problems::default().resolve_recording_options(spec)?;
        let recording = read_own_requests(spec, request, surroundings).ok()?;
        recording.rows().map(Rows::from_recording)
    }

    /// Resolves the stages of a replay. The warm-up, if any, is the first part of the recorded time.
    pub(super) fn resolve_replay_stages(
        &mut self,
        load: &LoadSpec,
        recording: &Recording,
        warmup: Option<Duration>,
    ) -> Vec<LoadStage> {
        let warmup = warmup.unwrap_or_default();
        let repeats = load.repeat == Some(true);
        let all = Duration::from_nanos(recording.end_ns());
        let duration = load
            .duration
            .map(|period| period.0)
            .filter(|d| !d.is_zero());
        let measured = match (duration, load.calls) {
            (Some(duration), _) => duration,
            (None, _) if !repeats => all.saturating_sub(warmup),
            // The recording is repeated as often as needed for this number of calls, and once more because the warm-up
            // uses a part of it.
            (None, Some(calls)) => {
                let rounds = u32::try_from(calls / recording.count() + 2).unwrap_or(u32::MAX);
                all.saturating_mul(rounds)
            }
            (None, None) => {
                self.add(
                    "load.loop",
                    "the file would be replayed for ever: give load.duration or load.calls, too",
                );
                return Vec::new();
            }
        };
        let lasts = || format!("{} lasts {}", recording.file(), Period(all));
        if !repeats && warmup >= all {
            let problem = format!(
                "{}, and the warm-up {}: use a shorter one",
                lasts(),
                Period(warmup)
            );
            self.add("load.warmup", problem);
        } else if !repeats && warmup.saturating_add(measured) > all {
            let problem = format!(
                "{}, which is shorter: leave it out, or restart the file with load.loop",
                lasts()
            );
            self.add("load.duration", problem);
        } else if let Some(calls) = load.calls
            && !repeats
            && calls > recording.count()
        {
            let problem = format!(
                "{} has {} arrivals: use fewer calls, or restart the file with load.loop",
                recording.file(),
                recording.count()
            );
            self.add("load.calls", problem);
        }
        // Every stage gets the recording's mean rate, with which reports compare the achieved rate.
        let rate = recording.count() as f64 / all.as_secs_f64();
        let stage = |warmup, name: &str, length| LoadStage {
            warmup,
            ..LoadStage::constant_rate(name, length, rate)
        };
        let warm_up = (!warmup.is_zero()).then(|| stage(true, "warmup", warmup));
        warm_up
            .into_iter()
            .chain([stage(false, "replay", measured)])
            .collect()
    }
}
