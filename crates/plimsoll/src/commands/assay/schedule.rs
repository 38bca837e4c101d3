//! Reconstructs when the calls of a run were due.

use plimsoll_model::plan::{ArrivalModel, ArrivalSpacing, LoadPlan, LoadStage};
use plimsoll_model::runs::run::{Run, RunError};
use plimsoll_model::schedule::Schedule;

/// Prefixes of the headings of plan sections with which several runs share a schedule. A shared schedule can't be
/// reconstructed from a single run.
const SHARED_SCHEDULE_SECTIONS: [&str; 3] = ["[ladder", "[lanes", "[sweep"];

/// Returns the due times of all calls in order, warm-up included, ns from the run's start; `None` if there was no
/// schedule, as in closed loops, or it can't be reconstructed.
///
/// # Errors
/// When the run's record of calls can't be read.
pub(super) fn due_times_ns(run: &Run) -> Result<Option<Vec<u64>>, RunError> {
    if run.header.arrivals.is_none() {
        return Ok(None);
    }
    if run.has_requests {
        let mut due = Vec::new();
        run.for_each_request(|call| {
            due.push(call.sample.arrival.0);
            Ok(())
        })?;
        due.sort_unstable();
        return Ok(Some(due));
    }
    let Some(spacing) = arrival_spacing(run) else {
        return Ok(None);
    };
    let header = &run.header;
    let Some(seed) = header.seed.filter(|_| header.shards.is_empty()) else {
        return Ok(None);
    };
    let shares = |line: &str| {
        SHARED_SCHEDULE_SECTIONS
            .iter()
            .any(|begin| line.starts_with(begin))
    };
    if run.plan.lines().any(shares) {
        return Ok(None);
    }
    let stages = header.planned_stages.iter().map(|stage| LoadStage {
        name: stage.name.clone(),
        warmup: stage.warmup,
        duration: stage.duration(),
        rate_from: stage.rate_from_per_s.unwrap_or_default(),
        rate_to: stage.rate_to_per_s.unwrap_or_default(),
    });
    let load = LoadPlan {
        arrivals: ArrivalModel::Open(spacing),
        stages: stages.collect(),
        calls: header.calls,
        ..LoadPlan::default()
    };
    let calls = usize::try_from(run.summary.count_check.due).unwrap_or(usize::MAX);
    let arrivals = Schedule::new(&load, seed).share(0, 1);
    Ok(Some(arrivals.take(calls).map(|call| call.at).collect()))
}

/// Returns the spacing of arrivals; `None` if the run's header alone does not determine the arrivals, as with a
/// recording.
fn arrival_spacing(run: &Run) -> Option<ArrivalSpacing> {
    let named = run.header.arrivals.as_deref()?;
    [ArrivalSpacing::Constant, ArrivalSpacing::Poisson]
        .into_iter()
        .find(|spacing| spacing.name() == named)
}
