//! Calls of every kind against the echo server, through whole commands.

use crate::support;

use serde_json::Value;
use support::{CLIENT_MTLS, CLIENT_TLS, Place, SERVER_MTLS, Server};

const HELLO_DATA: [&str; 2] = ["-d", r#"{"message": "hi"}"#];

/// Runs 40 calls of an echo method from four clients; returns the run's `total`.
fn total(place: &Place, server: &Server, code: i32, method: &str, flags: &[&str]) -> Value {
    let method = format!("grpc.examples.echo.Echo/{method}");
    let url = server.plaintext();
    let mut arguments = vec!["grpc", &url, "-q", "--json", "-m", &method];
    arguments.extend(HELLO_DATA);
    arguments.extend(["--clients", "4", "--calls", "40"]);
    arguments.extend(flags);
    let run = place.expect_run(code, &arguments);
    assert_eq!(run["count_check"]["matches"], true);
    run["total"].clone()
}

fn messages(total: &Value) -> (u64, u64) {
    let messages = &total["messages"];
    (
        messages["sent"].as_u64().expect("sent"),
        messages["received"].as_u64().expect("received"),
    )
}

#[test]
fn all_call_kinds_count_messages() {
    let place = Place::new();
    let server = place.serve(&["echo"]);
    let unary = total(&place, &server, 0, "UnaryEcho", &[]);
    assert_eq!(
        (&unary["ok"], &unary["messages"]),
        (&40.into(), &Value::Null)
    );

    let down = total(
        &place,
        &server,
        0,
        "ServerStreamingEcho",
        &["--expect", "10"],
    );
    assert_eq!(messages(&down), (40, 400));
    assert_eq!(down["messages"]["first_message"]["count"], 40);
    assert_eq!(down["messages"]["inter_message"]["count"], 360);
    // Each message has a prefix, and `hi` with its tag and length.
    assert_eq!(down["bytes_received"], 400 * 9);

    let up = total(
        &place,
        &server,
        0,
        "ClientStreamingEcho",
        &["--messages", "25"],
    );
    assert_eq!(messages(&up), (1_000, 40));
    assert_eq!(up["bytes_sent"], 1_000 * 9);

    let both = ["--messages", "300", "--expect", "300"];
    let both = total(&place, &server, 0, "BidirectionalStreamingEcho", &both);
    assert_eq!(messages(&both), (12_000, 12_000));

    let (code, printed) = server.stop();
    assert_eq!(code, 0);
    assert!(printed.contains("calls 160"), "{printed}");
    assert!(printed.contains("messages received 13080"), "{printed}");
}

#[test]
fn message_pacing_shows_in_times() {
    let place = Place::new();
    let server = place.serve(&["echo", "--pace", "5ms"]);
    // Ten messages with nine gaps, which a busy machine only lengthens.
    let down = total(&place, &server, 0, "ServerStreamingEcho", &[]);
    assert!(down["response"]["min_us"].as_f64().expect("min") >= 45_000.0);
    assert!(
        down["messages"]["inter_message"]["mean_us"]
            .as_f64()
            .expect("mean")
            >= 4_000.0
    );

    // Single messages are late on a busy machine, but delays do not accumulate.
    let long = place.serve(&["echo", "--pace", "5ms", "--messages", "200"]);
    let all = ["--expect", "200"];
    let down = total(&place, &long, 0, "ServerStreamingEcho", &all);
    let mean = &down["messages"]["inter_message"]["mean_us"];
    let mean = mean.as_f64().expect("mean");
    assert!((4_900.0..7_500.0).contains(&mean), "{mean} us");

    let paced = ["--messages", "10", "--pace", "5ms", "--expect", "10"];
    let both = total(&place, &server, 0, "BidirectionalStreamingEcho", &paced);
    assert!(both["response"]["min_us"].as_f64().expect("min") >= 44_000.0);
    assert_eq!(messages(&both), (400, 400));

    let answers = ["--messages", "20", "--pace", "answers", "--expect", "20"];
    let both = total(&place, &server, 0, "BidirectionalStreamingEcho", &answers);
    assert_eq!(messages(&both), (800, 800));
    // One message at a time: every gap is a round trip and greater than zero.
    assert!(
        both["messages"]["inter_message"]["min_us"]
            .as_f64()
            .expect("min")
            > 1.0
    );
}

#[test]
fn abnormal_stream_ends_are_reported() {
    let place = Place::new();
    let server = place.serve(&["echo", "--pace", "20ms"]);
    let code = |total: &Value| total["errors_by_code"][0]["code"].clone();
    let short = total(
        &place,
        &server,
        1,
        "ServerStreamingEcho",
        &["--expect", "11"],
    );
    assert_eq!(
        (code(&short), messages(&short)),
        ("STREAM_SHORT".into(), (40, 400))
    );
    let long = total(
        &place,
        &server,
        1,
        "ServerStreamingEcho",
        &["--expect", "9"],
    );
    assert_eq!(
        (code(&long), messages(&long)),
        ("STREAM_LONG".into(), (40, 400))
    );
    // Nine gaps of 20 ms exceed the deadline; messages received before still count.
    let never = total(
        &place,
        &server,
        1,
        "ServerStreamingEcho",
        &["--deadline", "100ms"],
    );
    assert_eq!(code(&never), "DEADLINE_EXCEEDED");
    let (sent, received) = messages(&never);
    assert_eq!(sent, 40);
    assert!((40..400).contains(&received), "{received}");
    assert_eq!(never["bytes_sent"], sent * 9);
    assert_eq!(never["bytes_received"], received * 9);

    let cancelled = total(
        &place,
        &server,
        0,
        "ServerStreamingEcho",
        &["--cancel-after", "3"],
    );
    assert_eq!(cancelled["ok"], 40);
    let (sent, received) = messages(&cancelled);
    assert_eq!(sent, 40);
    // A fourth message that came with the third counts as well.
    assert!((120..400).contains(&received), "{received}");
}

#[test]
fn echo_check_rejects_other_servers() {
    let place = Place::new();
    place.certificates();
    let mut flags = vec!["echo", "--location", "dock"];
    flags.extend(SERVER_MTLS);
    let server = place.serve(&flags);
    let url = server.tls();
    let mut arguments = vec!["check", "echo", &url];
    arguments.extend(CLIENT_MTLS);
    let printed = place.expect(0, &arguments);
    for said in [
        "--- BidirectionalStreamingEcho ---",
        "timestamp from header:",
        "location from header:\n 0. dock",
        " - this is examples/metadata",
        "timestamp from trailer:",
        "finish case ClientStreamingEcho: passed",
    ] {
        assert!(printed.contains(said), "{said} in {printed}");
    }
    arguments.push("--json");
    arguments.extend(["--messages", "11"]);
    let wrong = place.expect_json(1, &arguments);
    assert_eq!(wrong["passed"], false);
    assert_eq!(
        wrong["cases"][1]["problems"][0],
        "10 messages instead of 11"
    );
    assert_eq!(
        wrong["cases"][3]["problems"].as_array().map(Vec::len),
        Some(0)
    );

    // Fails without a client certificate, with another service, without a server, and with a wrong
    // scheme or flag.
    let mut stranger = vec!["check", "echo", &url];
    stranger.extend(CLIENT_TLS);
    place.expect(1, &stranger);
    let score = place.serve(&["score"]);
    let printed = place.expect(1, &["check", "echo", &score.plaintext()]);
    assert!(printed.contains("wrong: status UNIMPLEMENTED"), "{printed}");
    place.expect(1, &["check", "echo", "grpc://127.0.0.1:1"]);
    place.expect(2, &["check", "echo", "http://127.0.0.1:1"]);
    place.expect(
        2,
        &[
            "check",
            "echo",
            "grpc://127.0.0.1:1",
            "--ca",
            "certs/ca.crt",
        ],
    );
}
