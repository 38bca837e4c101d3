//! Defines the measurements that a ladder makes in addition to its interleaved calls: the cost of a call at a saturated
//! server, the cost of a new connection, and the memory of an idle connection. Each measurement has separate slices
//! (short runs of one variant), because several costs in one slice could not be told apart.

use std::time::Duration;

use plimsoll_model::Plan;
use plimsoll_model::comparisons::ladder::throughput::EXTRA_ROUNDS;
use plimsoll_model::comparisons::ladder::{self, ExtraMeasurement};
use plimsoll_model::formats::units::Period;
use plimsoll_model::runs::run::MIN_CONNECTIONS_FOR_MEMORY;
use plimsoll_model::spec::{LadderSpec, RungSecurity, RungSpec, Spec};

use super::interleaving::Interleaving;
use super::{LadderRequest, SliceRounds};
use crate::failure::Failure;

/// Length of a slice: long enough for some hundred calls, and short enough for many rounds.
pub(super) const SLICE_DURATION: Duration = Duration::from_millis(200);

/// Minimum number of calls in flight that saturates a server.
const MIN_SATURATING_CLIENTS: u32 = 32;

/// Maximum number of new connections per slice. Each connection leaves a port in TIME_WAIT, which can't be reused for a
/// while.
const MAX_SLICE_CONNECTIONS: u64 = 500;

/// Warm-up of a slice of resumed connections: time for the one full handshake that gives the first ticket.
const FIRST_TICKET_WARMUP: Duration = Duration::from_millis(20);

/// Returns the extra measurements that the plan's key `parts` requests; by default all those that are possible for
/// these rungs. `turning` is `Some` if calls are interleaved.
///
/// # Errors
/// When a name in `parts` is unknown, or its measurement is not possible for the rungs.
pub(super) fn select_measurements(
    options: &LadderSpec,
    rungs: &[RungSpec],
    turning: Option<Interleaving>,
    asked: &LadderRequest<'_>,
) -> Result<Vec<ExtraMeasurement>, Failure> {
    let served = asked.starts_servers(options);
    let kept = |rung: &RungSpec| rung.spec.load.reuse.as_deref() != Some("never");
    let is_secured = |rung: &RungSpec| rung.security != RungSecurity::Off;
    let all_kept = rungs.iter().all(kept);
    let Some(names) = options.parts.as_deref() else {
        if turning.is_none() {
            return Ok(Vec::new());
        }
        // Don't saturate a service that the ladder did not start, unless the user requests it.
        let parts = ExtraMeasurement::ALL.into_iter().filter(|part| match part {
            ExtraMeasurement::Saturated => served,
            ExtraMeasurement::Connections => all_kept,
            ExtraMeasurement::Resumed => served && all_kept && rungs.iter().any(is_secured),
            ExtraMeasurement::Memory => served && all_kept,
        });
        return Ok(parts.collect());
    };
    if names == ["none"] {
        return Ok(Vec::new());
    }
    let wrong = |what: &str, help: &str| {
        Err(Failure::usage(
            format_args!("ladder.parts (--parts): {what}"),
            help,
        ))
    };
    if turning.is_none() {
        return wrong(
            "parts need rungs that are up together, and these are measured in slices",
            "leave it out, or measure the rungs together: --batch 20",
        );
    }
    let mut parts = Vec::new();
    for name in names {
        let Some(part) = ExtraMeasurement::from_name(name) else {
            return wrong(
                &format!("`{name}` is unknown"),
                "use \"saturated\", \"connections\", \"resumed\", \"memory\", or \"none\" alone",
            );
        };
        let lacks = match part {
            ExtraMeasurement::Memory if !served => {
                "the memory of a server that the ladder did not start is not known"
            }
            ExtraMeasurement::Connections
            | ExtraMeasurement::Resumed
            | ExtraMeasurement::Memory
                if !all_kept =>
            {
                "some rungs don't keep connections open"
            }
            ExtraMeasurement::Resumed if !rungs.iter().any(is_secured) => "no rung has TLS",
            _ => "",
        };
        if !lacks.is_empty() {
            return wrong(&format!("`{name}`: {lacks}"), "leave it out");
        }
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts.sort_unstable();
    Ok(parts)
}

/// Returns the number of rounds that simultaneous confidence intervals of `metrics` metrics and `rungs` rungs need.
pub(super) fn round_count(rungs: usize, metrics: usize) -> usize {
    ladder::min_rounds_for_metrics(rungs, metrics) + EXTRA_ROUNDS
}

/// Returns the loads of the extra measurement `part`, one per rung.
///
/// # Errors
/// When the plan of a rung is invalid.
pub(super) fn measurement_rounds(
    part: ExtraMeasurement,
    metrics: usize,
    rungs: &[RungSpec],
    asked: &LadderRequest<'_>,
) -> Result<SliceRounds, Failure> {
    let loads = rungs
        .iter()
        .map(|rung| {
            let spec = measurement_spec(part, rung);
            let mut plan = asked.resolve_plan(&spec)?;
            plan.load.pin_last_core = true;
            plan.load.count_bytes = matches!(
                part,
                ExtraMeasurement::Connections | ExtraMeasurement::Resumed
            );
            Ok((spec, plan))
        })
        .collect::<Result<Vec<(Spec, Plan)>, Failure>>()?;
    Ok(SliceRounds {
        part: Some(part),
        loads,
        rounds: vec![round_count(rungs.len(), metrics); rungs.len()],
    })
}

/// Returns the rung's spec with the load of the extra measurement `part`.
fn measurement_spec(part: ExtraMeasurement, rung: &RungSpec) -> Spec {
    let mut spec = rung.spec.clone();
    if part == ExtraMeasurement::Resumed && rung.security != RungSecurity::Off {
        let tls = spec.tls.get_or_insert_default();
        (tls.resume, tls.full) = (Some(true), None);
    }
    (spec.requests, spec.ladder, spec.find) = (None, None, None);
    spec.objective.clear();
    let load = &mut spec.load;
    (load.rate, load.steps, load.arrivals) = (None, None, None);
    (load.think, load.precision, load.abort_after) = (None, None, None);
    (load.duration, load.calls) = (Some(Period(SLICE_DURATION)), None);
    load.warmup = Some(Period(Duration::ZERO));
    let never = load.reuse.as_deref() == Some("never");
    let connections = load.connections.unwrap_or(1);
    match part {
        ExtraMeasurement::Saturated => {
            load.clients = Some(MIN_SATURATING_CLIENTS.max(connections));
            load.calls = never.then_some(MAX_SLICE_CONNECTIONS);
        }
        ExtraMeasurement::Connections | ExtraMeasurement::Resumed => {
            load.clients = Some(1);
            (load.reuse, load.connections) = (Some("never".to_owned()), None);
            load.calls = Some(MAX_SLICE_CONNECTIONS);
            if part == ExtraMeasurement::Resumed {
                // The first connection makes a full handshake, because there is no ticket yet, so keep it in the
                // warm-up.
                load.warmup = Some(Period(FIRST_TICKET_WARMUP));
            }
        }
        ExtraMeasurement::Memory => {
            let connections = connections.max(MIN_CONNECTIONS_FOR_MEMORY);
            (load.clients, load.connections) = (Some(connections), Some(connections));
            load.calls = Some(u64::from(connections));
        }
    }
    spec
}
