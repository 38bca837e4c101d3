//! The report as one HTML file without scripts, fonts or external requests.
//!
//! The file is made from run directories alone: [`runs_page`] for one run or several overlaid, [`comparison_page`] for two
//! groups, [`search_page`] for a search, [`ladder_page`] for a ladder. The verdict comes first. Every chart is inline SVG, drawn
//! once for wide and once for narrow screens, with its figures in a table below it. Colours are CSS variables, so that
//! light mode, dark mode and print each have their own colours.

mod bars;
mod chart;
mod comparison;
mod curve;
mod flames;
mod heatmap;
mod memory;
mod page;
mod phases;
mod protocol_measures;
mod rungs;
mod runs_folder;
mod server_metrics;
mod spectrum;
mod sweep;
mod tables;
mod timeline;

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use maud::{Markup, html};
use plimsoll_model::comparisons::ladder::{AddedCost, LadderMetric, LadderRecord};
use plimsoll_model::objective::{self, ObjectiveResult, ObjectiveVerdict, RunVerdict};
use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::{Run, RunError, RunState};
use plimsoll_model::search::{LimitingFactor, SearchRecord};

use crate::ladder as ladder_words;
use crate::lanes as lane_words;
use crate::quantity::{count, rate, share, signed_time, time};
use crate::search as words;
use crate::sections::facts;
use crate::sections::headline::{describe_latency, format_value_or_interval};
use crate::sections::settled_calls::settled_calls;

pub use comparison::comparison_page;
use page::{FigureCard, PageFacts, VerdictTone, complete_page};
pub use runs_folder::{folder_page, message_page, with_home_link};
use timeline::RunTimeline;

/// A run prepared for drawing.
#[derive(Clone, Debug)]
pub struct RunView {
    run: Run,
    timeline: RunTimeline,
    objectives: Vec<ObjectiveResult>,
    /// Whether other runs are on the same page.
    is_one_of_several: bool,
    server_delay: Option<Duration>,
}

impl RunView {
    /// Reads the intervals of `run`.
    ///
    /// # Errors
    /// Returns an error if the run's intervals can't be read.
    pub fn read(run: Run) -> Result<RunView, RunError> {
        let mut timeline = RunTimeline::default();
        run.for_each_interval(|interval| timeline.add(&interval))?;
        Ok(RunView {
            timeline,
            objectives: objective::judge_run(&run),
            is_one_of_several: false,
            server_delay: None,
            run,
        })
    }

    /// Sets the server's own `delay`, if it is known, so that the overhead above it is shown.
    pub fn with_server_delay(self, delay: Option<Duration>) -> RunView {
        RunView {
            server_delay: delay,
            ..self
        }
    }

    /// Returns `what`, preceded by the run's name if the page has several runs.
    fn with_run_name(&self, what: &str) -> String {
        if self.is_one_of_several {
            format!("{}, {what}", self.run.header.name)
        } else {
            what.to_owned()
        }
    }
}

/// Returns the report of one run, or of several overlaid.
pub fn runs_page(views: &[RunView]) -> String {
    let title = match views {
        [one] => one.run.header.name.clone(),
        several => format!("{} runs", several.len()),
    };
    complete_page(&title, &run_sections(views))
}

/// Returns the report of a run of several lanes (loads that run side by side). `views`: the lanes' runs, in order.
pub fn lanes_page(record: &LanesRecord, views: &[RunView]) -> String {
    let runs: Vec<Run> = views.iter().map(|view| view.run.clone()).collect();
    let table = lane_words::table(record, &runs);
    let body = html! {
        (tables::table_section("The lanes", &lane_words::table_notes(&runs), &table))
        (run_sections(views))
    };
    complete_page(&record.name, &body)
}

/// Returns the sections of each run.
fn run_sections(views: &[RunView]) -> Markup {
    let views = with_unique_names(views);
    let views = &views[..];
    html! {
        @for view in views { (verdict_section(view)) }
        (tables::totals_section(views))
        (spectrum::section(&spectrum::calls_by_run(views)))
        @for view in views {
            (heatmap::section(view))
        }
        (tables::latency_section(views))
        (protocol_measures::streams_section(views))
        (protocol_measures::protocol_sections(views))
        (tables::steps_section(views))
        (tables::addresses_section(views))
        (tables::handshakes_section(views))
        (tables::shards_section(views))
        (tables::slowest_calls_section(views))
        (tables::errors_section(views))
        (phases::section(views))
        (memory::memory(views))
        (server_metrics::sections(views))
        (flames::sections(views))
        (tables::resources_section(views))
        (tables::health_section(views))
        @for view in views { (tables::plan_section(&view.run.plan, &view.run.header.name, &crate::sections::facts::rerun_command("run", &view.run.dir))) }
    }
}

/// Adds directories to the names of runs with the same name.
fn with_unique_names(views: &[RunView]) -> Cow<'_, [RunView]> {
    if let [_] = views {
        return Cow::Borrowed(views);
    }
    let names: Vec<&str> = views.iter().map(|v| v.run.header.name.as_str()).collect();
    let alike = |name: &str| names.iter().filter(|n| **n == name).count();
    let renamed = views.iter().enumerate().map(|(i, view)| {
        let mut view = view.clone();
        view.is_one_of_several = true;
        let (name, dir) = (&view.run.header.name, view.run.dir.file_name());
        if alike(name) > 1 {
            let same_dir = |v: &&RunView| v.run.dir.file_name() == dir;
            view.run.header.name = match dir {
                Some(dir) if views.iter().filter(same_dir).count() == 1 => {
                    format!("{name} ({})", dir.to_string_lossy())
                }
                _ => format!("{name} ({})", i + 1),
            };
        }
        view
    });
    Cow::Owned(renamed.collect())
}

/// Returns the report of the search in `dir`. `plan`: the text of its plan.
pub fn search_page(record: &SearchRecord, plan: &str, dir: &Path) -> String {
    let finding = record.finding.as_ref();
    let (tone, label) = match finding.map(|f| (&f.limit, f.confirmed)) {
        None => (VerdictTone::Uncertain, "not ended"),
        Some((LimitingFactor::Generator { .. }, _)) => {
            (VerdictTone::Uncertain, "generator-limited")
        }
        Some((LimitingFactor::LeastRate, _)) => (VerdictTone::Bad, words::none_meets(&record.goal)),
        Some((_, true)) => (VerdictTone::Good, "confirmed"),
        Some((_, false)) => (VerdictTone::Uncertain, "not confirmed"),
    };
    let mut cards = Vec::new();
    if let Some(f) = finding {
        if let Some(line) = f.line_per_s {
            cards.push(FigureCard::new(
                "load line",
                words::amount(&record.goal, line),
            ));
        }
        if let (Some(low), Some(high)) = (f.low_per_s, f.high_per_s) {
            let (low, high) = words::amount_interval(&record.goal, low, high);
            cards.push(FigureCard::new("bounds", format!("{low} – {high}")));
        }
        if let Some(knee) = f.knee {
            cards.push(FigureCard::new(
                "knee",
                words::amount(&record.goal, knee.rate_per_s),
            ));
        }
    }
    cards.push(FigureCard::new("trials", count(record.trials.len() as u64)));
    let sentences = finding.map_or_else(Vec::new, |f| words::explanation(record, f));
    let facts = PageFacts::from_record(
        Some(&record.target),
        record.started_at,
        record.conditions.as_ref(),
        &record.tool_version,
    );
    let body = html! {
        (page::verdict(tone, label, &words::headline(record), &facts, &cards, &sentences))
        (curve::section(record))
        (tables::trials_section(record))
        (tables::plan_section(plan, &record.name, &crate::sections::facts::rerun_command("find", dir)))
    };
    complete_page(&format!("{}: the load line", record.name), &body)
}

/// Returns the report of the ladder in `dir`. `plan`: the text of its plan.
pub fn ladder_page(record: &LadderRecord, plan: &str, dir: &Path) -> String {
    if record.limits.is_some() {
        return sweep::sweep_page(record, plan, dir);
    }
    let last = record.rungs.len().saturating_sub(1);
    let added = record.added_cost(last, 0, LadderMetric::P50);
    let sentences = [
        ladder_words::cost_sentences(record),
        ladder_words::objective_lines(record),
        ladder_words::notes(record),
    ]
    .concat();
    let (tone, label) = match added {
        _ if record.conclusion() == Some(RunVerdict::Fail) => {
            (VerdictTone::Bad, "objective missed")
        }
        _ if record.interrupted => (VerdictTone::Uncertain, "interrupted"),
        _ if record.is_generator_limited() => {
            (VerdictTone::Uncertain, "invalid: generator-limited")
        }
        AddedCost::Significant(_) => (VerdictTone::Good, "differences seen"),
        AddedCost::NotSignificant(_) => (VerdictTone::Plain, "no difference seen"),
        AddedCost::Exact(_) | AddedCost::TooFewRounds => {
            (VerdictTone::Uncertain, "not enough data")
        }
    };
    let mut cards = vec![
        FigureCard::new("rungs", count(record.rungs.len() as u64)),
        FigureCard::new("rounds", count(ladder_words::round_count(record))),
    ];
    for rung in [record.rungs.first(), record.rungs.last()]
        .into_iter()
        .flatten()
    {
        if let Some(us) = rung.median(LadderMetric::P50) {
            let mut card = FigureCard::new("p50", time(us));
            card.note = Some(rung.name.clone());
            cards.push(card);
        }
    }
    let heading = match (added, record.rungs.first(), record.rungs.last()) {
        (AddedCost::Significant(d), Some(first), Some(last)) if tone == VerdictTone::Good => {
            format!(
                "{} adds {} to {} at the p50",
                last.name,
                signed_time(d.shift).trim_start_matches('+'),
                first.name
            )
        }
        _ => record.name.clone(),
    };
    let facts = PageFacts::from_ladder(Some(&record.name), record);
    let how = match record.batches {
        Some(_) => {
            "All rungs were up together and had batches of tens of calls, each once a round, in random order, so that disturbances of the machine affect all equally. Differences are taken within rounds."
        }
        None => {
            "Slices were measured in rounds: every rung once a round, in random order, so that drift affects all equally. Differences are taken within rounds."
        }
    };
    let body = html! {
        (page::verdict(tone, label, &heading, &facts, &cards, &sentences))
        (rungs::section(record))
        (flames::ladder_sections(record, dir))
        (page::section("The rungs", how, &html! { div.scroll { (rungs::rung_tables(record)) } }))
        (tables::plan_section(plan, &record.name, &crate::sections::facts::rerun_command("ladder", dir)))
    };
    complete_page(&format!("{}: the ladder", record.name), &body)
}

fn verdict_section(view: &RunView) -> Markup {
    let run = &view.run;
    let total = &run.summary.total;
    let invalid = run.summary.health.problems.iter().find(|p| p.invalidates);
    let unjudged = view
        .objectives
        .iter()
        .any(|j| j.verdict != ObjectiveVerdict::Met);
    let (tone, label) = match (run.state, invalid) {
        // An objective is reported as missed only if the generator is ruled out as the cause, so the miss counts even
        // in an invalid run.
        _ if RunVerdict::from_results(&view.objectives) == Some(RunVerdict::Fail) => {
            (VerdictTone::Bad, "objective missed")
        }
        (_, Some(p)) if p.kind.is_generator_limit() => {
            (VerdictTone::Uncertain, "invalid: load not delivered")
        }
        (_, Some(_)) => (VerdictTone::Uncertain, "invalid"),
        (RunState::Aborted, _) => (VerdictTone::Uncertain, "stopped before its end"),
        (RunState::Partial | RunState::Running, _) => (VerdictTone::Uncertain, "partial"),
        _ if total.ok == 0 => (VerdictTone::Bad, "not one call succeeded"),
        _ if unjudged => (VerdictTone::Uncertain, "inconclusive"),
        _ if view.objectives.is_empty() => (VerdictTone::Plain, "no objective"),
        _ => (VerdictTone::Good, "objectives met"),
    };
    let mut cards = vec![FigureCard::new(
        "calls ok",
        share(total.ok, settled_calls(total)),
    )];
    if let Some(achieved) = total.achieved_per_s {
        let mut card = FigureCard::new("achieved", rate(achieved));
        card.note = total
            .offered_per_s
            .map(|due| format!("of {} scheduled", rate(due)));
        cards.push(card);
    }
    if let Some(response) = &total.response {
        let intervals = response.instrument.map(|i| i.percentiles());
        let all = response.percentiles().into_iter().enumerate();
        let told = all.filter(|(_, (name, _))| ["p50", "p99", "p99.9"].contains(name));
        cards.extend(told.filter_map(|(i, (name, us))| {
            let interval = intervals.and_then(|all| all[i].1);
            Some(FigureCard::new(
                name,
                format_value_or_interval(us?, interval),
            ))
        }));
    }
    if let Some(received) = total.messages.and_then(|m| m.received_per_s) {
        cards.push(FigureCard::new("messages received", rate(received)));
    }
    if let Some(cpu) = total.client.and_then(|c| c.cpu_us_per_call) {
        cards.push(FigureCard::new("client CPU a call", time(cpu)));
    }
    if let Some(cpu) = total.server.and_then(|c| c.cpu_us_per_call) {
        cards.push(FigureCard::new("server CPU a call", time(cpu)));
    }
    let objectives = view.objectives.iter().map(|j| {
        let word = j.verdict.words();
        format!("{}: {word} ({})", j.objective, j.measured)
    });
    let mut sentences: Vec<String> = describe_latency(run)
        .into_iter()
        .chain(objectives)
        .collect();
    sentences.extend(facts::describe_end(run));
    sentences.extend(run.summary.health.problems.iter().map(|p| p.text.clone()));
    sentences.extend(facts::notes(&run.header).map(str::to_owned));
    let heading = if view.is_one_of_several || run.header.call.is_none() {
        run.header.name.clone()
    } else {
        run.header.call.clone().unwrap_or_default()
    };
    page::verdict(
        tone,
        label,
        &heading,
        &PageFacts::from_run(run),
        &cards,
        &sentences,
    )
}
