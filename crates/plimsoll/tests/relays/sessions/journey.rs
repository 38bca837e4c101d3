//! The token-streaming stack as a journey of steps over HTTP and WebSocket.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Stack;
use crate::support::Place;

const SESSIONS: u64 = 20;
/// The queries of a session in the plan.
const QUERIES: u64 = 10;

#[test]
fn journey_delivers_tokens_of_sessions() {
    let place = Place::new();
    let stack = Stack::start(&place);
    let sessions = SESSIONS.to_string();
    let (api, sockets) = (
        format!("session://{}", stack.api),
        format!("ws://{}", stack.gateway),
    );
    let (queries, calls) = (QUERIES.to_string(), (SESSIONS * QUERIES).to_string());
    let to = [
        "session",
        &api,
        "--socket",
        &sockets,
        "--queries",
        &queries,
        "--clients",
        "4",
        "--calls",
        &calls,
        "-q",
        "--out",
        "session",
    ];
    place.expect(0, &to);
    let session = place.run_json("session");
    assert_eq!(session["total"]["ok"], SESSIONS * QUERIES, "{session}");
    let tokens_of = |run: &Value| run["total"]["measures"]["counts"]["tokens_received"].as_u64();
    let tokens = tokens_of(&session);

    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let plan = fs::read_to_string(plans.join("session-journey.toml")).expect("a plan");
    let plan = plan.replace("ws://localhost:4040", &sockets);
    fs::write(place.path("journey.toml"), plan).expect("a writable folder");
    let target = format!("http://{}", stack.api);
    let run = [
        "run",
        "journey.toml",
        "--target",
        &target,
        "--out",
        "journey",
    ];
    let load = ["--clients", "4", "--calls", &sessions, "-q"];
    let code = place.run(&[&run[..], &load].concat()).status.code();
    // Objectives of few calls may be inconclusive.
    assert!(matches!(code, Some(0 | 90)), "{code:?}");
    let journey = place.run_json("journey");
    let steps = (4 + 2 * QUERIES) * SESSIONS;
    assert_eq!(journey["total"]["ok"], steps, "{journey}");
    assert_eq!(tokens_of(&journey), tokens, "{session}\n{journey}");
    let times = &journey["total"]["measures"]["times"];
    // Tokens that are read at once have no times between them.
    let timed = times["time_per_token"]["count"].as_u64();
    assert!(
        timed > Some(0) && timed <= Some(SESSIONS * QUERIES),
        "{times}"
    );
    // Each query ends with a `done`, which is a message, too.
    let received = journey["total"]["messages"]["received"].as_u64();
    assert_eq!(
        received,
        tokens.map(|tokens| tokens + SESSIONS * QUERIES),
        "{session}\n{journey}"
    );
}

/// A journey of one query to a server at `ADDRESS` that is API and socket.
const QUERY: &str = r#"
target = "http://ADDRESS"
[[steps]]
name = "create"
method = "POST"
path = "/session/create"
take = { session = "/session_id", token = "/token" }
[[steps]]
name = "open"
target = "ws://ADDRESS"
path = "/agent/ws/{{session}}"
headers = { authorization = "Bearer {{token}}" }
[[steps]]
name = "run"
method = "POST"
path = "/session/{{session}}/run"
body = '{"query": "?"}'
take = { tokens = "/tokens" }
[[steps]]
name = "read"
target = "ws://ADDRESS"
tokens = "{{tokens}}"
[load]
clients = 1
calls = 2
deadline = "60s"
"#;

#[test]
fn journeys_account_for_tokens_as_sessions_do() {
    let place = Place::new();
    for (behaviour, code, reported) in [
        ("ws-drip", "OK", "4 out"),
        ("ws-token-gap", "OK", "4 out"),
        ("ws-token-missing", "TOKENS_LOST", "2 missing"),
        ("ws-token-twice", "TOKENS_LOST", "2 received twice"),
        ("ws-token-order", "TOKENS_LOST", "2 out of order"),
        ("ws-run-error", "RUN_FAILED", ""),
        ("ws-no-json", "BAD_ANSWER", ""),
    ] {
        let server = place.serve(&["hostile", behaviour]);
        fs::write(
            place.path("query.toml"),
            QUERY.replace("ADDRESS", &server.address()),
        )
        .expect("a writable folder");
        place.expect(0, &["run", "query.toml", "-q", "--out", behaviour]);
        let api = format!("session://{}", server.address());
        let load = [
            "--clients",
            "2",
            "--queries",
            "1",
            "--reconnects",
            "0",
            "--deadline",
            "60s",
            "--out",
            "session",
        ];
        if behaviour != "ws-no-json" {
            // Sessions wait for further messages until the deadline.
            place.run(&[&["session", &api, "-q"][..], &load].concat());
            let session = place.run_json("session");
            let codes = codes(&session);
            assert_eq!(codes, codes_of_two(code), "{behaviour}: {session}");
            fs::remove_dir_all(place.path("session")).expect("a run");
        }
        let journey = place.run_json(behaviour);
        assert_eq!(
            codes(&journey),
            codes_of_two(code),
            "{behaviour}: {journey}"
        );
        let steps = if code == "OK" { 8 } else { 6 };
        assert_eq!(journey["total"]["ok"], steps, "{behaviour}: {journey}");
        let report = place.expect(0, &["report", behaviour]);
        let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(report.contains(reported), "{behaviour}: {report}");
    }
}

/// Returns the codes of a run's errors and their numbers.
fn codes(run: &Value) -> Vec<(String, u64)> {
    let errors = run["total"]["errors_by_code"]
        .as_array()
        .into_iter()
        .flatten();
    let each = errors.map(|error| {
        let code = error["code"].as_str().expect("a code");
        (code.to_owned(), error["count"].as_u64().expect("a count"))
    });
    each.collect()
}

/// Returns the codes of a run in which both queries have ended with `code`.
fn codes_of_two(code: &str) -> Vec<(String, u64)> {
    let failed = (code != "OK").then(|| (code.to_owned(), 2));
    failed.into_iter().collect()
}
