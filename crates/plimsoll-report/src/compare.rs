//! Compares two groups of runs: which figures differ, and whether chance may be the cause.
//!
//! The unit of the statistics is the run: each run contributes one value, because calls of one run are correlated. With
//! too few runs in a group, differences are shown without a judgement. All rows are judged together: if the groups are
//! equal, at most one comparison in twenty shows a difference in any row.

use plimsoll_model::plan_text::{PlanDifference, plan_differences};
use plimsoll_model::runs::run::{Run, RunOrigin, RunState, StageSummary, TimesSummary};
use plimsoll_model::statistics::rank::{self, GroupDifference};

use crate::quantity::{or_dash, plural, rate, signed_value, time};
use crate::sections::table::TextTable;

/// The unit in which a metric is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonUnit {
    /// Microseconds.
    Time,
    /// Calls per second.
    PerSecond,
    /// A share, 0–1.
    Share,
}

/// One metric of both groups.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparisonRow {
    /// The name in reports.
    pub metric: &'static str,
    /// The unit of both values.
    pub unit: ComparisonUnit,
    /// The median of the first group's values; of a single run, its own value.
    pub a: f64,
    /// The median of the second group's values; of a single run, its own value.
    pub b: f64,
    /// The difference; `None` if there are too few runs to judge it.
    pub difference: Option<GroupDifference>,
}

impl ComparisonRow {
    /// Returns b − a: the difference of the medians or, if there are enough runs, an estimate from all pairs.
    pub fn shift(&self) -> f64 {
        self.difference.map_or(self.b - self.a, |d| d.shift)
    }

    /// Returns the shift relative to `a`; `None` if `a` is zero.
    pub fn relative_shift(&self) -> Option<f64> {
        (self.a != 0.0).then(|| self.shift() / self.a)
    }

    /// Returns `better`, `worse`, or `unclear`.
    pub fn change_word(&self) -> &'static str {
        match self.is_better() {
            Some(true) => "better",
            Some(false) => "worse",
            None => "unclear",
        }
    }

    /// Returns the difference in percent of a, with its sign.
    pub fn percent(&self) -> Option<String> {
        self.relative_shift().map(percent)
    }

    /// Returns the interval of the difference in percent of a; `None` if there are too few runs.
    pub fn percent_interval(&self) -> Option<String> {
        let d = self.difference.filter(|_| self.a != 0.0)?;
        Some(format!(
            "{} … {}",
            percent(d.low / self.a),
            percent(d.high / self.a)
        ))
    }

    /// Returns `Some(true)` if b is significantly better, `Some(false)` if it is significantly worse, and otherwise
    /// `None`.
    pub fn is_better(&self) -> Option<bool> {
        let d = self.difference.filter(GroupDifference::is_significant)?;
        // Lower is better for times, higher for rates and success shares.
        (d.shift != 0.0).then_some((d.shift < 0.0) == (self.unit == ComparisonUnit::Time))
    }
}

/// Formats a share in percent, with its sign.
fn percent(part: f64) -> String {
    signed_value(part * 100.0, |v| format!("{v:.1}"))
}

/// The comparison of two groups of runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The baseline group.
    pub a: RunGroup,
    /// The group that is compared with `a`.
    pub b: RunGroup,
    /// The metrics that all runs of both groups have.
    pub rows: Vec<ComparisonRow>,
    /// The number of rows that are judged: rows whose values are not all equal.
    pub judged_rows: usize,
    /// Reasons why the figures may not be comparable, as sentences.
    pub warnings: Vec<String>,
    /// Keys in which the plans of the first runs differ.
    pub plan_differences: Vec<PlanDifference>,
}

/// One group of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunGroup {
    /// The first run's name.
    pub name: String,
    /// The first run's directory.
    pub directory: String,
    /// The number of runs in the group, at least one.
    pub runs: usize,
}

impl RunGroup {
    /// Returns the name, the first directory, and the number of further runs.
    pub fn describe(&self) -> String {
        let more = match self.runs {
            1 => String::new(),
            n => format!(" and {}", plural(n as u64 - 1, "replicate")),
        };
        format!("{} ({}{more})", self.name, self.directory)
    }
}

impl ComparisonUnit {
    /// Formats a value with its unit.
    pub fn format(self, value: f64) -> String {
        match self {
            ComparisonUnit::Time => time(value),
            ComparisonUnit::PerSecond => rate(value),
            ComparisonUnit::Share => format!("{:.3} %", value * 100.0),
        }
    }
}

impl Comparison {
    /// Describes the statistical method.
    pub fn describe_method(&self) -> String {
        if self.has_enough_runs() {
            return format!(
                "Mann–Whitney test on one figure a run; the difference is the median over all pairs of runs (Hodges–Lehmann), its interval in % of A. “better” and “worse” where chance alone would make any row differ as much in at most 5 % of comparisons: p is multiplied by the {} judged (Bonferroni), and the intervals are simultaneous.",
                plural(self.judged_rows as u64, "row")
            );
        }
        let sides = match (self.a.runs, self.b.runs) {
            (1, 1) => "one run a side".to_owned(),
            (a, b) => format!(
                "{} against {}",
                plural(a as u64, "run"),
                plural(b as u64, "run")
            ),
        };
        format!(
            "{sides}: not enough runs to tell ({} or more a side for {}): this difference may be chance",
            rank::min_runs(self.judged_rows),
            plural(self.judged_rows.max(1) as u64, "row")
        )
    }

    /// Returns a row for each metric.
    pub(crate) fn table(&self) -> TextTable {
        let head = ["", "A", "B", "B − A", "%", "95 % interval", "p", "B is"];
        let rows = self.rows.iter().map(|row| {
            let show = |value| row.unit.format(value);
            [
                row.metric.to_owned(),
                show(row.a),
                show(row.b),
                signed_value(row.shift(), show),
                or_dash(row.percent(), |percent| percent),
                or_dash(row.percent_interval(), |interval| interval),
                or_dash(row.difference, |d| format!("{:.3}", d.p_value)),
                row.change_word().to_owned(),
            ]
        });
        TextTable::new(head, &[0, 7], rows)
    }

    /// Returns whether both groups have enough runs for the judged rows.
    pub fn has_enough_runs(&self) -> bool {
        rank::has_enough_values(self.a.runs, self.b.runs, self.judged_rows)
    }
}

type ComparedMetric = (&'static str, ComparisonUnit, SummaryFigure);

fn connection_times(s: &StageSummary) -> Option<TimesSummary> {
    s.phases?.connection
}

fn cold_total_times(s: &StageSummary) -> Option<TimesSummary> {
    s.phases?.cold_total
}

type SummaryFigure = fn(&StageSummary) -> Option<f64>;

const fn time_metric(name: &'static str, of: SummaryFigure) -> ComparedMetric {
    (name, ComparisonUnit::Time, of)
}

const STEADY_METRICS: &[ComparedMetric] = &[
    time_metric("response mean", |s| Some(s.response?.mean_us)),
    time_metric("response p50", |s| s.response?.p50_us),
    time_metric("response p90", |s| s.response?.p90_us),
    time_metric("response p99", |s| s.response?.p99_us),
    time_metric("response p99.9", |s| s.response?.p99_9_us),
];

const COLD_METRICS: &[ComparedMetric] = &[
    time_metric("t_connect mean", |s| Some(connection_times(s)?.mean_us)),
    time_metric("t_connect p50", |s| connection_times(s)?.p50_us),
    time_metric("t_first_rpc mean", |s| Some(s.service?.mean_us)),
    time_metric("t_first_rpc p50", |s| s.service?.p50_us),
    time_metric("t_total mean", |s| Some(cold_total_times(s)?.mean_us)),
    time_metric("t_total p50", |s| cold_total_times(s)?.p50_us),
    time_metric("t_total p99", |s| cold_total_times(s)?.p99_us),
];

const COMMON_METRICS: &[ComparedMetric] = &[
    time_metric("client CPU a call", |s| s.client?.cpu_us_per_call),
    time_metric("server CPU a call", |s| s.server?.cpu_us_per_call),
    ("rate achieved", ComparisonUnit::PerSecond, |s| {
        s.achieved_per_s
    }),
    ("success", ComparisonUnit::Share, |s| s.success_share),
];

/// The metric that is used if one group knows only the user CPU time.
const USER_CPU: ComparedMetric = time_metric("client user CPU a call", |s| {
    let ended = s.ok + s.errors + s.cut_off;
    Some(s.client.filter(|_| ended > 0)?.cpu_user_us / ended as f64)
});

/// Compares group `b` with group `a`. Returns `None` if a group is empty.
pub fn compare(a: &[Run], b: &[Run]) -> Option<Comparison> {
    let (first_a, first_b) = (a.first()?, b.first()?);
    let metrics = if first_a.header.cold && first_b.header.cold {
        COLD_METRICS
    } else {
        STEADY_METRICS
    };
    let only_user = [first_a, first_b].iter().any(|run| {
        let client = run.summary.total.client;
        client.is_some_and(|used| used.cpu_system_us.is_none())
    });
    let mut rows: Vec<ComparisonRow> = Vec::new();
    let measured: Vec<(&ComparedMetric, Vec<f64>, Vec<f64>)> = metrics
        .iter()
        .chain(only_user.then_some(&USER_CPU))
        .chain(COMMON_METRICS)
        .filter_map(|metric| {
            let (_, _, of) = metric;
            let values = |runs: &[Run]| -> Option<Vec<f64>> {
                let mut values: Vec<f64> = runs
                    .iter()
                    .map(|r| of(&r.summary.total))
                    .collect::<Option<_>>()?;
                values.sort_by(f64::total_cmp);
                Some(values)
            };
            Some((metric, values(a)?, values(b)?))
        })
        .collect();
    // Values that are equal in all runs can't differ by chance, so they don't count in the correction for multiple
    // comparisons.
    let judged = measured
        .iter()
        .filter(|(_, a, b)| a.iter().chain(b).any(|v| *v != a[0]))
        .count();
    for ((metric, unit, _), a, b) in measured {
        rows.push(ComparisonRow {
            metric,
            unit: *unit,
            a: rank::median_of_sorted(&a),
            b: rank::median_of_sorted(&b),
            difference: rank::compare_groups(&a, &b, judged),
        });
    }
    let plan_differences = match (first_a.header.source, first_b.header.source) {
        (RunOrigin::Measured, RunOrigin::Measured) => {
            plan_differences(&first_a.plan, &first_b.plan)
        }
        _ => Vec::new(),
    };
    let side = |runs: &[Run]| RunGroup {
        name: runs[0].header.name.clone(),
        directory: runs[0].dir.display().to_string(),
        runs: runs.len(),
    };
    Some(Comparison {
        a: side(a),
        b: side(b),
        rows,
        judged_rows: judged,
        warnings: warnings(a, b, &plan_differences),
        plan_differences,
    })
}

/// Returns reasons why the groups may not be comparable. Neither group may be empty.
fn warnings(a: &[Run], b: &[Run], differences: &[PlanDifference]) -> Vec<String> {
    let (first_a, first_b) = (&a[0], &b[0]);
    let mut warnings = Vec::new();
    add_state_warnings(&mut warnings, "A", a);
    add_state_warnings(&mut warnings, "B", b);
    for (name, group) in [("A", a), ("B", b)] {
        let strangers = group[1..]
            .iter()
            .filter(|r| {
                plan_differences(&group[0].plan, &r.plan)
                    .iter()
                    .any(PlanDifference::affects_measurement)
            })
            .count();
        if strangers > 0 {
            warnings.push(format!(
                "the runs of {name} are not replicates: {strangers} of {} have a different plan from {}",
                group.len(),
                group[0].dir.display()
            ));
        }
    }
    if first_a.header.cold != first_b.header.cold {
        warnings
            .push("one side makes a new connection for every call, the other does not".to_owned());
    }
    if [first_a, first_b]
        .iter()
        .any(|r| r.header.source == RunOrigin::Imported)
    {
        warnings.push(
            "an imported run has no plan: the two may have measured different things".to_owned(),
        );
    }
    let decisive: Vec<&str> = differences
        .iter()
        .filter(|d| d.affects_measurement())
        .map(|d| d.key.as_str())
        .collect();
    if !decisive.is_empty() {
        warnings.push(format!(
            "the plans differ in what they measure ({}), which may explain the difference",
            decisive.join(", ")
        ));
    }
    if first_a.header.machine != first_b.header.machine
        && first_a.header.machine.is_some()
        && first_b.header.machine.is_some()
    {
        warnings.push(
            "the runs were made on different machines: see `machine` in both run.json".to_owned(),
        );
    }
    warnings
}

fn add_state_warnings(warnings: &mut Vec<String>, name: &str, runs: &[Run]) {
    for run in runs {
        if run.state != RunState::Complete {
            let reason = run.reason.as_deref().unwrap_or("no reason is given");
            warnings.push(format!(
                "{name} holds a run that is {}: {}: {reason}",
                run.state.name(),
                run.dir.display()
            ));
        }
    }
}
