//! `plimsoll mcp` against the official Python SDK of the Model Context Protocol (tests/peers/mcp_client.py).

use crate::support;

use std::fs;

use serde_json::{Value, json};
use support::peers::{python, run_successfully};
use support::{Place, text};

/// Starts `plimsoll mcp` with `flags` under the client; returns the server's greeting and an answer for each request.
#[track_caller]
fn ask(place: &Place, flags: &[&str], requests: &Value) -> (Value, Vec<Value>) {
    let program = std::env::var("PROGRAM_UNDER_TEST");
    let program = program.unwrap_or_else(|_| env!("CARGO_BIN_EXE_plimsoll").to_owned());
    let mut command = python(place, "mcp_client.py");
    command
        .arg(requests.to_string())
        .args([&program, "mcp"])
        .args(flags);
    let printed = text(&run_successfully(&mut command).stdout);
    let mut answers = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")));
    let greeting = answers.next().expect("the server's greeting");
    (greeting, answers.collect())
}

/// Returns what a successful call returned.
#[track_caller]
fn structured(answer: &Value) -> &Value {
    assert_eq!(answer["answer"]["isError"], false, "{answer}");
    &answer["answer"]["structuredContent"]
}

/// Returns the message of a call that failed.
#[track_caller]
fn refusal(answer: &Value) -> &str {
    assert_eq!(answer["answer"]["isError"], true, "{answer}");
    answer["answer"]["content"][0]["text"]
        .as_str()
        .expect("text")
}

fn plan(target: &str, load: &str) -> String {
    format!(
        "name = \"small\"\ntarget = \"{target}\"\n[call.http]\nmethod = \"GET\"\n[load]\n{load}\n\
         [objective]\n\"p99\" = \"< 10s\"\n\"errors\" = \"< 1%\"\n"
    )
}

fn run_plan(text: &str) -> Value {
    json!({ "call": "run_plan", "arguments": { "plan": { "text": text } } })
}

#[test]
fn listed_tools_have_schemas_and_hints() {
    let place = Place::new();
    let (greeting, answers) = ask(&place, &[], &json!([{ "list": true }]));
    assert_eq!(greeting["serverInfo"]["name"], "plimsoll");
    let tools = answers[0]["tools"].as_array().expect("a list");
    let names: Vec<&str> = tools
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    assert_eq!(
        names,
        [
            "check_plan",
            "run_plan",
            "find_load_line",
            "run_ladder",
            "compare_runs",
            "read_run",
            "list_runs",
            "explain_verdict"
        ]
    );
    let run = &tools[1];
    assert_eq!(run["annotations"]["readOnlyHint"], false);
    assert_eq!(run["inputSchema"]["type"], "object");
    assert!(
        run["inputSchema"]["properties"]["plan"].is_object(),
        "{run}"
    );
    assert_eq!(tools[5]["annotations"]["readOnlyHint"], true);
}

#[test]
fn run_has_verdict_and_intervals_and_can_be_read() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let target = format!("http://{}/", server.address());
    let text = plan(&target, "rate = \"100/s\"\nduration = \"2s\"");
    let (_, answers) = ask(
        &place,
        &[],
        &json!([
            { "call": "check_plan", "arguments": { "plan": { "text": text } } },
            run_plan(&text),
            { "call": "list_runs" },
            { "call": "read_run", "arguments": { "run": "LATEST" } },
            { "call": "explain_verdict", "arguments": { "run": "LATEST" } },
            { "call": "compare_runs", "arguments": { "baseline": ["LATEST"], "candidate": ["LATEST"] } },
        ]),
    );
    let shown = structured(&answers[0])["would_run"].as_str().expect("TOML");
    assert!(shown.contains("rate = \"100/s\""), "{shown}");

    let run = structured(&answers[1]);
    let verdict = run["verdict"].as_str().expect("a verdict");
    assert!(["pass", "invalid"].contains(&verdict), "{run}");
    let objectives = run["objectives"].as_array().expect("a list");
    assert_eq!(objectives.len(), 2, "{run}");
    assert!(
        objectives.iter().all(|o| o.get("verdict").is_some()),
        "{run}"
    );
    assert!(
        run["answer"]
            .as_array()
            .is_some_and(|lines| !lines.is_empty())
    );
    assert!(
        run["total"]["ok"].as_u64().is_some_and(|ok| ok > 0),
        "{run}"
    );
    let directory = run["directory"].as_str().expect("a path");
    assert!(fs::exists(format!("{directory}/run.json")).expect("readable"));
    // Progress was reported while the run went on.
    let reported = answers[1]["reported"].as_array().expect("a list");
    assert!(!reported.is_empty(), "{}", answers[1]);

    let listed = structured(&answers[2]);
    assert_eq!(listed["found"], 1);
    assert_eq!(listed["runs"][0]["directory"], directory);
    assert_eq!(listed["runs"][0]["verdict"], verdict);

    // The figures are those of `plimsoll report --json`.
    let read = structured(&answers[3]);
    let reported = place.expect_json(0, &["report", directory, "--json"]);
    assert_eq!(read, &reported);

    let explained = structured(&answers[4]);
    assert_eq!(explained["verdict"], verdict);
    let tables = place.expect(0, &["report", directory]);
    let report = explained["report"].as_str().expect("text");
    assert_eq!(report.trim_end(), tables.trim_end());

    let compared = structured(&answers[5]);
    assert_eq!(compared["enough_runs"], false, "{compared}");
    assert_eq!(compared["a"]["directory"], directory, "{compared}");
}

#[test]
fn limits_refuse_loads_and_name_the_flag() {
    let place = Place::new();
    let small = "rate = \"10/s\"\nduration = \"1s\"";
    let loopback = "http://127.0.0.1:9/";
    let command = plan(loopback, small).replace(
        "method = \"GET\"",
        "method = \"GET\"\nheaders = { token = { command = \"touch ran\" } }",
    );
    let variable = plan(loopback, small).replace(
        "method = \"GET\"",
        "method = \"GET\"\nheaders = { token = { env = \"HOME\" } }",
    );
    let cases = [
        (plan("http://192.0.2.1:80/", small), "--allow 192.0.2.1:80"),
        (plan("http://example.com/", small), "--allow example.com:80"),
        (
            plan(loopback, "rate = \"20000/s\"\nduration = \"1s\""),
            "--max-rate",
        ),
        (
            plan(loopback, "rate = \"10/s\"\nduration = \"1h\""),
            "--max-duration",
        ),
        (
            plan(loopback, &format!("{small}\nconnections = 201")),
            "--max-connections",
        ),
        (
            plan(loopback, "clients = 2\nduration = \"1s\""),
            "load.think",
        ),
        (
            plan(
                loopback,
                &format!("{small}\nresolve = [\"127.0.0.1:9:192.0.2.1\"]"),
            ),
            "--allow 192.0.2.1:9",
        ),
        (
            plan(
                loopback,
                &format!("{small}\nproxy = \"http://192.0.2.1:3128\""),
            ),
            "--allow 192.0.2.1:3128",
        ),
        (command, "--allow-plan-code"),
        (variable, "--allow-env HOME"),
        (
            plan(loopback, small) + "[rows]\nfile = \"/etc/passwd\"\n",
            "is not in the folder",
        ),
    ];
    let requests: Vec<Value> = cases.iter().map(|(text, _)| run_plan(text)).collect();
    let (_, answers) = ask(&place, &[], &json!(requests));
    assert_eq!(answers.len(), cases.len());
    for ((plan, word), answer) in cases.iter().zip(&answers) {
        let refusal = refusal(answer);
        let refusal = refusal.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(refusal.contains(word), "{plan}\n{refusal}");
    }
    assert!(!place.path("ran").exists(), "the plan's command was run");
    assert_eq!(
        fs::read_dir(place.path("runs"))
            .expect("the folder")
            .count(),
        0
    );
}

#[test]
fn read_only_server_offers_no_load() {
    let place = Place::new();
    let text = plan("http://127.0.0.1:9/", "rate = \"10/s\"\nduration = \"1s\"");
    let (_, answers) = ask(
        &place,
        &["--read-only"],
        &json!([
            { "list": true },
            run_plan(&text),
            { "call": "check_plan", "arguments": { "plan": { "text": text } } },
            { "call": "list_runs" },
        ]),
    );
    let tools = answers[0]["tools"].as_array().expect("a list");
    let offered = |name: &str| tools.iter().any(|tool| tool["name"] == name);
    assert!(offered("check_plan") && offered("read_run") && !offered("run_plan"));
    assert!(
        refusal(&answers[1]).contains("--read-only"),
        "{}",
        answers[1]
    );
    assert!(structured(&answers[2])["would_run"].is_string());
    assert_eq!(structured(&answers[3])["found"], 0);
}

#[test]
fn cancelled_call_ends_its_load() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let target = format!("http://{}/", server.address());
    let text = plan(&target, "rate = \"10/s\"\nduration = \"50s\"");
    let mut cancelled = run_plan(&text);
    cancelled["cancel"] = json!(true);
    // The second load waits for the first one's end.
    let short = plan(&target, "rate = \"10/s\"\nduration = \"1s\"");
    let (_, answers) = ask(
        &place,
        &[],
        &json!([cancelled, run_plan(&short), { "call": "list_runs" }]),
    );
    assert_eq!(answers[0]["cancelled"], true, "{}", answers[0]);
    assert!(
        structured(&answers[1])["total"]["ok"]
            .as_u64()
            .is_some_and(|ok| ok > 0)
    );
    let listed = structured(&answers[2])["runs"]
        .as_array()
        .expect("a list")
        .clone();
    let states: Vec<&Value> = listed.iter().map(|run| &run["state"]).collect();
    assert_eq!(states, ["complete", "aborted"], "{listed:?}");
}

#[test]
fn wrong_arguments_are_named() {
    let place = Place::new();
    let text = plan("http://127.0.0.1:9/", "rate = \"10/s\"\nduration = \"1s\"");
    let (_, answers) = ask(
        &place,
        &[],
        &json!([
            { "call": "run_plan", "arguments": { "plan": { "text": text }, "overrides": { "rte": "1/s" } } },
            { "call": "run_plan", "arguments": { "plan": {} } },
            { "call": "run_plan", "arguments": { "plan": { "path": "/etc/passwd" } } },
            { "call": "run_plan", "arguments": { "plan": { "text": text }, "overrides": { "rate": "fast" } } },
            { "call": "read_run", "arguments": { "run": "../elsewhere" } },
            { "call": "find_load_line", "arguments": { "plan": { "text": text }, "most": "20000/s" } },
        ]),
    );
    for (answer, word) in answers.iter().zip([
        "`rte`",
        "neither text nor path",
        "not in the folder",
        "fast",
        "there is no run",
        "find.most",
    ]) {
        assert!(refusal(answer).contains(word), "{word}: {answer}");
    }
}
