//! The figures of a run: a pure function of its header and its intervals.
//!
//! [`Totals`] adds intervals up, one by one; [`Summary::of`] turns them into the figures
//! that `run.json` keeps and every report shows. Nothing is averaged over percentiles.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::Outcome;
use crate::measure::{Count, Measures, TimeMeasure};
use crate::record::{AddressCounts, Counts, MessageRecord, PhaseRecord, StageRecord, add_detail};

use super::health::{HealthProblem, Observed, health};
use super::interval::{IntervalRecord, Resources};
use super::memory::{MemoryReading, MemorySummary};
use super::rotation::{RotationSummary, Rotations};
use super::times::{TimesSummary, rounded};
use super::{RunHeader, Source};

/// The phases of the connections that were made. `None`: didn't happen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PhasesSummary {
    pub resolve: Option<TimesSummary>,
    pub connect: Option<TimesSummary>,
    pub handshake: Option<TimesSummary>,
    pub ready: Option<TimesSummary>,
    /// All phases of a connection together.
    pub connection: Option<TimesSummary>,
    /// Cold calls that ended ok: connection and call together.
    pub cold_total: Option<TimesSummary>,
}

impl PhasesSummary {
    fn of(phases: &PhaseRecord) -> PhasesSummary {
        PhasesSummary {
            resolve: TimesSummary::of(&phases.resolve),
            connect: TimesSummary::of(&phases.connect),
            handshake: TimesSummary::of(&phases.handshake),
            ready: TimesSummary::of(&phases.ready),
            connection: TimesSummary::of(&phases.total),
            cold_total: TimesSummary::of(&phases.cold_total),
        }
    }
}

/// The messages of streams.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MessagesSummary {
    /// On calls that ended.
    pub sent: u64,
    pub received: u64,
    pub received_per_s: Option<f64>,
    /// From a call's actual send to its first message from the server.
    pub first_message: Option<TimesSummary>,
    /// From one message from the server to the next on the same call.
    pub inter_message: Option<TimesSummary>,
}

impl MessagesSummary {
    /// `lasted`: until the last of them had come.
    fn of(messages: &MessageRecord, lasted: Duration) -> MessagesSummary {
        let seconds = lasted.as_secs_f64();
        MessagesSummary {
            sent: messages.sent,
            received: messages.received,
            received_per_s: (seconds > 0.0).then(|| rounded(messages.received as f64 / seconds)),
            first_message: TimesSummary::of(&messages.first_message),
            inter_message: TimesSummary::of(&messages.inter_message),
        }
    }
}

/// What a protocol measured besides its calls, by its stable names.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MeasuresSummary {
    pub counts: BTreeMap<&'static str, u64>,
    pub times: BTreeMap<&'static str, TimesSummary>,
}

impl MeasuresSummary {
    fn of(measures: &Measures) -> MeasuresSummary {
        let counts = Count::ALL.iter().map(|c| (c.key(), measures.of(*c)));
        let times = TimeMeasure::ALL
            .iter()
            .filter_map(|m| Some((m.key(), TimesSummary::of(measures.times(*m))?)));
        MeasuresSummary {
            counts: counts.collect(),
            times: times.collect(),
        }
    }
}

/// How often one outcome happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorSummary {
    pub code: String,
    pub count: u64,
    /// Whose failure: client, link or target.
    pub blame: String,
    pub explanation: String,
}

impl ErrorSummary {
    /// Those among `counts` that are `wanted`, the most frequent first.
    fn of(counts: &Counts, wanted: fn(Outcome) -> bool) -> Vec<ErrorSummary> {
        let mut errors: Vec<(Outcome, u64)> = counts.iter().filter(|(o, _)| wanted(*o)).collect();
        errors.sort_by_key(|(o, n)| (std::cmp::Reverse(*n), o.index()));
        errors
            .into_iter()
            .filter_map(|(o, count)| {
                Some(ErrorSummary {
                    code: o.code().to_owned(),
                    count,
                    blame: o.blame()?.name().to_owned(),
                    explanation: o.explanation().to_owned(),
                })
            })
            .collect()
    }
}

/// What became of calls and connections at one of several addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddressSummary {
    pub address: String,
    #[serde(flatten)]
    pub counts: AddressCounts,
}

impl AddressSummary {
    /// Empty where there is but one.
    fn of(record: &StageRecord) -> Vec<AddressSummary> {
        if record.addresses.len() < 2 {
            return Vec::new();
        }
        let addresses = record.addresses.iter();
        addresses
            .map(|(address, counts)| AddressSummary {
                address: address.clone(),
                counts: *counts,
            })
            .collect()
    }
}

/// What one end used while the calls of a stage ran.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ResourcesSummary {
    pub cpu_user_us: f64,
    /// `None`: not known, in runs of other tools.
    pub cpu_system_us: Option<f64>,
    /// `None` where no call ended, or not all of the CPU is known.
    pub cpu_us_per_call: Option<f64>,
    /// 0, as the next two: not known.
    pub rss_bytes_max: u64,
    /// Before the first connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes_before: Option<u64>,
    pub descriptors_max: u64,
    pub threads_max: u64,
}

/// The figures of one stage, or of all that are not warm-up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSummary {
    pub name: String,
    pub warmup: bool,
    /// How long calls were started, or where no end was planned how long they ran;
    /// `None`: not known.
    pub elapsed_us: Option<u64>,
    /// From the beginning to the end of the last call, and `elapsed_us` at least: what rates
    /// of messages, tokens and sessions refer to.
    pub lasted_us: Option<u64>,
    pub due: u64,
    pub ok: u64,
    /// Those that were given up are none.
    pub errors: u64,
    /// Sent, and given up because the run ended.
    pub cut_off: u64,
    pub late: u64,
    pub not_started: u64,
    pub expired_unsent: u64,
    /// Left out where there are none, like the next.
    #[serde(skip_serializing_if = "is_zero")]
    pub waited_for_stream: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub waited_for_connection: u64,
    /// ok / (ok + errors); `None` where there is none.
    pub success_share: Option<f64>,
    /// Arrivals a second.
    pub offered_per_s: Option<f64>,
    /// Calls a second that ended, ok or not, within `elapsed_us`.
    pub achieved_per_s: Option<f64>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub connections_full: u64,
    pub connections_resumed: u64,
    /// Of both, those after a HelloRetryRequest; left out where there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub connections_retried: u64,
    pub connections_lost: u64,
    /// Left out where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_unused: Option<u64>,
    pub connections_open_max: u64,
    pub errors_by_code: Vec<ErrorSummary>,
    /// Left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cut_off_by_code: Vec<ErrorSummary>,
    pub connect_failures_by_code: Vec<ErrorSummary>,
    /// Where the target has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressSummary>,
    pub response: Option<TimesSummary>,
    pub service: Option<TimesSummary>,
    pub first_byte: Option<TimesSummary>,
    pub failed: Option<TimesSummary>,
    pub lag: Option<TimesSummary>,
    pub pacing: Option<TimesSummary>,
    pub phases: Option<PhasesSummary>,
    /// Of streams.
    pub messages: Option<MessagesSummary>,
    /// What the protocol measures besides its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measures: Option<MeasuresSummary>,
    pub client: Option<ResourcesSummary>,
    pub server: Option<ResourcesSummary>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// `None` where no time has passed.
fn whole_us(time: Duration) -> Option<u64> {
    (!time.is_zero()).then(|| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

impl StageSummary {
    fn of(name: String, totals: &StageTotals) -> StageSummary {
        let r = &totals.record;
        let per_second = |n: u64| {
            let seconds = totals.window.as_secs_f64();
            (seconds > 0.0).then(|| rounded(n as f64 / seconds))
        };
        let settled = r.ok() + r.errors();
        StageSummary {
            name,
            warmup: false,
            elapsed_us: whole_us(totals.window),
            lasted_us: whole_us(totals.lasted),
            due: r.due,
            ok: r.ok(),
            errors: r.errors(),
            cut_off: r.calls_cut_off(),
            late: r.late,
            not_started: r.not_started,
            expired_unsent: r.expired_unsent,
            waited_for_stream: r.waited_for_stream,
            waited_for_connection: r.waited_for_connection,
            success_share: (settled > 0).then(|| r.ok() as f64 / settled as f64),
            offered_per_s: per_second(r.due),
            achieved_per_s: per_second(totals.ended_in_window.min(r.due)),
            bytes_sent: r.bytes_sent,
            bytes_received: r.bytes_received,
            connections_full: r.connections_full,
            connections_resumed: r.connections_resumed,
            connections_retried: r.connections_retried,
            connections_lost: r.connections_lost,
            connections_unused: (r.connections_unused > 0).then_some(r.connections_unused),
            connections_open_max: totals.connections_open_max,
            errors_by_code: ErrorSummary::of(&r.outcomes, Outcome::is_error),
            cut_off_by_code: ErrorSummary::of(&r.outcomes, Outcome::is_given_up),
            connect_failures_by_code: ErrorSummary::of(&r.connect_failures, |o| !o.is_ok()),
            addresses: AddressSummary::of(r),
            response: TimesSummary::of(&r.response),
            service: TimesSummary::of(&r.service),
            first_byte: TimesSummary::of(&r.first_byte),
            failed: TimesSummary::of(&r.failed),
            lag: TimesSummary::of(&r.lag),
            pacing: TimesSummary::of(&r.pacing),
            phases: r
                .phases
                .as_deref()
                .filter(|p| !p.is_empty())
                .map(PhasesSummary::of),
            messages: r
                .messages
                .as_deref()
                .filter(|m| !m.is_empty())
                .map(|m| MessagesSummary::of(m, totals.lasted)),
            measures: r
                .measures
                .as_deref()
                .filter(|m| !m.is_empty())
                .map(MeasuresSummary::of),
            client: totals.client.summary(r.ended()),
            server: totals.server.summary(r.ended()),
        }
    }
}

/// Every call that was due is in exactly one count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CountCheck {
    pub due: u64,
    pub ok: u64,
    pub errors: u64,
    /// Sent, and given up because the run ended.
    pub cut_off: u64,
    pub not_started: u64,
    /// Sent and not ended when the record ends; 0 in a run that ended in good order.
    pub in_flight: u64,
    /// Due and not sent when the record ends; 0 in a run that ended in good order.
    pub backlog: u64,
    /// `due` is the sum of the others.
    pub matches: bool,
}

impl CountCheck {
    fn accounted(&self) -> u64 {
        let ended = self.ok + self.errors + self.cut_off;
        ended + self.not_started + self.in_flight + self.backlog
    }
}

/// Whether the figures describe the target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Health {
    pub valid: bool,
    pub problems: Vec<HealthProblem>,
}

/// Texts of failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detail {
    pub code: String,
    pub text: String,
}

/// All figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// From the first arrival to the end of the last interval; `None`: not known.
    pub elapsed_us: Option<u64>,
    /// All stages together that are not warm-up.
    pub total: StageSummary,
    /// In the plan's order, warm-up included.
    pub stages: Vec<StageSummary>,
    pub details: Vec<Detail>,
    /// What connections hold at rest, where the protocol is about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySummary>,
    /// What it cost that certificates were replaced; left out where none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationSummary>,
    /// Over all stages, warm-up included.
    pub count_check: CountCheck,
    pub health: Health,
}

impl Summary {
    /// The phases of the connections that were made while measuring; where calls share
    /// connections they are made before the first of them, often in warm-up.
    pub fn phases(&self) -> Option<&PhasesSummary> {
        let stages = self.stages.iter().filter_map(|s| s.phases.as_ref());
        self.total.phases.as_ref().into_iter().chain(stages).next()
    }

    /// The figures of the run that `header` describes, whose intervals add up to `totals`.
    pub fn of(header: &RunHeader, totals: &Totals) -> Summary {
        let mut measured = StageTotals::default();
        let mut stages = Vec::new();
        let mut check = CountCheck {
            due: 0,
            ok: 0,
            errors: 0,
            cut_off: 0,
            not_started: 0,
            in_flight: totals.in_flight,
            backlog: totals.backlog,
            matches: true,
        };
        for (stage, t) in &totals.stages {
            let t = t.with_window(header, *stage, totals.end);
            check.due += t.record.due;
            check.ok += t.record.ok();
            check.errors += t.record.errors();
            check.cut_off += t.record.calls_cut_off();
            check.not_started += t.record.not_started;
            let name = header
                .planned_stages
                .get(usize::from(*stage))
                .map_or_else(|| format!("stage {stage}"), |s| s.name.clone());
            let summary = StageSummary::of(name, &t);
            let warmup = header.is_warmup(*stage);
            stages.push(StageSummary { warmup, ..summary });
            if !warmup {
                measured.merge(&t);
            }
        }
        // Known since before the warm-up, and as good for what follows it.
        (
            measured.client.rss_bytes_before,
            measured.server.rss_bytes_before,
        ) = totals.rss_before;
        check.matches = check.due == check.accounted();
        let mut problems = problems(header, totals, &measured.record);
        if !check.matches {
            problems.push(HealthProblem::counts_differ(check.due, check.accounted()));
        }
        let details = totals.details.iter();
        Summary {
            elapsed_us: whole_us(totals.end),
            total: StageSummary::of("total".to_owned(), &measured),
            stages,
            details: details
                .map(|(o, text)| Detail {
                    code: o.code().to_owned(),
                    text: text.clone(),
                })
                .collect(),
            memory: MemorySummary::of(&totals.memory),
            rotation: totals.rotations.summary(),
            count_check: check,
            health: Health {
                valid: !problems.iter().any(|p| p.invalidates),
                problems,
            },
        }
    }
}

/// What is wrong with the run, or worth knowing, apart from its counts. `measured`: its stages without the
/// warm-up.
fn problems(header: &RunHeader, totals: &Totals, measured: &StageRecord) -> Vec<HealthProblem> {
    // Connections that warm-up could not make are missing in what follows it.
    let mut judged = measured.clone();
    for (stage, t) in &totals.stages {
        if header.is_warmup(*stage) {
            judged.connect_failures.merge(&t.record.connect_failures);
        }
    }
    let is_measured = header.source == Source::Measured;
    let mut problems: Vec<HealthProblem> = HealthProblem::of_shards(&header.shards).collect();
    if header.insecure {
        problems.insert(0, HealthProblem::server_unchecked());
    }
    if is_measured {
        problems.extend(health(&judged, header, &totals.observed));
    }
    let silent = |stage| header.is_silent(stage) && !header.is_warmup(stage);
    if !totals.memory.is_empty() && (0..=u8::MAX).any(silent) {
        // What is measured is the silence; the calls only show who is still there.
        problems
            .iter_mut()
            .for_each(HealthProblem::leaves_memory_alone);
    }
    let wanted = u64::from(header.connections.unwrap_or(0));
    let every = totals.stages.values();
    let open = every.map(|t| t.connections_open_max).max().unwrap_or(0);
    // A run of less than an interval has closed all when its connections are counted.
    let kept = is_measured && !header.cold && open > 0;
    // As many as are wanted came up, though not at once, where the target closes them, too.
    let made: u64 = totals
        .stages()
        .map(|r| r.connections_full + r.connections_resumed)
        .sum();
    if kept && open.max(made) < wanted && judged.connect_failures.total() > 0 {
        let reasons = &judged.connect_failures;
        problems.push(HealthProblem::connections_missing(wanted, open, reasons));
    }
    let is_kept = !header.cold
        && header.calls_per_connection.is_none()
        && header.connection_lifetime_us.is_none();
    if is_measured && is_kept {
        let made = judged.connections_full + judged.connections_resumed;
        problems.extend(HealthProblem::not_reused(wanted, made, judged.ended()));
    }
    let full = judged.connections_full;
    let of_both = (full, judged.connections_resumed);
    if let Some(share) = header.full_share {
        problems.extend(HealthProblem::not_mixed(share, of_both));
    } else if header.cold && header.resume && full > 0 {
        problems.push(HealthProblem::not_resumed(
            full,
            judged.connections_first,
            judged.connections_resumed,
        ));
    }
    problems
}

/// What one end used, added up.
#[derive(Clone, Debug, Default)]
struct ResourceTotals {
    known: bool,
    /// In some interval system time was not.
    system_unknown: bool,
    cpu_user_us: f64,
    cpu_system_us: f64,
    rss_bytes_max: u64,
    rss_bytes_before: Option<u64>,
    descriptors_max: u64,
    threads_max: u64,
}

impl ResourceTotals {
    /// `share`: the stage's part of the interval.
    fn add(&mut self, r: &Resources, share: f64) {
        self.known = true;
        self.cpu_user_us += r.cpu_user_us as f64 * share;
        self.system_unknown |= r.cpu_system_us.is_none();
        self.cpu_system_us += r.cpu_system_us.unwrap_or(0) as f64 * share;
        self.rss_bytes_max = self.rss_bytes_max.max(r.rss_bytes);
        self.descriptors_max = self.descriptors_max.max(r.descriptors);
        self.threads_max = self.threads_max.max(r.threads);
    }

    fn merge(&mut self, other: &ResourceTotals) {
        self.known |= other.known;
        self.system_unknown |= other.system_unknown;
        self.cpu_user_us += other.cpu_user_us;
        self.cpu_system_us += other.cpu_system_us;
        self.rss_bytes_max = self.rss_bytes_max.max(other.rss_bytes_max);
        self.descriptors_max = self.descriptors_max.max(other.descriptors_max);
        self.threads_max = self.threads_max.max(other.threads_max);
    }

    fn summary(&self, calls: u64) -> Option<ResourcesSummary> {
        self.known.then(|| ResourcesSummary {
            cpu_user_us: rounded(self.cpu_user_us),
            cpu_system_us: (!self.system_unknown).then(|| rounded(self.cpu_system_us)),
            cpu_us_per_call: (calls > 0 && !self.system_unknown)
                .then(|| rounded((self.cpu_user_us + self.cpu_system_us) / calls as f64)),
            rss_bytes_max: self.rss_bytes_max,
            rss_bytes_before: self.rss_bytes_before,
            descriptors_max: self.descriptors_max,
            threads_max: self.threads_max,
        })
    }
}

/// One stage of a run, its intervals added up.
#[derive(Clone, Debug, Default)]
struct StageTotals {
    record: StageRecord,
    /// Calls, of this stage or of one before, that ended in intervals that began before the
    /// stage's planned end and after that of the stages before.
    ended_in_window: u64,
    /// End of the last interval in which one of its calls ended.
    last_end: Duration,
    /// The time to which rates refer; filled in when the run is summed up.
    window: Duration,
    /// From the stage's beginning to the end of its last call, and the window at least; filled
    /// in as that is.
    lasted: Duration,
    connections_open_max: u64,
    client: ResourceTotals,
    server: ResourceTotals,
}

impl StageTotals {
    /// The window: from the stage's beginning to its planned end, or to where the run
    /// ended before it. Where no end was planned, an open loop's run lasts as long as its
    /// arrivals stand for; a closed loop's window ends with its last call.
    fn with_window(&self, header: &RunHeader, stage: u8, run_end: Duration) -> StageTotals {
        let (begin, planned_end) = header.span(stage);
        let end = match planned_end {
            // A stretch without calls has no rate.
            Some(_) if header.is_silent(stage) => begin,
            Some(end) => end.min(run_end),
            None if header.is_open() => run_end,
            None => self.last_end,
        };
        StageTotals {
            window: end.saturating_sub(begin),
            lasted: self.last_end.max(end).saturating_sub(begin),
            ..self.clone()
        }
    }

    fn merge(&mut self, other: &StageTotals) {
        self.record.merge(&other.record);
        self.ended_in_window += other.ended_in_window;
        self.last_end = self.last_end.max(other.last_end);
        // Stages follow each other, and the first one's last calls end while the second goes on.
        self.lasted = self.lasted.max(self.window + other.lasted);
        self.window += other.window;
        self.connections_open_max = self.connections_open_max.max(other.connections_open_max);
        self.client.merge(&other.client);
        self.server.merge(&other.server);
    }
}

/// A run's intervals, added up.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    stages: BTreeMap<u8, StageTotals>,
    details: Vec<(Outcome, String)>,
    memory: Vec<MemoryReading>,
    end: Duration,
    in_flight: u64,
    backlog: u64,
    intervals: u64,
    observed: Observed,
    rotations: Rotations,
    /// What client and server used in intervals in which no call began or ended.
    carried: (Option<Resources>, Option<Resources>),
    /// Their resident memory before the first connection.
    rss_before: (Option<u64>, Option<u64>),
}

/// What was used in two intervals; what was held is of the later one.
fn with(before: Option<Resources>, now: Option<Resources>) -> Option<Resources> {
    let (Some(before), Some(now)) = (before, now) else {
        return now.or(before);
    };
    let both = before.plus(now);
    Some(Resources {
        cpu_user_us: both.cpu_user_us,
        cpu_system_us: both.cpu_system_us,
        ..now
    })
}

impl Totals {
    /// Add one interval of the run that `header` describes.
    pub fn add(&mut self, header: &RunHeader, interval: &IntervalRecord) {
        self.intervals += 1;
        self.end = self.end.max(interval.end_offset());
        self.in_flight = interval.in_flight;
        self.backlog = interval.backlog;
        for (outcome, text) in &interval.details {
            add_detail(&mut self.details, *outcome, text);
        }
        self.memory.extend(&interval.memory);
        // An interval that straddles two stages is shared out by the calls that ended.
        let weight = |r: &StageRecord| (r.ended() * 1_000 + r.due) as f64;
        let all: f64 = interval.stages.iter().map(|(_, r)| weight(r)).sum();
        let client = with(self.carried.0.take(), interval.client);
        let server = with(self.carried.1.take(), interval.server);
        if all == 0.0 {
            // Calls longer than an interval: what they cost meanwhile belongs to their end.
            self.carried = (client, server);
        }
        let before = |of: Option<Resources>| of.and_then(|r| r.rss_bytes_before);
        self.rss_before.0 = self.rss_before.0.or(before(interval.client));
        self.rss_before.1 = self.rss_before.1.or(before(interval.server));
        let mut measured = false;
        for (stage, record) in &interval.stages {
            let totals = self.stages.entry(*stage).or_default();
            totals.record.merge(record);
            if record.ended() > 0 {
                totals.last_end = totals.last_end.max(interval.end_offset());
            }
            totals.connections_open_max =
                totals.connections_open_max.max(interval.connections_open);
            if all > 0.0 {
                let share = weight(record) / all;
                if let Some(client) = &client {
                    totals.client.add(client, share);
                }
                if let Some(server) = &server {
                    totals.server.add(server, share);
                }
            }
            measured |= !header.is_warmup(*stage) && record.due + record.ended() > 0;
        }
        if measured {
            self.observed.add(interval);
        }
        self.rotations
            .add(|stage| header.is_warmup(stage), interval);
        self.count_in_windows(header, interval);
    }

    /// What began in one stage and ends in the next is work of the next one's time.
    fn count_in_windows(&mut self, header: &RunHeader, interval: &IntervalRecord) {
        let is_over = |stage: u8| {
            let (_, planned_end) = header.span(stage);
            planned_end.is_some_and(|end| end <= interval.start_offset)
        };
        for (stage, record) in &interval.stages {
            let current = (*stage..u8::MAX).find(|&stage| !is_over(stage));
            if let Some(totals) = current.and_then(|stage| self.stages.get_mut(&stage)) {
                totals.ended_in_window += record.ended();
            }
        }
    }

    /// The measured stages' records merged (warm-up left out).
    pub fn measured(&self, header: &RunHeader) -> StageRecord {
        let mut merged = StageRecord::default();
        for (stage, totals) in &self.stages {
            if !header.is_warmup(*stage) {
                merged.merge(&totals.record);
            }
        }
        merged
    }

    /// The records of the stages, in order.
    pub(super) fn stages(&self) -> impl Iterator<Item = &StageRecord> {
        self.stages.values().map(|totals| &totals.record)
    }

    /// How many intervals were added.
    pub fn intervals(&self) -> u64 {
        self.intervals
    }
}
