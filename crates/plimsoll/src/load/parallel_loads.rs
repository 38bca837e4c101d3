//! Runs several loads in one process on one clock: either the rungs of a ladder, which are variants of one plan that
//! are measured in turn, or lanes, which are loads of one plan that run side by side. Each load has its own thread and
//! run directory. The loads start together: each opens its connections and then waits for the others.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use plimsoll_engine::Clock;
use plimsoll_model::Plan;
use plimsoll_model::runs::run::Run;
use plimsoll_model::spec::Spec;
use plimsoll_report::quantity;

use crate::failure::{Exit, Failure};
use crate::load::barrier::{STOP_POLL_INTERVAL, StartBarrier};
use crate::load::execution::{self, LoadRunner};
use crate::load::process::ProcessContext;
use crate::load::profiler;
use crate::screen::progress::{LoadTotals, Progress, ProgressSeries};
use crate::screen::remaining;

/// How often progress is reported.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// One of the concurrent loads.
pub(crate) struct ParallelLoad<'a> {
    /// The load's name in progress reports.
    pub(crate) name: &'a str,
    pub(crate) plan: &'a Plan,
    /// The specification that the plan was resolved from.
    pub(crate) spec: &'a Spec,
    /// The run directory.
    pub(crate) dir: PathBuf,
}

impl ParallelLoad<'_> {
    fn measure(
        &self,
        process: &ProcessContext,
        barrier: &StartBarrier,
        so_far: &Arc<LoadTotals>,
    ) -> Result<Run, Failure> {
        let mut guard = StartAbortGuard {
            barrier,
            is_done: false,
        };
        let job = execution::PlannedRun {
            spec: self.spec,
            plan: self.plan,
            dir: &self.dir,
            progress: Progress::for_concurrent_load(self.plan, so_far),
            abort_after: None,
        };
        let run = execution::measure(job, process, LoadRunner::Synchronised(barrier))?;
        guard.is_done = true;
        Ok(run)
    }
}

/// Guard that aborts the start of all loads if the thread that owns it fails by an error or a panic.
struct StartAbortGuard<'a> {
    barrier: &'a StartBarrier,
    is_done: bool,
}

impl Drop for StartAbortGuard<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.barrier.abort();
        }
    }
}

/// Returns a suffix for progress lines: the medians and errors of the loads so far, or only the errors if there are
/// many loads.
fn progress_suffix(parts: &[ParallelLoad<'_>], so_far: &[Arc<LoadTotals>]) -> String {
    const MAX_SHOWN_LOADS: usize = 6;
    let mut text = String::new();
    let first = so_far.first().and_then(|first| first.p50_us());
    let p50s = parts.iter().zip(so_far).enumerate();
    let p50s = p50s.filter_map(|(i, (part, so_far))| {
        let p50 = so_far.p50_us()?;
        let more = first.filter(|_| i > 0).map_or_else(String::new, |first| {
            format!(" ({})", quantity::signed_time(p50 - first))
        });
        Some(format!("{} {}{more}", part.name, quantity::time(p50)))
    });
    let p50s: Vec<String> = p50s.collect();
    if parts.len() <= MAX_SHOWN_LOADS && !p50s.is_empty() {
        text += "; p50 so far: ";
        text += &p50s.join(", ");
    }
    let errors: u64 = so_far.iter().map(|so_far| so_far.errors()).sum();
    if errors > 0 {
        text += &format!("; errors: {}", quantity::count(errors));
    }
    text
}

/// Runs all loads from a common start time. `what` is the name for the loads in progress lines.
///
/// # Errors
/// When a load can't start, when profile samples of two loads can't be told apart, or when a run can't be saved.
pub(crate) fn run(
    parts: &[ParallelLoad<'_>],
    what: &str,
    process: &ProcessContext,
) -> Result<Vec<Run>, Failure> {
    profiler::check_attribution(parts.iter().map(|part| (part.name, part.plan)))?;
    let barrier = &StartBarrier::new(parts.len());
    let series = ProgressSeries::new(process.progress);
    let stages = parts.iter().flat_map(|part| &part.plan.load.stages);
    let all: Duration = stages.filter_map(|stage| stage.duration).sum();
    let lasts = all / u32::try_from(parts.len()).unwrap_or(1).max(1);
    let so_far: Vec<Arc<LoadTotals>> = parts.iter().map(|_| Arc::default()).collect();
    let outcomes: Vec<Result<Run, Failure>> = thread::scope(|scope| {
        let loads = parts.iter().zip(&so_far);
        let threads: Vec<_> = loads
            .map(|(part, so_far)| scope.spawn(move || part.measure(process, barrier, so_far)))
            .collect();
        let (clock, mut due) = (Clock::new(), PROGRESS_INTERVAL);
        while threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(STOP_POLL_INTERVAL);
            if Duration::from_nanos(clock.now().0) >= due && due < lasts {
                series.print_notice(format_args!(
                    "{} s of {} s, {}: {what}{}",
                    due.as_secs(),
                    lasts.as_secs(),
                    remaining::format_estimate((lasts - due).as_secs_f64()),
                    progress_suffix(parts, &so_far),
                ));
                due += PROGRESS_INTERVAL;
            }
        }
        let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ended
            .map(|outcome| outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut failures = Vec::new();
    let run = |outcome: Result<Run, Failure>| outcome.map_err(|why| failures.push(why)).ok();
    let runs = outcomes.into_iter().filter_map(run).collect();
    // If one load can't start, the others fail as interrupted, so report the first failure that is not an interruption.
    failures.sort_by_key(|failure| failure.exit() == Exit::Interrupted);
    match failures.into_iter().next() {
        None => Ok(runs),
        Some(failure) => Err(failure),
    }
}
