//! Answers over HTTP/2 meet the same expectations as those over HTTP/1.1.

use std::fs;

use super::{event_counts, first_error, run_http, url};
use crate::support::{Place, text};

#[test]
fn http2_responses_are_judged_like_http1() {
    let place = Place::new();
    fs::write(
        place.path("users.csv"),
        "user,city\nann,\"A \"\"town\"\"\"\nbob,Ulm\n",
    )
    .unwrap();
    let server = place.serve(&["http", "--pace", "1ms"]);
    let two = ["--http-version", "2"];
    let load = ["--clients", "5", "--calls", "20"];
    for (path, flags, code, detail) in [
        (
            "/status/503",
            &[][..],
            "HTTP_503_RETRY_AFTER",
            "GET /status/503: 503, retry-after: 1: 503 Service Unavailable",
        ),
        (
            "/status/404",
            &[],
            "HTTP_404",
            "GET /status/404: 404: 404 Not Found",
        ),
        (
            "/",
            &["--expect-header", "x-cache: hit"],
            "HTTP_HEADER",
            "GET /: 200, without x-cache",
        ),
        (
            "/",
            &["--expect-body", "ok"],
            "HTTP_BODY",
            "GET /: the body does not contain the expected text",
        ),
        (
            "/",
            &["--max-body", "1000B"],
            "MESSAGE_TOO_LARGE",
            "http: a body of more than 1000 bytes",
        ),
        (
            "/sse/2",
            &["--stream", "sse", "--stream-until", "event:done"],
            "STREAM_SHORT",
            "GET /sse/2: the stream ended without the event that marks success",
        ),
        (
            "/bytes/100",
            &["--stream", "ndjson"],
            "BAD_ANSWER",
            "GET /bytes/100: a line",
        ),
    ] {
        let all = [&two[..], &load, flags].concat();
        let run = run_http(&place, 1, &url(&server, path), &all);
        assert_eq!(first_error(&run), (code, 20), "{path} {flags:?}");
        let printed = run["details"][0]["text"].as_str().unwrap_or_default();
        assert!(printed.starts_with(detail), "{printed}");
    }
    let sse = ["--stream", "sse", "--stream-until", "[DONE]"];
    let run = run_http(
        &place,
        0,
        &url(&server, "/sse/4"),
        &[&two[..], &load, &sse].concat(),
    );
    assert_eq!(event_counts(&run), (100, 20, 80));
    let head = ["-X", "HEAD"];
    let run = run_http(
        &place,
        0,
        &url(&server, "/"),
        &[&two[..], &load, &head].concat(),
    );
    assert_eq!(run["total"]["bytes_received"], 0);
    // More data in flight than the windows allow at once.
    let big = format!("@{}", place.path("big").display());
    fs::write(place.path("big"), vec![b'x'; 300_000]).unwrap();
    let run = run_http(
        &place,
        0,
        &url(&server, "/echo"),
        &[&two[..], &load, &["-d", &big]].concat(),
    );
    assert_eq!(run["total"]["bytes_received"], 20 * 300_000, "{run}");
    let rows = [
        "--rows",
        "users.csv",
        "-d",
        r#"{"user": "{{row.user}}", "city": "{{row.city}}"}"#,
        "-H",
        "x-user: {{row.user}}",
        "--expect-body",
        r#", "city": ""#,
    ];
    let run = run_http(
        &place,
        0,
        &url(&server, "/echo?n={{seq}}"),
        &[&two[..], &load, &rows].concat(),
    );
    let sizes = [
        r#"{"user": "ann", "city": "A \"town\""}"#,
        r#"{"user": "bob", "city": "Ulm"}"#,
    ];
    let expected: usize = sizes.iter().map(|body| body.len() * 10).sum();
    assert_eq!(run["total"]["bytes_received"], expected, "{run}");
    let plan = place.read("run/plan.toml");
    assert!(plan.contains("version = \"2\""), "{plan}");
}

/// Subscribers hold streams for the whole load; their deadlines coincide with its end.
#[test]
fn endless_event_streams_end_with_load() {
    let place = Place::new();
    let server = place.serve(&["http", "--pace", "20ms"]);
    let held = ["--stream", "sse", "--clients", "5", "--duration", "3s"];
    for version in ["1.1", "2"] {
        let flags = ["--deadline", "3s", "--http-version", version];
        let url = url(&server, "/sse/1000000");
        let run = run_http(&place, 0, &url, &[&held[..], &flags].concat());
        let counts = &run["total"]["measures"]["counts"];
        assert_eq!(run["total"]["ok"], 5, "{run}");
        assert_eq!(run["total"]["errors"], 0, "{run}");
        assert_eq!(counts["streams_ended_with_load"], 5, "{run}");
        assert_eq!(run["count_check"]["matches"], true, "{run}");
        assert!(run["total"]["connections_unused"].is_null(), "{run}");
        let (received, answers, gaps) = event_counts(&run);
        assert_eq!((answers, gaps), (5, received - 5), "{run}");
        let report = place.expect(0, &["report", "run"]);
        assert!(
            report.contains("5 streams were closed at the end of the load"),
            "{report}"
        );
    }
}

/// One HTTP/1.1 connection for calls of which four overlap.
#[test]
fn too_few_connections_are_named_before_target() {
    let place = Place::new();
    let server = place.serve(&["http", "--delay", "5ms"]);
    // Each call takes at least 5 ms, so the last ones are sent 1.4 s late on any machine.
    let load = [
        "--rate",
        "800/s",
        "--calls",
        "400",
        "--deadline",
        "10m",
        "--objective",
        "fidelity > 99%",
    ];
    let run = run_http(&place, 99, &url(&server, "/"), &load);
    assert_eq!(run["total"]["ok"], 400, "{run}");
    let problems = run["health"]["problems"].as_array().expect("a list");
    let too_few = problems.iter().find(|p| p["kind"] == "too_few_connections");
    let told = too_few.expect("connections")["text"].as_str().unwrap_or("");
    assert!(
        told.contains("the client's one connection carries one call at a time"),
        "{told}"
    );
    let needed = told.split_once("(-c ").and_then(|(_, n)| n.split_once(')'));
    let needed: u64 = needed.and_then(|(n, _)| n.parse().ok()).expect(told);
    assert!(needed >= 4, "{told}");
    let report = place.run(&["report", "run"]);
    let report = text(&report.stdout);
    let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
    let answer =
        "calls waited for connections: the client's one connection carries one call at a time";
    assert!(report.contains(answer), "{report}");
    // Send delay is part of the delivered load, whatever its cause.
    let delivery = &run["total"]["delivery"];
    let share = |end: usize| delivery["distance"][end].as_f64().unwrap_or(f64::NAN);
    assert_eq!(delivery["sent"], 400);
    assert!(
        share(0) > 0.1 && share(0) <= share(1) && share(1) <= 1.0,
        "{delivery}"
    );
    assert_eq!(run["objectives"][0]["verdict"], "missed", "{run}");
}
