//! What a person sees while a run goes on: a bar on a terminal, a line an interval
//! elsewhere. On stderr, so that results can be piped.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_model::Plan;
use plimsoll_model::record::Times;
use plimsoll_model::run::IntervalRecord;
use plimsoll_model::schedule::Schedule;

use crate::console;

/// How progress is shown.
enum Shown {
    No,
    Bar(ProgressBar),
    Lines,
}

/// The progress of one run.
pub(crate) struct Progress {
    shown: Shown,
    /// A line every so many calls that count.
    every: Option<u64>,
    wanted_calls: Option<u64>,
    warmup: Vec<bool>,
    /// Of the whole run, where only time ends it.
    planned: Option<Duration>,
    calls: u64,
    errors: u64,
    /// When the calls that count began, from the run's start.
    counting_since: Option<Duration>,
    told: u64,
}

impl Progress {
    pub(crate) fn new(plan: &Plan, quiet: bool, every: Option<u64>) -> Progress {
        let schedule = Schedule::new(&plan.load, plan.seed);
        let planned = schedule.end().map(Duration::from_nanos);
        let wanted_calls = plan.load.calls;
        let shown = if quiet {
            Shown::No
        } else if io::stderr().is_terminal() {
            let length = match wanted_calls {
                Some(calls) => Some(calls),
                None => planned.map(|p| p.as_millis() as u64),
            };
            let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let style = ProgressStyle::with_template("{wide_bar:.cyan/blue} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            Shown::Bar(bar.with_style(style))
        } else {
            Shown::Lines
        };
        Progress {
            shown,
            every: every.filter(|_| !quiet),
            wanted_calls,
            warmup: plan.load.stages.iter().map(|s| s.warmup).collect(),
            planned,
            calls: 0,
            errors: 0,
            counting_since: None,
            told: 0,
        }
    }

    /// A bar on a terminal, nothing elsewhere: for one run of many.
    pub(crate) fn on_terminal_only(plan: &Plan, quiet: bool) -> Progress {
        Progress::new(plan, quiet || !io::stderr().is_terminal(), None)
    }

    pub(crate) fn connecting(&self, open: u64, wanted: u64) {
        let text = format!("connecting: {open} of {wanted}");
        match &self.shown {
            Shown::Bar(bar) => bar.set_message(text),
            Shown::Lines => console::tell(text),
            Shown::No => {}
        }
    }

    /// The run goes on, and a person should know.
    pub(crate) fn note(&self, text: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.println(text),
            Shown::Lines | Shown::No => console::tell(text),
        }
    }

    /// The run ends early; of one run among many nobody wants to know.
    pub(crate) fn lost(&self, reason: &str) {
        if !matches!(self.shown, Shown::No) {
            self.note(reason);
        }
    }

    pub(crate) fn interval(&mut self, interval: &IntervalRecord) {
        let end = interval.start_offset + interval.length;
        let mut warming = true;
        let (mut ended, mut errors) = (0, 0);
        let mut response = Times::default();
        for (stage, record) in &interval.stages {
            let warmup = self.warmup.get(usize::from(*stage)) == Some(&true);
            ended += record.ended();
            errors += record.errors();
            response.merge(&record.response);
            if !warmup {
                warming = false;
                self.calls += record.ended();
                self.errors += record.errors();
                self.counting_since.get_or_insert(interval.start_offset);
            }
        }
        self.milestone(end);
        let mut text = format!(
            "{:>5.1}s {} {}/s",
            end.as_secs_f64(),
            if warming { "warm-up" } else { "calls" },
            thousands(per_second(ended, interval.length)),
        );
        if let Some(h) = response.histogram() {
            let ms = |q| h.value_at_quantile(q) as f64 / 1e6;
            text += &format!("  p50 {:.3} ms  p99 {:.3} ms", ms(0.5), ms(0.99));
        }
        if errors > 0 {
            text += &format!("  errors {}", thousands(errors));
        }
        if self.errors > errors {
            text += &format!(" (in all {})", thousands(self.errors));
        }
        if interval.backlog > 0 {
            text += &format!("  waiting {}", thousands(interval.backlog));
        }
        match &self.shown {
            Shown::Bar(bar) => {
                let at = match (self.wanted_calls, self.planned) {
                    (Some(_), _) => self.calls,
                    (None, Some(_)) => end.as_millis() as u64,
                    (None, None) => 0,
                };
                bar.set_position(at);
                bar.set_message(text);
            }
            // With lines by calls, lines by time are too many.
            Shown::Lines if self.every.is_none() => console::tell(text),
            Shown::Lines | Shown::No => {}
        }
    }

    /// The line that is due every so many calls.
    fn milestone(&mut self, end: Duration) {
        let Some(every) = self.every.filter(|&every| self.calls / every > self.told) else {
            return;
        };
        self.told = self.calls / every;
        let elapsed = end.saturating_sub(self.counting_since.unwrap_or_default());
        let of = self
            .wanted_calls
            .map_or_else(String::new, |wanted| format!(" of {}", thousands(wanted)));
        self.note(&format!(
            "{}{of} calls, {:.1} s elapsed, {}/s",
            thousands(self.calls),
            elapsed.as_secs_f64(),
            thousands(per_second(self.calls, elapsed)),
        ));
    }

    pub(crate) fn finish(self) {
        if let Shown::Bar(bar) = self.shown {
            bar.finish_and_clear();
        }
    }
}

fn per_second(n: u64, time: Duration) -> u64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 {
        (n as f64 / seconds).round() as u64
    } else {
        0
    }
}

/// `1234567` as `1,234,567`
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(1_234_567), "1,234,567");
    }
}
