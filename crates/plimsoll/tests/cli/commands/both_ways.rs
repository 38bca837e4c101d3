//! A load given by flags equals the load of the plan saved from these flags.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::built;
use super::support::Place;

/// Loads of every kind of call; nothing is sent.
const COMMAND_LINES: &[&str] = &[
    "grpc grpc://localhost:1 -m score.ScoreService/GetScore --rate 9/s -z 1s",
    "grpc grpc://localhost:1 -m score.ScoreService/GetScore --clients 8 -z 1s",
    "grpc grpc://localhost:1 -m score.ScoreService/GetScore --fleet 8 --calls 80",
    "grpc grpc://localhost:1 -m score.ScoreService/GetScore --cold --rate 9/s -z 1s",
    "bolt sofa://localhost:1 -d [\"hello\"] --clients 8 -z 1s",
    "hold tcp://localhost:1 --connections 9 -z 1s",
    "plugin plugin://localhost:1 --codec c.so -d hello --clients 8 -z 1s",
    "fetch http://localhost:1/file -z 1s",
    "fetch http://localhost:1/file --clients 8 -z 1s",
    "fetch http://localhost:1/file --clients 8 --per-connection 5 -z 1s",
    "fetch https://localhost:1/file --mode resumed --insecure -z 1s",
    "http http://localhost:1 --rate 9/s -z 1s",
    "http http://localhost:1 --clients 8 -z 1s",
    "http http://localhost:1 --clients 8 --connections 2 -z 1s",
    "http http://localhost:1 --clients 8 --cold -z 1s",
    "http http://localhost:1 --clients 8 --http-version 2 -z 1s",
    "http https://localhost:1 --clients 8 --http-version auto --insecure -z 1s",
    "llm http://localhost:1 --model m --rate 9/s -z 1s",
    "llm http://localhost:1 --model m --clients 8 -z 1s",
    "llm http://localhost:1 --model m --clients 8 --turns 3",
    "llm http://localhost:1 --model m --rate 9/s --turns 3 -z 1s",
    "ws ws://localhost:1 --data hello --rate 9/s -z 1s",
    "ws ws://localhost:1 --data hello --clients 8 -z 1s",
    "session session://localhost:1 --clients 8",
];

/// Returns the plan of a dry run, which saves it as `saved.toml`, and the plan that the saved file
/// resolves to.
fn shown(place: &Place, words: &[&str]) -> [String; 2] {
    let dry = ["--dry-run", "--save-plan", "saved.toml", "-q"];
    let first = place.expect(0, &[words, &dry].concat());
    let again = place.expect(0, &["run", "saved.toml", "--dry-run", "-q"]);
    [first, again]
}

#[test]
fn saved_plans_resolve_like_flags() {
    let place = Place::new();
    fs::rename(built::build_c_example(&place.path(".")), place.path("c.so")).unwrap();
    for line in COMMAND_LINES {
        let words: Vec<&str> = line.split(' ').collect();
        let [flags, plan] = shown(&place, &words);
        assert!(!flags.is_empty(), "{line}");
        assert_eq!(flags, plan, "{line}");
    }
}

#[test]
fn bundled_plans_resolve_same_after_saving() {
    let place = Place::new();
    place.certificates();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for folder in ["crates", "plans"] {
        std::os::unix::fs::symlink(root.join(folder), place.path(folder)).unwrap();
    }
    let mut seen = 0;
    for entry in fs::read_dir(root.join("plans")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".toml") || name.starts_with("plugin") {
            continue;
        }
        let plan = format!("plans/{name}");
        // A ladder is several loads, so it is not saved as one.
        if place.read(&plan).contains("[ladder") {
            continue;
        }
        let [typed, saved] = shown(&place, &["run", &plan]);
        assert_eq!(typed, saved, "{plan}");
        seen += 1;
    }
    assert!(seen >= 15, "{seen}");
}

/// An option as a flag and as a plan key: the command with its target, the flag, and the plan's
/// lines in its section and in `[load]`.
const OPTIONS: &[(&str, &str, &str, &str)] = &[
    (
        "http http://localhost:1/",
        "--no-retry",
        "",
        "no_retry = true",
    ),
    (
        "grpc grpc://localhost:1 -m score.ScoreService/GetScore",
        "--no-retry",
        "",
        "no_retry = true",
    ),
    (
        "http http://localhost:1/",
        "--max-head 1MiB",
        "max_head = \"1MiB\"",
        "",
    ),
    (
        "grpc grpc://localhost:1 -m score.ScoreService/GetScore",
        "--max-head 1MiB",
        "max_head = \"1MiB\"",
        "",
    ),
    (
        "ws ws://localhost:1/ -d hello",
        "--welcome contains:hello",
        "websocket = { welcome = \"contains:hello\" }",
        "",
    ),
    (
        "ws ws://localhost:1/ -d hello",
        "--stream-duration 500ms",
        "websocket = {}\nstream_duration = \"500ms\"",
        "",
    ),
    (
        "http http://localhost:1/ --stream sse",
        "--stream-duration 500ms",
        "stream_duration = \"500ms\"",
        "",
    ),
    (
        "http http://localhost:1/ -H X-Own:1",
        "--typed-names",
        "typed_names = true",
        "",
    ),
    (
        "grpc grpc://localhost:1 -m grpc.examples.echo.Echo/ServerStreamingEcho",
        "--stream-duration 500ms",
        "stream_duration = \"500ms\"",
        "",
    ),
    (
        "fetch http://localhost:1",
        "--handshake-only",
        "handshake_only = true",
        "",
    ),
    (
        "hold tcp://localhost:1",
        "--message 9B",
        "message = \"9B\"",
        "",
    ),
];

#[test]
fn options_resolve_same_by_flag_and_plan() {
    let place = Place::new();
    for &(command, flag, key, of_load) in OPTIONS {
        let words: Vec<&str> = command.split(' ').collect();
        let (name, target) = (words[0], words[1]);
        let rate = match name {
            "hold" => &["-z", "1s"][..],
            _ => &["--rate", "9/s", "-z", "1s"],
        };
        let section = match name {
            "ws" => "http",
            name => name,
        };
        let given: String = words[2..]
            .chunks(2)
            .map(|pair| match pair {
                ["-m", method] => format!("method = {method:?}\n"),
                ["-d", body] => format!("body = {body:?}\n"),
                ["-H", field] => {
                    let (name, value) = field.split_once(':').unwrap();
                    format!("headers = {{ {name} = {value:?} }}\n")
                }
                ["--stream", kind] => format!("stream = {kind:?}\n"),
                other => panic!("{other:?}"),
            })
            .collect();
        let load = match name {
            "hold" => "duration = \"1s\"",
            _ => "rate = \"9/s\"\nduration = \"1s\"",
        };
        let dry = ["--dry-run", "-q"];
        let without = place.expect(0, &[&words, rate, &dry].concat());
        let typed: Vec<&str> = flag.split(' ').collect();
        let by_flag = place.expect(0, &[&words, &typed, rate, &dry].concat());
        assert_ne!(without, by_flag, "{command} {flag}");
        let plan = format!(
            "target = {target:?}\n[load]\n{load}\n{of_load}\n[call.{section}]\n{given}{key}\n"
        );
        fs::write(place.path("typed.toml"), &plan).unwrap();
        let by_plan = place.expect(0, &["run", "typed.toml", "--dry-run", "-q"]);
        assert_eq!(by_flag, by_plan, "{command} {flag}: {plan}");
    }
}

/// Compares a load by flags, by the plan saved from them, and by a plan with only the number of
/// clients.
#[test]
fn clients_imply_connections_in_flags_and_plans() {
    const CLIENTS: u64 = 4;
    let place = Place::new();
    let http = place.serve(&["http"]);
    let llm = place.serve(&["llm", "--token-delay", "1ms"]);
    let files = place.serve(&["files"]);
    let [http, llm, files] = [http, llm, files].map(|server| (server.address(), server));
    let target = |at: &str, scheme: &str| format!("{scheme}://{at}");
    for (words, target, call) in [
        (
            vec!["http".to_owned(), target(&http.0, "http")],
            target(&http.0, "http"),
            "http = {}",
        ),
        (
            vec![
                "llm".to_owned(),
                target(&llm.0, "http"),
                "--model".to_owned(),
                "m".to_owned(),
            ],
            target(&llm.0, "http") + "/v1/chat/completions",
            "http = { method = \"POST\", stream = \"openai\", body = '{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}' }",
        ),
        (
            vec!["fetch".to_owned(), target(&files.0, "http") + "/bytes/1KiB"],
            target(&files.0, "http") + "/bytes/1KiB",
            "fetch = {}",
        ),
    ] {
        let plan = format!(
            "target = {target:?}\ncall.{call}\nload.clients = {CLIENTS}\nload.calls = 40\n"
        );
        fs::write(place.path("typed.toml"), plan).unwrap();
        let mut flags: Vec<&str> = words.iter().map(String::as_str).collect();
        flags.extend([
            "--clients",
            "4",
            "--calls",
            "40",
            "--save-plan",
            "saved.toml",
        ]);
        for (out, command) in [
            ("flags", &flags[..]),
            ("saved", &["run", "saved.toml"]),
            ("typed", &["run", "typed.toml"]),
        ] {
            let _ = fs::remove_dir_all(place.path(out));
            place.expect(0, &[command, &["-q", "--out", out]].concat());
            let run = place.run_json(out);
            let figures = |run: &Value| {
                let total = &run["total"];
                [
                    &run["connections"],
                    &total["ok"],
                    &total["connections_full"],
                ]
                .map(|n| n.as_u64().unwrap_or(0))
            };
            assert_eq!(figures(&run), [CLIENTS, 40, CLIENTS], "{command:?}: {run}");
        }
    }
}

#[test]
fn client_count_alone_determines_connections() {
    let place = Place::new();
    for (call, connections) in [
        ("http = {}", 4),
        ("http = { version = \"auto\" }", 4),
        ("http = { version = \"2\" }", 1),
        ("http = { body = \"hello\", websocket = {} }", 4),
        ("fetch = {}", 4),
    ] {
        let plan = format!(
            "target = \"http://localhost:1/\"\ncall.{call}\nload.clients = 4\nload.calls = 40\n"
        );
        fs::write(place.path("typed.toml"), plan).unwrap();
        let shown = place.expect(0, &["run", "typed.toml", "--dry-run", "-q"]);
        let line = format!("\nconnections = {connections}\n");
        assert!(shown.contains(&line), "{call}: {shown}");
    }
}
