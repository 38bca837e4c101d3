//! Shows progress during a run: the live view on a terminal, otherwise a line per interval. Progress goes to stderr, so
//! that results can be piped.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use plimsoll_engine::Observation;
use plimsoll_model::Plan;
use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_model::runs::run::health::MIN_COMPLETE_INTERVAL;
use plimsoll_model::runs::run::{IntervalRecord, RunHeader};
use plimsoll_model::statistics::quantile::{is_supported, quantile};
use plimsoll_report::quantity::count;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

use crate::failure::Failure;
use crate::reporter::Reporter;
use crate::screen::console;
use crate::screen::live::LiveView;

/// The value of `--progress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressMode {
    /// The live view on a terminal, lines elsewhere.
    #[default]
    Auto,
    /// The live view on the whole terminal, until the run has ended.
    Live,
    /// One line per interval.
    Lines,
    /// No progress.
    None,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressStyle {
    Live,
    Lines,
    None,
}

impl ProgressMode {
    /// Returns the style for this mode. `logging` is true if log lines are also written to stderr.
    ///
    /// # Errors
    /// When the live view is requested but not possible.
    pub(crate) fn style(self, logging: bool) -> Result<ProgressStyle, Failure> {
        match self {
            ProgressMode::None => Ok(ProgressStyle::None),
            ProgressMode::Lines => Ok(ProgressStyle::Lines),
            ProgressMode::Auto if logging || live_view_obstacle().is_some() => {
                Ok(ProgressStyle::Lines)
            }
            ProgressMode::Auto => Ok(ProgressStyle::Live),
            ProgressMode::Live => match live_view_obstacle() {
                None => Ok(ProgressStyle::Live),
                Some(why) => Err(Failure::usage(
                    format_args!("--progress live: {why}"),
                    "use --progress lines, or leave it out: the live view is the default where it can be shown",
                )),
            },
        }
    }
}

/// Returns why the live view is not possible; `None` if it is.
fn live_view_obstacle() -> Option<&'static str> {
    let terminal = io::stderr();
    if !terminal.is_terminal() {
        return Some("stderr is not a terminal");
    }
    if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        return Some("the terminal does not support the live view (TERM)");
    }
    // A background process that changes the terminal's settings would be stopped (SIGTTOU).
    if tcgetpgrp(&terminal).ok() != Some(getpgrp()) {
        return Some("this process is in the background");
    }
    None
}

/// Progress of a command that makes several runs.
pub(crate) struct ProgressSeries {
    style: ProgressStyle,
    live: Mutex<Option<Arc<LiveView>>>,
}

impl ProgressSeries {
    pub(crate) fn new(style: ProgressStyle) -> ProgressSeries {
        ProgressSeries {
            style,
            live: Mutex::new(None),
        }
    }

    /// Returns the progress of one run of the series. It is shown in the live view only, together with `context`, which
    /// are lines about the progress of the series.
    pub(crate) fn for_run(&self, plan: &Plan, context: Vec<String>) -> Progress {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = match (self.style, live.as_ref()) {
            (ProgressStyle::Live, None) => match LiveView::start(plan, context) {
                Ok(started) => {
                    let started = Arc::new(started);
                    *live = Some(Arc::clone(&started));
                    ProgressDisplay::Live(started)
                }
                Err(_) => ProgressDisplay::Hidden,
            },
            (ProgressStyle::Live, Some(live)) => {
                live.show_next_run(plan, context);
                ProgressDisplay::Live(Arc::clone(live))
            }
            _ => ProgressDisplay::Hidden,
        };
        Progress::with_display(shown, Some(plan), None)
    }

    /// Prints a line about the series, unless progress is hidden.
    pub(crate) fn print_notice(&self, text: impl std::fmt::Display) {
        if self.style != ProgressStyle::None {
            console::print_notice(text);
        }
    }
}

/// Running totals of one of several concurrent loads, without warm-up.
#[derive(Default)]
pub(crate) struct LoadTotals {
    response: Mutex<TimeHistogram>,
    errors: AtomicU64,
}

impl LoadTotals {
    fn add(&self, record: &StageRecord) {
        let mut response = self.response.lock().unwrap_or_else(PoisonError::into_inner);
        response.merge(&record.response);
        self.errors.fetch_add(record.errors(), Ordering::Relaxed);
    }

    /// Returns the median response time, µs.
    pub(crate) fn p50_us(&self) -> Option<f64> {
        let response = self.response.lock().unwrap_or_else(PoisonError::into_inner);
        let histogram = response.histogram()?;
        Some(histogram.value_at_quantile(0.5) as f64 / 1e3)
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }
}

/// How the progress of one run is shown.
enum ProgressDisplay {
    Hidden,
    /// The caller shows the totals of all concurrent loads.
    Shared(Arc<LoadTotals>),
    Lines,
    /// The live view, which is started at the first observation, so that a run that can't start leaves the terminal
    /// unchanged.
    Pending,
    Live(Arc<LiveView>),
}

/// The progress of one run.
pub(crate) struct Progress {
    display: ProgressDisplay,
    /// The plan, for the live view; `None` if other processes run the load.
    plan: Option<Plan>,
    /// Number of measured calls between two progress lines; `None` prints a line per interval.
    every: Option<u64>,
    warmup: Vec<bool>,
    calls: u64,
    errors: u64,
    /// Time from the run's start to the end of the warm-up; `None` during the warm-up.
    counting_since: Option<Duration>,
    /// CPU time of the live view before this run.
    view_cpu_before: Duration,
}

impl Progress {
    pub(crate) fn new(plan: &Plan, style: ProgressStyle, every: Option<u64>) -> Progress {
        let shown = match style {
            ProgressStyle::None => ProgressDisplay::Hidden,
            ProgressStyle::Lines => ProgressDisplay::Lines,
            ProgressStyle::Live => ProgressDisplay::Pending,
        };
        Progress::with_display(
            shown,
            Some(plan),
            every.filter(|_| style != ProgressStyle::None),
        )
    }

    /// Returns the progress of one of several concurrent loads, which adds its figures to `so_far`.
    pub(crate) fn for_concurrent_load(plan: &Plan, so_far: &Arc<LoadTotals>) -> Progress {
        Progress::with_display(
            ProgressDisplay::Shared(Arc::clone(so_far)),
            Some(plan),
            None,
        )
    }

    /// Returns the progress of a run whose load other processes run: a line per interval.
    pub(crate) fn for_external_run(header: &RunHeader, style: ProgressStyle) -> Progress {
        let shown = match style {
            ProgressStyle::None => ProgressDisplay::Hidden,
            ProgressStyle::Lines | ProgressStyle::Live => ProgressDisplay::Lines,
        };
        Progress {
            warmup: header.planned_stages.iter().map(|s| s.warmup).collect(),
            ..Progress::with_display(shown, None, None)
        }
    }

    fn with_display(shown: ProgressDisplay, plan: Option<&Plan>, every: Option<u64>) -> Progress {
        Progress {
            view_cpu_before: match &shown {
                ProgressDisplay::Live(live) => live.cpu_time(),
                _ => Duration::ZERO,
            },
            display: shown,
            plan: plan.cloned(),
            every,
            warmup: plan
                .into_iter()
                .flat_map(|plan| plan.load.stages.iter().map(|s| s.warmup))
                .collect(),
            calls: 0,
            errors: 0,
            counting_since: None,
        }
    }

    fn start_live_view(&mut self) {
        if !matches!(self.display, ProgressDisplay::Pending) {
            return;
        }
        let Some(plan) = &self.plan else {
            self.display = ProgressDisplay::Lines;
            return;
        };
        self.display = match LiveView::start(plan, Vec::new()) {
            Ok(live) => ProgressDisplay::Live(Arc::new(live)),
            Err(e) => {
                console::print_notice(format_args!("the live view can't be shown: {e}"));
                ProgressDisplay::Lines
            }
        };
    }

    fn show_connecting(&mut self, open: u64, wanted: u64) {
        self.start_live_view();
        match &self.display {
            ProgressDisplay::Live(live) => live.show_connecting(open, wanted),
            ProgressDisplay::Lines if wanted > 0 => {
                console::print_notice(format_args!("connecting: {open} of {wanted}"));
            }
            ProgressDisplay::Lines
            | ProgressDisplay::Hidden
            | ProgressDisplay::Pending
            | ProgressDisplay::Shared(_) => {}
        }
    }

    pub(crate) fn show_interval(&mut self, interval: &IntervalRecord) {
        let before = self.calls;
        // An interval without calls counts as warm-up if the warm-up had not ended before the interval.
        let mut warming = self.counting_since.is_none() && self.warmup.contains(&true);
        let (mut ended, mut errors) = (0, 0);
        for (stage, record) in &interval.stages {
            let warmup = self.warmup.get(usize::from(*stage)) == Some(&true);
            ended += record.ended_calls();
            errors += record.errors();
            if !warmup {
                warming = false;
                self.calls += record.ended_calls();
                self.errors += record.errors();
                if let ProgressDisplay::Shared(so_far) = &self.display {
                    so_far.add(record);
                }
                self.counting_since.get_or_insert(interval.start_offset);
            }
        }
        for line in self.milestone_lines(before, interval) {
            console::print_notice(line);
        }
        match &self.display {
            ProgressDisplay::Live(live) => live.add_interval(interval),
            // Print a line per interval only if the user did not request a line per number of calls.
            ProgressDisplay::Lines if self.every.is_none() => {
                console::print_notice(self.interval_line(interval, warming, ended, errors));
            }
            ProgressDisplay::Lines
            | ProgressDisplay::Hidden
            | ProgressDisplay::Pending
            | ProgressDisplay::Shared(_) => {}
        }
    }

    /// Returns the line of an interval in which `ended` calls ended, `errors` of them with errors.
    fn interval_line(
        &self,
        interval: &IntervalRecord,
        warming: bool,
        ended: u64,
        errors: u64,
    ) -> String {
        let mut response = TimeHistogram::default();
        for (_, record) in &interval.stages {
            response.merge(&record.response);
        }
        let mut text = format!(
            "{:>5.1}s {} {}",
            interval.end_offset().as_secs_f64(),
            if warming { "warm-up" } else { "calls" },
            format_pace(ended, interval.length),
        );
        if let Some(h) = response.histogram() {
            // With few calls, show only the percentiles that can be computed from them, and the maximum.
            for (name, p) in [("p50", 0.5), ("p99", 0.99)] {
                if let Some(ns) = quantile(h, p) {
                    text += &format!("  {name} {:.3} ms", ns as f64 / 1e6);
                }
            }
            if !is_supported(h.len(), 0.99) {
                text += &format!("  max {:.3} ms", h.max() as f64 / 1e6);
            }
        }
        if errors > 0 {
            text += &format!("  errors {}", count(errors));
        }
        if self.errors > errors {
            text += &format!(" (in all {})", count(self.errors));
        }
        if interval.backlog > 0 {
            text += &format!("  waiting {}", count(interval.backlog));
        }
        if let Some(users) = &interval.users {
            text += &format!("  users {}", count(users.in_flight));
            if users.waiting > 0 {
                text += &format!(" ({} waiting)", count(users.waiting));
            }
        }
        text
    }

    /// Returns a line for each multiple of `every` that the number of calls has passed in an interval. `before` is the
    /// number of calls before the interval.
    ///
    /// Times within the interval are interpolated, because the load reports only whole intervals.
    fn milestone_lines(&mut self, before: u64, interval: &IntervalRecord) -> Vec<String> {
        let (Some(every), Some(since)) = (self.every, self.counting_since) else {
            return Vec::new();
        };
        let first = interval.start_offset.saturating_sub(since);
        let ended = self.calls - before;
        let planned = self.plan.as_ref().and_then(|plan| plan.load.calls);
        let of = planned.map_or_else(String::new, |wanted| format!(" of {}", count(wanted)));
        let multiples = (before / every + 1..=self.calls / every).map(|n| n * every);
        let lines = multiples.map(|calls| {
            let share = (calls - before) as f64 / ended as f64;
            let elapsed = first + interval.length.mul_f64(share);
            let rate =
                format_rate(calls, elapsed).map_or_else(String::new, |rate| format!(", {rate}"));
            format!(
                "{}{of} calls, {:.1} s elapsed{rate}",
                count(calls),
                elapsed.as_secs_f64(),
            )
        });
        lines.collect()
    }

    /// Ends the progress of the run; returns the CPU time that the live view used during it.
    pub(crate) fn finish(self) -> Option<Duration> {
        match self.display {
            ProgressDisplay::Live(live) => {
                Some(live.cpu_time().saturating_sub(self.view_cpu_before))
            }
            ProgressDisplay::Lines
            | ProgressDisplay::Hidden
            | ProgressDisplay::Pending
            | ProgressDisplay::Shared(_) => None,
        }
    }
}

impl Reporter for Progress {
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        match event {
            Observation::Connecting { open, wanted } => self.show_connecting(*open, *wanted),
            Observation::Started { .. } => self.start_live_view(),
            Observation::Interval(interval, _) => self.show_interval(interval),
            Observation::Shards(_) => {}
        }
        None
    }

    /// Prints the reason, unless the run belongs to a series or to concurrent loads.
    fn on_early_end(&mut self, reason: &str) {
        if !matches!(
            self.display,
            ProgressDisplay::Hidden | ProgressDisplay::Shared(_)
        ) {
            console::print_notice(reason);
        }
    }
}

/// Formats a number of calls in `time` as a rate, or as a count and a time if `time` is too short for a rate.
fn format_pace(n: u64, time: Duration) -> String {
    format_rate(n, time).unwrap_or_else(|| format!("{} in {:.3} s", count(n), time.as_secs_f64()))
}

/// Formats a rate; `None` if the time is shorter than a complete interval, because scaling a few calls up to a second
/// would give misleading rates.
fn format_rate(n: u64, time: Duration) -> Option<String> {
    let seconds = time.as_secs_f64();
    (time >= MIN_COMPLETE_INTERVAL)
        .then(|| format!("{}/s", count((n as f64 / seconds).round() as u64)))
}

#[cfg(test)]
mod tests;
