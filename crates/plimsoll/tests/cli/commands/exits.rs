//! Exit codes and files of commands after objectives, errors and signals.

use super::*;

#[test]
fn objectives_decide_the_exit_code() {
    let place = Place::new();
    // A limit of 1 ms is far above what even a busy machine needs.
    let server = place.serve(&["score", "--delay", "100ms"]);
    let url = server.plaintext();
    for (objective, code, verdict) in [
        ("p50 < 10s", 0, "met"),
        ("p50 < 1ms", 99, "missed"),
        ("errors < 1%", 0, "met"),
        ("rate > 1000000/s", 99, "missed"),
        // 300 calls cannot decide a p99.99.
        ("p99.99 < 10s", 90, "not_supported"),
    ] {
        let out = format!("run {}", objective.replace('/', " "));
        let mut arguments = vec![
            "grpc",
            &url,
            "--clients",
            "100",
            "--calls",
            "300",
            "--objective",
            objective,
            "--out",
            &out,
            "--json",
            "-q",
        ];
        arguments.extend(SCORE);
        let run = place.expect_run(code, &arguments);
        assert_eq!(run["objectives"][0]["verdict"], verdict, "{objective}");
    }
}

#[test]
fn run_without_any_success_fails() {
    let place = Place::new();
    let server = place.serve(&["orders"]);
    let url = server.plaintext();
    let mut arguments = vec![
        "grpc",
        &url,
        "--clients",
        "1",
        "--calls",
        "5",
        "--out",
        "run",
        "-q",
    ];
    arguments.extend(SCORE);
    let out = place.expect(1, &arguments);
    assert!(out.contains("UNIMPLEMENTED"), "{out}");
    // The server is gone, so each cold call fails with its code.
    drop(server);
    let mut arguments = vec![
        "grpc", &url, "--cold", "--rate", "50/s", "--calls", "5", "--out", "gone", "-q",
    ];
    arguments.extend(SCORE);
    let out = place.expect(1, &arguments);
    assert!(out.contains("CONNECT_REFUSED"), "{out}");
    assert_eq!(place.run_json("gone")["total"]["errors"], 5);
}

#[test]
fn interrupted_run_is_saved_and_exits_130() {
    for stop in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let place = Place::new();
        let server = place.serve(&["score", "--delay", "1ms"]);
        let url = server.plaintext();
        let mut arguments = vec![
            "grpc",
            &url,
            "--rate",
            "100/s",
            "--duration",
            "60s",
            "--out",
            "run",
            "--requests",
        ];
        arguments.extend(SCORE);
        let mut child = place
            .command(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("plimsoll starts");
        // The first progress line appears after one second.
        let mut progress = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        progress.next().expect("a line").expect("text");
        signal(&child, stop);
        for _rest in progress.by_ref() {}
        assert_eq!(wait(&mut child), 130);
        let run = place.run_json("run");
        assert_eq!(run["state"], "aborted");
        assert_eq!(run["count_check"]["matches"], true);
        assert!(run["total"]["ok"].as_u64() > Some(50), "{run}");
    }
}

#[test]
fn server_shuts_down_gracefully_and_prints_counts() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let taken = place.run(&[
        "serve",
        "score",
        "--listen",
        &format!("127.0.0.1:{}", server.port),
    ]);
    assert_eq!(taken.status.code(), Some(1));
    assert!(text(&taken.stderr).contains("already in use"));
    let (code, rest) = server.stop();
    assert_eq!(code, 0);
    assert!(rest.contains("scored 0"), "{rest}");
}

#[test]
fn unwritable_latest_names_the_run() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    // A folder in place of the file simulates a disk that fills up after the run.
    std::fs::create_dir_all(place.path("runs/LATEST")).expect("a new folder");
    let url = server.plaintext();
    let mut arguments = vec!["grpc", &url, "--clients", "1", "--calls", "5"];
    arguments.extend(SCORE);
    let output = place.run(&arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("can't write runs/LATEST"), "{said}");
    assert!(said.contains("this run is runs/2"), "{said}");
}
