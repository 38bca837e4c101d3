//! The end of a report that is longer than the terminal: repeats its verdict and first sentence, which have scrolled
//! out of sight.

use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::Run;
use plimsoll_model::search::SearchRecord;

use crate::sections::headline::describe_latency;
use crate::terminal::{TerminalOptions, verdict, warning_titles, wrap};
use crate::{ladder, search};

/// Maximum number of a ladder's sentences that are repeated; more would fill the screen again.
const MAX_SENTENCES: usize = 4;

/// Returns the closing lines of `report`, with a line feed at the end. They are empty if the report is not printed on a
/// terminal or fits on it.
pub fn closing_lines(report: &str, lines: Vec<String>, options: &TerminalOptions) -> String {
    let scrolls = |rows| report.lines().count() + lines.len() + 1 >= rows;
    if lines.is_empty() || !options.height.is_some_and(scrolls) {
        return String::new();
    }
    let lines: Vec<String> = lines.into_iter().map(|line| line + "\n").collect();
    format!("\n{}", lines.concat())
}

/// Returns the verdict and first sentence of a run.
pub fn run_lines(run: &Run, options: &TerminalOptions) -> Vec<String> {
    let titles = warning_titles(run)
        .into_iter()
        .map(|title| options.bold_red(title));
    let answer = describe_latency(run).map(|answer| bold(&answer, options));
    let answer = answer.into_iter().flatten();
    titles.chain(answer).chain(verdict(run, options)).collect()
}

/// Returns the verdict and first sentence of each lane, after its name.
pub fn lane_lines(record: &LanesRecord, runs: &[Run], options: &TerminalOptions) -> Vec<String> {
    let lanes = record.lanes.iter().zip(runs);
    lanes
        .flat_map(|(lane, run)| {
            let titles = warning_titles(run)
                .into_iter()
                .map(|title| options.bold_red(title));
            let answer = describe_latency(run).map(|answer| options.bold(&answer));
            let parts = titles.chain(answer).chain(verdict(run, options));
            let name = lane.name.clone();
            parts.map(move |part| format!("{name}: {part}"))
        })
        .collect()
}

/// Returns the load line of a search, or why there is none.
pub fn search_lines(record: &SearchRecord, options: &TerminalOptions) -> Vec<String> {
    let mut lines = bold(&search::headline(record), options);
    if let Some(finding) = &record.finding
        && finding.line_per_s.is_some()
        && !finding.confirmed
    {
        lines.push(options.bold_red("NOT CONFIRMED"));
    }
    if record.interrupted {
        lines.push(options.bold_red("INTERRUPTED"));
    }
    lines
}

/// Returns the costs that the rungs of a ladder add, and the verdict on its objectives and gates.
pub fn ladder_lines(record: &LadderRecord, options: &TerminalOptions) -> Vec<String> {
    let mut lines = Vec::new();
    if record.is_generator_limited() {
        lines.push(options.bold_red(ladder::INVALID_NOTE));
    }
    let sentences = ladder::summarise_costs(record);
    let omitted = sentences.len().saturating_sub(MAX_SENTENCES);
    for sentence in sentences.iter().take(MAX_SENTENCES) {
        lines.extend(bold(sentence, options));
    }
    if omitted > 0 {
        lines.push(format!("and {omitted} more above"));
    }
    lines.extend(ladder::verdict_text(record));
    lines.extend(ladder::describe_resolution(record));
    if record.interrupted {
        lines.push(options.bold_red("INTERRUPTED"));
    }
    lines
}

fn bold(text: &str, options: &TerminalOptions) -> Vec<String> {
    let lines = wrap(text, options.width);
    lines.iter().map(|line| options.bold(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_is_shown_only_if_report_scrolls() {
        let report = "a line\n".repeat(30);
        let of = |height| {
            let options = TerminalOptions {
                height,
                ..TerminalOptions::default()
            };
            closing_lines(&report, vec!["the answer".to_owned()], &options)
        };
        assert_eq!(of(Some(24)), "\nthe answer\n");
        assert_eq!(of(Some(32)), "\nthe answer\n");
        assert_eq!(of(Some(33)), "");
        // A file does not scroll.
        assert_eq!(of(None), "");
        let options = TerminalOptions {
            height: Some(1),
            ..TerminalOptions::default()
        };
        assert_eq!(closing_lines(&report, Vec::new(), &options), "");
    }
}
