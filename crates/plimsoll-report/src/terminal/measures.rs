//! What a protocol measures besides its calls: for sessions, every token's whereabouts.

use std::fmt::Write;

use plimsoll_model::measure::{Count, TimeMeasure};
use plimsoll_model::run::Run;
use plimsoll_model::run::summary::MeasuresSummary;

use super::table::{Align, Table};
use super::{Options, row};
use crate::distribution::{buckets, percentiles};
use crate::quantity::{count, rate, time};

pub(super) fn measures(out: &mut String, run: &Run, options: &Options) {
    let total = &run.summary.total;
    let Some(measures) = &total.measures else {
        return;
    };
    let of = |c: Count| measures.counts.get(c.key()).copied().unwrap_or(0);
    let (taken, again) = (of(Count::EarlyAccepted), of(Count::EarlyRejected));
    if taken + again > 0 {
        let text = format!("{} taken, {} sent again", count(taken), count(again));
        row(out, "0-RTT requests", &text, options);
        out.push('\n');
        return;
    }
    let sessions = format!(
        "{} ok, {} failed",
        count(of(Count::SessionsOk)),
        count(of(Count::SessionsFailed))
    );
    row(out, "sessions", &sessions, options);
    let mut tokens = format!("{} received once", count(of(Count::TokensReceived)));
    if let Some(elapsed) = total.elapsed_us.filter(|us| *us > 0) {
        let per_second = of(Count::TokensReceived) as f64 / (elapsed as f64 / 1e6);
        let _ = write!(tokens, " ({})", rate(per_second));
    }
    let lost = [
        Count::TokensMissing,
        Count::TokensDuplicated,
        Count::TokensOutOfOrder,
        Count::TokensStray,
    ];
    let names = [
        "missing",
        "received twice",
        "out of order",
        "after their query",
    ];
    for (c, name) in lost.into_iter().zip(names) {
        let _ = write!(tokens, ", {} {name}", count(of(c)));
    }
    if lost.into_iter().any(|c| of(c) > 0) {
        tokens = options.loud(&tokens);
    }
    row(out, "tokens", &tokens, options);
    goodput(out, run, of(Count::QueriesGood), options);
    if of(Count::SessionsReconnected) > 0 {
        let text = format!(
            "{} in {} sessions, {} attempts failed, {} not resumed",
            count(of(Count::Reconnects)),
            count(of(Count::SessionsReconnected)),
            count(of(Count::ReconnectsFailed)),
            count(of(Count::HistoryGone)),
        );
        row(out, "reconnects", &text, options);
    }
    out.push('\n');
    times(out, measures, options);
    distribution(out, run, options);
}

/// Queries that met every bound, where the plan has bounds.
fn goodput(out: &mut String, run: &Run, good: u64, options: &Options) {
    let spec = plimsoll_model::spec::read(&run.plan).ok();
    let Some(bounds) = spec.and_then(|spec| spec.call.session?.goodput) else {
        return;
    };
    let total = &run.summary.total;
    let mut text = format!(
        "{} of {} queries",
        count(good),
        count(total.ok + total.errors)
    );
    if let Some(elapsed) = total.elapsed_us.filter(|us| *us > 0) {
        let per_second = good as f64 / (elapsed as f64 / 1e6);
        let _ = write!(text, " ({})", rate(per_second));
    }
    let bounds: Vec<String> = [
        ("first token", bounds.first_token),
        ("time per token", bounds.time_per_token),
        ("query", bounds.query),
    ]
    .into_iter()
    .filter_map(|(name, bound)| Some(format!("{name} {}", bound?)))
    .collect();
    let _ = write!(text, " within {}", bounds.join(", "));
    row(out, "goodput", &text, options);
}

/// How the queries' times are spread: percentiles, and how many fell where.
fn distribution(out: &mut String, run: &Run, options: &Options) {
    const BUCKETS: u64 = 12;
    const BAR: u64 = 40;
    let record = run.measured();
    let Some(h) = record.response.histogram().filter(|h| !h.is_empty()) else {
        return;
    };
    let show = |ns: u64| time(ns as f64 / 1e3);
    let known: Vec<String> = percentiles(h)
        .filter_map(|(percent, value)| Some(format!("p{percent} {}", show(value?))))
        .collect();
    if !known.is_empty() {
        row(out, "response", &known.join(", "), options);
        out.push('\n');
    }
    let buckets = buckets(h, BUCKETS);
    let most = buckets.iter().map(|b| b.count).max().unwrap_or(1).max(1);
    let bounds: Vec<(String, String)> = buckets
        .iter()
        .map(|b| {
            (
                format!("{} to {}", show(b.from), show(b.to)),
                count(b.count),
            )
        })
        .collect();
    let wide = |texts: &mut dyn Iterator<Item = &String>| {
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let (left, right) = (
        wide(&mut bounds.iter().map(|(bound, _)| bound)),
        wide(&mut bounds.iter().map(|(_, n)| n)),
    );
    for (bucket, (bound, n)) in buckets.iter().zip(&bounds) {
        // Something is never shown as nothing.
        let length = (bucket.count * BAR).div_ceil(most) as usize;
        let line = format!("{bound:>left$}  {n:>right$}  {}", "█".repeat(length));
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push('\n');
}

fn times(out: &mut String, measures: &MeasuresSummary, options: &Options) {
    let mut table = Table::new(options.width);
    let head = ["sessions", "count", "mean", "p50", "p90", "p99", "max"];
    table.head(head.map(str::to_owned).to_vec(), |i| {
        if i == 0 { Align::Left } else { Align::Right }
    });
    let show = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), time);
    let mut rows = 0;
    for measure in TimeMeasure::ALL {
        let Some(t) = measures.times.get(measure.key()) else {
            continue;
        };
        rows += 1;
        table.row(vec![
            measure.key().replace('_', " "),
            count(t.count),
            time(t.mean_us),
            show(t.p50_us),
            show(t.p90_us),
            show(t.p99_us),
            time(t.max_us),
        ]);
    }
    if rows > 0 {
        out.push_str(&table.to_string());
        out.push('\n');
    }
}
