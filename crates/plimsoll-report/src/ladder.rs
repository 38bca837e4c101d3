//! Reports of a ladder for the terminal and Markdown. A ladder compares variants of a target (rungs); the reports
//! contain the figures of each rung, and the costs that it adds. Rungs are measured either in slices (short runs of one
//! rung each), or in batches (consecutive calls of one rung, within one run).

mod costs;
mod notes;
mod profiles;

use std::fmt::Write as _;

use plimsoll_model::comparisons::ladder::{
    AddedCost, ExtraMeasurement, GateObstacle, GateOutcome, GateResult, LadderMetric, LadderRecord,
    LadderUnit, Rung,
};
use plimsoll_model::crypto_speeds::HandshakeWork;
use plimsoll_model::objective::ObjectiveVerdict;

use crate::quantity::{bytes, count, or_dash, plural, signed_value, time};
use crate::sections::table::TextTable;
use crate::terminal::TerminalOptions;
pub use costs::cost_sentences;
use notes::load_duration_s;
pub use notes::notes;
pub(crate) use notes::{common_notes, describe_libraries, describe_resolution};
pub use profiles::render_profiles;

/// Formats a value of `metric` with its unit.
pub fn format_value(metric: LadderMetric, value: f64) -> String {
    match metric.unit() {
        LadderUnit::Micros => time(value),
        LadderUnit::Bytes => bytes(value.round().max(0.0) as u64),
    }
}

/// Describes a difference: `+120 µs (100 µs … 140 µs)`, or that it is not significant.
pub fn format_added_cost(metric: LadderMetric, added: AddedCost) -> String {
    let signed = |value| signed_value(value, |v| format_value(metric, v));
    match added {
        AddedCost::Significant(d) => format!(
            "{} ({} … {})",
            signed(d.shift),
            signed(d.low),
            signed(d.high)
        ),
        AddedCost::NotSignificant(d) => {
            format!(
                "no difference seen ({} … {})",
                signed(d.low),
                signed(d.high)
            )
        }
        // The mean bytes per call vary by hundredths of a byte, because of acknowledged settings and pings.
        AddedCost::Exact(more) => signed(more.round()),
        AddedCost::TooFewRounds => "not enough data".to_owned(),
    }
}

/// Returns the costs of new connections: a row for each kind of connection of each rung. Returns `None` if all rungs
/// have the same certificates.
pub(crate) fn connection_costs(ladder: &LadderRecord) -> Option<TextTable> {
    const COST_HEADINGS: [&str; 10] = [
        "a new connection with a call",
        "connection p50",
        "connection p99",
        "client CPU",
        "of it cryptography",
        "cores at 1,000/s",
        "server CPU",
        "of it cryptography",
        "cores at 1,000/s",
        "bytes without the call",
    ];
    let primitives = ladder.primitives.as_ref()?;
    let mut rows = Vec::new();
    for rung in &ladder.rungs {
        let prices = rung.connection_costs();
        let Some(handshake) = &rung.handshake else {
            continue;
        };
        let several = prices.len() > 1;
        for price in prices {
            let handshake = HandshakeWork {
                resumed: price.resumed,
                ..handshake.clone()
            };
            // In memory, only the client's TLS library was measured, so the cost of another one on the server is not
            // known.
            let is_ours = rung.server_tls == ladder.client_tls;
            let of_server = primitives.server_cpu_us(&handshake).filter(|_| is_ours);
            let ends = [
                (price.client_cpu_us, primitives.client_cpu_us(&handshake)),
                (price.server_cpu_us, of_server),
            ];
            let mut row = vec![match (several, price.resumed) {
                (true, true) => format!("{}, resumed", rung.name),
                (true, false) => format!("{}, full", rung.name),
                (false, _) => rung.name.clone(),
            }];
            row.push(or_dash(price.p50_us, time));
            row.push(or_dash(price.p99, |p99| {
                let (low, high) = (time(p99.low_us), time(p99.high_us));
                format!("{} ({low} to {high})", time(p99.us))
            }));
            for (cpu, explained) in ends {
                row.push(or_dash(cpu, time));
                let part = cpu.filter(|cpu| *cpu > 0.0).zip(explained);
                row.push(or_dash(part, |(cpu, us)| {
                    format!("{} ({:.0} %)", time(us), us / cpu * 100.0)
                }));
                // The number of cores needed for 1,000 new connections per second.
                row.push(or_dash(cpu, |us| format!("{:.2}", us / 1e3)));
            }
            row.push(or_dash(price.bytes, |b| bytes(b.round() as u64)));
            rows.push(row);
        }
    }
    Some(TextTable::new(COST_HEADINGS, &[0], rows))
}

/// Returns the objectives that slices missed, and the verdict on all objectives; empty if the plan has none.
pub fn objective_lines(ladder: &LadderRecord) -> Vec<String> {
    let mut sentences: Vec<String> = verdict_text(ladder).into_iter().collect();
    let unmet = ladder.rungs.iter().flat_map(unmet_objectives);
    sentences.extend(unmet.map(|(_, sentence)| sentence));
    sentences.extend(
        ladder
            .evaluate_gates()
            .iter()
            .map(|gated| describe_gate(ladder, gated)),
    );
    sentences
}

/// Returns the verdict on all objectives and gates and on the required resolution of differences; `None` if the ladder
/// has none of these.
pub(crate) fn verdict_text(ladder: &LadderRecord) -> Option<String> {
    let conclusion = ladder.conclusion()?;
    Some(format!("verdict on the objectives: {}", conclusion.name()))
}

/// Summarises the costs that rungs add, compared with the first rung or, if rungs are measured in slices instead of
/// batches, with the rung below.
pub(crate) fn summarise_costs(ladder: &LadderRecord) -> Vec<String> {
    let bill = cost_sentences(ladder);
    if !bill.is_empty() {
        return bill.into_iter().map(|sentence| sentence + ".").collect();
    }
    let pairs = LadderRecord::reported_pairs(ladder.rungs.len());
    pairs
        .filter(|(of, to)| *of == to + 1)
        .map(|(of, to)| {
            let added = format_added_cost(
                LadderMetric::P50,
                ladder.added_cost(of, to, LadderMetric::P50),
            );
            let (upper, lower) = (&ladder.rungs[of].name, &ladder.rungs[to].name);
            format!("{upper} adds to {lower}: p50 {added}.")
        })
        .collect()
}

/// Describes how a rung passed or missed a gate (a limit on the costs that it adds).
pub(crate) fn describe_gate(ladder: &LadderRecord, gated: &GateResult) -> String {
    let metric = gated.gate.metric;
    let word = match gated.outcome {
        GateOutcome::Within => "within",
        GateOutcome::Beyond => "BEYOND",
        GateOutcome::Undecided => "not decided",
    };
    let allowed = gated.allowed.map_or_else(String::new, |allowed| {
        format!(" of {} allowed", format_value(metric, allowed))
    });
    let obstacle = match gated.obstacle {
        None => String::new(),
        Some(GateObstacle::FailsDifferently) => {
            "; one of the two fails more calls, and only calls that succeed are measured".to_owned()
        }
        Some(GateObstacle::NotMeasured) if metric.is_about_tokens() => {
            "; the calls of a rung stream no tokens".to_owned()
        }
        Some(GateObstacle::NotMeasured) => "; the CPU time of a server is not known".to_owned(),
        Some(GateObstacle::TooFewReplicates) => {
            let batches = ladder.batches.as_ref();
            let started = batches.map_or(1, |batches| batches.replicates);
            let required = batches.map_or(1, |batches| batches.required_replicates);
            format!(
                "; servers were started {}, and it takes {required}",
                plural(started as u64, "time")
            )
        }
    };
    format!(
        "{}: {} {word}: {}{allowed}{obstacle}",
        ladder.rungs[gated.rung].name,
        gated.gate,
        format_added_cost(metric, ladder.added_cost(gated.rung, 0, metric))
    )
}

/// Returns the objectives that slices of the rung did not meet, each with its verdict.
pub(crate) fn unmet_objectives(rung: &Rung) -> Vec<(ObjectiveVerdict, String)> {
    let all = || rung.slices.iter().flat_map(|s| &s.objectives);
    let mut seen: Vec<(&str, ObjectiveVerdict)> = Vec::new();
    for judged in all().filter(|j| j.verdict != ObjectiveVerdict::Met) {
        let one = (judged.objective.as_str(), judged.verdict);
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    let sentence = |(objective, verdict): (&str, ObjectiveVerdict)| {
        let measured: Vec<&str> = all()
            .filter(|j| (j.objective.as_str(), j.verdict) == (objective, verdict))
            .map(|j| j.measured.as_str())
            .collect();
        let word = verdict.words();
        let text = format!(
            "{}: {objective} {word} in {} of {} ({})",
            rung.name,
            measured.len(),
            plural(rung.slices.len() as u64, "slice"),
            measured.first().unwrap_or(&"–")
        );
        (verdict, text)
    };
    seen.into_iter().map(sentence).collect()
}

/// Returns whether differences of the metric are shown. CPU time and memory of proxies are not, if rungs are measured
/// in batches: they are single figures without an interval.
fn is_compared(ladder: &LadderRecord, metric: LadderMetric) -> bool {
    match metric {
        LadderMetric::ProxyMemory => false,
        LadderMetric::SidecarCpu => ladder.batches.is_none(),
        _ => true,
    }
}

/// Returns the metrics that were measured.
pub fn measured_metrics(ladder: &LadderRecord) -> Vec<LadderMetric> {
    LadderMetric::ALL
        .into_iter()
        .filter(|m| ladder.rungs.iter().any(|r| r.median(*m).is_some()))
        .collect()
}

/// Metrics that share a table.
pub struct MetricGroup {
    /// The heading of the first column, which has the rungs' names.
    pub heading: &'static str,
    /// The metrics, each with the heading of its column.
    pub columns: Vec<(LadderMetric, &'static str)>,
}

impl MetricGroup {
    fn metrics(&self) -> impl Iterator<Item = LadderMetric> + '_ {
        self.columns.iter().map(|(metric, _)| *metric)
    }

    /// Returns a row for each rung.
    pub(crate) fn table(&self, ladder: &LadderRecord) -> TextTable {
        let head = [self.heading].into_iter();
        let head = head.chain(self.columns.iter().map(|(_, name)| *name));
        let rows = ladder.rungs.iter().map(|rung| {
            let figures = self.metrics();
            let figures = figures.map(|m| or_dash(rung.median(m), |v| format_value(m, v)));
            Vec::from_iter([rung.name.clone()].into_iter().chain(figures))
        });
        TextTable::new(head, &[0], rows)
    }
}

/// Returns the groups of metrics, each of which has its own table.
pub fn metric_groups(ladder: &LadderRecord) -> Vec<MetricGroup> {
    let in_slices = ladder.batches.is_none();
    let column = |m: LadderMetric| match m {
        LadderMetric::ClientMemory | LadderMetric::ServerMemory if in_slices => m.name(),
        LadderMetric::ConnectionTime | LadderMetric::ResumedTime => "time (p50)",
        LadderMetric::ConnectionClientCpu | LadderMetric::ResumedClientCpu => "client CPU",
        LadderMetric::ConnectionServerCpu | LadderMetric::ResumedServerCpu => "server CPU",
        LadderMetric::ConnectionBytes | LadderMetric::ResumedBytes => "bytes",
        LadderMetric::ClientMemory => "client memory",
        LadderMetric::ServerMemory => "server memory",
        LadderMetric::BusyClientCpu => LadderMetric::ClientCpu.name(),
        LadderMetric::BusyServerCpu => LadderMetric::ServerCpu.name(),
        _ => m.name(),
    };
    let group = |m: LadderMetric| match m.source_measurement() {
        _ if in_slices => 0,
        None if m == LadderMetric::ConnectionBytes => 2,
        None if m == LadderMetric::ResumedBytes => 3,
        None => 0,
        Some(ExtraMeasurement::Saturated) => 1,
        Some(ExtraMeasurement::Connections | ExtraMeasurement::Memory) => 2,
        Some(ExtraMeasurement::Resumed) => 3,
    };
    let all = measured_metrics(ladder);
    [
        figures_heading(ladder),
        "saturated",
        "a new connection",
        "a resumed connection",
    ]
    .into_iter()
    .enumerate()
    .map(|(n, heading)| MetricGroup {
        heading,
        columns: all
            .iter()
            .filter(|m| group(**m) == n)
            .map(|m| (*m, column(*m)))
            .collect(),
    })
    .filter(|group| !group.columns.is_empty())
    .collect()
}

/// Describes how the rungs were measured.
pub(crate) fn describe_setup(ladder: &LadderRecord) -> String {
    let rungs = plural(ladder.rungs.len() as u64, "rung");
    let rounds = match &ladder.batches {
        Some(turns) => format!(
            "{} of batches of {} calls in random order, in {} s{}",
            plural(round_count(ladder), "round"),
            turns.calls,
            load_duration_s(ladder),
            match turns.replicates {
                1 => String::new(),
                n => format!(" and {n} replicates"),
            }
        ),
        None => format!(
            "{} of {} s in random order",
            plural(round_count(ladder), "round"),
            ladder.slice_s
        ),
    };
    format!("{rungs}, {rounds}")
}

pub(crate) const INVALID_NOTE: &str =
    "INVALID: generator-limited. These differences may be the load generator's, not the target's.";

/// Describes the confidence of the intervals.
pub(crate) fn describe_confidence(ladder: &LadderRecord) -> String {
    let share = ladder.confidence_percent() / 100.0;
    // The sentence uses the smallest number of ladders that expresses the share exactly.
    let ladders = [100_u64, 1_000, 10_000];
    let is_whole = |of: &&u64| {
        let claims = share * **of as f64;
        (claims - claims.round()).abs() < 1e-6
    };
    let of = ladders.iter().find(is_whole).copied().unwrap_or(100_000);
    let claims = (share * of as f64 + 1e-6).floor() as u64;
    format!(
        "{} simultaneous confidence intervals: of {} ladders of equal rungs, at least {} claim no difference.",
        format_confidence(ladder),
        count(of),
        count(claims)
    )
}

/// Formats the confidence of the intervals, rounded down to hundredths of a percent.
pub(crate) fn format_confidence(ladder: &LadderRecord) -> String {
    let percent = (ladder.confidence_percent() * 100.0 + 1e-6).floor() / 100.0;
    format!("{percent} %")
}

/// The costs that one rung adds to another one.
pub(crate) struct RungCosts {
    pub(crate) upper: String,
    pub(crate) lower: String,
    /// The metrics, each with its difference.
    pub(crate) rows: Vec<(String, String)>,
}

/// Returns the metrics whose differences are shown, in the order of their tables.
pub(crate) fn compared_metrics(ladder: &LadderRecord) -> Vec<LadderMetric> {
    let groups = metric_groups(ladder);
    let metrics = groups.iter().flat_map(MetricGroup::metrics);
    metrics.filter(|m| is_compared(ladder, *m)).collect()
}

/// Returns the added costs of all pairs of rungs that are compared.
pub(crate) fn added_costs(ladder: &LadderRecord) -> Vec<RungCosts> {
    let metrics = compared_metrics(ladder);
    let pairs = LadderRecord::reported_pairs(ladder.rungs.len());
    let of_pair = |(of, to): (usize, usize)| RungCosts {
        upper: ladder.rungs[of].name.clone(),
        lower: ladder.rungs[to].name.clone(),
        rows: metrics
            .iter()
            .map(|metric| {
                let added = format_added_cost(*metric, ladder.added_cost(of, to, *metric));
                (metric.name().to_owned(), added.to_string())
            })
            .collect(),
    };
    pairs.map(of_pair).collect()
}

/// Returns the number of measured rounds. In a round, every rung is measured once.
pub fn round_count(ladder: &LadderRecord) -> u64 {
    let rounds = match &ladder.batches {
        Some(turns) => turns.rounds,
        None => {
            let slices = ladder.rungs.iter().map(|r| r.slices.len());
            slices.max().unwrap_or(0)
        }
    };
    rounds as u64
}

/// Returns the heading of the rungs' figures.
fn figures_heading(ladder: &LadderRecord) -> &'static str {
    match ladder.batches {
        Some(_) => "rung (service times)",
        None => "rung (medians of its slices)",
    }
}

/// Renders the ladder, with a line feed at its end.
pub fn render(ladder: &LadderRecord, options: &TerminalOptions) -> String {
    let mut out = format!(
        "{}\n{}\n\n",
        options.bold(&ladder.name),
        describe_setup(ladder)
    );
    if ladder.is_generator_limited() {
        let _ = writeln!(out, "{}\n", options.bold_red(INVALID_NOTE));
    }
    for (n, group) in metric_groups(ladder).into_iter().enumerate() {
        if n > 0 {
            out.push('\n');
        }
        out += &group.table(ladder).render_unwrapped(options.width);
    }
    if let Some(prices) = connection_costs(ladder) {
        let _ = write!(out, "\n{}", prices.render_unwrapped(options.width));
    }
    let all = added_costs(ladder);
    let names = all.iter().flat_map(|pair| &pair.rows);
    let lengths = names.map(|(name, _)| name.chars().count());
    let width = lengths.max().unwrap_or_default().max(28);
    for pair in all {
        let _ = writeln!(
            out,
            "\n{} adds to {}",
            options.bold(&pair.upper),
            pair.lower
        );
        for (name, added) in pair.rows {
            let _ = writeln!(out, "  {name:<width$} {added}");
        }
    }
    let bill = cost_sentences(ladder);
    if !bill.is_empty() {
        out.push('\n');
        for sentence in bill {
            let _ = writeln!(out, "{sentence}.");
        }
    }
    let notes: Vec<String> = objective_lines(ladder)
        .into_iter()
        .chain(notes(ladder))
        .collect();
    if !notes.is_empty() {
        out.push('\n');
        for note in notes {
            let _ = writeln!(out, "  - {note}");
        }
    }
    let _ = writeln!(out, "\n{}", describe_confidence(ladder));
    out
}
