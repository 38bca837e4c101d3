//! Describes what was done again: calls that were sent again, and sockets that were opened again.

use plimsoll_model::metrics::measure::Count;

use super::{CountFact, RETRIED_LABEL};
use crate::quantity::{count, plural};

/// The label of calls that the server refused for now.
const REFUSED_LABEL: &str = "refused";

const RECONNECTED_CALLERS: Count = Count::keyed("sessions_reconnected");

/// Describes calls that were sent again because the server had not processed them, or had refused them for now.
pub(super) fn repeated_calls(of: impl Fn(Count) -> u64) -> Vec<CountFact> {
    let mut facts = Vec::new();
    let retried = of(Count::CallsRetried);
    if retried > 0 {
        let text = format!(
            "{} that the server had not processed",
            plural(retried, "call")
        );
        facts.push(CountFact::new_problem(RETRIED_LABEL, text));
    }
    let refused = of(Count::CallsRefused);
    if refused > 0 {
        let text = format!(
            "{} (429, or 503 with Retry-After), sent again {}",
            plural(refused, "call"),
            plural(of(Count::RefusalsRetried), "time"),
        );
        facts.push(CountFact::new_problem(REFUSED_LABEL, text));
    }
    facts
}

/// Describes how often users have opened lost sockets again.
pub(super) fn describe_reopened(of: impl Fn(Count) -> u64) -> Option<CountFact> {
    let (reopened, failed) = (of(Count::Reconnects), of(Count::ReconnectsFailed));
    let text = || format!("{}, {} failed", count(reopened), plural(failed, "attempt"));
    (reopened + failed > 0).then(|| CountFact::new("reconnects", text()))
}

/// Describes how often sessions have connected again.
pub(super) fn describe_reconnected(of: impl Fn(Count) -> u64) -> Option<CountFact> {
    let reconnected = of(RECONNECTED_CALLERS);
    let text = || {
        format!(
            "{} in {} sessions, {} failed, {} not resumed",
            count(of(Count::Reconnects)),
            count(reconnected),
            plural(of(Count::ReconnectsFailed), "attempt"),
            count(of(Count::HistoryGone)),
        )
    };
    (reconnected > 0).then(|| CountFact::new("reconnects", text()))
}
