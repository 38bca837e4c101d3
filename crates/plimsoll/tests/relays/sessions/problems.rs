//! Errors of a missing or misconfigured stack.

use super::*;

#[test]
fn session_setup_errors_are_reported() {
    let place = Place::new();
    for (arguments, printed) in [
        (
            vec!["session", "grpc://a:1", "--clients", "1"],
            "write session://a:1",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--socket",
                "http://a:2",
            ],
            "is not the address of WebSockets: write ws://",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--queries",
                "0",
            ],
            "0 queries",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--agent",
                "a/b",
            ],
            "not one part of a path",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--goodput",
                "speed=1s",
            ],
            "not one of first_token (ttft), time_per_token (tpot), query (e2e)",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--goodput",
                "query=0s",
            ],
            "a bound of 0",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--ca",
                "x.crt",
            ],
            "sessions://",
        ),
        (
            vec!["session", "session://a:1", "--rate", "1/s", "--think", "1s"],
            "a pause between a session's queries",
        ),
        (vec!["relay", "gateway"], "--redis is missing"),
    ] {
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = support::stderr_of(&output);
        assert!(text.contains(printed), "{arguments:?}: {text}");
    }
    let out = place.run(&[
        "session",
        "session://127.0.0.1:1",
        "--clients",
        "2",
        "--queries",
        "2",
        "--out",
        "run",
        "-q",
    ]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(place.run_json("run")["total"]["errors"], 4);
}

#[test]
fn gateway_startup_reports_redis_errors() {
    let place = Place::new();
    // The port is free again once its number is known.
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port().to_string()
    };
    let _redis = KilledOnDrop(
        std::process::Command::new("redis-server")
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", ""])
            .args(["--requirepass", "right"])
            .current_dir(place.path(""))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("redis-server is installed: tests/setup.sh tests"),
    );
    let refused = |url: String, flags: &[&str]| {
        let mut command = place.command(&["relay", "gateway", "--listen", "127.0.0.1:0"]);
        command.args(["--redis", &url]).args(flags);
        command.env("JWT_SECRET", "a secret for tests, of 32 bytes and more");
        let output = support::output(&mut command, Duration::from_secs(60));
        let said = support::stderr_of(&output);
        assert!(
            !output.status.success() && !said.contains("wrong"),
            "{said}"
        );
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    // The server may not listen yet.
    let said = loop {
        let said = refused(format!("redis://:wrong@127.0.0.1:{port}"), &[]);
        if !said.contains("is not reachable") || std::time::Instant::now() > limit {
            break said;
        }
    };
    assert!(
        said.contains(&format!("redis at 127.0.0.1:{port} answered: WRONGPASS")),
        "{said}"
    );
    std::fs::write(place.path("junk.pem"), "junk").unwrap();
    for (url, flags, needle) in [
        ("redis://a:0", &[][..], "`0` is not a port"),
        ("http://:wrong@a", &[], "`http` is not a scheme"),
        ("redis://a", &["--redis-ca", "junk.pem"], "write rediss://"),
        (
            "rediss://a",
            &["--redis-ca", "none.pem"],
            "--redis-ca: can't read none.pem",
        ),
        (
            "rediss://a",
            &["--redis-ca", "junk.pem"],
            "no CA certificate in PEM",
        ),
    ] {
        let said = refused(url.to_owned(), flags);
        assert!(said.contains(needle), "{url} {flags:?}: {said}");
    }
}
