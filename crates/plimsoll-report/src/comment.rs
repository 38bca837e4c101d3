//! A comment for a pull request in Markdown: the results that a reviewer needs, in few lines.
//!
//! A comment has at most [`MAX_LINES`] lines, however many runs, objectives or rungs (variants in a ladder) there are.
//! Its lists begin with the most important items: missed objectives, and the largest changes. A list that is cut off
//! ends with the number of omitted items, so a short comment is never mistaken for a complete report.

mod layout;

use std::path::PathBuf;

use plimsoll_model::comparisons::ladder::{AddedCost, GateOutcome, LadderMetric, LadderRecord};
use plimsoll_model::objective::{ObjectiveVerdict, RunVerdict, judge_run};
use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::{Run, RunState};
use plimsoll_model::search::{LimitingFactor, SearchRecord};

use crate::compare::{Comparison, ComparisonRow};
use crate::ladder as rungs;
use crate::markdown::escape_cell;
use crate::quantity::plural;
use crate::sections::headline::describe_latency;
use crate::{search as found, sections::facts, sweep, terminal};

pub use layout::MAX_LINES;
use layout::{Comment, Item, Section};

/// How bad a result is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Failed,
    Uncertain,
    /// There were no objectives to judge.
    Unjudged,
    Passed,
}

impl Severity {
    fn symbol(self) -> &'static str {
        match self {
            Severity::Failed => "❌ ",
            Severity::Uncertain => "⚠️ ",
            Severity::Unjudged => "",
            Severity::Passed => "✅ ",
        }
    }
}

impl From<RunVerdict> for Severity {
    fn from(verdict: RunVerdict) -> Severity {
        match verdict {
            RunVerdict::Pass => Severity::Passed,
            RunVerdict::Fail => Severity::Failed,
            RunVerdict::Invalid => Severity::Uncertain,
        }
    }
}

impl From<ObjectiveVerdict> for Severity {
    fn from(verdict: ObjectiveVerdict) -> Severity {
        match verdict {
            ObjectiveVerdict::Met => Severity::Passed,
            ObjectiveVerdict::Missed => Severity::Failed,
            ObjectiveVerdict::CannotBeJudged | ObjectiveVerdict::NotSupported => {
                Severity::Uncertain
            }
        }
    }
}

/// Returns the first line: the name and the verdict.
fn title(name: &str, severity: Severity, verdict: &str) -> String {
    format!("**{}**: {}{verdict}", escape_cell(name), severity.symbol())
}

/// Returns the comment on runs. `files`: the files with the complete results.
pub fn runs(runs: &[Run], files: &[PathBuf]) -> String {
    if let [run] = runs {
        return single_run(run, files);
    }
    let named = runs.iter().map(|run| (run.header.name.as_str(), run));
    let name = plural(runs.len() as u64, "run");
    several_runs(&name, named.collect(), files)
}

/// Returns the comment on a run of several lanes (loads that run side by side). `runs`: the lanes' runs, in order.
/// `files`: as for [`runs`].
pub fn lanes(record: &LanesRecord, runs: &[Run], files: &[PathBuf]) -> String {
    let names = record.lanes.iter().map(|lane| lane.name.as_str());
    several_runs(&record.name, names.zip(runs).collect(), files)
}

fn single_run(run: &Run, files: &[PathBuf]) -> String {
    let (severity, word) = conclusion(run);
    let titles = terminal::warning_titles(run).into_iter().map(str::to_owned);
    let sentences = titles
        .chain(describe_latency(run))
        .chain(facts::describe_call(&run.header));
    let sections = vec![
        Section::sentences("sentence", sentences),
        Section::items("objective", objectives(&[(None, run)])),
        Section::sentences("problem", problems(None, run)),
    ];
    let title = title(&run.header.name, severity, word);
    Comment { title, sections }.render(files)
}

/// Returns the comment on several runs, each with the name under which it is listed. The worst run comes first.
fn several_runs(name: &str, mut named: Vec<(&str, &Run)>, files: &[PathBuf]) -> String {
    named.sort_by_key(|(_, run)| conclusion(run).0);
    let (severity, word) = match named.first() {
        Some((_, worst)) => conclusion(worst),
        None => (Severity::Unjudged, "no run"),
    };
    let rows = named.iter().map(|(name, run)| {
        let (severity, word) = conclusion(run);
        let verdict = format!("{}{word}", severity.symbol());
        let times = describe_latency(run).unwrap_or_default();
        Item::new([(*name).to_owned(), verdict, times], word)
    });
    let prefixed: Vec<(Option<&str>, &Run)> = named
        .iter()
        .map(|(name, run)| (Some(*name), *run))
        .collect();
    let problems = prefixed.iter().flat_map(|(name, run)| problems(*name, run));
    let sections = vec![
        Section::table("run", ["run", "verdict", "response times"], rows),
        Section::items("objective", objectives(&prefixed)),
        Section::sentences("problem", problems),
    ];
    let title = title(name, severity, word);
    Comment { title, sections }.render(files)
}

/// Returns the verdict on a run: on its objectives or, if it has none, on its validity.
fn conclusion(run: &Run) -> (Severity, &'static str) {
    match (RunVerdict::from_results(&judge_run(run)), run.state) {
        (Some(verdict), _) => (verdict.into(), verdict.name()),
        (None, RunState::Complete) if run.summary.total.ok == 0 => {
            (Severity::Failed, "no call succeeded")
        }
        (None, RunState::Complete) => (Severity::Unjudged, "valid"),
        (None, state) => (Severity::Uncertain, state.name()),
    }
}

/// Returns the objectives of runs with their measured intervals, the missed objectives first.
fn objectives(named: &[(Option<&str>, &Run)]) -> Vec<Item> {
    let of_run = |(name, run): &(Option<&str>, &Run)| {
        let name = name_prefix(*name);
        let judged = judge_run(run).into_iter();
        let judged = judged.map(move |one| {
            let severity = Severity::from(one.verdict);
            let (mark, word) = (severity.symbol(), one.verdict.words());
            let text = format!("{mark}{name}{}: {word} ({})", one.objective, one.measured);
            (severity, Item::new([text], word))
        });
        judged.collect::<Vec<_>>()
    };
    sort_worst_first(named.iter().flat_map(of_run))
}

fn sort_worst_first(items: impl Iterator<Item = (Severity, Item)>) -> Vec<Item> {
    let mut items: Vec<(Severity, Item)> = items.collect();
    items.sort_by_key(|(severity, _)| *severity);
    items.into_iter().map(|(_, item)| item).collect()
}

/// Returns how a run ended if not normally, and its problems, beginning with those that make the run invalid.
fn problems(name: Option<&str>, run: &Run) -> Vec<String> {
    let mut problems: Vec<_> = run.summary.health.problems.iter().collect();
    problems.sort_by_key(|problem| !problem.invalidates);
    let texts = problems.iter().map(|problem| problem.text.clone());
    let texts = facts::describe_end(run).into_iter().chain(texts);
    texts.map(|text| name_prefix(name) + &text).collect()
}

fn name_prefix(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!("{name}: "))
}

/// Returns the comment on a search. `files`: as for [`runs`].
pub fn search(record: &SearchRecord, files: &[PathBuf]) -> String {
    let finding = record.finding.as_ref();
    let (severity, word) = match finding.map(|finding| (&finding.limit, finding)) {
        _ if record.interrupted => (Severity::Uncertain, "interrupted"),
        None => (Severity::Uncertain, "not complete"),
        Some((LimitingFactor::LeastRate, _)) => (Severity::Failed, found::none_meets(&record.goal)),
        Some((LimitingFactor::Generator { .. }, _)) => {
            (Severity::Uncertain, "limited by the generator")
        }
        Some((_, finding)) if finding.line_per_s.is_some() && finding.confirmed => {
            (Severity::Passed, "found and confirmed")
        }
        Some(_) => (Severity::Uncertain, "inconclusive"),
    };
    let explanation = finding.map_or_else(Vec::new, |finding| found::explanation(record, finding));
    let trials = plural(record.trials.len() as u64, "trial");
    let sentences = [found::headline(record)].into_iter().chain(explanation);
    let sentences = sentences.chain([format!("{trials} at {}", record.target)]);
    let sections = vec![Section::sentences("sentence", sentences)];
    let title = title(&record.name, severity, word);
    Comment { title, sections }.render(files)
}

/// Returns the comment on a ladder or sweep. `files`: as for [`runs`].
pub fn ladder(record: &LadderRecord, files: &[PathBuf]) -> String {
    let (severity, word) = match record.conclusion() {
        _ if record.interrupted => (Severity::Uncertain, "interrupted"),
        Some(verdict) => (verdict.into(), verdict.name()),
        None if record.is_generator_limited() => (Severity::Uncertain, "generator-limited"),
        None => (Severity::Unjudged, "measured"),
    };
    let sections = if record.limits.is_some() {
        sweep_sections(record)
    } else {
        ladder_sections(record)
    };
    let title = title(&record.name, severity, word);
    Comment { title, sections }.render(files)
}

fn ladder_sections(record: &LadderRecord) -> Vec<Section> {
    let invalid = record
        .is_generator_limited()
        .then(|| rungs::INVALID_NOTE.to_owned());
    let sentences = invalid.into_iter().chain(rungs::summarise_costs(record));
    let notes = [rungs::describe_setup(record)]
        .into_iter()
        .chain(rungs::notes(record));
    let interval = format!("adds ({} interval)", rungs::format_confidence(record));
    vec![
        Section::sentences("sentence", sentences),
        Section::items("verdict", judged_items(record)),
        Section::table(
            "difference",
            ["rung", "compared with", "", interval.as_str()],
            cost_changes(record),
        ),
        Section::sentences("note", notes),
    ]
}

fn sweep_sections(record: &LadderRecord) -> Vec<Section> {
    let links = sweep::links::sweep_configurations(record);
    let table = sweep::table(&links).columns(&sweep::NARROW_COLUMNS);
    let rows = table.rows.into_iter().map(|row| Item::new(row, ""));
    vec![
        Section::sentences(
            "sentence",
            record.limits.as_ref().map(sweep::describe_limit),
        ),
        Section::items("objective", judged_items(record)),
        Section::table("configuration", table.head, rows),
        Section::sentences("note", sweep::notes(record, &links)),
    ]
}

/// Returns the results of a ladder's gates (limits on added costs), and the objectives that slices (short runs of a
/// rung) did not meet. The worst come first.
fn judged_items(record: &LadderRecord) -> Vec<Item> {
    let gates = record.evaluate_gates();
    let gates = gates.iter().map(|gated| {
        let (severity, word) = match gated.outcome {
            GateOutcome::Within => (Severity::Passed, "within"),
            GateOutcome::Beyond => (Severity::Failed, "beyond"),
            GateOutcome::Undecided => (Severity::Uncertain, "undecided"),
        };
        (severity, rungs::describe_gate(record, gated), word)
    });
    let unmet = record.rungs.iter().flat_map(rungs::unmet_objectives);
    let unmet = unmet.map(|(verdict, text)| (Severity::from(verdict), text, verdict.words()));
    sort_worst_first(gates.chain(unmet).map(|(severity, text, word)| {
        let text = format!("{}{text}", severity.symbol());
        (severity, Item::new([text], word))
    }))
}

/// Returns the costs that rungs add. Significant differences come first, and among them the largest in relation to the
/// rung that the cost is added to.
fn cost_changes(record: &LadderRecord) -> Vec<Item> {
    let metrics = rungs::compared_metrics(record);
    let pairs = LadderRecord::reported_pairs(record.rungs.len());
    let all = pairs.flat_map(|(of, to)| metrics.iter().map(move |metric| (of, to, *metric)));
    let change = |(of, to, metric): (usize, usize, LadderMetric)| {
        let added = record.added_cost(of, to, metric);
        let (rank, shift, kind) = match added {
            AddedCost::Significant(d) => (0, d.shift, "significant"),
            AddedCost::Exact(more) if more.round() != 0.0 => (0, more, "significant"),
            AddedCost::Exact(more) => (1, more, "no difference seen"),
            AddedCost::NotSignificant(d) => (1, d.shift, "no difference seen"),
            AddedCost::TooFewRounds => (2, 0.0, "not enough data"),
        };
        let base = record.rungs[to].median(metric).unwrap_or_default();
        let share = if base > 0.0 { shift.abs() / base } else { 0.0 };
        let [upper, lower] = [of, to].map(|rung| record.rungs[rung].name.clone());
        let text = rungs::format_added_cost(metric, added);
        let cells = [upper, lower, metric.name().to_owned(), text];
        (rank, share, Item::new(cells, kind))
    };
    let mut changes: Vec<(u8, f64, Item)> = all.map(change).collect();
    changes.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
    changes.into_iter().map(|(_, _, item)| item).collect()
}

/// Returns the comment on a comparison. `files`: as for [`runs`].
pub fn comparison(c: &Comparison, files: &[PathBuf]) -> String {
    let (worse, better) = (changed_metrics(c, "worse"), changed_metrics(c, "better"));
    let (severity, word) = if !c.has_enough_runs() {
        (Severity::Uncertain, "not enough runs to tell")
    } else if !worse.is_empty() {
        (Severity::Failed, "worse")
    } else if !better.is_empty() {
        (Severity::Passed, "better")
    } else {
        (Severity::Unjudged, "no difference seen")
    };
    let answers = [("worse", worse), ("better", better)].into_iter();
    let answers = answers
        .filter(|(_, rows)| !rows.is_empty())
        .map(|(word, rows)| format!("B is {word}: {}.", rows.join("; ")));
    let sides =
        [("A", &c.a), ("B", &c.b)].map(|(name, side)| format!("{name}: {}", side.describe()));
    let differences = c.plan_differences.iter();
    let differences = differences.map(|d| format!("the plans differ: {d}"));
    let sections = vec![
        Section::sentences("sentence", answers.chain(sides)),
        Section::sentences(
            "warning",
            c.warnings.iter().map(|warning| format!("⚠️ {warning}")),
        ),
        Section::table(
            "figure",
            ["", "A", "B", "%", "95 % interval", "B is"],
            rows_by_change(c),
        ),
        Section::sentences("note", [c.describe_method()].into_iter().chain(differences)),
    ];
    let name = match (&c.a.name, &c.b.name) {
        (a, b) if a == b => format!("{a}, B compared with A"),
        (a, b) => format!("{b} compared with {a}"),
    };
    let title = title(&name, severity, word);
    Comment { title, sections }.render(files)
}

/// Returns the metrics whose difference is classified as `word`, with their changes.
fn changed_metrics(c: &Comparison, word: &str) -> Vec<String> {
    let rows = c.rows.iter().filter(|row| row.change_word() == word);
    let text = |row: &ComparisonRow| match (row.percent(), row.percent_interval()) {
        (Some(percent), Some(interval)) => format!("{} {percent} % ({interval})", row.metric),
        _ => row.metric.to_owned(),
    };
    rows.map(text).collect()
}

/// Returns the rows of a comparison: significant differences first, and among them the largest changes.
fn rows_by_change(c: &Comparison) -> Vec<Item> {
    let cells = c.table().columns(&[0, 1, 2, 4, 5, 7]).rows.into_iter();
    let mut rows: Vec<(&ComparisonRow, Vec<String>)> = c.rows.iter().zip(cells).collect();
    let size = |row: &ComparisonRow| row.relative_shift().unwrap_or_default().abs();
    rows.sort_by(|(a, _), (b, _)| {
        let is_unclear = a.is_better().is_none().cmp(&b.is_better().is_none());
        is_unclear.then(size(b).total_cmp(&size(a)))
    });
    let item = |(row, mut cells): (&ComparisonRow, Vec<String>)| {
        let severity = match row.is_better() {
            Some(true) => Severity::Passed,
            Some(false) => Severity::Failed,
            None => Severity::Unjudged,
        };
        cells[5].insert_str(0, severity.symbol());
        Item::new(cells, row.change_word())
    };
    rows.into_iter().map(item).collect()
}
