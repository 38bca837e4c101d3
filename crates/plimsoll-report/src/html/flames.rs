//! Flame graphs: of a run's profile, and of the functions that a rung (variant) of a ladder adds to the first one.
//!
//! The library `inferno` lays the frames out and escapes their names. Only the frames of its document are used: they
//! have no scripts, and its styles would apply to the whole page.

use std::path::Path;

use inferno::flamegraph::color::BasicPalette;
use inferno::flamegraph::{self, Options, Palette};
use maud::{Markup, PreEscaped, html};
use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::runs::profile::{FoldedStacks, RunProfile};

use super::RunView;
use super::page::section;
use super::tables;
use crate::sections::profile::{
    DIFFERENCES_NOTE, LadderProfiles, MAX_PAGE_FUNCTIONS, SHARES_NOTE, format_samples,
    function_table, heading, measured_cpu_us, rung_facts, sampling_facts,
};
use crate::sections::table::TextTable;

/// Width for which names are shortened, in the graph's units (CSS pixels). On narrower screens the graph scrolls.
const GRAPH_WIDTH_PX: usize = 1000;

/// Height of a frame, in the same units.
const FRAME_HEIGHT_PX: usize = 17;

/// Frames narrower than this percentage of the graph's width are left out.
const MIN_WIDTH_PERCENT: f64 = 0.1;

/// The colour of frames without a difference: nearly white.
const UNCHANGED_FILL: &str = "fill=\"rgb(250,250,250)\"";

/// Returns the sections with the runs' profiles.
pub(super) fn sections(views: &[RunView]) -> Markup {
    html! { @for view in views { (run_section(view)) } }
}

fn run_section(view: &RunView) -> Markup {
    let profile = match RunProfile::read(&view.run.dir) {
        Ok(Some(profile)) => profile,
        Ok(None) => return html! {},
        Err(problem) => return unreadable_section(&problem.to_string()),
    };
    html! {
        @for (end, stacks) in &profile.stacks {
            @let told = profile.record.ends.get(end).map(|record| sampling_facts(&profile.record, record, measured_cpu_us(&view.run, *end)));
            @let title = view.with_run_name(&heading(*end));
            (section(&title, "Width is CPU time, and above each function is what it called. A tooltip has the whole name.", &html! {
                (profile_graph(stacks))
                (profile_table(stacks))
                ul.sentences { @for fact in told.iter().flatten() { li { (fact) } } li { (SHARES_NOTE) } }
            }))
        }
    }
}

/// Returns the section with a ladder's profiles; empty if its processes were not sampled.
pub(super) fn ladder_sections(record: &LadderRecord, dir: &Path) -> Markup {
    let profiles = match LadderProfiles::read(record, dir) {
        Ok(Some(profiles)) => profiles,
        Ok(None) => return html! {},
        Err(problem) => return unreadable_section(&problem.to_string()),
    };
    let first = record.rungs.first().map_or("", |rung| &rung.name);
    html! {
        @for compared in profiles.comparisons(record) {
            @let title = format!("{}: what {} adds to {first}", heading(compared.end), compared.name);
            @let lead = if compared.is_time {
                format!("Width is CPU time of a call of “{}”. Red functions take more themselves than in “{first}”, blue ones less; what only “{first}” does has no width here, and is in the table.", compared.name)
            } else {
                format!("Width is the share of samples of “{}”: the CPU time of a call is not known. Red functions have a larger share themselves than in “{first}”, blue ones a smaller one.", compared.name)
            };
            (section(&title, &lead, &html! {
                (flame_graph(&compared.folded_lines(), compared.unit(), "differential flame graph"))
                (functions_table(&compared.table(first, MAX_PAGE_FUNCTIONS)))
            }))
        }
        (section("CPU time of each rung", "The profiles that the differences are made of.", &html! {
            @for (rung, profile) in profiles.rungs(record) {
                @for (end, stacks) in &profile.stacks {
                    details {
                        summary { (rung.name) ", " (end.words()) ": " (format_samples(stacks)) }
                        (profile_graph(stacks))
                        (profile_table(stacks))
                    }
                }
            }
            ul.sentences {
                @for (rung, profile) in profiles.rungs(record) {
                    @for fact in rung_facts(rung, profile) { li { (fact) } }
                }
                li { (SHARES_NOTE) }
                li { (DIFFERENCES_NOTE) }
            }
        }))
    }
}

fn unreadable_section(problem: &str) -> Markup {
    section(
        "CPU time",
        "",
        &html! { p { "The profile can't be read: " (problem) } },
    )
}

fn profile_graph(stacks: &FoldedStacks) -> Markup {
    let lines: Vec<String> = stacks
        .iter()
        .map(|(stack, samples)| format!("{stack} {samples}"))
        .collect();
    flame_graph(&lines, "samples", "flame graph")
}

fn profile_table(stacks: &FoldedStacks) -> Markup {
    functions_table(&function_table(stacks, MAX_PAGE_FUNCTIONS))
}

/// Returns a table whose first column has names of any length.
fn functions_table(table: &TextTable) -> Markup {
    html! { div.functions { div.scroll { (tables::table("", table)) } } }
}

/// Returns the flame graph of folded stacks. Each line has one count; in a comparison it has two, and the first is the
/// count in the other profile.
fn flame_graph(folded: &[String], unit: &str, label: &str) -> Markup {
    let mut options = Options::default();
    options.count_name = unit.to_owned();
    options.deterministic = true;
    options.no_javascript = true;
    options.image_width = Some(GRAPH_WIDTH_PX);
    options.frame_height = FRAME_HEIGHT_PX;
    options.min_width = MIN_WIDTH_PERCENT;
    options.colors = Palette::Basic(BasicPalette::Orange);
    let mut document = Vec::new();
    let lines = folded.iter().map(String::as_str);
    let is_drawn = flamegraph::from_lines(&mut options, lines, &mut document).is_ok();
    // Frames that are equal in both profiles are drawn in a colour of the page.
    let document = String::from_utf8_lossy(&document).replace(UNCHANGED_FILL, "class=\"same\"");
    match extract_frames(&document).filter(|_| is_drawn) {
        None => html! { p { "There are no samples to draw." } },
        Some((frames, top, height)) => html! {
            div.scroll {
                svg.flame role="img" aria-label=(label) height=(height) {
                    svg y={ "-" (top) } width="100%" style="overflow:visible" { (PreEscaped(frames)) }
                }
            }
        },
    }
}

/// Returns the frames of inferno's document, their top position, and their height.
fn extract_frames(document: &str) -> Option<(&str, usize, usize)> {
    let (_, rest) = document.split_once("<svg id=\"frames\"")?;
    let (_, rest) = rest.split_once('>')?;
    let (frames, _) = rest.split_once("</svg>")?;
    let rows = frames.split("<rect ").skip(1).filter_map(|rect| {
        let (_, rest) = rect.split_once(" y=\"")?;
        rest.split_once('"')?.0.parse::<usize>().ok()
    });
    let rows: Vec<usize> = rows.collect();
    let (top, bottom) = (*rows.iter().min()?, *rows.iter().max()?);
    Some((frames, top, bottom - top + FRAME_HEIGHT_PX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_functions_are_escaped() {
        let mut stacks = FoldedStacks::default();
        stacks.add(
            "t;main;</title></svg><script>alert(1)</script>;a\"b<c>'d",
            4,
        );
        stacks.add("t;main;onload=x", 2);
        let page = profile_graph(&stacks).into_string();
        assert!(!page.contains("<script"), "{page}");
        assert_eq!(page.matches("</svg>").count(), 2, "{page}");
        assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
        assert!(!page.contains("onload=\""), "{page}");
    }

    #[test]
    fn graph_has_every_function_with_its_share() {
        let mut stacks = FoldedStacks::default();
        stacks.add("t;main;hot", 3);
        stacks.add("t;main;cold", 1);
        let page = profile_graph(&stacks).into_string();
        assert!(
            page.contains("<title>hot (3 samples, 75.00%)</title>"),
            "{page}"
        );
        assert!(
            page.contains("<title>cold (1 samples, 25.00%)</title>"),
            "{page}"
        );
        assert!(
            page.contains(&format!("height=\"{}\"", 4 * FRAME_HEIGHT_PX)),
            "{page}"
        );
        assert!(
            profile_graph(&FoldedStacks::default())
                .into_string()
                .contains("no samples")
        );
    }

    #[test]
    fn differential_colours_what_was_added() {
        let lines = [
            "t;main;hot 0 300".to_owned(),
            "t;main;same 100 100".to_owned(),
        ];
        let page = flame_graph(&lines, "ns a call", "x").into_string();
        let hot = page.split("<title>hot (300 ns a call").nth(1).unwrap();
        let fill = hot.split("fill=\"rgb(").nth(1).unwrap();
        let parts: Vec<u8> = fill
            .split(')')
            .next()
            .unwrap()
            .split(',')
            .map(|c| c.parse().unwrap())
            .collect();
        assert!(parts[0] > parts[1] && parts[0] > parts[2], "{fill}");
    }
}
