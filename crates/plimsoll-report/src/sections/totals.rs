//! Describes the calls and connections of a run, in words that terminal, page and Markdown share.

use std::fmt::Write;

use plimsoll_model::runs::run::Run;
use plimsoll_model::runs::run::summary::StageSummary;

use crate::quantity::{bytes, count, or_dash, plural, rate, share, time};
use crate::sections::facts::{describe_count_check, describe_counts};
use crate::sections::headline::format_value_or_interval;
use crate::sections::protocol_measures::{CountFact, arriving_callers, describe_messages};
use crate::sections::rotation::sentence;
use crate::sections::settled_calls::settled_calls;

/// The column headings of [`summary_row`].
pub(crate) const SUMMARY_HEADINGS: [&str; 5] = ["calls ok", "achieved", "p50", "p99", "p99.9"];

/// Returns the row of a run in a table of runs.
pub(crate) fn summary_row(run: &Run) -> [String; 5] {
    let total = &run.summary.total;
    let at = |n| format_percentile(run, n);
    [
        share(total.ok, settled_calls(total)),
        or_dash(total.achieved_per_s, rate),
        at(0),
        at(4),
        at(5),
    ]
}

/// Formats the response time, or its interval, at index `n` of
/// [`TimesSummary::percentiles`](plimsoll_model::runs::run::TimesSummary).
pub(crate) fn format_percentile(run: &Run, n: usize) -> String {
    let response = run.summary.total.response.as_ref();
    let us = response.and_then(|r| r.percentiles()[n].1);
    let interval = response.and_then(|r| r.instrument?.percentiles()[n].1);
    or_dash(us, |us| format_value_or_interval(us, interval))
}

/// Describes the calls with their rate and bytes, and the connections.
pub(crate) fn total_facts(run: &Run) -> Vec<CountFact> {
    let all = [
        Some(describe_calls(run)),
        describe_rates(run),
        describe_delivery(run),
        describe_traffic(run),
        describe_connections(run),
    ];
    all.into_iter().flatten().collect()
}

/// Describes the parameters that TLS handshakes negotiated, one fact for each group, and the cost of certificate
/// rotation.
pub(crate) fn describe_handshakes(run: &Run) -> Vec<CountFact> {
    let handshakes = run.header.tls.iter().flat_map(|tls| &tls.handshakes);
    let alike = handshakes.enumerate().map(|(i, alike)| {
        let name = if i == 0 { "handshakes" } else { "" };
        let text = format!("{}: {}", count(alike.count), alike.describe());
        CountFact::new(name, text)
    });
    let rotation = run.summary.rotation.as_ref();
    let rotation = rotation.map(|rotation| CountFact::new("rotation", sentence(rotation)));
    alike.chain(rotation).collect()
}

/// Describes the check that every scheduled call is in exactly one count.
pub(crate) fn count_check_fact(run: &Run) -> CountFact {
    if run.summary.count_check.matches {
        CountFact::new("check", describe_count_check(run))
    } else {
        CountFact::new_problem(
            "check",
            format!("THE COUNTS DIFFER: {}", describe_counts(run)),
        )
    }
}

fn describe_calls(run: &Run) -> CountFact {
    let t = &run.summary.total;
    let mut calls = vec![
        format!("{} scheduled", count(t.due)),
        format!("{} ok", count(t.ok)),
        plural(t.errors, "error"),
    ];
    if t.cut_off > 0 {
        calls.push(format!("{} cut off", count(t.cut_off)));
    }
    if t.not_started > 0 {
        calls.push(format!("{} not started", count(t.not_started)));
    }
    if t.expired_unsent > 0 {
        let unsent = count(t.expired_unsent);
        calls.push(format!(
            "{unsent} of the errors not sent (their deadline passed first)"
        ));
    }
    if t.late > 0 {
        calls.push(format!("{} answered after the deadline", count(t.late)));
    }
    if settled_calls(t) > 0 {
        calls.push(format!("{} successful", share(t.ok, settled_calls(t))));
    }
    CountFact::new("calls", calls.join(", "))
}

/// Returns the planned rate of the measured stages.
fn planned_rate(run: &Run) -> Option<String> {
    let stages: Vec<_> = run
        .header
        .planned_stages
        .iter()
        .filter(|s| !s.warmup)
        // A stage without calls has no planned rate.
        .filter(|s| s.rate_from_per_s != Some(0.0) || s.rate_to_per_s != Some(0.0))
        .collect();
    let (first, last) = (stages.first()?, stages.last()?);
    let (from, to) = (first.rate_from_per_s?, last.rate_to_per_s?);
    Some(if from == to {
        rate(from)
    } else {
        format!("{} to {}", rate(from), rate(to))
    })
}

/// Describes planned pauses, in words that follow the rate of [`planned_rate`]; empty if there were none.
fn describe_pauses(run: &Run) -> String {
    if run.summary.memory.is_some() {
        return String::new();
    }
    let planned = run.header.planned_stages.iter();
    let is_pause =
        |(stage, _): &(u8, _)| run.header.has_no_calls(*stage) && !run.header.is_warmup(*stage);
    let pauses = (0..=u8::MAX).zip(planned).filter(is_pause);
    let us: u64 = pauses.filter_map(|(_, pause)| pause.duration_us).sum();
    match us {
        0 => String::new(),
        _ => format!(" with pauses of {} in all", time(us as f64)),
    }
}

fn describe_rates(run: &Run) -> Option<CountFact> {
    let t = &run.summary.total;
    let achieved = t.achieved_per_s?;
    let mut text = String::new();
    let callers = arriving_callers(run);
    let callers = callers.map(|c| (format!(" for {}", c.name()), format!(" for {}", c.calls)));
    let (arriving, ending) = callers.unwrap_or_default();
    if run.header.is_open_loop()
        && let Some(asked) = planned_rate(run)
    {
        let _ = write!(text, "{asked} target{arriving}{}, ", describe_pauses(run));
    }
    let _ = write!(text, "{} achieved{ending}", rate(achieved));
    if let Some(elapsed) = t.elapsed_us {
        let _ = write!(text, " over {}", time(elapsed as f64));
    }
    Some(CountFact::new("rate", text))
}

/// Describes how much of an open loop's load was sent, how late it was sent, and how far it deviated from the plan.
fn describe_delivery(run: &Run) -> Option<CountFact> {
    let delivery = run.summary.total.delivery.as_ref()?;
    let mut text = format!("{} sent", share(delivery.sent, delivery.asked));
    let latest = time(delivery.lateness_max_us);
    match delivery.lateness_p99_us {
        Some(p99) => {
            let _ = write!(text, ", {} late at the p99 and {latest} at most", time(p99));
        }
        None => {
            let _ = write!(text, ", at most {latest} late");
        }
    }
    let unsent = format_share_interval(delivery.distance);
    let _ = write!(
        text,
        "; {unsent} of the calls waiting to be sent at the same time"
    );
    Some(CountFact::new("delivered", text))
}

/// Formats an interval of a share in percent, rounded outward.
fn format_share_interval([low, high]: [f64; 2]) -> String {
    // The small constant keeps rounding errors from changing the last digit.
    let low = ((low * 1e4 + 1e-6).floor() / 1e2).max(0.0);
    let high = ((high * 1e4 - 1e-6).ceil() / 1e2).max(0.0);
    if low == high {
        format!("{high} %")
    } else if low == 0.0 {
        format!("at most {high} %")
    } else {
        format!("{low} to {high} %")
    }
}

fn describe_traffic(run: &Run) -> Option<CountFact> {
    let t = &run.summary.total;
    let plain = || {
        let (sent, received) = (bytes(t.bytes_sent), bytes(t.bytes_received));
        CountFact::new("messages", format!("{sent} sent, {received} received"))
    };
    describe_messages(run).or_else(|| (t.bytes_sent + t.bytes_received > 0).then(plain))
}

fn describe_connections(run: &Run) -> Option<CountFact> {
    let (warmup, counted): (Vec<_>, Vec<_>) = run.summary.stages.iter().partition(|s| s.warmup);
    let made = |stages: &[&StageSummary]| -> u64 {
        let each = stages.iter();
        each.map(|s| s.connections_full + s.connections_resumed)
            .sum()
    };
    // Calls of the warm-up are in no total, and neither are its connections. If all of them were made in the warm-up,
    // they are those that the counted calls use.
    let (stages, besides) = match (made(&counted), made(&warmup)) {
        (0, 0) => return None,
        (0, _) => (&warmup, 0),
        (_, besides) => (&counted, besides),
    };
    let full: u64 = stages.iter().map(|s| s.connections_full).sum();
    let resumed: u64 = stages.iter().map(|s| s.connections_resumed).sum();
    let retried: u64 = stages.iter().map(|s| s.connections_retried).sum();
    let mut text = format!("{} made", count(full + resumed));
    if run.header.tls.is_some() {
        let _ = write!(
            text,
            ": {} with a full handshake, {} resumed",
            count(full),
            count(resumed)
        );
    }
    if retried > 0 {
        let _ = write!(text, "; {} retried (HelloRetryRequest)", count(retried));
    }
    if besides > 0 {
        let _ = write!(text, "; {} more in the warm-up", count(besides));
    }
    let lost: u64 = counted.iter().map(|s| s.connections_lost).sum();
    if lost > 0 {
        let _ = write!(text, ", {} lost while open", count(lost));
        return Some(CountFact::new_problem("connections", text));
    }
    Some(CountFact::new("connections", text))
}
