//! Interleaves the rungs of a sweep, each a closed loop over one kind of link, in time slots. In each slot, only the
//! load of one rung runs.

use std::fmt;
use std::time::Duration;

use plimsoll_model::comparisons::ladder::throughput;
use plimsoll_model::plan::batch_start_window;
use plimsoll_model::spec::{LadderSpec, RungSpec, Spec};
use plimsoll_report::quantity::planned_time;

use super::DEFAULT_SLICE;

/// Returns the length of a time slot and the number of batches per rung.
///
/// # Errors
/// Returns the reason if these rungs can't be interleaved.
pub(super) fn plan_time_slots(
    spec: &Spec,
    rungs: &[RungSpec],
    options: &LadderSpec,
) -> Result<(Duration, u32), String> {
    let no = |why: &str| Err(why.to_owned());
    let any = |is: fn(&Spec) -> bool| rungs.iter().any(|rung| is(&rung.spec));
    if any(|spec| spec.load.clients.is_none()) {
        return no("batches at full load need a closed loop, and the load has a rate");
    }
    if options.serve.is_none() {
        return no(
            "the sweep did not start the servers, so their CPU time can't be divided among batches",
        );
    }
    if any(|spec| !spec.objective.is_empty() || spec.load.precision.is_some()) {
        return no("objectives and load.precision are judged by whole slices");
    }
    let turns = options.batch.is_some() || options.resolution.is_some();
    if turns || options.fail_if.is_some() || options.parts.is_some() {
        return no(
            "batches at full load have a duration: they have no number of calls, gates, resolution or parts",
        );
    }
    let (mut bytes, mut handshakes) = (0, 0);
    for rung in rungs {
        let (load, size) = (
            &rung.spec.load,
            rung.spec.fetched_file().and_then(|(_, size)| size),
        );
        let Some(size) = size else {
            return no(
                "the length of batches depends on the size of the files, and the plan gives none",
            );
        };
        let clients = load.clients.unwrap_or(1);
        bytes = size.saturating_mul(clients.into()).max(bytes);
        if load.reuse.as_deref() == Some("never") {
            handshakes = clients.max(handshakes);
        }
    }
    let length = (spec.load.duration).map_or(DEFAULT_SLICE * rungs.len() as u32, |given| given.0);
    throughput::plan_batches(length, rungs.len(), bytes, handshakes)
        .ok_or_else(|| format!("{} are too short: confidence intervals need several batches of every configuration, and batches are long with so much data in flight (--duration)", planned_time(length)))
}

/// Writes the sentence about the time slots into the outline.
pub(super) fn write_description(
    (slot, turns): (Duration, u32),
    warmup: Duration,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    writeln!(
        f,
        "all up together, in {turns} batches of {} each, in random order within each round, one every {}, after a warm-up of {}",
        planned_time(batch_start_window(slot)),
        planned_time(slot),
        planned_time(warmup)
    )
}
