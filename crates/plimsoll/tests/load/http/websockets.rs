//! `ws` against a server on Python's websockets.

use std::fs;

use serde_json::Value;

use super::{event_counts, first_error, run_measured};
use crate::support::peers::python;
use crate::support::{Place, Server, stderr_of};

/// Returns the number of calls that failed with `code`.
fn failures(run: &Value, code: &str) -> u64 {
    let codes = run["total"]["errors_by_code"]
        .as_array()
        .into_iter()
        .flatten();
    let found = codes.filter(|error| error["code"] == code);
    found.filter_map(|error| error["count"].as_u64()).sum()
}

#[test]
fn websocket_users_follow_frame_script() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "ws_server.py"));
    let url = format!("ws://{}/script", server.address());
    let ws = |code: i32, script: &str, flags: &[&str]| {
        let _ = fs::remove_dir_all(place.path("run"));
        fs::write(place.path("frames.toml"), script).unwrap();
        let fixed = [
            "ws",
            &url,
            "-q",
            "--json",
            "--out",
            "run",
            "--script",
            "frames.toml",
        ];
        run_measured(&place, code, &[&fixed[..], flags].concat())
    };
    fs::write(place.path("get.bin"), "get").unwrap();
    fs::write(place.path("users.csv"), "name\nann\nbob\n").unwrap();
    let script = r#"
        [[frames]]
        body   = "login {{row.name}}"
        expect = "welcome"
        [[frames]]
        body   = "set {{seq}}"
        answer = false
        [[frames]]
        body   = "set b"
        answer = false
        [[frames]]
        body   = "get"
        until  = "that is all"
        expect = "has b"
        [[frames]]
        body_file = "get.bin"
        binary    = true
        until     = "contains:all"
        pace      = "30ms"
    "#;
    let rows = ["--rows", "users.csv", "--clients", "2"];
    let run = ws(0, script, &[&rows[..], &["--calls", "12"]].concat());
    let counts = &run["total"]["measures"]["counts"];
    assert_eq!(
        (&run["total"]["ok"], &counts["users_ok"]),
        (&12.into(), &4.into())
    );
    // A welcome is the first message of its call; each get is answered by three.
    assert_eq!(event_counts(&run).0, 8 * 3);
    // The frames are part of the run's plan, so their files are no longer needed.
    fs::remove_file(place.path("get.bin")).unwrap();
    fs::rename(place.path("run/plan.toml"), place.path("plan.toml")).unwrap();
    let _ = fs::remove_dir_all(place.path("again"));
    let again = ["run", "plan.toml", "-q", "--json", "--out", "again"];
    assert_eq!(run_measured(&place, 0, &again)["total"]["ok"], 12);
    fs::write(place.path("get.bin"), "get").unwrap();

    // In an open loop users arrive at a rate.
    let open = [
        "--rows",
        "users.csv",
        "--rate",
        "20/s",
        "--duration",
        "500ms",
    ];
    let run = ws(0, script, &open);
    let counts = &run["total"]["measures"]["counts"];
    assert_eq!(
        (&run["total"]["due"], &counts["users_ok"]),
        (&30.into(), &10.into())
    );

    // A user whose answer is unexpected, or who loses the socket, stops.
    let lies = script.replace("has b", "has c");
    let run = ws(0, &lies, &[&rows[..], &["--calls", "6"]].concat());
    assert_eq!(failures(&run, "HTTP_BODY"), 2);
    assert_eq!(failures(&run, "SESSION_BROKEN"), 2);
    let leaves = format!(
        "[[frames]]\nbody = 'login x'\n[[frames]]\nbody = 'leave'\n{}",
        "[[frames]]\nbody = 'get'"
    );
    let run = ws(0, &leaves, &["--clients", "2", "--calls", "6"]);
    assert_eq!(failures(&run, "SOCKET_CLOSED"), 2);
    assert_eq!(failures(&run, "SESSION_BROKEN"), 2);

    for (script, printed) in [
        ("frames = []", "no frames"),
        ("[[frames]]\nbdy = 'a'", "unknown field `bdy`"),
        ("[[frames]]\nanswer = true", "missing: the frame's content"),
        (
            "[[frames]]\nbody = 'a'\nanswer = false",
            "the last frame needs an answer",
        ),
        (
            "[[frames]]\nbody = 'a'\npace = '1s'",
            "a pause is between an answer and the next frame",
        ),
        (
            "[[frames]]\nbody = 'a'\nanswer = false\nuntil = 'x'\n[[frames]]\nbody = 'b'",
            "there is nothing to expect",
        ),
    ] {
        fs::write(place.path("frames.toml"), script).unwrap();
        let refused = place.run(&["ws", &url, "--script", "frames.toml", "--clients", "1"]);
        assert_eq!(refused.status.code(), Some(2), "{script}");
        let found = stderr_of(&refused);
        assert!(found.contains(printed), "{script}: {found}");
    }
}

#[test]
fn websocket_frames_work_with_python_server() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "ws_server.py"));
    let ws = |code: i32, path: &str, flags: &[&str]| {
        let _ = fs::remove_dir_all(place.path("run"));
        let url = format!("ws://{}{path}", server.address());
        let fixed = ["ws", &url, "-q", "--json", "--out", "run"];
        let load = ["--clients", "3", "--calls", "30"];
        run_measured(&place, code, &[&fixed[..], &load, flags].concat())
    };
    let frame = r#"{"n": {{seq}}}"#;
    let run = ws(0, "/echo", &["-d", frame, "--expect-body", "\"n\": "]);
    assert_eq!(
        (&run["total"]["ok"], &run["connections"]),
        (&30.into(), &3.into())
    );
    // Numbers of one digit and of two digits.
    assert_eq!(run["total"]["bytes_received"], 10 * 8 + 20 * 9);
    assert_eq!(run["total"]["bytes_sent"], 10 * 8 + 20 * 9);
    let run = ws(
        0,
        "/echo",
        &[
            "-d",
            "abc",
            "--binary",
            "--compressed",
            "--subprotocol",
            "feed.v1",
        ],
    );
    assert_eq!(run["total"]["bytes_received"], 90);
    let run = ws(0, "/stream", &["-d", "go", "--until", "contains:\"done\""]);
    assert_eq!(event_counts(&run), (120, 30, 90));
    let run = ws(
        0,
        "/greeted",
        &["-d", "x", "--greeting", "hello, I am a user"],
    );
    assert_eq!(run["total"]["ok"], 30);
    // The path and headers of a socket use its own number.
    let run = ws(
        0,
        "/of/user-{{seq}}",
        &["-d", "x", "--expect-body", "user-"],
    );
    assert_eq!(run["total"]["bytes_received"], 30 * "/of/user-0".len());
    ws(
        0,
        "/secret",
        &["-d", "x", "-H", "authorization: Bearer mine"],
    );
    for (path, flags, code, detail) in [
        (
            "/echo",
            &["-d", "x", "--expect-body", "y"][..],
            "HTTP_BODY",
            "does not contain the expected text",
        ),
        (
            "/fails",
            &["-d", "x", "--error", "contains:\"error\""],
            "EVENT_ERROR",
            "overloaded",
        ),
        (
            "/closes",
            &["-d", "x"],
            "SOCKET_CLOSED",
            "1013 try again later",
        ),
        (
            "/silent",
            &["-d", "x", "--deadline", "100ms"],
            "DEADLINE_EXCEEDED",
            "",
        ),
        (
            "/large",
            &["-d", "x", "--max-message", "10KiB"],
            "MESSAGE_TOO_LARGE",
            "websocket",
        ),
    ] {
        let run = ws(1, path, flags);
        assert_eq!(first_error(&run).0, code, "{path}: {run}");
        let printed = run["details"][0]["text"].as_str().unwrap_or_default();
        assert!(printed.contains(detail), "{path}: {printed}");
        assert_eq!(run["count_check"]["matches"], true);
    }
    for (path, flags, code) in [
        ("/secret", &["-d", "x"][..], "SOCKET_DENIED"),
        ("/page", &["-d", "x"], "SOCKET_REFUSED"),
        (
            "/echo",
            &["-d", "x", "--subprotocol", "other"],
            "SOCKET_REFUSED",
        ),
    ] {
        let url = format!("ws://{}{path}", server.address());
        let fixed = [
            "ws",
            &url,
            "-q",
            "--out",
            "never",
            "--clients",
            "1",
            "--calls",
            "2",
        ];
        let refused = place.run(&[&fixed[..], flags].concat());
        let printed = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(1), "{printed}");
        assert!(printed.contains(code), "{path}: {printed}");
        let _ = fs::remove_dir_all(place.path("never"));
    }
    for (flags, printed) in [
        (&[][..], "set the frame that each call sends"),
        (
            &["-d", "x", "--subprotocol", "a b"],
            "not the name of a subprotocol",
        ),
    ] {
        let fixed = ["ws", "ws://127.0.0.1:1", "--clients", "1", "--calls", "2"];
        let refused = place.run(&[&fixed[..], flags].concat());
        assert_eq!(refused.status.code(), Some(2), "{flags:?}");
        let found = stderr_of(&refused);
        assert!(found.contains(printed), "{flags:?}: {found}");
    }
}
