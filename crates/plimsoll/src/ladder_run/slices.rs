//! Measures the rungs (variants) of a ladder in rounds of short slices; each round measures every rung once, in random
//! order. Each slice is a run. On several machines shard 0 decides the order, and each slice is a run of all shards.

use std::time::Duration;

use plimsoll_engine::Clock;
use plimsoll_engine::worker::StopUrgency;
use plimsoll_model::Plan;
use plimsoll_model::comparisons::ladder::throughput::{is_round_measured, parts_per_slice};
use plimsoll_model::comparisons::ladder::{self, ExtraMeasurement};
use plimsoll_model::formats::units::Period;
use plimsoll_model::spec::{RungSpec, Spec};

use super::testbed::ServersInUse;
use super::{LadderRun, SliceId};
use crate::failure::Failure;
use crate::load::execution::{self, LoadRunner};
use crate::load::parallel_loads::PROGRESS_INTERVAL;
use crate::screen::progress::ProgressSeries;
use crate::screen::remaining::RemainingTime;

/// Minimum warm-up of a slice that was divided into shorter ones: every client must receive its first session ticket
/// during the warm-up.
const MIN_WARMUP: Duration = Duration::from_millis(200);

/// The slices of all rungs.
pub(super) struct SliceRounds {
    /// The extra measurement that the slices belong to; `None` for the rungs' own load.
    pub(super) part: Option<ExtraMeasurement>,
    /// Loads, by rung.
    pub(super) loads: Vec<(Spec, Plan)>,
    /// Number of rounds, by rung.
    pub(super) rounds: Vec<usize>,
}

impl SliceRounds {
    /// Returns whether the loads make a new connection for every call.
    pub(super) fn connects_for_every_call(&self) -> bool {
        matches!(
            self.part,
            Some(ExtraMeasurement::Connections | ExtraMeasurement::Resumed)
        )
    }
}

/// Divides the slices of a sweep into shorter slices, and returns the number of rounds of each rung. The slices of a
/// rung are not divided if its load is an open loop, if it has objectives or a precision (which need many calls), or if
/// its files are large or of unknown size.
pub(super) fn divide_slices(rungs: &mut [RungSpec], rounds: usize) -> Vec<usize> {
    let links = rungs.len();
    let mut divide = |rung: &mut RungSpec| {
        let size = rung.spec.fetched_file().and_then(|(_, size)| size);
        let is_judged = !rung.spec.objective.is_empty();
        let load = &mut rung.spec.load;
        let (Some(slice), Some(size), Some(clients)) = (load.duration, size, load.clients) else {
            return rounds;
        };
        if is_judged || load.rate.is_some() || load.steps.is_some() || load.precision.is_some() {
            return rounds;
        }
        let pieces = parts_per_slice(slice.0, rounds, links, size.saturating_mul(clients.into()));
        if pieces > 1 {
            // Round to whole milliseconds, which are easier to read.
            let part = |of: Duration| Duration::from_millis(of.as_millis() as u64 / pieces as u64);
            let warmup = |all: Period| Period(part(all.0).max(all.0.min(MIN_WARMUP)));
            load.duration = Some(Period(part(slice.0)));
            load.warmup = load.warmup.map(warmup);
        }
        rounds * pieces
    };
    rungs.iter_mut().map(&mut divide).collect()
}

impl LadderRun<'_> {
    pub(super) fn run_rounds(&mut self, all: &SliceRounds) -> Result<(), Failure> {
        let process = self.process;
        let rounds = all.rounds.iter().copied().max().unwrap_or_default();
        let orders = ladder::slice_order(self.outline.rungs.len(), rounds, self.record.seed);
        // Keep `series` alive until all slices are done: dropping it restores the terminal.
        let series = ProgressSeries::new(process.progress);
        let of_part = all
            .part
            .map_or_else(String::new, |part| format!("{}, ", part.name()));
        if let Some(part) = all.part {
            series.print_notice(format_args!("{}: {rounds} rounds", part.words()));
        }
        let remaining = RemainingTime::start(u32::try_from(rounds).unwrap_or(u32::MAX));
        let (clock, mut due) = (Clock::new(), PROGRESS_INTERVAL);
        for (round, mut order) in orders.into_iter().enumerate() {
            let shifted = |rung: usize| (round + rung) % rounds;
            order.retain(|rung| is_round_measured(shifted(*rung), all.rounds[*rung], rounds));
            let slices = order.len();
            let left = remaining.estimate_after(u32::try_from(round).unwrap_or(u32::MAX));
            for (nth, rung) in order.into_iter().enumerate() {
                let (spec, mut plan) = all.loads[rung].clone();
                let company = match all.part {
                    None | Some(ExtraMeasurement::Memory) => ServersInUse::OnlyThis,
                    Some(_) => ServersInUse::All,
                };
                if self.testbed.proxies_mut().is_down(rung) {
                    continue;
                }
                if all.part.is_some() {
                    // Record profile and server metrics only of the rung's own load, not of extra measurements.
                    (plan.profile, plan.server_metrics) = (None, None);
                }
                let before = self.testbed.prepare_slice(rung, &mut plan, company)?;
                let plan = &plan;
                let name = format!("rung-{}/slice-{:02}", rung + 1, round + 1);
                let name = match all.part {
                    None => name,
                    Some(part) => format!("{}/{name}", part.name()),
                };
                let context = format!(
                    "{of_part}round {} of {rounds}, slice {} of {slices}{left}: {}",
                    round + 1,
                    nth + 1,
                    self.outline.rungs[rung].name
                );
                let progress = series.for_run(plan, vec![context]);
                let dir = self.dir.join(&name);
                let job = execution::PlannedRun {
                    spec: &spec,
                    plan,
                    dir: &dir,
                    progress,
                    abort_after: None,
                };
                let run = match self.team {
                    None => {
                        execution::measure(job, process, LoadRunner::Local).map_err(Failure::from)
                    }
                    Some(team) => team.run_load(SliceId { rung }, job),
                };
                if process.stop.level() != StopUrgency::Run {
                    self.record.interrupted = true;
                    return Ok(());
                }
                let is_down = self.testbed.proxies_mut().report_exits();
                if is_down && run.is_err() && self.testbed.proxies_mut().is_down(rung) {
                    continue;
                }
                let run = run?;
                // Rungs that are compared with each other have one slice in every round, so their k-th slices belong to
                // the same round.
                let mut slice = self.slice_result(plan, &run, name);
                self.testbed
                    .add_server_and_proxy_usage(rung, &before, &run, &mut slice);
                self.record_connection_times(rung, plan, &run);
                let measured = &mut self.record.rungs[rung];
                match all.part {
                    None => measured.slices.push(slice),
                    Some(part) => measured.parts.entry(part).or_default().push(slice),
                }
                self.save_record()?;
            }
            let done = round + 1;
            let left = remaining.estimate_after(u32::try_from(done).unwrap_or(u32::MAX));
            let elapsed = Duration::from_nanos(clock.now().0);
            match all.part {
                None => {
                    let so_far = self.progress_suffix();
                    series.print_notice(format_args!("round {done} of {rounds}{left}{so_far}"));
                }
                // Rounds of extra measurements are short, so print progress at most once per `PROGRESS_INTERVAL`.
                Some(_) if elapsed >= due && done < rounds => {
                    due = elapsed + PROGRESS_INTERVAL;
                    series.print_notice(format_args!("{of_part}round {done} of {rounds}{left}"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}
