//! The page of a comparison of two groups of runs.

use maud::{Markup, html};
use plimsoll_model::records::record::StageRecord;
use plimsoll_model::runs::run::RunState;

use super::RunView;
use super::bars::{self, BarChart, BarSegment};
use super::chart::{LegendKey, format_tick, legend};
use super::page::{
    self, FigureCard, PageFacts, VerdictTone, chart_with_table, complete_page, section as part,
};
use super::spectrum::{self, SpectrumCalls};
use super::tables;
use crate::compare::{Comparison, ComparisonRow};
use crate::sections::table::TextTable;
use crate::sections::totals;

/// Returns the page that compares the runs `a` with the runs `b`.
pub fn comparison_page(c: &Comparison, a: &[RunView], b: &[RunView]) -> String {
    let body = html! {
        (verdict(c))
        (difference_bars(c))
        (spectrum::section(&[merged_calls("A", a), merged_calls("B", b)]))
        (part("The figures", &c.describe_method(), &html! { div.scroll { (differences_table(c)) } }))
        (plan_differences_section(c))
        (runs_section(a, b))
        @for (name, side) in [("A", a), ("B", b)] {
            @if let Some(first) = side.first() { (tables::plan_section(&first.run.plan, name, &crate::sections::facts::rerun_command("run", &first.run.dir))) }
        }
    };
    complete_page(&format!("{} against {}", c.a.name, c.b.name), &body)
}

/// Merges the histograms of a group.
fn merged_calls(name: &str, side: &[RunView]) -> SpectrumCalls {
    let mut record = StageRecord::default();
    for view in side {
        record.merge(&view.run.measured_record());
    }
    SpectrumCalls {
        name: name.to_owned(),
        record,
    }
}

fn verdict(c: &Comparison) -> Markup {
    let names = |word: &str| -> Vec<&str> {
        let is = |row: &&ComparisonRow| row.change_word() == word;
        c.rows.iter().filter(is).map(|row| row.metric).collect()
    };
    let (better, worse) = (names("better"), names("worse"));
    let (tone, label) = match () {
        () if !c.warnings.is_empty() => (VerdictTone::Uncertain, "warning"),
        () if !c.has_enough_runs() => (VerdictTone::Plain, "not enough runs to tell"),
        () if !worse.is_empty() && !better.is_empty() => {
            (VerdictTone::Uncertain, "better and worse")
        }
        () if !worse.is_empty() => (VerdictTone::Bad, "B is worse"),
        () if !better.is_empty() => (VerdictTone::Good, "B is better"),
        () => (VerdictTone::Plain, "no difference seen"),
    };
    let cards: Vec<FigureCard> = c
        .rows
        .iter()
        .filter(|row| {
            [
                "response p50",
                "response p99",
                "t_total p50",
                "t_total p99",
                "client CPU a call",
                "rate achieved",
            ]
            .contains(&row.metric)
        })
        .map(|row| {
            let mut card = FigureCard::new(row.metric, row.unit.format(row.b));
            let percent = row
                .percent()
                .map_or_else(String::new, |p| format!(" ({p} %)"));
            card.note = Some(format!("A: {}{percent}", row.unit.format(row.a)));
            card
        })
        .collect();
    let mut sentences = c.warnings.clone();
    for (word, names) in [("better", &better), ("worse", &worse)] {
        if !names.is_empty() {
            sentences.push(format!("B is {word} in {}", names.join(", ")));
        }
    }
    if !c.has_enough_runs() {
        sentences.push(c.describe_method());
    }
    let sides = format!("A: {} · B: {}", c.a.describe(), c.b.describe());
    let heading = if c.a.name == c.b.name {
        c.a.name.clone()
    } else {
        format!("{} against {}", c.b.name, c.a.name)
    };
    let facts = PageFacts {
        target: Some(sides),
        ..PageFacts::default()
    };
    page::verdict(tone, label, &heading, &facts, &cards, &sentences)
}

/// Returns a bar for each metric's difference, in percent of A, with its interval.
fn difference_bars(c: &Comparison) -> Markup {
    let rows: Vec<&ComparisonRow> = c
        .rows
        .iter()
        .filter(|row| row.relative_shift().is_some())
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let entries = [
        ("better".to_owned(), 2, LegendKey::Block),
        ("worse".to_owned(), 4, LegendKey::Block),
        (
            "can't be told apart from chance".to_owned(),
            5,
            LegendKey::Block,
        ),
    ];
    let bars = BarChart {
        lead: "Change from A to B, in per cent of A.".to_owned(),
        axis: "per cent of A".to_owned(),
        format_tick: signed_percent,
        always_included: [-1.0, 1.0],
        rows: rows.into_iter().map(difference_bar).collect(),
    };
    let picture = chart_with_table(
        bars.heights(),
        &legend(&entries),
        &differences_table(c),
        |frame| bars.draw(frame),
    );
    part(
        "What differs",
        "Change from A to B in per cent of A, with its 95 % interval where there are enough runs. Left: B is lower.",
        &picture,
    )
}

fn difference_bar(row: &ComparisonRow) -> bars::BarRow {
    let of_a = |value: f64| value / row.a * 100.0;
    let percent = row.percent().unwrap_or_default();
    let words = format!("{}: {percent} %, {}", row.metric, row.change_word());
    let (a, b) = (row.unit.format(row.a), row.unit.format(row.b));
    bars::BarRow {
        name: format!("{}: {a} → {b}", row.metric),
        segments: vec![BarSegment {
            from: 0.0,
            to: of_a(row.shift()),
            colour: bar_colour(row),
            is_pale: row.is_better().is_none(),
            title: words.clone(),
        }],
        text_alternative: words,
        interval: row.difference.map(|d| [of_a(d.low), of_a(d.high)]),
    }
}

fn bar_colour(row: &ComparisonRow) -> usize {
    match row.is_better() {
        Some(true) => 2,
        Some(false) => 4,
        None => 5,
    }
}

fn signed_percent(percent: f64) -> String {
    let text = format!("{} %", format_tick(percent.abs()));
    match percent {
        p if p < 0.0 => format!("−{text}"),
        p if p > 0.0 => format!("+{text}"),
        _ => "0".to_owned(),
    }
}

fn differences_table(c: &Comparison) -> Markup {
    let caption = format!("A: {}; B: {}", c.a.describe(), c.b.describe());
    let class = |n: usize| match c.rows[n].is_better() {
        Some(true) => Some("text met"),
        Some(false) => Some("text missed"),
        None => None,
    };
    tables::table_with_classes(&caption, &c.table(), class)
}

fn plan_differences_section(c: &Comparison) -> Markup {
    let value = |v: &Option<String>| v.clone().unwrap_or_else(|| "(not set)".to_owned());
    let rows = c.plan_differences.iter().map(|d| {
        let matters = if d.affects_measurement() {
            "changes what is measured"
        } else {
            ""
        };
        [d.key.clone(), value(&d.a), value(&d.b), matters.to_owned()]
    });
    let table = TextTable::new(["key", "A", "B", ""], &[1, 2, 3], rows);
    tables::table_section("Where the plans differ", "", &table)
}

fn runs_section(a: &[RunView], b: &[RunView]) -> Markup {
    let head = [
        &["", "directory"],
        &totals::SUMMARY_HEADINGS[..],
        &["state"],
    ]
    .concat();
    let sides = a.iter().map(|v| ("A", v)).chain(b.iter().map(|v| ("B", v)));
    let rows = sides.clone().map(|(name, RunView { run, .. })| {
        let names = vec![name.to_owned(), run.dir.display().to_string()];
        let state = vec![run.state.name().to_owned()];
        [names, totals::summary_row(run).into(), state].concat()
    });
    let table = TextTable::new(head, &[1, 7], rows);
    let is_whole: Vec<bool> = sides
        .map(|(_, view)| view.run.state == RunState::Complete)
        .collect();
    let class = |n: usize| (!is_whole[n]).then_some("text missed");
    let table = tables::table_with_classes("", &table, class);
    part("The runs", "", &html! { div.scroll { (table) } })
}
