//! The HTML report: whole, alone, and safe against what a plan may be called.

mod made;

use plimsoll_model::run::SCHEMA_VERSION;
use plimsoll_model::search::{Goal, Purpose, SearchRecord, Step, Trial, Verdict, next};
use plimsoll_report::html::{self, View};

fn view(name: &str) -> View {
    let (_dir, run) = made::run(name);
    View::of(run).expect("a view")
}

/// What every report must be.
fn check(page: &str) {
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
    // Every picture says in words what it shows, and has a table behind it.
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
fn one_run_has_verdict_pictures_and_tables() {
    let page = html::runs(&[view("<b>steady</b> & \"co\"")]);
    check(&page);
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
fn several_runs_are_laid_over_each_other() {
    let page = html::runs(&[view("before"), view("after")]);
    check(&page);
    assert!(page.contains("before, response time") && page.contains("after, response time"));
}

#[test]
fn a_search_shows_its_line_and_every_trial() {
    let goal = Goal {
        budget_s: 400.0,
        ..Goal::default()
    };
    let mut record = SearchRecord {
        schema_version: SCHEMA_VERSION,
        name: "score".to_owned(),
        target: "grpc://127.0.0.1:1".to_owned(),
        tool_version: "0".to_owned(),
        started_at: "2026-01-01T00:00:00Z".parse().expect("a time"),
        objectives: vec!["p99 < 10ms".to_owned()],
        implied_errors_share: Some(0.01),
        goal,
        trials: Vec::new(),
        finding: None,
        interrupted: false,
    };
    check(&html::search(&record, ""));
    loop {
        match next(&record.goal, &record.trials) {
            Step::Done(finding) => {
                record.finding = Some(*finding);
                break;
            }
            Step::Try {
                purpose,
                rate_per_s,
                length,
            } => record.trials.push(Trial {
                purpose,
                rate_per_s,
                length_s: length.as_secs_f64(),
                took_s: length.as_secs_f64() + 0.5,
                verdict: if rate_per_s <= 1_987.0 {
                    Verdict::Met
                } else {
                    Verdict::Missed {
                        objectives: vec!["p99 < 10ms".to_owned()],
                        errors: false,
                    }
                },
                achieved_per_s: Some(rate_per_s),
                p50_us: Some(2_000.0),
                p99_us: Some(3_000.0 / (1.0 - (rate_per_s / 2_500.0).min(0.99))),
                p99_9_us: None,
                mean_us: Some(2_100.0),
                errors_share: Some(0.0),
                run: None,
            }),
        }
    }
    let page = html::search(&record, "[load]\n");
    check(&page);
    assert!(
        page.contains("is the load line (p99 &lt; 10ms)"),
        "the verdict"
    );
    let rows = page.matches("<td>narrow</td>").count();
    let narrow = |t: &&Trial| t.purpose == Purpose::Narrow;
    assert_eq!(rows, record.trials.iter().filter(narrow).count());
}
