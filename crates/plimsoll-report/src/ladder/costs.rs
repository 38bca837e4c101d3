//! Describes the costs that each rung (variant) of a ladder adds to the first one, in sentences.

use plimsoll_model::comparisons::ladder::{AddedCost, LadderMetric, LadderRecord};
use plimsoll_model::statistics::paired::PairedDifference;

use crate::quantity::{signed_value, time};

/// Returns a quotable sentence for each rung about the costs that it adds to the first one. The number after "±" is
/// the distance to the farther bound of the interval. A difference that is not significant is given as its upper bound.
pub fn cost_sentences(ladder: &LadderRecord) -> Vec<String> {
    if ladder.batches.is_none() {
        return Vec::new();
    }
    let first = ladder.rungs.first().map_or("", |rung| &rung.name);
    (1..ladder.rungs.len())
        .filter_map(|of| {
            let name = &ladder.rungs[of].name;
            let call = join_clauses([
                time_clause(ladder, of, LadderMetric::P50, "to the time of a call (p50)"),
                cpu_at_both_ends(ladder, of, CALL_CPU_METRICS, " a call"),
            ]);
            let tokens = join_clauses([
                time_clause(
                    ladder,
                    of,
                    LadderMetric::FirstToken,
                    "to the time to the first token (p50)",
                ),
                time_clause(
                    ladder,
                    of,
                    LadderMetric::TimePerToken,
                    "to the time per token (p50)",
                ),
            ]);
            let connection = join_clauses([
                time_clause(ladder, of, LadderMetric::ConnectionTime, "of time (p50)"),
                cpu_at_both_ends(ladder, of, CONNECTION_CPU_METRICS, ""),
            ]);
            let resumed = join_clauses([
                time_clause(ladder, of, LadderMetric::ResumedTime, "of time (p50)"),
                cpu_at_both_ends(ladder, of, RESUMED_CPU_METRICS, ""),
            ]);
            let saturated = cpu_at_both_ends(ladder, of, SATURATED_CPU_METRICS, " a call");
            // This is a single figure without an interval, because the first rung has no proxy to compare with.
            let proxy_cpu = ladder.rungs[of].median(LadderMetric::SidecarCpu);
            let clauses: Vec<String> = [
                call.map(|call| format!("adds {call}")),
                tokens.map(|tokens| format!("it adds {tokens}")),
                proxy_cpu.map(|us| format!("the proxies take {} of CPU a call", time(us))),
                saturated.map(|cpu| format!("at full load it adds {cpu}")),
                connection.map(|c| format!("it adds {c}, to each new connection")),
                resumed.map(|c| format!("it adds {c}, to one that resumes a session")),
            ]
            .into_iter()
            .flatten()
            .collect();
            (!clauses.is_empty())
                .then(|| format!("{name}, compared with {first}, {}", clauses.join("; ")))
        })
        .collect()
}

type ClientServerMetrics = [LadderMetric; 2];

const CALL_CPU_METRICS: ClientServerMetrics = [LadderMetric::ClientCpu, LadderMetric::ServerCpu];
const SATURATED_CPU_METRICS: ClientServerMetrics =
    [LadderMetric::BusyClientCpu, LadderMetric::BusyServerCpu];
const CONNECTION_CPU_METRICS: ClientServerMetrics = [
    LadderMetric::ConnectionClientCpu,
    LadderMetric::ConnectionServerCpu,
];
const RESUMED_CPU_METRICS: ClientServerMetrics = [
    LadderMetric::ResumedClientCpu,
    LadderMetric::ResumedServerCpu,
];

/// Joins the clauses that exist into a sentence.
fn join_clauses(parts: [Option<String>; 2]) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", and "))
}

fn time_clause(
    ladder: &LadderRecord,
    of: usize,
    metric: LadderMetric,
    what: &str,
) -> Option<String> {
    match ladder.added_cost(of, 0, metric) {
        AddedCost::Significant(d) => Some(format!("{} {what}", with_uncertainty(d.shift, d))),
        AddedCost::NotSignificant(d) => Some(format!("at most {} {what}", time(d.high.max(0.0)))),
        AddedCost::Exact(_) | AddedCost::TooFewRounds => None,
    }
}

/// Describes the CPU time of client and server. `each`: what the CPU time was used for; empty if the sentence already
/// says so.
fn cpu_at_both_ends(
    ladder: &LadderRecord,
    of: usize,
    ends: ClientServerMetrics,
    each: &str,
) -> Option<String> {
    let mut sum = PairedDifference {
        shift: 0.0,
        low: 0.0,
        high: 0.0,
    };
    let mut base = 0.0;
    for end in ends {
        let (AddedCost::Significant(d) | AddedCost::NotSignificant(d)) =
            ladder.added_cost(of, 0, end)
        else {
            return None;
        };
        sum.shift += d.shift;
        // Both intervals hold simultaneously, so the sums of their bounds are the bounds of an interval of the sum.
        sum.low += d.low;
        sum.high += d.high;
        base += ladder.rungs[0].median(end)?;
    }
    if !sum.excludes_zero() {
        return Some(format!(
            "at most {} of CPU{each} at client and server together",
            time(sum.high.max(0.0))
        ));
    }
    let share = if base > 0.0 {
        format!(" ({:+.0} %)", sum.shift / base * 100.0)
    } else {
        String::new()
    };
    Some(format!(
        "{} of CPU{each} at client and server together{share}",
        with_uncertainty(sum.shift, sum)
    ))
}

/// Formats a difference as `x ± d`, where d is the distance from x to the farther bound of its interval. If d is at
/// least |x|, which would suggest that the interval includes zero, both bounds are shown instead.
fn with_uncertainty(shift: f64, d: PairedDifference) -> String {
    let off = (d.high - shift).max(shift - d.low);
    if off >= shift.abs() {
        let [of, low, high] = [shift, d.low, d.high].map(|us| signed_value(us, time));
        return format!("{} ({low} … {high})", of.trim_start_matches('+'));
    }
    let shift = signed_value(shift, time);
    format!("{} ± {}", shift.trim_start_matches('+'), time(off))
}
