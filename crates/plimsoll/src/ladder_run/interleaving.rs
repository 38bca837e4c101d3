//! Interleaves rungs (variants) of a ladder whose servers all run at once: each rung has its own load, all loads use
//! one clock, and one schedule assigns batches of calls (in a sweep: time slots of a closed loop) to the rungs.

use std::time::Duration;

use plimsoll_engine::Clock;
use plimsoll_engine::host::awake_cores::AwakeCores;
use plimsoll_engine::worker::StopUrgency;
use plimsoll_model::comparisons::ladder::batches::{
    self, BatchesRecord, DEFAULT_BATCH_CALLS, DEFAULT_DISCARDED_CALLS, RungMeasurement,
};
use plimsoll_model::comparisons::ladder::{ALPHA, GateObstacle, GateOutcome, GateResult};
use plimsoll_model::plan::BatchSchedule;
use plimsoll_model::runs::run::MIN_CONNECTIONS_FOR_MEMORY;
use plimsoll_model::schedule::Schedule;
use plimsoll_model::schedule::batches::shuffle_batches;
use plimsoll_model::spec::{LadderSpec, RateSpec, RungSpec, Spec};
use plimsoll_report::quantity::time;

use super::replicates::replicates_per_segment;
use super::testbed::ServersInUse;
use super::{LADDER_KIND, LadderRequest, LadderRun, time_slots};
use crate::failure::Failure;
use crate::load::parallel_loads::{self, PROGRESS_INTERVAL, ParallelLoad};
use crate::screen::progress::ProgressSeries;
use crate::screen::remaining::RemainingTime;

/// Minimum length of a segment, which gives enough blocks at usual rates, and enough samples of CPU differences.
const MIN_SEGMENT_LENGTH: Duration = Duration::from_secs(20);
/// Number of blocks in a segment at low rates, unless that would exceed the maximum length.
const BLOCKS_PER_SEGMENT: f64 = 100.0;
const MAX_SEGMENT_LENGTH: Duration = Duration::from_secs(120);

/// Default total length of all segments, if a resolution or a gate requires several.
const DEFAULT_BUDGET: Duration = Duration::from_secs(120);
const MAX_SEGMENTS: u32 = 60;

/// Maximum number of interleaved rungs: each needs its own thread and servers.
const MAX_RUNGS: usize = 16;

/// How rungs are interleaved: in one or more segments, each of which is divided into replicates (with servers started
/// afresh) and contains blocks with one batch of each rung.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Interleaving {
    pub(super) calls: u32,
    discarded_calls: u32,
    /// Length of a time slot, and number of batches per rung; `None` unless the load is a closed loop.
    pub(super) time_slots: Option<(Duration, u32)>,
    /// Length of a segment without warm-up.
    pub(super) length: Duration,
    /// Whether CPU cores are kept out of idle states between calls.
    keep_awake: bool,
    /// Requested resolution of the p50 difference between neighbouring rungs, µs.
    resolution_us: Option<f64>,
    /// Maximum number of segments, run one after another until the requested resolution or gates are decided.
    pub(super) segments: u32,
    /// Number of replicates in a segment.
    pub(super) replicates: u32,
    /// Whether the ladder has started the servers, and restarts them for each replicate.
    restarts_servers: bool,
    /// Half of the joint error probability of all confidence intervals over all segments, like [`ALPHA`].
    alpha: f64,
}

impl Interleaving {
    /// Returns how rungs are interleaved, or, as inner error, why they are measured in slices instead.
    ///
    /// # Errors
    /// When interleaving was requested but is not possible.
    pub(super) fn from_options(
        spec: &Spec,
        rungs: &[RungSpec],
        asked: &LadderRequest<'_>,
    ) -> Result<Result<Interleaving, String>, Failure> {
        let options = spec.ladder.clone().unwrap_or_default();
        let turning = Interleaving::plan_interleaving(spec, rungs, asked, &options)?;
        if turning.is_err() && options.resolution.is_some() {
            return Err(Failure::usage(
                "ladder.resolution (--resolution): needs batches, and these rungs are measured in slices",
                "leave it out, or measure the rungs together: --batch 20",
            ));
        }
        Ok(turning)
    }

    fn plan_interleaving(
        spec: &Spec,
        rungs: &[RungSpec],
        asked: &LadderRequest<'_>,
        options: &LadderSpec,
    ) -> Result<Result<Interleaving, String>, Failure> {
        let wanted = options.batch;
        if options.slice.is_some() || options.rounds.is_some() {
            return match wanted {
                None => Ok(Err("slices or rounds are set".to_owned())),
                Some(_) => Err(Failure::usage(
                    "ladder.batch can't be combined with ladder.slice or ladder.rounds",
                    "rungs are measured in batches or in rounds of slices: leave one of them out",
                )),
            };
        }
        let full_load = match asked.kind {
            LADDER_KIND => Ok(None),
            _ => time_slots::plan_time_slots(spec, rungs, options).map(Some),
        };
        let obstacle = interleaving_obstacle(spec, rungs, asked, wanted.is_some());
        if let Some(obstacle) = obstacle.or(full_load.as_ref().err().cloned()) {
            return match wanted {
                None => Ok(Err(obstacle)),
                Some(_) => Err(Failure::usage(
                    format_args!("ladder.batch (--batch): {obstacle}"),
                    "measure each rung in slices: --slice 2s",
                )),
            };
        }
        if let Ok(Some((slot, rounds))) = full_load {
            return Ok(Ok(Interleaving {
                calls: 1,
                time_slots: Some((slot, rounds)),
                length: slot * rungs.len() as u32 * rounds,
                segments: 1,
                replicates: 1,
                ..Interleaving::default()
            }));
        }
        let calls = wanted.unwrap_or(DEFAULT_BATCH_CALLS);
        if calls == 0 {
            return Err(Failure::usage(
                "ladder.batch: must be at least 1",
                "use 20, or leave it out",
            ));
        }
        let left_out = options
            .warmup_calls
            .unwrap_or(DEFAULT_DISCARDED_CALLS.min(calls - 1));
        if left_out >= calls {
            return Err(Failure::usage(
                format_args!(
                    "ladder.warmup_calls: {left_out} of the {calls} calls of a batch are discarded, which leaves none"
                ),
                "discard fewer, or give batches more calls: ladder.batch (--batch)",
            ));
        }
        let served = asked.starts_servers(options);
        let (resolution, budget) = (options.resolution, options.budget);
        let gated = options.fail_if.is_some();
        if budget.is_some() && resolution.is_none() && !gated {
            return Err(Failure::usage(
                "ladder.budget (--budget): needs --resolution or --fail-if",
                "add --resolution 1us or --fail-if 'p99 +3%'; for a fixed time, use --duration",
            ));
        }
        let length = match &spec.load.rate {
            Some(RateSpec::Steady(rate)) => {
                let calls = BLOCKS_PER_SEGMENT * rungs.len() as f64 * f64::from(calls);
                Duration::try_from_secs_f64(calls / rate.0).unwrap_or(MAX_SEGMENT_LENGTH)
            }
            _ => MIN_SEGMENT_LENGTH,
        };
        let length = length.clamp(MIN_SEGMENT_LENGTH, MAX_SEGMENT_LENGTH);
        let length = budget.map_or(length, |most| length.min(most.0));
        let stretch = spec.load.duration.map_or(length, |given| given.0);
        let segments = if resolution.is_some() || gated {
            budget.map_or(DEFAULT_BUDGET, |p| p.0).as_secs_f64() / stretch.as_secs_f64().max(0.1)
        } else {
            1.0
        };
        Ok(Ok(Interleaving {
            calls,
            discarded_calls: left_out,
            time_slots: None,
            length: stretch,
            keep_awake: options.keep_awake.unwrap_or(served),
            resolution_us: resolution.map(|p| p.0.as_secs_f64() * 1e6),
            segments: (segments as u32).clamp(1, MAX_SEGMENTS),
            replicates: replicates_per_segment(spec, rungs, asked, calls, stretch),
            restarts_servers: served,
            alpha: (asked.services).map_or(ALPHA, |compared| compared.error_probability / 2.0),
        }))
    }
}

/// Returns why the rungs can't be interleaved; `None` if they can.
fn interleaving_obstacle(
    spec: &Spec,
    rungs: &[RungSpec],
    asked: &LadderRequest<'_>,
    wanted: bool,
) -> Option<String> {
    let load = &spec.load;
    let is_ladder = asked.kind == LADDER_KIND;
    let schedule = |rung: &RungSpec| {
        let load = &rung.spec.load;
        (
            load.rate.clone(),
            load.steps.clone(),
            load.arrivals.clone(),
            load.warmup,
            load.duration,
            load.clients.filter(|_| is_ladder),
        )
    };
    let served = spec.ladder.as_ref().is_some_and(|l| l.serve.is_some());
    let connections = |rung: &RungSpec| rung.spec.load.connections.unwrap_or(1);
    if asked.is_sharded() {
        return Some("batches need one clock, and each shard has its own".to_owned());
    }
    if rungs.len() < 2 {
        return Some("there is only one rung".to_owned());
    }
    if rungs.len() > MAX_RUNGS {
        return Some(format!(
            "{} rungs can't be up together: at most {MAX_RUNGS} can",
            rungs.len()
        ));
    }
    if is_ladder && (load.clients.is_some() || load.rate.is_none() && load.steps.is_none()) {
        return Some("batches need a rate, and a closed loop has none".to_owned());
    }
    if rungs
        .iter()
        .any(|rung| rung.spec.call.schedules_own_arrivals())
    {
        return Some("sessions and held connections last longer than batches".to_owned());
    }
    if rungs
        .windows(2)
        .any(|two| schedule(&two[0]) != schedule(&two[1]))
    {
        return Some("batches need one schedule, and the rungs have several".to_owned());
    }
    // With many connections, prefer slices unless batches were requested: slices restart the servers, which is needed
    // to measure memory per connection.
    if !wanted
        && served
        && rungs
            .iter()
            .any(|rung| connections(rung) >= MIN_CONNECTIONS_FOR_MEMORY)
    {
        return Some("measuring memory per connection restarts the servers".to_owned());
    }
    None
}

impl LadderRun<'_> {
    /// Measures all rungs interleaved and adds the results to the record, until the time is over, or the requested
    /// resolution is reached and all gates are decided.
    ///
    /// # Errors
    /// When a rung could not be measured.
    pub(super) fn run_interleaved(&mut self, turning: Interleaving) -> Result<(), Failure> {
        if turning.time_slots.is_some() {
            return self.run_replicate(turning, 1).map(drop);
        }
        let (clock, mut due) = (Clock::new(), PROGRESS_INTERVAL);
        let series = ProgressSeries::new(self.process.progress);
        let sittings = turning.segments * turning.replicates;
        let remaining = RemainingTime::start(sittings);
        // Later segments are skipped once the result is conclusive, so the time shown is an upper bound.
        let at_most = |sitting| match turning.segments {
            1 => remaining.estimate_after(sitting),
            _ => remaining
                .estimate_after(sitting)
                .replacen(", ", ", at most ", 1),
        };
        for sitting in 1..=sittings {
            let more = self.try_replicate(turning, sitting)?;
            let is_lost = more.is_none();
            match (more, turning.restarts_servers) {
                (None, _) => {}
                (Some(more), _) if self.interleaved.is_empty() => self.interleaved = more,
                (Some(more), true) => {
                    RungMeasurement::extend_with_replicate(&mut self.interleaved, more)
                }
                (Some(more), false) => RungMeasurement::extend(&mut self.interleaved, more),
            }
            let is_over = self.record.interrupted || is_lost;
            if !sitting.is_multiple_of(turning.replicates) && !is_over {
                let elapsed = Duration::from_nanos(clock.now().0);
                if elapsed >= due {
                    due = elapsed + PROGRESS_INTERVAL;
                    let so_far = self.progress_suffix();
                    let left = at_most(sitting);
                    series.print_notice(format_args!(
                        "replicate {sitting} of {sittings}{left}{so_far}"
                    ));
                }
                continue;
            }
            for (rung, measured) in self.record.rungs.iter_mut().zip(&self.interleaved) {
                rung.in_turns = (sitting > 1).then(|| measured.percentiles());
            }
            self.update_comparison();
            if is_over || self.is_conclusive() {
                break;
            }
            if sitting < sittings {
                self.save_record()?;
                let reached = self.record.batches.as_ref();
                let found = reached.and_then(BatchesRecord::resolution_us).map_or_else(
                    || "no p50 difference is detected yet".to_owned(),
                    |us| format!("detects p50 differences over ±{}", time(us)),
                );
                series.print_notice(format_args!(
                    "{found} after {} s: continuing{}",
                    (f64::from(sitting) * self.record.slice_s).round(),
                    at_most(sitting)
                ));
            }
        }
        Ok(())
    }

    /// Recomputes the comparison of all interleaved measurements so far.
    pub(super) fn update_comparison(&mut self) {
        let Ok(turning) = self.outline.interleaving else {
            return;
        };
        if turning.time_slots.is_some() {
            return;
        }
        let metrics = self
            .outline
            .parts
            .iter()
            .map(|part| part.metrics_with_interval().len());
        // The result is tested after every segment, and each test may find a difference by chance, so divide the error
        // probability among the tests (Bonferroni).
        let alpha = turning.alpha / f64::from(turning.segments);
        let seed = self.record.seed;
        let mut turns =
            BatchesRecord::from_measurements(&self.interleaved, alpha, metrics.sum(), seed);
        turns.wanted_us = turning.resolution_us;
        turns.kept_awake = self.kept_awake;
        turns.alpha = turning.alpha;
        if self.testbed.compares_services() {
            turns.required_replicates = batches::MIN_REPLICATES;
        }
        self.record.batches = Some(turns);
    }

    /// Runs one replicate; returns `None` if a proxy is down, because then the rungs can no longer run together.
    fn try_replicate(
        &mut self,
        turning: Interleaving,
        sitting: u32,
    ) -> Result<Option<Vec<RungMeasurement>>, Failure> {
        if turning.restarts_servers && sitting > 1 {
            let seed = self.replicate_seed(sitting);
            let of = self.outline.rungs.len() as u32;
            self.testbed.restart_all(&shuffle_batches(of, 0, seed))?;
        }
        if self.testbed.proxies_mut().report_exits() {
            return Ok(None);
        }
        let measured = self.run_replicate(turning, sitting);
        let is_down = self.testbed.proxies_mut().report_exits();
        match measured {
            // Even if a proxy is down now, the other rungs' results count.
            Ok(measured) => Ok(Some(measured)),
            Err(_) if is_down => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn replicate_seed(&self, sitting: u32) -> u64 {
        self.record.seed.wrapping_add(u64::from(sitting - 1))
    }

    /// Returns whether the requested resolution is reached and all gates on interleaved metrics are decided.
    fn is_conclusive(&self) -> bool {
        let in_turns = |gated: &GateResult| batches::is_compared(gated.gate.metric);
        let gated = self.record.evaluate_gates();
        // More time can't decide a gate whose metric is not measured, or whose rungs fail different shares of calls.
        let can_be_decided = |gated: &GateResult| match gated.obstacle {
            Some(GateObstacle::NotMeasured) => false,
            Some(GateObstacle::FailsDifferently) => !self
                .record
                .failure_rates_differ_in_most_replicates(gated.rung, 0),
            Some(GateObstacle::TooFewReplicates) | None => true,
        };
        let is_open = |gated: &GateResult| {
            gated.outcome == GateOutcome::Undecided && in_turns(gated) && can_be_decided(gated)
        };
        let decided = !gated.iter().any(is_open);
        // If two services are compared, a single exceeded gate shows that one is slower.
        let exceeded = |gated: &GateResult| gated.outcome == GateOutcome::Beyond;
        let is_slower = self.testbed.compares_services() && gated.iter().any(exceeded);
        let resolved = |turns: &BatchesRecord| turns.has_reached_resolution();
        is_slower || decided && self.record.batches.as_ref().is_some_and(resolved)
    }

    /// Runs one replicate, counted from 1, and returns its measurements by rung.
    fn run_replicate(
        &mut self,
        turning: Interleaving,
        sitting: u32,
    ) -> Result<Vec<RungMeasurement>, Failure> {
        let of = self.outline.rungs.len() as u32;
        let seed = self.replicate_seed(sitting);
        let turns = |index| BatchSchedule {
            of,
            index,
            share: 1,
            calls: turning.calls,
            seed,
            read_cpu: true,
            slot: turning.time_slots.map(|(slot, _)| slot),
        };
        let mut plans = self.plans.clone();
        let mut before = Vec::new();
        for (rung, plan) in plans.iter_mut().enumerate() {
            plan.load.batches = Some(turns(rung as u32));
            plan.load.pin_last_core = true;
            // At full load, turn off the request log and byte counts, which would slow the generator.
            plan.keep_requests = turning.time_slots.is_none();
            plan.load.count_bytes = turning.time_slots.is_none();
            before.push(self.testbed.prepare_slice(rung, plan, ServersInUse::All)?);
        }
        let loads = self.outline.rungs.iter().zip(&plans).enumerate();
        let parts: Vec<ParallelLoad<'_>> = loads
            .map(|(rung, (spec, plan))| ParallelLoad {
                name: &spec.name,
                plan,
                spec: &spec.spec,
                dir: self.dir.join(replicate_directory(rung, sitting)),
            })
            .collect();
        let what = format!("{} rungs, in batches", plans.len());
        let awake = turning.keep_awake.then(AwakeCores::start).flatten();
        let runs = parallel_loads::run(&parts, &what, self.process)?;
        self.kept_awake = awake.is_some();
        drop(awake);
        self.record.interrupted = self.process.stop.level() != StopUrgency::Run;
        let mut all = Vec::new();
        for (rung, (plan, run)) in plans.iter().zip(&runs).enumerate() {
            let stages = plan.load.stages.iter().map(|stage| stage.warmup).collect();
            let dealt = plan.load.batches.unwrap_or_else(|| turns(rung as u32));
            let mut measured = RungMeasurement::new(dealt, turning.discarded_calls, stages);
            if plan.keep_requests {
                run.for_each_request(|request| {
                    measured.add_request(request);
                    Ok(())
                })
                .map_err(Failure::error)?;
            }
            run.for_each_interval(|interval| {
                measured.add_interval(&interval);
            })
            .map_err(Failure::error)?;
            let mut slice = self.slice_result(plan, run, replicate_directory(rung, sitting));
            self.testbed
                .add_server_and_proxy_usage(rung, &before[rung], run, &mut slice);
            if plan.keep_requests {
                measured.refine_percentiles(&mut slice);
            }
            self.record_connection_times(rung, plan, run);
            self.record.rungs[rung].slices.push(slice);
            all.push(measured);
        }
        let pids = runs.iter().map(|run| &*run.header.server_pids);
        let are_known = self.testbed.starts_all_servers(plans.len());
        let servers: Vec<&[i32]> = pids.filter(|_| are_known).collect();
        RungMeasurement::end_batch_group(&mut all, &servers);
        let measured = self.record.rungs.iter_mut().zip(&all).zip(&plans);
        for ((rung, measured), plan) in measured {
            let Some(slice) = rung.slices.last_mut() else {
                continue;
            };
            match (turning.time_slots, &mut slice.volume) {
                (Some((slot, _)), Some(volume)) => {
                    let turns = Schedule::new(&plan.load, plan.seed).share(0, 1);
                    let warm =
                        turns.take_while(|turn| plan.load.stages[usize::from(turn.stage)].warmup);
                    volume.set_batches(measured.closed_loop_batches(warm.count(), slot));
                }
                _ => slice.server_cpu_us_per_call = measured.server_cpu_us_per_call(),
            }
        }
        Ok(all)
    }
}

/// Returns the name of a run's directory: `rung-1` for the first replicate, `rung-1-02` and so on for later replicates.
fn replicate_directory(rung: usize, sitting: u32) -> String {
    match sitting {
        1 => format!("rung-{}", rung + 1),
        more => format!("rung-{}-{more:02}", rung + 1),
    }
}
