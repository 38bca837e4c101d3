//! Describes the measures of streams and sessions, in words that all reports share.

mod repetitions;

use std::fmt::Write;

use plimsoll_model::Outcome;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::runs::run::summary::MeasuresSummary;
use plimsoll_model::runs::run::{InstrumentSummary, Run, TimesSummary};
use plimsoll_model::spec::GoodputSpec;
use plimsoll_model::statistics::distribution::percentiles;

use crate::quantity::{bytes, count, or_dash, plural, rate, time};
use crate::sections::headline::wide_intervals;
use crate::sections::table::TextTable;
use repetitions::{describe_reconnected, describe_reopened, repeated_calls};

/// A note on how to read the times of a run with streams.
pub(crate) const STREAMS_NOTE: &str =
    "a call is a whole stream: response and service time end with its status";

/// The counters of callers that make several calls each, and the word for those calls.
pub(crate) struct CallerCounts {
    ok: Count,
    failed: Count,
    /// The counter of callers whom the end of the load stopped; `None`: it stops none.
    stopped: Option<Count>,
    pub(crate) calls: &'static str,
}

/// Callers whose calls are queries for tokens.
const QUERY_CALLERS: CallerCounts = CallerCounts {
    ok: Count::keyed("sessions_ok"),
    failed: Count::keyed("sessions_failed"),
    stopped: None,
    calls: "queries",
};
const SCRIPT_USERS: CallerCounts = CallerCounts {
    ok: Count::UsersOk,
    failed: Count::UsersFailed,
    stopped: Some(Count::UsersStopped),
    calls: "calls",
};

impl CallerCounts {
    /// Returns the name of these callers.
    pub(crate) fn name(&self) -> &'static str {
        let key = self.ok.key();
        key.strip_suffix("_ok").unwrap_or(key)
    }

    /// Returns how many callers succeeded, failed, and were stopped by the end of the load.
    fn ended_counts(&self, of: impl Fn(Count) -> u64) -> [u64; 3] {
        [of(self.ok), of(self.failed), self.stopped.map_or(0, of)]
    }

    /// Returns whether any of these callers ended.
    fn have_ended(&self, of: impl Fn(Count) -> u64) -> bool {
        self.ended_counts(of) != [0; 3]
    }

    fn describe_ended(&self, of: impl Fn(Count) -> u64) -> CountFact {
        let [ok, failed, stopped] = self.ended_counts(of);
        let mut text = format!("{} ok, {} failed", count(ok), count(failed));
        if stopped > 0 {
            let _ = write!(text, ", {} stopped by the end of the load", count(stopped));
        }
        CountFact::new(self.name(), text)
    }
}

/// Returns the kind of callers that arrived in `run`; `None` if single calls arrived.
pub(crate) fn arriving_callers(run: &Run) -> Option<CallerCounts> {
    let counts = &run.summary.total.measures.as_ref()?.counts;
    let of = |count: Count| counts.get(count.key()).copied().unwrap_or(0);
    [QUERY_CALLERS, SCRIPT_USERS]
        .into_iter()
        .find(|callers| callers.have_ended(of))
}

/// The label of requests in early data.
pub(crate) const EARLY_DATA_LABEL: &str = "0-RTT";

/// The label of the plan's limit of calls in flight.
pub(crate) const IN_FLIGHT_LABEL: &str = "in flight";

/// The label of users who were there at the same time.
const AT_ONCE_LABEL: &str = "at once";

/// The label of calls that were retried.
pub(crate) const RETRIED_LABEL: &str = "sent again";

/// The label of streams that ended because the load ended.
pub(crate) const ENDED_WITH_LOAD_LABEL: &str = "ended";

/// The label of connections that were replaced because the server sent data after the end of a stream.
pub(crate) const REPLACED_CONNECTIONS_LABEL: &str = "set aside";

/// The label of messages that the server sent unexpectedly.
pub(crate) const UNSOLICITED_LABEL: &str = "unasked";

/// The label of payload bytes, divided into headers and data.
const TRAFFIC_LABEL: &str = "traffic";

/// The label of the bytes of all connections, as counted by the kernel.
pub(crate) const LINK_BYTES_LABEL: &str = "link bytes";

/// A count described in words.
#[derive(Clone)]
pub(crate) struct CountFact {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    /// Whether the fact reports a loss or an error.
    pub(crate) is_problem: bool,
}

impl CountFact {
    pub(crate) fn new(name: &'static str, text: String) -> CountFact {
        CountFact {
            name,
            text,
            is_problem: false,
        }
    }

    pub(crate) fn new_problem(name: &'static str, text: String) -> CountFact {
        CountFact {
            is_problem: true,
            ..CountFact::new(name, text)
        }
    }
}

/// Describes the messages of a run's streams; `None` if the calls are not streams.
pub(crate) fn describe_messages(run: &Run) -> Option<CountFact> {
    let total = &run.summary.total;
    let messages = total.messages?;
    let mut text = format!(
        "{} sent ({}), {} received ({})",
        count(messages.sent),
        bytes(total.bytes_sent),
        count(messages.received),
        bytes(total.bytes_received)
    );
    if let Some(received) = messages.received_per_s {
        let _ = write!(text, " at {}", rate(received));
    }
    Some(CountFact::new("messages", text))
}

/// Describes for how much of the run the limit of calls in flight was reached, and how many calls waited or were shed.
fn describe_limit(run: &Run, of: impl Fn(Count) -> u64) -> Option<CountFact> {
    let (waits, reached_ns) = (of(Count::LimitWaits), of(Count::LimitReached));
    let outcomes = &run.summary.total.errors_by_code;
    let shed = outcomes
        .iter()
        .find(|error| error.code == Outcome::NotSent.code());
    let shed = shed.map_or(0, |error| error.count);
    if waits + reached_ns + shed == 0 {
        return None;
    }
    let elapsed_us = run.summary.total.elapsed_us.unwrap_or(0);
    let share = (reached_ns as f64 / 1e3 / elapsed_us.max(1) as f64).min(1.0);
    let mut text = format!("limit reached for {:.1} % of the time", share * 100.0);
    if waits > 0 {
        let _ = write!(text, ", {} waited for it", plural(waits, "call"));
    }
    if shed > 0 {
        let were = if shed == 1 { "was" } else { "were" };
        let code = Outcome::NotSent.code();
        let _ = write!(text, ", {} {were} shed ({code})", plural(shed, "call"));
    }
    Some(CountFact::new(IN_FLIGHT_LABEL, text))
}

/// Describes the counters that only some protocols have; empty if there are none.
pub(crate) fn protocol_facts(run: &Run) -> Vec<CountFact> {
    let total = &run.summary.total;
    let Some(measures) = &total.measures else {
        return Vec::new();
    };
    let of = |c: Count| measures.counts.get(c.key()).copied().unwrap_or(0);
    let (taken, again) = (of(Count::EarlyAccepted), of(Count::EarlyRejected));
    let mut besides = Vec::new();
    if taken + again > 0 {
        let text = format!("{} accepted, {} sent again", count(taken), count(again));
        besides.push(CountFact::new(EARLY_DATA_LABEL, text));
    }
    besides.extend(describe_limit(run, of));
    besides.extend(repeated_calls(of));
    let ended = of(Count::StreamsEndedWithLoad);
    if ended > 0 {
        let text = if ended == 1 {
            "1 stream was closed at the end of the load; its time is how long it was held open"
                .to_owned()
        } else {
            format!(
                "{} streams were closed at the end of the load; their times are how long they were held open",
                count(ended)
            )
        };
        besides.push(CountFact::new_problem(ENDED_WITH_LOAD_LABEL, text));
    }
    let aside = of(Count::ConnectionsSetAside);
    if aside > 0 {
        let text = format!(
            "{}, replaced while reading the rest of bodies of finished calls",
            plural(aside, "connection")
        );
        besides.push(CountFact::new(REPLACED_CONNECTIONS_LABEL, text));
    }
    let unasked = of(Count::MessagesUnasked);
    if unasked > 0 {
        let text = format!("{} that answered no call", plural(unasked, "message"));
        besides.push(CountFact::new(UNSOLICITED_LABEL, text));
    }
    let (sent, received) = (of(Count::LinkBytesSent), of(Count::LinkBytesReceived));
    if sent + received > 0 {
        let text = format!("{} sent, {} received", bytes(sent), bytes(received));
        besides.push(CountFact::new(LINK_BYTES_LABEL, text));
    }
    let data = of(Count::ContentBytes);
    if data > 0 {
        let headers = (total.bytes_sent + total.bytes_received).saturating_sub(data);
        let text = format!("{} headers, {} data", bytes(headers), bytes(data));
        besides.push(CountFact::new(TRAFFIC_LABEL, text));
    }
    let (packed, unpacked) = (of(Count::BytesPacked), of(Count::BytesUnpacked));
    if packed + unpacked > 0 {
        let text = format!("{} received, {} unpacked", bytes(packed), bytes(unpacked));
        besides.push(CountFact::new("packed", text));
    }
    if SCRIPT_USERS.have_ended(of) {
        besides.push(SCRIPT_USERS.describe_ended(of));
        besides.extend(users_at_once(run).into_iter().chain(describe_reopened(of)));
    }
    let finished: u64 = Count::FINISH_REASONS.into_iter().map(of).sum();
    let counted = of(Count::InputsAnswered)
        + of(Count::TokensPrompt)
        + of(Count::TokensAnswer)
        + of(Count::TokensReceived);
    if !QUERY_CALLERS.have_ended(of) && counted + finished > 0 {
        besides.extend(describe_answers(run, measures, of));
    }
    if !besides.is_empty() {
        return besides;
    }
    let mut asking = QUERY_CALLERS.describe_ended(of);
    let unclosed = of(Count::ClosesFailed);
    if unclosed > 0 {
        let _ = write!(asking.text, ", {} not closed by the API", count(unclosed));
        asking.is_problem = true;
    }
    let mut facts = vec![asking];
    facts.extend(users_at_once(run));
    facts.push(describe_tokens(run, of));
    facts.extend(describe_goodput(run, of(Count::QueriesGood)));
    facts.extend(describe_reconnected(of));
    facts
}

/// Describes how many users were there at once, and how many of them waited for a connection.
fn users_at_once(run: &Run) -> Option<CountFact> {
    let users = run.summary.total.measures.as_ref()?.users?;
    let level = |mean: Option<f64>, max| match mean {
        Some(mean) => format!("{mean:.1} on average, at most {}", count(max)),
        None => format!("at most {}", count(max)),
    };
    let mut text = level(users.in_flight_mean, users.in_flight_max);
    if users.waiting_max > 0 {
        let waiting = level(users.waiting_mean, users.waiting_max);
        let _ = write!(text, "; waiting for a connection: {waiting}");
    }
    Some(CountFact::new(AT_ONCE_LABEL, text))
}

/// Describes the tokens of answers, from the service's own count or, without one, from the number of pieces of streamed
/// answers.
fn describe_answers(
    run: &Run,
    measures: &MeasuresSummary,
    of: impl Fn(Count) -> u64,
) -> Vec<CountFact> {
    let (prompt, counted) = (of(Count::TokensPrompt), of(Count::TokensAnswer));
    let missing = of(Count::UsageMissing);
    // Runs of earlier versions recorded only the pieces of all answers together.
    let pieces = match of(Count::PiecesAnswer) {
        0 => of(Count::TokensReceived),
        pieces => pieces,
    };
    let (by_file, unknown) = (of(Count::TokensCounted), of(Count::AnswersUncounted));
    let (n, what) = match (counted, by_file) {
        (0, 0) => (pieces, "pieces"),
        (0, by_file) => (by_file, "out by the tokenizer"),
        (counted, _) => (counted, "out"),
    };
    let inputs = of(Count::InputsAnswered);
    let mut parts = Vec::new();
    // Answers that are not streamed have no pieces, and answers to embedding or ranking inputs have no tokens.
    let is_unknown = n == 0 && inputs == 0 && missing > 0;
    if is_unknown {
        parts.push("unknown".to_owned());
    } else if n > 0 || prompt + inputs == 0 {
        parts.push(format!("{} {what}{}", count(n), format_rate(run, n)));
    }
    if counted > 0 && by_file > 0 {
        parts.push(format!("{} by the tokenizer", count(by_file)));
    }
    if unknown > 0 {
        parts.push(format!("{} that it can't count", plural(unknown, "answer")));
    }
    let each = measures.times.get(TimeMeasure::TokenMean.key());
    if let Some(p50_us) = each.and_then(|times| times.p50_us).filter(|us| *us > 0.0) {
        parts.push(format!("{} for a user (p50)", rate(1e6 / p50_us)));
    }
    if prompt > 0 {
        let each_second = if n == 0 {
            format_rate(run, prompt)
        } else {
            String::new()
        };
        parts.push(format!("{} in{each_second}", count(prompt)));
    }
    if missing > 0 {
        parts.push(format!("{} without usage", plural(missing, "answer")));
    }
    let astray: Vec<String> = ASTRAY_TOKENS
        .into_iter()
        .filter(|(c, _)| of(*c) > 0)
        .map(|(c, name)| format!("{} {name}", count(of(c))))
        .collect();
    parts.extend_from_slice(&astray);
    let tokens = CountFact {
        is_problem: missing > 0 && counted > 0 || unknown > 0 || !astray.is_empty(),
        ..CountFact::new("tokens", parts.join(", "))
    };
    let mut facts = vec![tokens];
    if inputs > 0 {
        let text = format!("{}{}", count(inputs), format_rate(run, inputs));
        facts.push(CountFact::new("inputs", text));
    }
    facts.extend(describe_finish_reasons(&of));
    facts.extend(describe_goodput(run, of(Count::QueriesGood)));
    facts
}

/// Describes why answers ended, if services report it.
fn describe_finish_reasons(of: &impl Fn(Count) -> u64) -> Option<CountFact> {
    let reasons = Count::FINISH_REASONS.map(|reason| (reason, of(reason)));
    let given: Vec<String> = reasons
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(reason, n)| format!("{} {}", count(*n), reason.finish_reason()))
        .collect();
    let failures = [
        Count::FinishContentFilter,
        Count::FinishError,
        Count::FinishAbort,
    ];
    (!given.is_empty()).then(|| CountFact {
        is_problem: failures.into_iter().any(|reason| of(reason) > 0),
        ..CountFact::new("finish", given.join(", "))
    })
}

/// Formats `n` per second, in parentheses. The rate refers to the time until the last call ended. The text says so if
/// the rates of calls refer to another period.
fn format_rate(run: &Run, n: u64) -> String {
    let total = &run.summary.total;
    let Some(lasted) = total.lasted_us.map(|us| us as f64) else {
        return String::new();
    };
    let per_second = rate(n as f64 / (lasted / 1e6));
    let is_other = total.elapsed_us.is_some_and(|us| lasted > us as f64 * 1.01);
    if is_other {
        format!(" ({per_second} over {})", time(lasted))
    } else {
        format!(" ({per_second})")
    }
}

/// The counts of tokens that were not received once and in order, with their display names.
const ASTRAY_TOKENS: [(Count, &str); 4] = [
    (Count::TokensMissing, "missing"),
    (Count::TokensDuplicated, "received twice"),
    (Count::TokensOutOfOrder, "out of order"),
    (Count::TokensStray, "after their query"),
];

fn describe_tokens(run: &Run, of: impl Fn(Count) -> u64) -> CountFact {
    let received = of(Count::TokensReceived);
    let mut text = format!("{} received once", count(received));
    text.push_str(&format_rate(run, received));
    for (c, name) in ASTRAY_TOKENS {
        let _ = write!(text, ", {} {name}", count(of(c)));
    }
    CountFact {
        is_problem: ASTRAY_TOKENS.into_iter().any(|(c, _)| of(c) > 0),
        ..CountFact::new("tokens", text)
    }
}

/// Describes the queries that met all time limits, if the plan sets such limits.
fn describe_goodput(run: &Run, good: u64) -> Option<CountFact> {
    let bounds: GoodputSpec = run.plan_call_value("goodput")?;
    let total = &run.summary.total;
    let mut text = format!(
        "{} of {} queries",
        count(good),
        count(total.ok + total.errors)
    );
    text.push_str(&format_rate(run, good));
    let bounds: Vec<String> = [
        ("first token", bounds.first_token),
        ("time per token", bounds.time_per_token),
        ("query", bounds.query),
    ]
    .into_iter()
    .filter_map(|(name, bound)| Some(format!("{name} {}", bound?)))
    .collect();
    let _ = write!(text, " within {}", bounds.join(", "));
    Some(CountFact::new("goodput", text))
}

/// Returns the name of callers whose calls are queries for tokens.
pub(crate) fn query_callers_name() -> &'static str {
    QUERY_CALLERS.name()
}

/// Returns the heading of [`protocol_times`]: the callers, or else the tokens of single calls.
pub(crate) fn protocol_times_heading(run: &Run) -> &'static str {
    arriving_callers(run).map_or("tokens", |callers| callers.name())
}

/// Returns the times that only some protocols measure, with their display names.
pub(crate) fn protocol_times(measures: &MeasuresSummary) -> Vec<(String, TimesSummary)> {
    TimeMeasure::all()
        .filter_map(|m| {
            let times = measures.times.get(m.key())?;
            Some((m.key().replace('_', " "), *times))
        })
        .collect()
}

/// Describes the distribution of response times in runs whose protocol has further times.
pub(crate) fn describe_distribution(run: &Run) -> Option<CountFact> {
    let measures = run.summary.total.measures.as_ref()?;
    let record = run.measured_record();
    let h = record.response.histogram().filter(|h| !h.is_empty())?;
    let known = percentiles(h).filter_map(|(percent, ns)| {
        let us = ns? as f64 / 1e3;
        Some(format!("p{percent} {}", time(us)))
    });
    let known: Vec<String> = known.collect();
    let is_any = !measures.times.is_empty() && !known.is_empty();
    is_any.then(|| CountFact::new("response", known.join(", ")))
}

/// Returns a table of times. `what`: the heading of the names.
pub(crate) fn table(
    what: &str,
    rows: impl IntoIterator<Item = (String, TimesSummary)>,
) -> TextTable {
    let head = [
        what, "mean", "sd", "min", "p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "max",
        "count",
    ];
    let rows = rows.into_iter().flat_map(|(name, t)| {
        // Lower bounds are shown only for response times, because the generator's lateness affects other times less.
        let low = wide_intervals(&t).filter(|_| name.starts_with("response"));
        let low = low.map(|low| lower_bounds_row(&name, &low));
        let mut cells = vec![name, time(t.mean_us), time(t.sd_us), time(t.min_us)];
        cells.extend(t.percentiles().map(|(_, us)| or_dash(us, time)));
        cells.extend([time(t.max_us), count(t.count)]);
        [Some(cells), low].into_iter().flatten()
    });
    TextTable::new(head, &[0], rows)
}

/// Returns the row of lower bounds: the times if the generator had been on time.
fn lower_bounds_row(name: &str, instrument: &InstrumentSummary) -> Vec<String> {
    let unknown = || "–".to_owned();
    let low = |[low, _]: [f64; 2]| time(low);
    let mut cells = vec![format!("{name}, at least"), low(instrument.mean_us)];
    cells.extend([unknown(), unknown()]);
    let percentiles = instrument.percentiles().map(|(_, interval)| interval);
    cells.extend(percentiles.map(|interval| interval.map_or_else(unknown, low)));
    cells.extend([low(instrument.max_us), String::new()]);
    cells
}
