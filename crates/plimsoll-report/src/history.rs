//! The history of a folder's measurements: series of comparable measurements, and the changes of their figures.
//!
//! Measurements are comparable if they have the same kind, plan, target and machine. A series contains only
//! measurements with valid figures: a run that was invalid, cut short or failed says nothing about the target.

mod document;
mod item;

use plimsoll_model::runs::run::MachineFacts;
use plimsoll_model::statistics::change_points::{ChangePoint, change_points};
use plimsoll_model::statistics::rank::{self, GroupDifference};

use crate::quantity::{bytes, exact_rate, plural, rate, signed_value, time};

pub use document::document;
pub use item::{FolderItem, FolderItemKind};

/// Maximum number of measurements of a series that are searched for changes, counted from the newest.
const MAX_SEARCHED_RUNS: usize = 1_000;

/// Maximum length of a displayed name or label, in characters.
const MAX_SHOWN_CHARS: usize = 60;

/// The label with the commit of the software that was measured.
const COMMIT_LABEL: &str = "commit";

/// A metric in which changes are searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryMetric {
    /// The median of the response time.
    P50,
    /// The 99th percentile of the response time.
    P99,
    /// CPU time of the client per call.
    ClientCpu,
    /// CPU time of the watched server per call.
    ServerCpu,
    /// Calls per second that ended, in a closed loop only: in an open loop the plan sets the rate.
    Rate,
    /// The share of calls that failed.
    Errors,
    /// The load line that a search found.
    LoadLine,
}

impl HistoryMetric {
    /// All metrics, in the order in which they are shown.
    pub const ALL: [HistoryMetric; 7] = [
        HistoryMetric::LoadLine,
        HistoryMetric::P50,
        HistoryMetric::P99,
        HistoryMetric::Rate,
        HistoryMetric::Errors,
        HistoryMetric::ServerCpu,
        HistoryMetric::ClientCpu,
    ];

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            HistoryMetric::P50 => "p50",
            HistoryMetric::P99 => "p99",
            HistoryMetric::ClientCpu => "client CPU a call",
            HistoryMetric::ServerCpu => "server CPU a call",
            HistoryMetric::Rate => "rate",
            HistoryMetric::Errors => "errors",
            HistoryMetric::LoadLine => "load line",
        }
    }

    /// Returns the name in JSON, with its unit.
    pub fn key(self) -> &'static str {
        match self {
            HistoryMetric::P50 => "p50_us",
            HistoryMetric::P99 => "p99_us",
            HistoryMetric::ClientCpu => "client_cpu_us_per_call",
            HistoryMetric::ServerCpu => "server_cpu_us_per_call",
            HistoryMetric::Rate => "achieved_per_s",
            HistoryMetric::Errors => "errors_share",
            HistoryMetric::LoadLine => "line_per_s",
        }
    }

    /// Returns the metric's value for a measurement; `None` if it has none.
    pub(crate) fn value(self, item: &FolderItem) -> Option<f64> {
        match self {
            HistoryMetric::P50 => item.p50_us,
            HistoryMetric::P99 => item.p99_us,
            HistoryMetric::ClientCpu => item.cpu_us,
            HistoryMetric::ServerCpu => item.server_cpu_us,
            HistoryMetric::Rate => item.rate_per_s.filter(|_| item.is_closed),
            HistoryMetric::Errors => item.errors_share,
            HistoryMetric::LoadLine => item
                .rate_per_s
                .filter(|_| item.kind == FolderItemKind::Search),
        }
    }

    fn format(self, value: f64) -> String {
        match self {
            HistoryMetric::P50
            | HistoryMetric::P99
            | HistoryMetric::ClientCpu
            | HistoryMetric::ServerCpu => time(value),
            HistoryMetric::Rate => rate(value),
            HistoryMetric::LoadLine => exact_rate(value),
            HistoryMetric::Errors => format_percent(value),
        }
    }

    fn is_better_if_higher(self) -> bool {
        matches!(self, HistoryMetric::Rate | HistoryMetric::LoadLine)
    }
}

/// A series of comparable measurements, and the changes of their figures.
#[derive(Debug)]
pub struct HistorySeries<'a> {
    /// The kind of the measurements.
    pub kind: FolderItemKind,
    /// The plan's name.
    pub name: &'a str,
    /// The URL; `None` if it is not known.
    pub target: Option<&'a str>,
    /// The measurements, the oldest first.
    pub(crate) items: Vec<&'a FolderItem>,
    /// The changes, the oldest first.
    pub(crate) changes: Vec<HistoryChange<'a>>,
}

/// A change of one metric in a series.
#[derive(Debug)]
pub(crate) struct HistoryChange<'a> {
    pub(crate) metric: HistoryMetric,
    /// The index of the first measurement after the change, within the series.
    pub(crate) position: usize,
    /// The first measurement after the change.
    pub(crate) first: &'a FolderItem,
    /// The last measurement before the change.
    pub(crate) last_before: &'a FolderItem,
    /// The median of the measurements before the change, within the window of the search.
    pub(crate) before: f64,
    /// The median of the measurements after the change, within the same window.
    pub(crate) after: f64,
    /// Whether most values after the change are higher than those before it.
    is_higher: bool,
    /// The difference between the measurements after the change and those before it.
    pub(crate) difference: GroupDifference,
    /// The probability of a change at least as large in a series without real changes.
    pub(crate) p_value: f64,
}

/// Returns the series of `items`, ordered by their newest measurement, the newest first.
pub fn group_into_series(items: &[FolderItem]) -> Vec<HistorySeries<'_>> {
    let mut standing: Vec<&FolderItem> =
        items.iter().filter(|item| item.has_valid_figures).collect();
    standing.sort_by_key(|item| item.began);
    let mut all: Vec<HistorySeries<'_>> = Vec::new();
    for item in standing.into_iter().rev() {
        match all.iter_mut().find(|series| series.is_comparable_to(item)) {
            Some(series) => series.items.push(item),
            None => all.push(HistorySeries {
                kind: item.kind,
                name: &item.name,
                target: item.target.as_deref(),
                items: vec![item],
                changes: Vec::new(),
            }),
        }
    }
    for series in &mut all {
        series.items.reverse();
        series.find_changes();
    }
    all
}

impl<'a> HistorySeries<'a> {
    /// Returns the machine of all measurements; `None` if it is not known.
    pub(crate) fn machine(&self) -> Option<&'a MachineFacts> {
        self.items.last().and_then(|item| item.machine.as_ref())
    }

    fn is_comparable_to(&self, item: &FolderItem) -> bool {
        self.kind == item.kind
            && self.name == item.name
            && self.target == item.target.as_deref()
            && self.machine().map(machine_identity) == item.machine.as_ref().map(machine_identity)
    }

    fn find_changes(&mut self) {
        let oldest = self.items.len().saturating_sub(MAX_SEARCHED_RUNS);
        for metric in HistoryMetric::ALL {
            let known = self.items.iter().enumerate().skip(oldest);
            let known = known.filter_map(|(i, item)| Some((i, metric.value(item)?)));
            let (positions, values): (Vec<usize>, Vec<f64>) = known.unzip();
            for change in change_points(&values) {
                let position = positions[change.index];
                let last_before = positions[change.index.saturating_sub(1)];
                self.changes.extend(HistoryChange::new(
                    metric,
                    [position, last_before],
                    &self.items,
                    &values,
                    change,
                ));
            }
        }
        self.changes.sort_by_key(|change| change.position);
    }

    /// Describes the target and the machine.
    pub(crate) fn describe_conditions(&self) -> String {
        let target = self.target.map(|target| format!("at {}", sanitise(target)));
        let machine = self
            .machine()
            .map(|facts| format!("from {}", machine_name(facts)));
        let parts: Vec<String> = target.into_iter().chain(machine).collect();
        parts.join(", ")
    }
}

impl<'a> HistoryChange<'a> {
    fn new(
        metric: HistoryMetric,
        [position, last_before]: [usize; 2],
        items: &[&'a FolderItem],
        values: &[f64],
        change: ChangePoint,
    ) -> Option<HistoryChange<'a>> {
        let before = &values[change.first..change.index];
        let after = &values[change.index..change.end];
        let pairs = after
            .iter()
            .flat_map(|a| before.iter().map(move |b| a.total_cmp(b) as i64));
        Some(HistoryChange {
            is_higher: pairs.sum::<i64>() > 0,
            metric,
            position,
            first: items[position],
            last_before: items[last_before],
            before: rank::median_of_unsorted(before.to_vec())?,
            after: rank::median_of_unsorted(after.to_vec())?,
            difference: rank::compare_groups(before, after, 1)?,
            p_value: change.p_value,
        })
    }

    /// Returns the difference and the ends of its interval as shares of the median before the change; `None` if that
    /// median is 0.
    pub(crate) fn relative_change(&self) -> Option<[f64; 3]> {
        let GroupDifference {
            shift, low, high, ..
        } = self.difference;
        (self.before > 0.0).then(|| [shift, low, high].map(|part| part / self.before))
    }

    /// Describes the size of the change and its interval.
    pub(crate) fn describe_size(&self) -> String {
        let GroupDifference {
            shift, low, high, ..
        } = self.difference;
        let show = |value: f64| signed_value(value, |value| self.metric.format(value));
        match self.relative_change() {
            Some(shares) => {
                let [shift, low, high] = shares.map(|share| signed_value(share, format_percent));
                format!("{shift} ({} to {high})", low.trim_end_matches(" %"))
            }
            None => format!("{} ({} to {})", show(shift), show(low), show(high)),
        }
    }

    pub(crate) fn before_text(&self) -> String {
        self.metric.format(self.before)
    }

    pub(crate) fn after_text(&self) -> String {
        self.metric.format(self.after)
    }

    /// Returns whether the change is an improvement.
    pub(crate) fn is_better(&self) -> bool {
        // Medians can be equal although the ranks differ, as with shares that are mostly 0.
        self.is_higher == self.metric.is_better_if_higher()
    }

    /// Formats the p-value.
    pub(crate) fn format_p_value(&self) -> String {
        format!("{:.3}", self.p_value)
    }

    /// Returns the first commit that was measured after the change, and what else changed at the same time.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let commit = self.first.labels.get(COMMIT_LABEL);
        let commit = commit.map(|commit| format!("commit {}", sanitise(commit)));
        commit.into_iter().chain(self.other_changes()).collect()
    }

    /// Returns other changes that may have caused the change, besides changes of the target.
    pub(crate) fn other_changes(&self) -> Vec<String> {
        let facts = |item: &FolderItem| {
            let machine = item.machine.clone().unwrap_or_default();
            [
                ("kernel", machine.kernel),
                ("governor", machine.governor),
                ("congestion control", machine.tcp_congestion_control),
                ("plimsoll", Some(item.tool_version.clone())),
            ]
        };
        let both = facts(self.last_before).into_iter().zip(facts(self.first));
        let changed = both.filter(|((_, before), (_, after))| before != after);
        let text =
            |value: Option<String>| value.map_or_else(|| "unknown".to_owned(), |v| sanitise(&v));
        changed
            .map(|((name, before), (_, after))| {
                format!("{name} {} → {}", text(before), text(after))
            })
            .collect()
    }
}

/// Returns the properties that identify a machine: the processor, the number of cores that the load may use, and the
/// memory in GiB, because kernels reserve different parts of it. The kernel and its settings are not included: their
/// changes are shown next to the changes that they may have caused.
fn machine_identity(facts: &MachineFacts) -> (Option<&str>, Option<u32>, Option<u64>) {
    let gib = |bytes: u64| bytes.saturating_add(1 << 29) >> 30;
    (
        facts.cpu_model.as_deref(),
        facts.cores,
        facts.memory_bytes.map(gib),
    )
}

/// Describes a machine by the properties that identify it.
fn machine_name(facts: &MachineFacts) -> String {
    let parts = [
        facts.cpu_model.as_deref().map(sanitise),
        facts.cores.map(|n| plural(u64::from(n), "core")),
        facts.memory_bytes.map(bytes),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Formats a share in percent.
fn format_percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent.abs() {
        p if p >= 99.95 => format!("{percent:.0} %"),
        p if p >= 9.995 => format!("{percent:.1} %"),
        _ => format!("{percent:.2} %"),
    }
}

/// Returns the beginning of a text from outside, without control characters.
pub(crate) fn sanitise(text: &str) -> String {
    let printable = |c: char| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    let mut chars = text.chars();
    let mut beginning: String = chars
        .by_ref()
        .take(MAX_SHOWN_CHARS)
        .map(printable)
        .collect();
    if chars.next().is_some() {
        beginning.push('…');
    }
    beginning
}

/// Returns the sentence that explains how changes are found.
pub(crate) fn describe_method() -> String {
    let rate = plimsoll_model::statistics::change_points::MAX_FALSE_ALARM_PROBABILITY * 100.0;
    format!(
        "Changes of level that stand out of the scatter of runs, with 95 % intervals of their size. p: how often runs in random order look like that; of figures that did not change, at most {rate:.0} in 100 series have a change."
    )
}
