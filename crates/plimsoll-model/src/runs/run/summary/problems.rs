//! Collects the problems that a reader of a run's figures must know.

use super::RunTotals;
use crate::records::record::StageRecord;
use crate::runs::run::health::{HealthProblem, find_problems};
use crate::runs::run::{DeliverySummary, RunHeader, RunOrigin};

/// Returns the problems and other notable facts of a run, except those of its counts. `measured`: the merged record of
/// the stages that are not warm-up.
pub(super) fn collect_problems(
    header: &RunHeader,
    totals: &RunTotals,
    measured: &StageRecord,
    delivery: Option<&DeliverySummary>,
) -> Vec<HealthProblem> {
    // Count the warm-up's failed connections as well, because these connections are missing in the later stages.
    let mut judged = measured.clone();
    for (stage, t) in &totals.stages {
        if header.is_warmup(*stage) {
            judged.connect_failures.merge(&t.record.connect_failures);
        }
    }
    let is_measured = header.source == RunOrigin::Measured;
    let mut problems: Vec<HealthProblem> = HealthProblem::from_shards(&header.shards).collect();
    if header.links.insecure {
        problems.insert(0, HealthProblem::server_certificate_unchecked());
    }
    if is_measured {
        problems.extend(find_problems(&judged, header, &totals.observed, delivery));
    }
    let silent = |stage| header.has_no_calls(stage) && !header.is_warmup(stage);
    if !totals.memory.is_empty() && (0..=u8::MAX).any(silent) {
        // Where the memory of idle connections is measured, calls only check that the peer is alive.
        problems
            .iter_mut()
            .for_each(HealthProblem::keep_memory_figures_valid);
    }
    let wanted = u64::from(header.connections.unwrap_or(0));
    let every = totals.stages.values();
    let open = every.map(|t| t.connections_open_max).max().unwrap_or(0);
    // In a run shorter than an interval, all connections are closed before they are counted.
    let has_open_connections = is_measured && !header.cold && open > 0;
    // If the target closes connections, all planned connections may have been made without ever being open at the same
    // time.
    let made: u64 = totals
        .stages()
        .map(|r| r.connections_full + r.connections_resumed)
        .sum();
    if has_open_connections && open.max(made) < wanted && judged.connect_failures.total() > 0 {
        let reasons = &judged.connect_failures;
        problems.push(HealthProblem::connections_missing(wanted, open, reasons));
    }
    let are_connections_kept = !header.cold
        && header.calls_per_connection.is_none()
        && header.connection_lifetime_us.is_none();
    if is_measured && are_connections_kept {
        let made = judged.connections_full + judged.connections_resumed;
        // Replacing an idle connection makes no call wait, so it does not count.
        let made = made.saturating_sub(judged.connections_idle_closed);
        problems.extend(HealthProblem::connections_not_reused(
            wanted,
            made,
            judged.ended_calls(),
        ));
    }
    let full = judged.connections_full;
    let of_both = (full, judged.connections_resumed);
    if let Some(share) = header.full_share {
        problems.extend(HealthProblem::wrong_handshake_mix(share, of_both));
    } else if header.cold && header.resume && full > 0 {
        problems.push(HealthProblem::connections_not_resumed(
            full,
            judged.connections_first,
            judged.connections_resumed,
        ));
    }
    problems
}
