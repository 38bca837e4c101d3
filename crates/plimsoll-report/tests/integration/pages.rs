//! The HTML pages in a real browser: of a run, a comparison, a search and a ladder, on phone and desktop, light, dark
//! and printed.
//!
//! Screenshots are left in `target/tmp/pages/` for inspection.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::browser;
use crate::records;
use crate::runs;

use std::fs;
use std::path::{Path, PathBuf};

use browser::{Browser, Viewport};
use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::crypto_speeds::CryptoSpeeds;
use plimsoll_model::runs::run::RunEnding;
use plimsoll_report::compare::compare;
use plimsoll_report::html::{self, RunView};
use runs::{Fixture, finished_in};

const PHONE: Viewport = Viewport {
    name: "phone",
    width: 390,
    dark: false,
    print: false,
};
const DESKTOP: Viewport = Viewport {
    name: "desk",
    width: 1440,
    dark: false,
    print: false,
};
const LOOKS: [Viewport; 4] = [
    PHONE,
    DESKTOP,
    Viewport {
        name: "dark",
        dark: true,
        ..DESKTOP
    },
    Viewport {
        name: "print",
        width: 800,
        print: true,
        ..DESKTOP
    },
];

fn sweep() -> LadderRecord {
    let mut record = records::sweep();
    record.limits = Some(CryptoSpeeds::default());
    record
}

fn pages(dir: &Path) -> Vec<(&'static str, String)> {
    let run =
        |fixture: Fixture, name: &str| finished_in(&dir.join(name), fixture, RunEnding::complete());
    let view = |fixture, name: &str| RunView::read(run(fixture, name)).unwrap();
    let side = |name: &str, slower: f64| -> Vec<_> {
        (0..4)
            .map(|i| {
                run(
                    Fixture::steady("steady").slower(slower + f64::from(i) * 0.003),
                    &format!("{name}{i}"),
                )
            })
            .collect()
    };
    let (a, b) = (side("a", 1.0), side("b", 0.85));
    let comparison = compare(&a, &b).unwrap();
    let views = |runs: Vec<_>| -> Vec<RunView> {
        runs.into_iter()
            .map(|r| RunView::read(r).unwrap())
            .collect()
    };
    vec![
        (
            "run",
            html::runs_page(&[view(Fixture::errors("errors"), "errors")]),
        ),
        (
            "cold",
            html::runs_page(&[view(Fixture::cold("cold"), "cold")]),
        ),
        (
            "streams",
            html::runs_page(&[view(Fixture::streams("streams"), "streams")]),
        ),
        (
            "sessions",
            html::runs_page(&[view(Fixture::sessions("sessions"), "sessions")]),
        ),
        (
            "runs",
            html::runs_page(&[
                view(Fixture::steady("steady"), "one"),
                view(Fixture::fleet("fleet"), "two"),
            ]),
        ),
        (
            "comparison",
            html::comparison_page(&comparison, &views(a), &views(b)),
        ),
        (
            "search",
            html::search_page(
                &records::search(),
                "[load]\nrate = \"100/s\"\n",
                Path::new("runs/search"),
            ),
        ),
        (
            "ladder",
            html::ladder_page(
                &records::ladder(),
                "[ladder]\ntls = [\"off\", \"server\"]\n",
                Path::new("runs/ladder"),
            ),
        ),
        (
            "sweep",
            html::ladder_page(
                &sweep(),
                "[ladder]\nsize = [\"1KiB\", \"100KiB\"]\n",
                Path::new("runs/sweep"),
            ),
        ),
    ]
}

/// Finds labels of charts that start left of the page, or of the box in which a chart scrolls: "800 ms" would read "00
/// ms".
const CUT_LABELS_SCRIPT: &str = "[...document.querySelectorAll('svg.plot text')]
    .filter(text => text.getBoundingClientRect().width > 0)
    .filter(text => text.getBoundingClientRect().left
        < (text.closest('.scroll') ?? document.body).getBoundingClientRect().left - 0.5)
    .map(text => text.textContent).join(', ')";

#[test]
fn pages_render_without_external_requests() {
    let dir = tempfile::tempdir().unwrap();
    let pictures = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pages");
    fs::create_dir_all(&pictures).unwrap();
    let mut browser = Browser::start();
    for (name, page) in pages(dir.path()) {
        let file = dir.path().join(format!("{name}.html"));
        fs::write(&file, page).unwrap();
        for look in LOOKS {
            let seen = browser.open(&file, look);
            let at = format!("{name}, {}", look.name);
            assert_eq!(seen.problems, [""; 0], "{at}");
            // Nothing overflows horizontally: wide tables scroll in their own boxes.
            assert_eq!(seen.content_width, u64::from(look.width), "{at}");
            assert!(seen.content_height > 600, "{at}");
            let pictures_shown = browser.number("[...document.querySelectorAll('svg.plot')].filter(s => s.getBoundingClientRect().width > 200).length");
            assert!(pictures_shown >= 1.0, "{at}: no picture is shown");
            assert_eq!(
                browser.text(CUT_LABELS_SCRIPT),
                "",
                "{at}: words that are cut at a side"
            );
            fs::write(
                pictures.join(format!("{name}-{}.png", look.name)),
                seen.picture,
            )
            .unwrap();
        }
    }
}

#[test]
fn page_requests_and_errors_detected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.html");
    let page = "<!DOCTYPE html><body style=\"width:3000px\"><img src=\"http://127.0.0.1:9/x.png\"><script>console.error('no'); nothing()</script>";
    fs::write(&file, page).unwrap();
    let seen = Browser::start().open(&file, PHONE);
    let all = seen.problems.join("\n");
    for wanted in [
        "asked for http://127.0.0.1:9/x.png",
        "console: ",
        "exception: ",
    ] {
        assert!(all.contains(wanted), "{wanted} in {all}");
    }
    assert!(seen.content_width > 390);
}

#[test]
fn page_policy_blocks_external_requests() {
    let dir = tempfile::tempdir().unwrap();
    let (_, page) = pages(dir.path()).swap_remove(0);
    let file = dir.path().join("asking.html");
    fs::write(
        &file,
        page.replace("</main>", "<img src=\"http://127.0.0.1:9/x.png\"></main>"),
    )
    .unwrap();
    let seen = Browser::start().open(&file, DESKTOP);
    assert!(
        seen.problems
            .iter()
            .any(|p| p.contains("Content Security Policy")),
        "{:?}",
        seen.problems
    );
}
