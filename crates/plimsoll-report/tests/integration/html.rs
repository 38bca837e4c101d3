//! The HTML report: complete, self-contained, and safe against any name in a plan.

use crate::made;
use crate::records;
use crate::runs;

use std::path::Path;

use plimsoll_model::comparisons::ladder::batches::RungDifference;
use plimsoll_model::comparisons::ladder::{LadderMetric, TokenFigures};
use plimsoll_model::crypto_speeds::CryptoSpeeds;
use plimsoll_model::runs::run::{Run, RunEnding};
use plimsoll_model::statistics::paired::PairedDifference;
use plimsoll_report::compare::compare;
use plimsoll_report::html::{self, RunView};
use plimsoll_report::terminal::TerminalOptions;
use plimsoll_report::{ladder, markdown};
use runs::{Fixture, finished_in};

fn view(name: &str) -> RunView {
    let (_dir, run) = made::run(name);
    RunView::read(run).expect("a view")
}

/// Checks what every report must fulfil.
fn check_page(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>"));
    for outside in [
        "<script", "http://", "https://", "@import", "url(", "<img", "<iframe",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    for (open, close) in [
        ("<svg", "</svg>"),
        ("<section", "</section>"),
        ("<table", "</table>"),
    ] {
        assert_eq!(
            page.matches(open).count(),
            page.matches(close).count(),
            "{open}"
        );
    }
    // Every chart has a text alternative, and a table below it.
    assert_eq!(
        page.matches("class=\"plot\"").count(),
        page.matches("role=\"img\" aria-label=\"").count()
    );
    assert_eq!(
        page.matches("<figure>").count(),
        page.matches("<summary>The figures</summary>").count()
    );
    assert!(!page.contains("NaN") && !page.contains("inf "), "numbers");
    assert!(page.contains("name=\"viewport\"") && page.contains("prefers-color-scheme:dark"));
}

#[test]
fn page_shows_verdict_plots_and_tables() {
    let page = html::runs_page(&[view("<b>steady</b> & \"co\"")]);
    check_page(&page);
    assert!(page.contains("objective missed"), "the verdict");
    assert!(page.contains("p99 &lt; 1ms: missed"));
    assert!(!page.contains("<b>steady"), "names are text");
    for heading in [
        "Percentiles",
        "Over time",
        "Errors",
        "Generator health",
        "The plan",
    ] {
        assert!(page.contains(heading), "{heading}");
    }
    assert!(page.contains("RESET"));
    let verdict = page.find("objective missed").expect("found");
    assert!(
        verdict < page.find("<figure>").expect("found"),
        "verdict first"
    );
}

#[test]
fn streams_and_sessions_show_own_measures() {
    let dir = tempfile::tempdir().expect("a directory");
    let view = |fixture: Fixture, name: &str| {
        RunView::read(finished_in(
            &dir.path().join(name),
            fixture,
            RunEnding::complete(),
        ))
        .expect("a view")
    };
    let streams = view(Fixture::streams("streams"), "streams");
    let sessions = view(Fixture::sessions("sessions"), "sessions");
    let page = html::runs_page(std::slice::from_ref(&streams));
    check_page(&page);
    for words in [
        "<h2>Streams</h2>",
        "800 sent (21.6 kB), 4,000 received (11.2 kB) at 1,000/s",
        "<th scope=\"row\">first message</th>",
        "<th scope=\"row\">inter-message</th>",
        "<th scope=\"row\">whole stream</th>",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("<h2>Sessions</h2>"));
    let page = html::runs_page(std::slice::from_ref(&sessions));
    check_page(&page);
    for words in [
        "<h2>Sessions</h2>",
        "200 ok, 0 failed",
        "<td class=\"text missed\">7,992 received once (1,998/s), 8 missing, 8 received twice",
        "792 of 800 queries (198/s) within first token 2ms",
        "<th scope=\"row\">first token</th>",
        "<th scope=\"row\">token gap</th>",
        "<th scope=\"row\">time per token</th>",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("<h2>Streams</h2>"));
    let page = html::runs_page(&[streams, sessions]);
    check_page(&page);
    assert!(page.contains("tokens, streamed, first message"));
    assert!(page.contains("chat, sessions, first token"));
}

#[test]
fn plots_overlay_several_runs() {
    let page = html::runs_page(&[view("before"), view("after")]);
    check_page(&page);
    assert!(page.contains("before, response time") && page.contains("after, response time"));
}

/// Legends and tables number runs with the same name.
#[test]
fn same_named_runs_are_distinguished() {
    let dir = tempfile::tempdir().expect("a directory");
    let view = |name: &str| {
        let run = finished_in(
            &dir.path().join(name),
            Fixture::steady("steady"),
            RunEnding::complete(),
        );
        RunView::read(run).expect("a view")
    };
    let page = html::runs_page(&[view("monday"), view("tuesday")]);
    check_page(&page);
    for words in ["(monday), response time", "(tuesday), response time"] {
        assert!(page.contains(words), "{words}");
    }
}

/// The header shows when, how, over which connections and on which machine the run was made; the footer how to repeat
/// it.
#[test]
fn page_shows_setup_and_rerun_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = finished_in(
        &dir.path().join("a run"),
        Fixture::steady("steady"),
        RunEnding::complete(),
    );
    let again = format!("plimsoll run '{}/plan.toml'", run.dir.display());
    let page = html::runs_page(&[RunView::read(run).expect("a view")]);
    check_page(&page);
    for words in [
        "<dt>began</dt>",
        " UTC</dd>",
        "open loop, constant arrivals",
        "<dt>measured by</dt>",
        &again,
    ] {
        assert!(page.contains(words), "{words}");
    }
    // Hover areas, boxes that keyboards reach, and ticks without binary rounding.
    assert!(
        page.contains("<title>response time, 99.0 %: ")
            || page.contains("<title>response time, 99 %: ")
    );
    assert!(page.contains("class=\"scroll\" tabindex=\"0\""));
    assert!(!page.contains("00000001<"));
}

#[test]
fn sweep_page_has_own_sections() {
    let mut record = records::sweep();
    record.limits = Some(CryptoSpeeds::default());
    let page = html::ladder_page(&record, "[load]\n", Path::new("runs/sweep"));
    check_page(&page);
    for words in [
        "<h2>Bytes a second</h2>",
        "<h2>Files a second</h2>",
        "share of cryptography",
        "plimsoll sweep runs/sweep/plan.toml",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

/// A search for a p95 shows p95s.
#[test]
fn search_plots_limited_percentile() {
    let mut record = records::search();
    record.objectives = vec!["p95 < 10ms".to_owned()];
    for trial in &mut record.trials {
        trial.limited_us = trial.p99_us.map(|us| us / 2.0);
    }
    let page = html::search_page(&record, "", Path::new("runs/search"));
    check_page(&page);
    assert!(
        page.contains("what &quot;p95 &lt; 10ms&quot; limits"),
        "{page}"
    );
}

#[test]
fn search_shows_load_line_and_trials() {
    check_page(&html::search_page(
        &records::begun_search(),
        "",
        Path::new("runs/search"),
    ));
    let record = records::search();
    let page = html::search_page(&record, "[load]\n", Path::new("runs/search"));
    check_page(&page);
    assert!(
        page.contains("is the load line (p99 &lt; 10ms)"),
        "the verdict"
    );
    for number in 1..=record.trials.len() {
        let cell = format!(">{number}</td>");
        assert!(page.contains(&cell), "step {number}");
    }
}

#[test]
fn a_ladder_shows_its_rungs() {
    let page = html::ladder_page(&records::ladder(), "", Path::new("runs/ladder"));
    check_page(&page);
    for words in [
        "tls mutual, via two sidecars adds ",
        "no difference seen",
        "server memory a connection",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

/// The bill of a stream: in the page, in the terminal, and as a sentence.
#[test]
fn ladder_of_streams_has_rows_of_tokens() {
    let mut record = records::ladder_in_batches();
    for rung in &mut record.rungs {
        rung.slices[0].tokens = Some(TokenFigures {
            first_p50_us: Some(20_000.0),
            per_token_p50_us: Some(5_000.0),
            gap_p99_us: Some(9_000.0),
        });
    }
    if let Some(batches) = &mut record.batches {
        batches.differences.push(RungDifference {
            of: 1,
            to: 0,
            metric: LadderMetric::FirstToken,
            paired: PairedDifference {
                shift: 350.0,
                low: 330.0,
                high: 380.0,
            },
        });
    }
    let page = html::ladder_page(&record, "", Path::new("runs/ladder"));
    check_page(&page);
    assert!(page.contains("at the first token (p50)"));
    let text = ladder::render(&record, &TerminalOptions::default());
    for words in [
        "first token (p50)",
        "time per token (p50)",
        "token gap (p99)",
        "it adds 350 µs ± 30 µs to the time to the first token (p50)",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    record.gates = vec!["first_token +1us".parse().expect("a gate")];
    let text = ladder::render(&record, &TerminalOptions::default());
    assert!(text.contains("first_token +1us BEYOND"), "{text}");
    for rung in &mut record.rungs {
        rung.slices[0].tokens = None;
    }
    let text = ladder::render(&record, &TerminalOptions::default());
    assert!(
        text.contains("the calls of a rung stream no tokens"),
        "{text}"
    );
}

#[test]
fn comparison_shows_differences_in_plans() {
    let (_a, a) = made::run("<i>before");
    let (_b, mut b) = made::run("after");
    b.plan.push_str("[load]\nrate = \"5/s\"\n");
    let (a, b) = ([a], [b]);
    let comparison = compare(&a, &b).expect("two sides");
    let text = markdown::comparison_report(&comparison);
    assert!(text.contains("| response p99 | "), "{text}");
    assert!(text.contains("- load.rate: (not set) → \"5/s\""), "{text}");
    assert!(text.contains("&lt;i>before"), "{text}");
    let views = |runs: [_; 1]| runs.map(|run| RunView::read(run).expect("a view"));
    let page = html::comparison_page(&comparison, &views(a), &views(b));
    check_page(&page);
    assert!(!page.contains("<i>before"), "names are text");
    for words in [
        "warning",
        "What differs",
        "Where the plans differ",
        "changes what is measured",
        "A, response time",
        "not enough runs to tell",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn long_runs_show_sampling_intervals() {
    let shown = |seconds| {
        let fixture = Fixture::steady("steady").lasting(seconds);
        let dir = tempfile::tempdir().expect("a directory");
        let run = finished_in(&dir.path().join("run"), fixture, RunEnding::complete());
        let read = Run::load(&run.dir).expect("a run");
        assert_eq!(read.summary, run.summary, "read back as written");
        let summary = markdown::render(std::slice::from_ref(&run), None);
        let page = html::runs_page(&[RunView::read(run.clone()).expect("a view")]);
        (run, summary, page)
    };
    let (run, summary, page) = shown(12);
    for text in [&summary, &page] {
        assert!(text.contains("in repeated runs"), "{text}");
        assert!(text.contains("block bootstrap over its seconds"), "{text}");
        assert!(text.contains("achieved: "), "{text}");
    }
    let response = run.summary.total.response.expect("calls");
    let sampling = response.sampling.expect("seconds");
    for ((name, us), (_, interval)) in response.percentiles().iter().zip(sampling.percentiles()) {
        assert_eq!(us.is_some(), interval.is_some(), "{name}");
        if let (Some(us), Some([low, high])) = (us, interval) {
            assert!(
                low <= us * 1.001 && *us <= high * 1.001,
                "{name}: {low} {us} {high}"
            );
        }
    }
    let (run, summary, page) = shown(9);
    assert_eq!(run.summary.total.response.expect("calls").sampling, None);
    assert!(!summary.contains("in repeated runs") && !page.contains("in repeated runs"));
}
