//! The page of a folder of runs: the history of each plan, links to all runs, and a selection of two to compare.
//!
//! The page is served by `plimsoll view`, which also answers its links (`/runs/…`, `/compare`).

use maud::{Markup, html};
use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::lanes::LanesRecord;
use plimsoll_model::objective::{self, RunVerdict};
use plimsoll_model::run::{Run, RunOverview, RunState, Timestamp};
use plimsoll_model::search::SearchRecord;

use super::chart::{
    AxisMark, AxisScale, LegendKey, PlotArea, legend, path, px, short_time, x_axis, y_axis,
};
use super::page::{figure, page, section as part};
use crate::facts;
use crate::quantity::{count, exact_rate, or_dash, plural, rate, share, time};

/// The kind of a measurement in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderItemKind {
    /// A single run.
    Run,
    /// A run of several lanes.
    Lanes,
    /// A search for the load line.
    Search,
    /// A ladder.
    Ladder,
    /// A sweep of TLS links.
    Sweep,
}

impl FolderItemKind {
    fn name(self) -> &'static str {
        match self {
            FolderItemKind::Run => "run",
            FolderItemKind::Lanes => "lanes",
            FolderItemKind::Search => "search",
            FolderItemKind::Ladder => "ladder",
            FolderItemKind::Sweep => "sweep",
        }
    }
}

/// One measurement in the folder.
#[derive(Clone, Debug)]
pub struct FolderItem {
    /// The id in the address of its page.
    pub id: String,
    /// What the directory holds.
    pub kind: FolderItemKind,
    name: String,
    began: Timestamp,
    what: String,
    /// The class of the verdict, good (`met`), bad (`missed`) or neither (`limited`), and its words.
    verdict: (&'static str, String),
    rate_per_s: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    errors: Option<String>,
    cpu_us: Option<f64>,
}

impl FolderItem {
    /// Creates the entry of a run.
    pub fn of_run(id: String, run: &Run) -> FolderItem {
        let (h, total) = (&run.header, &run.summary.total);
        let what = [h.call.as_deref(), h.target.as_deref()];
        FolderItem {
            id,
            kind: FolderItemKind::Run,
            name: h.name.clone(),
            began: h.started_at,
            what: what.into_iter().flatten().collect::<Vec<_>>().join(" at "),
            verdict: verdict(run),
            rate_per_s: total.achieved_per_s,
            p50_us: total.response.and_then(|r| r.p50_us),
            p99_us: total.response.and_then(|r| r.p99_us),
            errors: (total.ok + total.errors > 0)
                .then(|| share(total.errors, total.ok + total.errors)),
            cpu_us: total.client.and_then(|c| c.cpu_us_per_call),
        }
    }

    /// Creates the entry of a run without reading its intervals: one that has ended and has no objectives.
    pub fn of_overview(id: String, run: &RunOverview) -> FolderItem {
        let (total, ended) = (&run.total, run.total.ok + run.total.errors);
        let what = [run.call.as_deref(), run.target.as_deref()];
        let what = what.into_iter().flatten().collect::<Vec<_>>().join(" at ");
        FolderItem {
            verdict: state_verdict(run.state, ended),
            rate_per_s: total.achieved_per_s,
            p50_us: total.response.and_then(|r| r.p50_us),
            p99_us: total.response.and_then(|r| r.p99_us),
            errors: (ended > 0).then(|| share(total.errors, ended)),
            cpu_us: total.client.and_then(|c| c.cpu_us_per_call),
            ..FolderItem::of_record(id, FolderItemKind::Run, &run.name, run.started_at, what)
        }
    }

    /// Creates the entry of a run of several lanes.
    pub fn of_lanes(id: String, record: &LanesRecord) -> FolderItem {
        let lanes: Vec<&str> = record.lanes.iter().map(|l| l.name.as_str()).collect();
        FolderItem::of_record(
            id,
            FolderItemKind::Lanes,
            &record.name,
            record.started_at,
            lanes.join(", "),
        )
    }

    /// Creates the entry of a search, with the load line as rate.
    pub fn of_search(id: String, record: &SearchRecord) -> FolderItem {
        let line = record.finding.as_ref().and_then(|f| f.line_per_s);
        let verdict = match (&record.finding, line) {
            (Some(f), Some(line)) if f.confirmed => {
                ("met", format!("load line {}", exact_rate(line)))
            }
            (Some(_), Some(line)) => ("limited", format!("{}, not confirmed", exact_rate(line))),
            (Some(_), None) => ("missed", "no rate meets the objectives".to_owned()),
            (None, _) => ("limited", "not ended".to_owned()),
        };
        FolderItem {
            verdict,
            rate_per_s: line,
            ..FolderItem::of_record(
                id,
                FolderItemKind::Search,
                &record.name,
                record.started_at,
                record.target.clone(),
            )
        }
    }

    /// Creates the entry of a ladder or sweep.
    pub fn of_ladder(id: String, record: &LadderRecord) -> FolderItem {
        let (kind, each) = match record.limits {
            Some(_) => (FolderItemKind::Sweep, "link"),
            None => (FolderItemKind::Ladder, "rung"),
        };
        let verdict = match record.conclusion() {
            Some(conclusion) => verdict_label(conclusion),
            None if record.interrupted => ("limited", "interrupted".to_owned()),
            None => ("", "–".to_owned()),
        };
        let what = plural(record.rungs.len() as u64, each);
        FolderItem {
            verdict,
            ..FolderItem::of_record(id, kind, &record.name, record.started_at, what)
        }
    }

    fn of_record(
        id: String,
        kind: FolderItemKind,
        name: &str,
        began: Timestamp,
        what: String,
    ) -> FolderItem {
        FolderItem {
            id,
            kind,
            name: name.to_owned(),
            began,
            what,
            verdict: ("", "–".to_owned()),
            rate_per_s: None,
            p50_us: None,
            p99_us: None,
            errors: None,
            cpu_us: None,
        }
    }

    fn address(&self) -> String {
        format!("/runs/{}", self.id)
    }
}

fn verdict_label(conclusion: RunVerdict) -> (&'static str, String) {
    match conclusion {
        RunVerdict::Pass => ("met", "objectives met".to_owned()),
        RunVerdict::Fail => ("missed", "objective missed".to_owned()),
        RunVerdict::Invalid => ("limited", "inconclusive".to_owned()),
    }
}

fn verdict(run: &Run) -> (&'static str, String) {
    match RunVerdict::of(&objective::judge_run(run)) {
        Some(conclusion) => verdict_label(conclusion),
        None => state_verdict(run.state, run.summary.total.ok + run.summary.total.errors),
    }
}

fn state_verdict(state: RunState, ended: u64) -> (&'static str, String) {
    match state {
        RunState::Complete => ("", "–".to_owned()),
        RunState::Partial if ended == 0 => ("limited", "failed to start".to_owned()),
        other => ("limited", other.name().to_owned()),
    }
}

/// Returns the page of `items` of the folder `title`; `unreadable`: directories that can't be read, with the reasons.
pub fn folder(title: &str, mut items: Vec<FolderItem>, unreadable: &[(String, String)]) -> String {
    items.sort_by_key(|item| std::cmp::Reverse(item.began));
    let mut plans: Vec<(FolderItemKind, String)> = Vec::new();
    for item in &items {
        let plan = (item.kind, item.name.clone());
        if !plans.contains(&plan) {
            plans.push(plan);
        }
    }
    let comparable = items
        .iter()
        .filter(|i| i.kind == FolderItemKind::Run)
        .count();
    let body = html! {
        section.verdict.plain {
            h1 { (title) }
            p.lead {
                (plural(items.len() as u64, "measurement")) " of " (plural(plans.len() as u64, "plan"))
                @if comparable > 1 { ". Choose two runs, A and B, to compare." }
            }
            @if items.is_empty() { p { "There are no runs here yet: " code { "plimsoll run" } " and similar commands save their runs in " code { "runs/" } "." } }
        }
        form.folder action="/compare" method="get" {
            @for (kind, name) in &plans {
                (history(*kind, name, &items.iter().filter(|i| i.kind == *kind && i.name == *name).collect::<Vec<_>>()))
            }
            @if comparable > 1 { p.choice { button type="submit" { "Compare A with B" } } }
        }
        @if !unreadable.is_empty() {
            (part("Unreadable directories", "", &html! { ul.sentences { @for (dir, why) in unreadable { li { (dir) ": " (why) } } } }))
        }
    };
    page(title, &body)
}

/// Returns all measurements of one plan, the newest first.
fn history(kind: FolderItemKind, name: &str, items: &[&FolderItem]) -> Markup {
    let lines = html! { div.scroll { (table(items)) } };
    let past: Vec<&FolderItem> = items
        .iter()
        .rev()
        .copied()
        .filter(|i| i.p50_us.is_some())
        .collect();
    let content = html! {
        @if past.len() > 1 { (picture(&past)) }
        (lines)
    };
    let lead = items.first().map_or("", |i| i.what.as_str());
    let heading = match kind {
        FolderItemKind::Run => name.to_owned(),
        other => format!("{name} ({})", other.name()),
    };
    part(&heading, lead, &content)
}

fn table(items: &[&FolderItem]) -> Markup {
    let runs = items.iter().any(|i| i.kind == FolderItemKind::Run);
    html! {
        table {
            thead { tr {
                th scope="col" { "began" }
                @if runs { th scope="col" { "A" } th scope="col" { "B" } }
                th.text scope="col" { "verdict" } th scope="col" { "rate" } th scope="col" { "p50" } th scope="col" { "p99" }
                th scope="col" { "errors" } th scope="col" { "client CPU a call" } th.text scope="col" { "directory" }
            } }
            tbody { @for item in items { tr {
                th scope="row" { a href=(item.address()) { (facts::when(item.began)) } }
                @if runs { @for side in ["a", "b"] {
                    td { input type="radio" name=(side) value=(item.id) aria-label={ (side.to_uppercase()) ": " (item.id) }; }
                } }
                td class={ "text " (item.verdict.0) } { (item.verdict.1) }
                td { (or_dash(item.rate_per_s, rate)) } td { (or_dash(item.p50_us, time)) }
                td { (or_dash(item.p99_us, time)) } td { (or_dash(item.errors.clone(), |errors| errors)) }
                td { (or_dash(item.cpu_us, time)) } td.text { (item.id) }
            } } }
        }
    }
}

/// Draws median and tail over time.
fn picture(past: &[&FolderItem]) -> Markup {
    let entries = [
        ("p50 of the response time".to_owned(), 0, LegendKey::Line),
        ("p99".to_owned(), 1, LegendKey::Line),
    ];
    let figures = html! {
        table { tbody { @for item in past {
            tr { th scope="row" { (facts::when(item.began)) } td { (item.p50_us.map_or_else(String::new, time)) } td { (item.p99_us.map_or_else(String::new, time)) } }
        } } }
    };
    figure([230.0, 220.0], &legend(&entries), &figures, |frame| {
        draw(frame, past)
    })
}

/// A function that returns a figure of a measurement; `None` if it was not measured.
type ItemFigure = fn(&FolderItem) -> Option<f64>;

fn draw(frame: &PlotArea, past: &[&FolderItem]) -> Markup {
    let series: [(ItemFigure, &str, usize); 2] =
        [(|i| i.p50_us, "p50", 0), (|i| i.p99_us, "p99", 1)];
    let known = || past.iter().flat_map(|i| [i.p50_us, i.p99_us]).flatten();
    let low = known().fold(f64::INFINITY, f64::min);
    let high = known().fold(0.0, f64::max);
    let x = AxisScale::linear(-0.5, past.len() as f64 - 0.5, frame.left, frame.x_end());
    let y = AxisScale::log(low, high, frame.y_end(), frame.top);
    // The axis has as many dates as there is space for.
    let every = past.len().div_ceil(frame.pick(8, 3));
    let dates: Vec<AxisMark> = past
        .iter()
        .enumerate()
        .step_by(every)
        .map(|(i, item)| {
            (
                x.at(i as f64),
                item.began.strftime("%m-%d %H:%M").to_string(),
            )
        })
        .collect();
    frame.svg(
        &format!("p50 and p99 of {} runs, the oldest at the left.", count(past.len() as u64)),
        &html! {
            (y_axis(frame, &y, 5, short_time))
            (x_axis(frame, &dates, "runs, in their order"))
            @for (of, name, colour) in series {
                path class={ "line stroke c" (colour) } d=(path(past.iter().enumerate().filter_map(|(i, item)| Some((x.at(i as f64), y.at(of(item)?)))))) {}
                @for (i, item) in past.iter().enumerate() {
                    @if let Some(us) = of(item) {
                        a href=(item.address()) {
                            circle class={ "fill c" (colour) } cx=(px(x.at(i as f64))) cy=(px(y.at(us))) r="4.5" {
                                title { (facts::when(item.began)) ": " (name) " " (time(us)) }
                            }
                        }
                    }
                }
            }
        },
    )
}

/// Returns a page with only a message.
pub fn message(text: &str) -> String {
    page("Plimsoll", &html! { section { p { (text) } } })
}

/// Adds a link to the folder's list to a page.
pub fn with_home_link(page: &str) -> String {
    page.replacen(
        "<span>Plimsoll</span>",
        "<a class=\"home\" href=\"/\">Plimsoll</a>",
        1,
    )
}
