//! The token-streaming stack as a journey of steps over HTTP and WebSocket.

use std::fs;
use std::path::Path;

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
    let tokens = session["total"]["measures"]["counts"]["tokens_received"].as_u64();

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
    // Each query ends with a `done`, which is a message, too.
    let received = journey["total"]["messages"]["received"].as_u64();
    assert_eq!(
        received,
        tokens.map(|tokens| tokens + SESSIONS * QUERIES),
        "{session}\n{journey}"
    );
}
