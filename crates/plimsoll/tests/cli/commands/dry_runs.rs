//! JSON output of dry runs, for every command that has them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use serde_json::Value;

use super::built;
use super::support::Place;

/// One command line for each command and for each kind of plan with a display of its own, and the
/// number of plans that it shows. Nothing is sent.
const COMMAND_LINES: &[(&str, usize)] = &[
    ("run plan.toml", 1),
    ("run plan.toml lanes.toml", 2),
    ("run lanes.toml", 1),
    ("find plan.toml --objective p99<10ms", 1),
    ("ladder ladder.toml", 1),
    ("ladder ladder.toml --slice 1s", 1),
    (
        "ladder a=grpc://localhost:1 b=grpc://localhost:2 -m score.ScoreService/GetScore --rate 9/s",
        1,
    ),
    (
        "compare --live a=grpc://localhost:1 b=grpc://localhost:2 -m score.ScoreService/GetScore --rate 9/s",
        1,
    ),
    ("sweep sweep.toml", 1),
    (
        "track --old a --new b grpc://{address} -m score.ScoreService/GetScore --rate 9/s",
        1,
    ),
    (
        "grpc grpc://localhost:1 -m score.ScoreService/GetScore --rate 9/s -z 1s",
        1,
    ),
    ("bolt sofa://localhost:1 -d [\"hello\"] --rate 9/s -z 1s", 1),
    ("hold tcp://localhost:1 --connections 9 -z 1s", 1),
    (
        "plugin plugin://localhost:1 --codec c.so -d hello --rate 9/s -z 1s",
        1,
    ),
    ("fetch http://localhost:1/file -z 1s", 1),
    (
        "fetch https://localhost:1/file -z 1s --insecure --mode both",
        1,
    ),
    ("http http://localhost:1 --rate 9/s -z 1s", 1),
    ("llm http://localhost:1 --model m --clients 2 -z 1s", 1),
    ("ws ws://localhost:1 --data hello --rate 9/s -z 1s", 1),
    ("session session://localhost:1 --clients 2", 1),
];

/// Returns the commands whose help lists the flag.
fn commands_with(place: &Place, flag: &str) -> Vec<String> {
    let help = place.expect(0, &["--help"]);
    let listed = help.split("Commands:\n").nth(1).unwrap();
    let listed = listed.split("\n\n").next().unwrap();
    let names = listed.lines().filter_map(|line| {
        let line = line.strip_prefix("  ")?;
        (!line.starts_with(' ')).then(|| line.split(' ').next().unwrap().to_owned())
    });
    let is_flag = |line: &str| line.trim_start().starts_with('-') && line.contains(flag);
    let has =
        |name: &String| name != "help" && place.expect(0, &[name, "--help"]).lines().any(is_flag);
    names.filter(has).collect()
}

#[test]
fn dry_run_prints_json_on_request() {
    let place = Place::new();
    fs::rename(built::build_c_example(&place.path(".")), place.path("c.so")).unwrap();
    let plan = "name = \"one\"\ntarget = \"grpc://localhost:1\"\n[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\n\
                metadata = { authorization = \"let me in\" }\n[load]\nrate = \"9/s\"\n";
    let with =
        |name: &str, more: &str| fs::write(place.path(name), plan.to_owned() + more).unwrap();
    with("plan.toml", "duration = \"1s\"\n");
    with(
        "lanes.toml",
        "duration = \"1s\"\n[lanes.a]\nweight = 7\n[lanes.b]\nload.connections = 3\n",
    );
    with("ladder.toml", "[ladder]\n\"load.connections\" = [1, 2]\n");
    let links = "target = \"https://localhost:1\"\ntls.insecure = true\ncall.fetch = {}\nload.clients = 2\n\
                 [ladder]\nsize = [\"1KiB\", \"1MiB\"]\n";
    fs::write(place.path("sweep.toml"), links).unwrap();
    for (line, plans) in COMMAND_LINES {
        let words: Vec<&str> = line
            .split(' ')
            .chain(["--dry-run", "--json", "-q"])
            .collect();
        let printed = place.expect(0, &words);
        let shown: Value = serde_json::from_str(&printed)
            .unwrap_or_else(|problem| panic!("{line}: {problem}: {printed}"));
        let all = match &shown {
            Value::Array(all) => &all[..],
            one => std::slice::from_ref(one),
        };
        assert_eq!(all.len(), *plans, "{line}: {printed}");
        for one in all {
            assert!(one["call"].is_object(), "{line}: {printed}");
        }
        assert!(!printed.contains("let me in"), "{line}: {printed}");
        // Only one of the two can be written to stdout.
        if line.starts_with("run plan.toml") || line.starts_with("fetch") {
            let both = [&words[..], &["--junit", "-"]].concat();
            place.expect(2, &both);
        }
    }
    for command in commands_with(&place, "--dry-run") {
        let is_there = COMMAND_LINES
            .iter()
            .any(|(line, _)| line.split(' ').next() == Some(&command));
        assert!(is_there, "{command} has --dry-run: add a line of it here");
    }
    let found = commands_with(&place, "--dry-run").len();
    assert!(found >= 13, "{found} commands have --dry-run");
}
