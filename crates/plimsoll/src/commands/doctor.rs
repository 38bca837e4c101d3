//! `plimsoll doctor`: says what this machine can measure, and what to change.

use std::fmt::Write as _;

use clap::Args;
use plimsoll_model::formats::quantity::{exact_rate, rate, time};
use plimsoll_report::terminal::wrap;
use serde_json::json;

use crate::diagnosis::{self, CalibrationFigures, FindingKind, MachineFinding};
use crate::failure::{Exit, Failure};
use crate::load::documents::{JsonFlag, print_json};
use crate::load::presentation;
use crate::load::process::ProcessContext;
use crate::screen::console;

/// Report what this machine can measure, and what to change.
///
/// Checks the machine's settings, and runs two short loads against Plimsoll's own server at 127.0.0.1: calls at a fixed
/// rate, which show how late the generator is, and as many calls as possible, which show the generator's cost per call.
/// No setting is changed. The exit code is 90 if something would distort figures, and 0 otherwise.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: before a measurement, on the machine that makes the load
  plimsoll doctor
Example: the settings alone, without a load
  plimsoll doctor --no-load")]
pub(crate) struct DoctorArguments {
    /// Run no load: check only the settings.
    #[arg(long)]
    no_load: bool,

    #[command(flatten)]
    json: JsonFlag,
}

pub(crate) fn execute(
    arguments: &DoctorArguments,
    process: &ProcessContext,
) -> Result<Exit, Failure> {
    let mut findings = diagnosis::check_settings();
    let figures = if arguments.no_load {
        None
    } else {
        let figures = diagnosis::measure(process)?;
        findings.extend(figures.findings());
        Some(figures)
    };
    let summary = summary(&findings, figures.as_ref());
    if arguments.json.json {
        print_json(&json!({ "findings": findings, "calibration": figures, "summary": summary }))?;
    } else {
        console::print_result(render_findings(&findings, &summary))?;
    }
    let distorts = |finding: &MachineFinding| finding.kind == FindingKind::Distortion;
    Ok(if findings.iter().any(distorts) {
        Exit::Invalid
    } else {
        Exit::Done
    })
}

/// Returns the findings as a list, with the summary as the last paragraph.
fn render_findings(findings: &[MachineFinding], summary: &str) -> String {
    const INDENT: usize = 17;
    let options = presentation::terminal_options();
    let width = options.width.saturating_sub(INDENT).max(20);
    let mut out = String::new();
    for finding in findings {
        let mark = match finding.kind {
            FindingKind::Good => ' ',
            FindingKind::Limit => '-',
            FindingKind::Distortion => '!',
        };
        let remedy = finding.remedy.as_ref();
        let remedy = remedy.map_or_else(Vec::new, |remedy| wrap(&format!("→ {remedy}"), width));
        let lines = wrap(&finding.text, width).into_iter().chain(remedy);
        for (i, line) in lines.enumerate() {
            let name = if i == 0 { finding.name } else { "" };
            let mark = if i == 0 { mark } else { ' ' };
            let _ = writeln!(out, "{mark} {name:<15}{line}");
        }
    }
    out.push('\n');
    for line in wrap(summary, options.width) {
        let _ = writeln!(out, "{line}");
    }
    out
}

/// Says in a few sentences what the machine can measure.
fn summary(findings: &[MachineFinding], figures: Option<&CalibrationFigures>) -> String {
    let names = |kind| {
        let all = findings.iter().filter(|finding| finding.kind == kind);
        all.map(|finding| finding.name).collect::<Vec<&str>>()
    };
    let mut text = String::new();
    if let Some(figures) = figures {
        let _ = write!(
            text,
            "One core of this machine makes about {} of HTTP/1.1. At {}, 99 % of the calls left at most {} late: reports bound each time by that. ",
            rate(figures.calls_per_core_second()),
            exact_rate(diagnosis::FIXED_RATE_PER_S),
            time(figures.lateness_p99_us),
        );
    }
    let (distortions, limits) = (names(FindingKind::Distortion), names(FindingKind::Limit));
    text += &match (&distortions[..], &limits[..]) {
        ([], []) => "Nothing has to be changed.".to_owned(),
        ([], limits) => format!(
            "Nothing distorts figures; worth knowing: {}.",
            limits.join(", ")
        ),
        (distortions, _) => format!("To be changed first: {}.", distortions.join(", ")),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_names_what_distorts_first() {
        let good = MachineFinding::good("clock", "tsc".to_owned());
        let limit = MachineFinding::limit("ports", "28,232".to_owned(), "widen the range");
        let distortion = MachineFinding::distortion("load", "3 of 2".to_owned(), "stop it");
        let all = [good.clone(), limit.clone(), distortion];
        assert_eq!(summary(&all, None), "To be changed first: load.");
        assert_eq!(
            summary(&all[..2], None),
            "Nothing distorts figures; worth knowing: ports."
        );
        assert_eq!(summary(&all[..1], None), "Nothing has to be changed.");
        let text = render_findings(&all, "Done.");
        assert!(text.contains("! load           3 of 2"), "{text}");
        assert!(text.contains("→ stop it"), "{text}");
    }
}
