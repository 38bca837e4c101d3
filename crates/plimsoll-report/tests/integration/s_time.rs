//! Captured output of `openssl s_time` of three versions (`s_time/README.md`): every output is imported, or the
//! missing part is reported.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_model::runs::run::Timestamp;
use plimsoll_report::exports::s_time::{self, STimeSection, TextError};

fn read_capture(name: &str) -> String {
    fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/s_time")
}

/// Resumed or not, connections, resumed ones among these, bytes, user time in ms, real time in s.
type Row = (bool, u64, u64, u64, u64, u64);

/// Copied from the files by hand, not computed by the code under test.
const FIGURES: &[(&str, &[Row])] = &[
    (
        "1.1.1w-both-interrupted",
        &[(false, 1272, 0, 1429728, 410, 2)],
    ),
    (
        "1.1.1w-both-www",
        &[
            (false, 1159, 0, 1274900, 430, 2),
            (true, 1781, 1781, 1959100, 340, 2),
        ],
    ),
    ("1.1.1w-cipher-www", &[(false, 835, 0, 938540, 280, 2)]),
    ("1.1.1w-large-www", &[(false, 451, 0, 451046453, 370, 2)]),
    ("1.1.1w-new-www", &[(false, 1073, 0, 1206052, 390, 2)]),
    ("1.1.1w-new", &[(false, 1037, 0, 0, 350, 2)]),
    ("1.1.1w-reuse-www", &[(true, 2249, 2249, 2527876, 410, 2)]),
    ("1.1.1w-reuse", &[(true, 1222, 0, 0, 390, 2)]),
    (
        "3.0.19-both-interrupted",
        &[(false, 207, 0, 232668, 170, 2)],
    ),
    (
        "3.0.19-both-www",
        &[
            (false, 1392, 0, 1531200, 960, 2),
            (true, 2968, 2968, 3264800, 830, 2),
        ],
    ),
    ("3.0.19-cipher-www", &[(false, 495, 0, 556380, 440, 2)]),
    ("3.0.19-large-www", &[(false, 182, 0, 182018746, 200, 2)]),
    ("3.0.19-new-www", &[(false, 560, 0, 629440, 450, 2)]),
    ("3.0.19-new", &[(false, 525, 0, 0, 400, 2)]),
    ("3.0.19-reuse-www", &[(true, 1740, 1740, 1955760, 520, 2)]),
    ("3.0.19-reuse", &[(true, 488, 0, 0, 390, 2)]),
    ("4.0.3-both-interrupted", &[(false, 594, 0, 667656, 360, 2)]),
    (
        "4.0.3-both-www",
        &[
            (false, 1463, 0, 1609300, 800, 2),
            (true, 1037, 1037, 1140700, 400, 2),
        ],
    ),
    ("4.0.3-cipher-www", &[(false, 1222, 0, 1373528, 670, 2)]),
    ("4.0.3-large-www", &[(false, 472, 0, 472048616, 340, 2)]),
    ("4.0.3-new-www", &[(false, 1009, 0, 1134116, 670, 2)]),
    ("4.0.3-new", &[(false, 1137, 0, 0, 650, 2)]),
    ("4.0.3-reuse-www", &[(true, 2153, 2153, 2419972, 780, 2)]),
    ("4.0.3-reuse", &[(true, 708, 0, 0, 430, 2)]),
];

/// Stopped, or failed, before there were any figures.
const WITHOUT_FIGURES: [&str; 3] = ["interrupted", "refused", "server-died"];

#[test]
fn every_openssl_version_parses() {
    for (name, rows) in FIGURES {
        let text = read_capture(name);
        assert!(s_time::is_s_time_output(&text), "{name}");
        let expected: Vec<STimeSection> = rows
            .iter()
            .map(
                |&(resumed, connections, of_them, bytes, user, real)| STimeSection {
                    resumed,
                    connections,
                    resumed_connections: (connections > 0).then_some(of_them),
                    bytes,
                    user: Duration::from_millis(user),
                    real: Duration::from_secs(real),
                },
            )
            .collect();
        assert_eq!(s_time::read(&text).unwrap(), expected, "{name}");
    }
}

#[test]
fn captures_without_figures_are_rejected() {
    let mut seen = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "txt") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let kind = name.split_once('-').unwrap().1;
        let has_figures = FIGURES.iter().any(|(known, _)| *known == name);
        assert_ne!(has_figures, WITHOUT_FIGURES.contains(&kind), "{name}");
        if !has_figures {
            let text = read_capture(name);
            assert!(s_time::is_s_time_output(&text), "{name}");
            assert_eq!(s_time::read(&text), Err(TextError::NoFigures), "{name}");
        }
        seen += 1;
    }
    assert_eq!(seen, FIGURES.len() + 3 * WITHOUT_FIGURES.len());
}

#[test]
fn empty_second_section_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    for version in ["1.1.1w", "3.0.19", "4.0.3"] {
        let text = read_capture(&format!("{version}-both-interrupted"));
        let dir = dir.path().join(version);
        let runs =
            s_time::import(Path::new("x.txt"), &text, &dir, "0", Timestamp::UNIX_EPOCH).unwrap();
        let [run] = &runs[..] else {
            panic!("{version}: {}", runs.len());
        };
        assert!(
            run.header.notes[0].contains("stopped before its figures of resumed sessions"),
            "{version}"
        );
    }
}
