//! Sentences about the comparison of two versions of a service.

use plimsoll_model::comparisons::ladder::batches::MIN_REPLICATES;
use plimsoll_model::comparisons::ladder::{GateOutcome, LadderMetric};
use plimsoll_model::comparisons::track::{
    CommitFinding, CommitSearch, MetricChange, TrackJudgement, TrackedVersion, VersionComparison,
};
use plimsoll_model::formats::quantity::{bytes, plural};

/// Describes a comparison in one sentence: the versions, the changes with their intervals, and the verdict.
pub fn describe_comparison(
    old: &TrackedVersion,
    new: &TrackedVersion,
    found: &VersionComparison,
) -> String {
    let mut parts: Vec<String> = found.changes.iter().map(describe_change).collect();
    parts.extend(found.memory.map(|memory| {
        let range = format_range(memory.low_percent, memory.high_percent);
        let range = range.map_or_else(String::new, |range| format!("{range}, "));
        let (old, new) = (memory.old_bytes as u64, memory.new_bytes as u64);
        format!("memory {range}{} to {}", bytes(old), bytes(new))
    }));
    let gates = found.changes.iter().filter_map(|change| change.gate);
    let gates: Vec<String> = gates.map(|gate| gate.to_string()).collect();
    let with = |outcome| {
        let all = found
            .changes
            .iter()
            .filter(move |c| c.outcome == Some(outcome));
        let gates: Vec<String> = all.filter_map(|c| Some(c.gate?.to_string())).collect();
        gates.join(", ")
    };
    let verdict = match found.verdict {
        TrackJudgement::NotSlower => format!("no regression beyond {}", gates.join(", ")),
        TrackJudgement::Slower => format!("SLOWER, beyond {}", with(GateOutcome::Beyond)),
        TrackJudgement::Undecided if found.fails_differently => {
            "NOT DECIDED: one version fails more calls, and only calls that succeed are timed"
                .to_owned()
        }
        TrackJudgement::Undecided if found.replicates < MIN_REPLICATES => format!(
            "NOT DECIDED: both servers were started {}, and two processes of one version differ, too: it takes \
             {MIN_REPLICATES}; raise --budget or --rate",
            plural(found.replicates as u64, "time")
        ),
        TrackJudgement::Undecided => format!("NOT DECIDED: {}", with(GateOutcome::Undecided)),
    };
    let failed = match found.errors {
        [0, 0] => String::new(),
        [old, new] => format!("; failed calls: {old} and {new}"),
    };
    format!(
        "{} → {}: {}: {verdict}{failed}",
        old.name,
        new.name,
        parts.join(", ")
    )
}

fn describe_change(change: &MetricChange) -> String {
    let name = match change.metric {
        LadderMetric::ServerCpu => "server CPU",
        LadderMetric::ClientCpu => "client CPU",
        other => other.name(),
    };
    match format_range(change.low_percent, change.high_percent) {
        Some(range) => format!("{name} {range}"),
        None => format!("{name} not known"),
    }
}

fn format_range(low: Option<f64>, high: Option<f64>) -> Option<String> {
    let (low, high) = (low?, high?);
    let sign = |percent: f64| {
        let sign = if percent < 0.0 { '−' } else { '+' };
        format!("{sign}{:.1}", percent.abs())
    };
    Some(format!("{} to {} %", sign(low), sign(high)))
}

/// Describes the result of a search for the commit that made the change, in sentences.
pub fn describe_search(
    good: &TrackedVersion,
    bad: &TrackedVersion,
    found: &CommitSearch,
) -> String {
    let compared: usize = found.steps.iter().map(|step| step.comparisons.len()).sum();
    let of = |outcome| {
        found
            .steps
            .iter()
            .filter(move |step| step.outcome == outcome)
    };
    let skipped = of(CommitFinding::Skipped).count();
    let skipped = match skipped {
        0 => String::new(),
        n => format!("; {} skipped", plural(n as u64, "commit")),
    };
    let confidence = 100.0 * (1.0 - found.error_probability);
    let sure = format!(
        "in {}{skipped}; with a probability of at least {confidence:.1} %, all of them were decided rightly",
        plural(compared as u64, "comparison"),
    );
    if let Some(first) = &found.first_slower {
        let subject = first.subject.as_deref().unwrap_or_default();
        return format!(
            "the first slower commit is {} \"{subject}\" ({sure})",
            first.name
        );
    }
    let names: Vec<String> = found
        .suspects
        .iter()
        .map(|id| short_commit_id(id))
        .collect();
    let bad_step = found.steps.first().map(|step| step.outcome);
    if bad_step == Some(CommitFinding::NotSlower) {
        let (bad, good) = (&bad.name, &good.name);
        return format!(
            "{bad} is not slower than {good} by more than is allowed: nothing to find ({sure})"
        );
    }
    let undecided = of(CommitFinding::Undecided).next();
    let why = match undecided {
        Some(step) => format!("{} could not be decided", step.version.name),
        None => "the others can't be built or started".to_owned(),
    };
    format!(
        "NOT DECIDED: {why}; the first slower commit is one of {}: {} ({sure})",
        plural(names.len() as u64, "commit"),
        names.join(", ")
    )
}

/// Returns the abbreviated id of a commit.
fn short_commit_id(id: &str) -> String {
    id.chars().take(7).collect()
}
