//! Computes what a ladder or sweep will measure before anything is started; `--dry-run` prints this outline.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use plimsoll_model::Plan;
use plimsoll_model::comparisons::ladder::{self, ExtraMeasurement, Gate, batches};
use plimsoll_model::formats::units::Period;
use plimsoll_model::spec::{LadderSpec, RungRoute, RungSpec, Spec};
use plimsoll_report::quantity::planned_time;

use super::interleaving::Interleaving;
use super::{
    DEFAULT_SLICE, LADDER_KIND, LadderRequest, SliceId, extra_measurements, slices, time_slots,
};
use crate::failure::Failure;
use crate::load::documents::DocumentFlags;
use crate::load::presentation;
use crate::settings::problems;

/// Maximum default warm-up of a slice or replicate.
const MAX_WARMUP: Duration = Duration::from_secs(2);

/// The rungs of a ladder or sweep, their order and durations.
#[derive(Clone)]
pub(super) struct LadderOutline {
    pub(super) spec: Spec,
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) rungs: Vec<RungSpec>,
    /// How rungs are interleaved, or the reason why they are measured in slices instead.
    pub(super) interleaving: Result<Interleaving, String>,
    pub(super) parts: Vec<ExtraMeasurement>,
    /// Length of a slice, or of a segment of interleaved batches, without warm-up.
    pub(super) length: Duration,
    /// Number of slices, by rung.
    pub(super) rounds: Vec<usize>,
    pub(super) gates: Vec<Gate>,
}

impl LadderOutline {
    /// Computes the outline of the ladder or sweep in `spec`.
    ///
    /// # Errors
    /// When the plan or a flag is invalid.
    pub(super) fn from_spec(
        spec: &Spec,
        asked: &LadderRequest<'_>,
    ) -> Result<LadderOutline, Failure> {
        let mut spec = spec.clone();
        asked.flags.apply_to_spec(&mut spec)?;
        let options = spec.ladder.clone().unwrap_or_default();
        let length = options.slice.map_or(DEFAULT_SLICE, |p| p.0);
        if length < Duration::from_millis(100) {
            return Err(Failure::usage(
                "--slice: must be at least 100ms",
                "use a duration such as \"2s\"",
            ));
        }
        let listed = |spec: &Spec| {
            let rungs = spec.rungs();
            rungs.map_err(|problem| problems::failure(vec![problem], asked.source))
        };
        let unserved = listed(&spec)?;
        if asked.is_sharded() {
            reject_local_servers(&options, &unserved)?;
        }
        let turning = Interleaving::from_options(&spec, &unserved, asked)?;
        let in_calls = turning.as_ref().ok().filter(|t| t.time_slots.is_none());
        let parts =
            extra_measurements::select_measurements(&options, &unserved, in_calls.copied(), asked)?;
        let length = turning.as_ref().map_or(length, |turning| turning.length);
        let replicates = turning.as_ref().map_or(1, |turning| turning.replicates);
        let timed = turning.as_ref().ok().and_then(|turning| turning.time_slots);
        let links = unserved.len() as u32;
        (spec.load.duration, spec.load.calls) = (Some(Period(length)), None);
        let mut rungs = listed(&spec)?;
        for rung in &mut rungs {
            let of_it = length / replicates;
            rung.spec.load.duration = Some(Period(of_it));
            let warmup = Period((of_it / 4).min(MAX_WARMUP));
            let warmup = rung.spec.call.is_warmup_certain_to_end().then_some(warmup);
            rung.spec.load.warmup = rung.spec.load.warmup.or(warmup);
            // Round the warm-up up to whole rounds, so that it contains a time slot of every rung.
            if let (Some((slot, _)), Some(warmup)) = (timed, &mut rung.spec.load.warmup) {
                let rounds = warmup.0.as_nanos().div_ceil((slot * links).as_nanos());
                warmup.0 = slot * links * rounds as u32;
            }
        }
        // If all rungs have the same warm-up, write it into the common plan.
        let warmup = |rung: &RungSpec| rung.spec.load.warmup;
        if rungs.iter().all(|rung| warmup(rung) == warmup(&rungs[0])) {
            spec.load.warmup = warmup(&rungs[0]);
        }
        let name = spec.name.clone().unwrap_or_else(|| asked.kind.to_owned());
        let is_ladder = asked.kind == LADDER_KIND;
        let rounds = match options.rounds {
            Some(rounds) => rounds as usize,
            None if is_ladder => ladder::min_rounds(rungs.len()),
            None => 1,
        };
        let gates = options.fail_if.unwrap_or_default();
        // Don't divide slices into shorter ones if gates compare slices of the same round, or if starting a slice is
        // slow because the load is split over shards.
        let is_whole = is_ladder || asked.is_sharded() || !gates.is_empty();
        let rounds = if is_whole || turning.is_ok() {
            vec![rounds; rungs.len()]
        } else {
            slices::divide_slices(&mut rungs, rounds)
        };
        Ok(LadderOutline {
            spec,
            name,
            kind: asked.kind,
            rungs,
            interleaving: turning,
            parts,
            length,
            rounds,
            gates,
        })
    }

    /// Checks the rungs against the limits on this process's loads.
    ///
    /// # Errors
    /// When the rungs exceed a limit.
    pub(super) fn check_limits(&self, asked: &LadderRequest<'_>) -> Result<(), Failure> {
        let Some(limits) = &asked.process.environment.limits else {
            return Ok(());
        };
        let starts_servers = |options: &LadderSpec| options.serve.is_some();
        let is_served = self.spec.ladder.as_ref().is_some_and(starts_servers);
        if is_served || self.rungs.iter().any(|rung| rung.serve.is_some()) {
            limits.check_plan_code("the ladder starts servers (ladder.serve)")?;
        }
        if self
            .rungs
            .iter()
            .any(|rung| rung.route != RungRoute::Direct)
        {
            limits.check_plan_code("the ladder starts proxies (ladder.via)")?;
        }
        limits.check_key_duration("the ladder's load", self.duration())?;
        if is_served {
            // Rungs have no target before their servers have started; their plans are checked after that.
            return Ok(());
        }
        let plans = self.rungs.iter().map(|rung| asked.resolve_plan(&rung.spec));
        let plans = plans.collect::<Result<Vec<Plan>, Failure>>()?;
        limits.check_connections(&plans.iter().collect::<Vec<_>>())
    }

    /// Prints the outline, for `--dry-run`.
    ///
    /// # Errors
    /// When stdout can't be written.
    pub(super) fn show(&self, documents: &DocumentFlags) -> Result<(), Failure> {
        presentation::show_plan(&self.spec.without_secrets(), &self.to_string(), documents)
    }

    /// Returns the number of metrics with simultaneous confidence intervals.
    pub(super) fn metric_count(&self) -> usize {
        let parts = self
            .parts
            .iter()
            .map(|part| part.metrics_with_interval().len());
        batches::COMPARED_METRICS.len() + parts.sum::<usize>()
    }
}

impl LadderOutline {
    /// Returns the duration of all slices including warm-ups.
    fn slices_duration(&self) -> Duration {
        let of = |(rung, rounds): (&RungSpec, &usize)| {
            let load = &rung.spec.load;
            let times = [load.warmup, load.duration].into_iter().flatten();
            times.map(|time| time.0).sum::<Duration>() * *rounds as u32
        };
        self.rungs.iter().zip(&self.rounds).map(of).sum()
    }

    /// Returns the longest warm-up of all rungs.
    fn longest_warmup(&self) -> Duration {
        let warmups = self.rungs.iter().filter_map(|rung| rung.spec.load.warmup);
        warmups.map(|warmup| warmup.0).max().unwrap_or_default()
    }

    /// Returns the maximum total duration of the ladder's loads.
    fn duration(&self) -> Duration {
        let longest = self.longest_warmup();
        let rungs = match &self.interleaving {
            Ok(Interleaving {
                time_slots: Some(_),
                ..
            }) => longest + self.length,
            Ok(turning) => (longest * turning.replicates + self.length) * turning.segments,
            Err(_) => self.slices_duration(),
        };
        let n = self.rungs.len();
        let rounds = extra_measurements::round_count(n, self.metric_count());
        rungs + extra_measurements::SLICE_DURATION * (n * rounds * self.parts.len()) as u32
    }

    /// Writes a description of rounds, slices and warm-ups. If rungs have different numbers of rounds, it has one line
    /// per number.
    fn write_slices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let warmup = |rung: &RungSpec| rung.spec.load.warmup.map_or(Duration::ZERO, |p| p.0);
        let rounds = self.rounds[0];
        if self.rounds.iter().all(|n| *n == rounds) {
            let longest = self.rungs.iter().map(warmup).max().unwrap_or_default();
            let slice = self.rungs[0].spec.load.duration;
            write!(
                f,
                "{rounds} rounds of slices of {}, each after a warm-up of {}",
                planned_time(slice.map_or(self.length, |p| p.0)),
                planned_time(longest)
            )?;
            for rung in self.rungs.iter().filter(|rung| warmup(rung) < longest) {
                write!(f, ", {} for {}", planned_time(warmup(rung)), rung.name)?;
            }
            return writeln!(f);
        }
        let mut alike: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for (rung, rounds) in self.rungs.iter().zip(&self.rounds) {
            let slice = rung.spec.load.duration.map_or(self.length, |p| p.0);
            let key = (Reverse(*rounds), slice, warmup(rung));
            alike.entry(key).or_default().push(&rung.name);
        }
        for ((Reverse(rounds), slice, warmup), names) in alike {
            let rounds = match rounds {
                1 => "one slice".to_owned(),
                n => format!("{n} rounds of slices"),
            };
            writeln!(
                f,
                "{rounds} of {}, each after a warm-up of {}: {}",
                planned_time(slice),
                planned_time(warmup),
                names.join("; ")
            )?;
        }
        Ok(())
    }

    /// Returns spec and plan of a slice that shard 0 has announced.
    ///
    /// # Errors
    /// When the plan is invalid, or differs from shard 0's.
    pub(super) fn slice_load(
        &self,
        step: SliceId,
        asked: &LadderRequest<'_>,
    ) -> Result<(Spec, Plan), Failure> {
        let rung = self.rungs.get(step.rung).ok_or_else(|| {
            Failure::error(format_args!(
                "shard 0 has a rung {}, and this shard has {}: give all shards the same plan and flags",
                step.rung + 1,
                self.rungs.len()
            ))
        })?;
        Ok((rung.spec.clone(), asked.resolve_plan(&rung.spec)?))
    }
}

/// Describes in sentences what is measured, in which order, and for how long.
impl fmt::Display for LadderOutline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.rungs.iter().map(|r| r.name.as_str()).collect();
        let n = names.len();
        let unit = if self.kind == LADDER_KIND {
            "rungs"
        } else {
            "configurations"
        };
        writeln!(f, "a {} of {n} {unit}: {}", self.kind, names.join("; "))?;
        let longest = self.longest_warmup();
        match &self.interleaving {
            Ok(Interleaving {
                time_slots: Some(turns),
                ..
            }) => time_slots::write_description(*turns, longest, f)?,
            Ok(turning) => {
                write!(
                    f,
                    "in batches of {} calls for {}",
                    turning.calls,
                    planned_time(self.length)
                )?;
                if turning.replicates > 1 {
                    write!(f, " in {} replicates", turning.replicates)?;
                }
                if turning.segments > 1 {
                    let most = self.length * turning.segments;
                    write!(
                        f,
                        ", repeated until the gate or resolution is decided, for {} at most",
                        planned_time(most)
                    )?;
                }
                let each = if turning.replicates > 1 { "each " } else { "" };
                writeln!(f, ", {each}after a warm-up of {}", planned_time(longest))?;
            }
            Err(why) => {
                if self.kind != LADDER_KIND {
                    writeln!(f, "in slices, one rung after the other: {why}")?;
                }
                self.write_slices(f)?;
            }
        }
        for part in &self.parts {
            let rounds = extra_measurements::round_count(n, self.metric_count());
            writeln!(
                f,
                "{}: {rounds} rounds of slices of {}",
                part.words(),
                planned_time(extra_measurements::SLICE_DURATION)
            )?;
        }
        for gate in &self.gates {
            writeln!(f, "fails if {gate} is exceeded")?;
        }
        write!(
            f,
            "{} of load at most, plus the time to start and connect",
            planned_time(Duration::from_secs(
                self.duration().as_secs_f64().ceil() as u64
            ))
        )
    }
}

/// Rejects servers and proxies that the ladder would start, because they can be reached only from shard 0's machine.
fn reject_local_servers(options: &LadderSpec, rungs: &[RungSpec]) -> Result<(), Failure> {
    if options.serve.is_some() {
        return Err(Failure::usage(
            "ladder.serve with --rendezvous: servers that a ladder starts can be reached only from their own machine",
            "start the server yourself, and name it with --target, or a target for each rung",
        ));
    }
    match rungs.iter().find(|rung| rung.route != RungRoute::Direct) {
        None => Ok(()),
        Some(rung) => Err(Failure::usage(
            format_args!(
                "ladder.via with --rendezvous: the sidecars or the proxy of rung \"{}\" can be reached only from their own machine",
                rung.name
            ),
            "start them yourself (a sidecar: plimsoll relay sidecar), and give each a rung with its target",
        )),
    }
}
