//! Lines that count something: the noun is singular for one, and the warm-up's share is told apart.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::made;

use plimsoll_model::runs::run::Run;
use plimsoll_model::runs::run::summary::MeasuresSummary;
use plimsoll_model::{Count, TimeMeasure};
use plimsoll_report::html::{self, RunView};
use plimsoll_report::markdown;
use plimsoll_report::terminal::{TerminalOptions, render};

fn shown(run: &Run) -> String {
    render(run, &TerminalOptions::default())
}

#[test]
fn one_counted_thing_is_singular() {
    let (_dir, mut run) = made::run("counts");
    for (number, expected) in [
        (1, "1 message that answered no call"),
        (2, "2 messages that answered no call"),
    ] {
        run.summary.total.measures = Some(MeasuresSummary {
            counts: [(Count::MessagesUnasked.key(), number)].into(),
            ..MeasuresSummary::default()
        });
        let text = shown(&run);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn users_are_named_and_stopped_ones_counted() {
    let (_dir, mut run) = made::run("users");
    let journey = run.summary.total.response.expect("response times");
    for (ok, stopped, expected) in [
        (7, 0, "7 ok, 1 failed\n"),
        (7, 2, "7 ok, 1 failed, 2 stopped by the end of the load\n"),
    ] {
        run.summary.total.measures = Some(MeasuresSummary {
            counts: [
                (Count::UsersOk.key(), ok),
                (Count::UsersFailed.key(), 1),
                (Count::UsersStopped.key(), stopped),
            ]
            .into(),
            times: [(TimeMeasure::Journey.key(), journey)].into(),
            ..MeasuresSummary::default()
        });
        let text = shown(&run);
        assert!(text.contains(expected), "{expected}: {text}");
        assert!(!text.contains("sessions"), "{text}");
        let page = html::runs_page(&[RunView::read(run.clone()).unwrap()]);
        assert!(page.contains("<h2>Users</h2>"), "{page}");
        assert!(page.contains("Journey: from a user"), "{page}");
        assert!(page.contains(expected.trim_end()), "{expected}: {page}");
        let list = markdown::render(&[run.clone()], None);
        assert!(list.contains("| users |"), "{list}");
    }
    // Users of whom all were stopped are no sessions.
    run.summary.total.measures = Some(MeasuresSummary {
        counts: [(Count::UsersStopped.key(), 3)].into(),
        ..MeasuresSummary::default()
    });
    let text = shown(&run);
    assert!(text.contains("0 ok, 0 failed, 3 stopped"), "{text}");
    assert!(!text.contains("sessions"), "{text}");
}

#[test]
fn connections_of_warmup_are_told_apart() {
    let (_dir, mut run) = made::run("connections");
    let mut warmup = run.summary.stages[0].clone();
    warmup.warmup = true;
    run.summary.stages.insert(0, warmup);
    for (before, counted, expected) in [
        (100, 150, "150 made; 100 more in the warm-up"),
        (0, 4, "4 made\n"),
        (4, 0, "4 made\n"),
    ] {
        run.summary.stages[0].connections_full = before;
        run.summary.stages[1].connections_full = counted;
        let text = shown(&run);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn histograms_account_for_every_call() {
    let (_dir, run) = made::run("histograms");
    assert!(!shown(&run).contains('█'));
    for width in [60, 100] {
        let options = TerminalOptions {
            width,
            histogram: true,
            ..TerminalOptions::default()
        };
        let text = render(&run, &options);
        let rows = |heading: &str| -> Vec<Vec<String>> {
            let lines = text.lines().skip_while(|line| !line.starts_with(heading));
            let lines = lines.skip(1).take_while(|line| !line.is_empty());
            let cells = |line: &str| -> Vec<String> {
                let cells = line.split("  ").map(str::trim);
                let cells = cells.filter(|cell| !cell.is_empty());
                cells.map(str::to_owned).collect()
            };
            lines.map(cells).collect()
        };
        let times = rows("response time ");
        assert!((5..=12).contains(&times.len()), "{text}");
        assert_eq!(times.last().unwrap()[0], "6.50 ms to 7.00 ms", "{text}");
        let calls = |row: &Vec<String>| row[1].replace(',', "").parse::<u64>().unwrap();
        assert_eq!(times.iter().map(calls).sum::<u64>(), 1_497, "{text}");
        let outcomes = rows("outcome ");
        assert_eq!(outcomes.len(), 2, "{text}");
        assert_eq!(outcomes[0][..3], ["ok", "1,497", "99.8 %"], "{text}");
        assert_eq!(outcomes[1][..3], ["RESET", "3", "0.2 %"], "{text}");
        let columns = |cell: &String| cell.chars().count();
        assert_eq!(columns(&outcomes[0][3]), (width - 48).min(40), "{text}");
        assert_eq!(outcomes[1][3], "█", "{text}");
        let widest = text.lines().filter(|line| line.contains('█'));
        assert!(widest.map(|line| line.chars().count()).max() <= Some(width));
    }
}
