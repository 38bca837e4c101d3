//! Decides how often a ladder restarts its servers. A segment is a time in which rungs are interleaved in blocks of
//! batches of calls; a replicate is a part of it with freshly started servers.

use std::time::Duration;

use plimsoll_model::comparisons::ladder::batches::MIN_REPLICATES;
use plimsoll_model::spec::{RateSpec, RungSpec, Spec};

use super::LadderRequest;

/// Maximum number of replicates per segment; more would hardly make confidence intervals narrower.
const MAX_REPLICATES: u32 = 20;
/// Maximum number of replicates per segment for the user's own services, which may take a long time to start.
const MAX_SERVICE_REPLICATES: u32 = 10;
const MIN_REPLICATE_LENGTH: Duration = Duration::from_millis(500);
/// Minimum number of blocks in a replicate.
const MIN_REPLICATE_BLOCKS: f64 = 10.0;
/// Minimum number of blocks in a segment that is divided into replicates. In a shorter segment, noise would hide the
/// differences between restarts.
const MIN_DIVIDED_BLOCKS: f64 = 100.0;

/// Returns the number of replicates per segment. It is 1 if the ladder does not start the servers, or if rungs have
/// objectives, because objectives judge whole runs.
pub(super) fn replicates_per_segment(
    spec: &Spec,
    rungs: &[RungSpec],
    asked: &LadderRequest<'_>,
    calls: u32,
    stretch: Duration,
) -> u32 {
    let Some(RateSpec::Steady(rate)) = &spec.load.rate else {
        return 1;
    };
    let are_judged = rungs.iter().any(|rung| !rung.spec.objectives().is_empty());
    let serves = spec.ladder.as_ref().is_some_and(|l| l.serve.is_some());
    if !serves && asked.services.is_none() || are_judged {
        return 1;
    }
    // A replicate must not be shorter than its warm-up, which restarted servers need each time.
    let warmup = spec.load.warmup.map_or(Duration::ZERO, |p| p.0);
    let shortest = MIN_REPLICATE_LENGTH.max(warmup);
    let rounds = rate.0 * stretch.as_secs_f64() / (rungs.len() as f64 * f64::from(calls));
    // Round to the nearest number of blocks, because a segment's length is rounded to nanoseconds.
    if rounds.round() < MIN_DIVIDED_BLOCKS {
        return 1;
    }
    let most = (rounds / MIN_REPLICATE_BLOCKS).min(stretch.as_secs_f64() / shortest.as_secs_f64());
    match most as u32 {
        too_few if too_few < MIN_REPLICATES as u32 => 1,
        most if asked.services.is_some() => most.min(MAX_SERVICE_REPLICATES),
        most => most.min(MAX_REPLICATES),
    }
}
