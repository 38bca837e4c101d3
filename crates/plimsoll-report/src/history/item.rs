//! One measurement of a folder: its entry in lists, and its figures for the history.

use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::objective::{self, RunVerdict};
use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::header::LoopKind;
use plimsoll_model::runs::run::{Labels, MachineFacts, Run, RunOverview, RunState, Timestamp};
use plimsoll_model::search::{SearchRecord, SearchVariable, amount, none_meets};

use crate::quantity::{plural, share};

/// The kind of a measurement in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderItemKind {
    /// A single run.
    Run,
    /// A run of several lanes (loads that run side by side).
    Lanes,
    /// A search for the load line.
    Search,
    /// A ladder, which compares variants of a target.
    Ladder,
    /// A sweep, which compares TLS configurations.
    Sweep,
}

impl FolderItemKind {
    /// Returns the name of the kind.
    pub(crate) fn name(self) -> &'static str {
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
    /// The id in the URL of the measurement's page.
    pub id: String,
    /// The kind of measurement in the directory.
    pub kind: FolderItemKind,
    pub(crate) name: String,
    pub(crate) began: Timestamp,
    pub(crate) what: String,
    /// The URL of the target; `None` if it is not known.
    pub(crate) target: Option<String>,
    /// The machine that generated the load.
    pub(crate) machine: Option<MachineFacts>,
    /// The labels that the user gave.
    pub(crate) labels: Labels,
    pub(crate) tool_version: String,
    /// The class of the verdict (`met`: good, `missed`: bad, `limited`: neither) and its text.
    pub(crate) verdict: (&'static str, String),
    /// Whether the figures describe the target, and can be compared with other measurements.
    pub(crate) has_valid_figures: bool,
    /// Whether the load is a closed loop, whose rate is a figure of the target.
    pub(crate) is_closed: bool,
    pub(crate) rate_per_s: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    /// The share of calls that failed (0–1), and its text.
    pub(crate) errors_share: Option<f64>,
    pub(crate) errors: Option<String>,
    /// CPU time per call of the client and of the watched server.
    pub(crate) cpu_us: Option<f64>,
    pub(crate) server_cpu_us: Option<f64>,
}

impl FolderItem {
    /// Creates the entry of a run.
    pub fn from_run(id: String, run: &Run) -> FolderItem {
        let (h, total) = (&run.header, &run.summary.total);
        FolderItem {
            what: call_and_target(h.call.as_deref(), h.target.as_deref()),
            target: h.target.clone(),
            machine: h.machine.clone(),
            labels: h.labels.clone(),
            tool_version: h.tool_version.clone(),
            verdict: verdict(run),
            has_valid_figures: run.state == RunState::Complete,
            is_closed: h.load_loop == Some(LoopKind::Closed),
            rate_per_s: total.achieved_per_s,
            p50_us: total.response.and_then(|r| r.p50_us),
            p99_us: total.response.and_then(|r| r.p99_us),
            cpu_us: total.client.and_then(|c| c.cpu_us_per_call),
            server_cpu_us: total.server.and_then(|s| s.cpu_us_per_call),
            ..FolderItem::without_figures(id, FolderItemKind::Run, &h.name, h.started_at)
        }
        .with_error_share(total.ok, total.errors)
    }

    /// Creates the entry of a run without reading its intervals. The run must have ended, and have no objectives.
    pub fn from_overview(id: String, run: &RunOverview) -> FolderItem {
        let total = &run.total;
        FolderItem {
            what: call_and_target(run.call.as_deref(), run.target.as_deref()),
            target: run.target.clone(),
            machine: run.machine.clone(),
            labels: run.labels.clone(),
            tool_version: run.tool_version.clone(),
            verdict: state_verdict(run.state, total.ok + total.errors),
            has_valid_figures: run.state == RunState::Complete,
            is_closed: run.load_loop == Some(LoopKind::Closed),
            rate_per_s: total.achieved_per_s,
            p50_us: total.response.and_then(|r| r.p50_us),
            p99_us: total.response.and_then(|r| r.p99_us),
            cpu_us: total.client.and_then(|c| c.cpu_us_per_call),
            server_cpu_us: total.server.and_then(|s| s.cpu_us_per_call),
            ..FolderItem::without_figures(id, FolderItemKind::Run, &run.name, run.started_at)
        }
        .with_error_share(total.ok, total.errors)
    }

    /// Creates the entry of a run of several lanes.
    pub fn from_lanes(id: String, record: &LanesRecord) -> FolderItem {
        let lanes: Vec<&str> = record.lanes.iter().map(|l| l.name.as_str()).collect();
        FolderItem {
            what: lanes.join(", "),
            ..FolderItem::without_figures(
                id,
                FolderItemKind::Lanes,
                &record.name,
                record.started_at,
            )
        }
    }

    /// Creates the entry of a search, with the load line as rate.
    pub fn from_search(id: String, record: &SearchRecord) -> FolderItem {
        let line = record.finding.as_ref().and_then(|f| f.line_per_s);
        let verdict = match (&record.finding, line) {
            (Some(f), Some(line)) if f.confirmed => {
                ("met", format!("load line {}", amount(&record.goal, line)))
            }
            (Some(_), Some(line)) => (
                "limited",
                format!("{}, not confirmed", amount(&record.goal, line)),
            ),
            (Some(_), None) => ("missed", none_meets(&record.goal).to_owned()),
            (None, _) => ("limited", "not ended".to_owned()),
        };
        let conditions = record.conditions.clone().unwrap_or_default();
        FolderItem {
            what: record.target.clone(),
            target: Some(record.target.clone()),
            machine: Some(conditions.machine),
            labels: conditions.labels,
            tool_version: record.tool_version.clone(),
            has_valid_figures: record.finding.as_ref().is_some_and(|f| f.confirmed),
            verdict,
            rate_per_s: line.filter(|_| record.goal.variable == SearchVariable::Rate),
            ..FolderItem::without_figures(
                id,
                FolderItemKind::Search,
                &record.name,
                record.started_at,
            )
        }
    }

    /// Creates the entry of a ladder or sweep.
    pub fn from_ladder(id: String, record: &LadderRecord) -> FolderItem {
        let (kind, each) = match record.limits {
            Some(_) => (FolderItemKind::Sweep, "link"),
            None => (FolderItemKind::Ladder, "rung"),
        };
        let verdict = match record.conclusion() {
            Some(conclusion) => verdict_label(conclusion),
            None if record.interrupted => ("limited", "interrupted".to_owned()),
            None => ("", "–".to_owned()),
        };
        FolderItem {
            what: plural(record.rungs.len() as u64, each),
            verdict,
            ..FolderItem::without_figures(id, kind, &record.name, record.started_at)
        }
    }

    /// Creates the entry of a measurement without figures.
    fn without_figures(
        id: String,
        kind: FolderItemKind,
        name: &str,
        began: Timestamp,
    ) -> FolderItem {
        FolderItem {
            id,
            kind,
            name: name.to_owned(),
            began,
            what: String::new(),
            target: None,
            machine: None,
            labels: Labels::new(),
            tool_version: String::new(),
            verdict: ("", "–".to_owned()),
            has_valid_figures: false,
            is_closed: false,
            rate_per_s: None,
            p50_us: None,
            p99_us: None,
            errors_share: None,
            errors: None,
            cpu_us: None,
            server_cpu_us: None,
        }
    }

    fn with_error_share(mut self, ok: u64, errors: u64) -> FolderItem {
        let ended = ok + errors;
        if ended > 0 {
            self.errors_share = Some(errors as f64 / ended as f64);
            self.errors = Some(share(errors, ended));
        }
        self
    }

    /// Returns the URL path of the measurement's page.
    pub(crate) fn page_path(&self) -> String {
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
    match RunVerdict::from_results(&objective::judge_run(run)) {
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

fn call_and_target(call: Option<&str>, target: Option<&str>) -> String {
    let parts: Vec<&str> = call.into_iter().chain(target).collect();
    parts.join(" at ")
}
