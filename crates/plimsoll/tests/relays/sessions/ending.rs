//! How stacks and runs end.

use super::*;

#[test]
fn stopped_stack_drains_active_runs() {
    let place = Place::new();
    // Runs of 600 ms within a drain time of a second.
    let mut stack = Stack::start_with(&place, &["--tokens", "300"]);
    let (api, socket) = (
        format!("session://{}", stack.api),
        format!("ws://{}", stack.gateway),
    );
    let arguments = ["session", &api, "--socket", &socket, "--clients", "5"];
    let mut load = place
        .command(&arguments)
        .args(["--out", "run", "-q"])
        .stdout(Stdio::null())
        .spawn()
        .expect("plimsoll starts");
    let begun = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        get_health(&stack.api).contains("\"runs\":5")
    });
    assert!(begun, "the runs begin");
    signal(&stack.child, rustix::process::Signal::TERM);
    assert_eq!(wait(&mut load), 0);
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 5, "{run}");
    let counts = &run["total"]["measures"]["counts"];
    assert_eq!(counts["tokens_received"], 5 * 300, "{run}");
    let mut printed = String::new();
    stack.rest.read_to_string(&mut printed).expect("text");
    assert!(printed.contains("unfinished 0"), "{printed}");
}

/// A run accepted while the service is stopping is completed or answered with an error.
#[test]
fn shutdown_completes_runs_already_accepted() {
    const RUNS: usize = 50;
    let place = Place::new();
    let mut stack = Stack::start_with_default_pace(&place, &["--token-delay", "20ms"]);
    let connect = |to: &str| {
        let stream = std::net::TcpStream::connect(to).expect("it listens");
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("a time");
        stream
    };
    let mut open = Vec::new();
    for _ in 0..RUNS {
        let (session, token) = session_token(&stack.api);
        let mut socket = connect(&stack.gateway);
        write!(
            socket,
            "GET /agent/ws/{session} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Authorization: Bearer {token}\r\n\r\n"
        )
        .expect("it reads");
        // A request without its last bytes.
        let mut run = connect(&stack.api);
        write!(
            run,
            "POST /session/{session}/run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
        )
        .expect("it reads");
        open.push((socket, run));
    }
    signal(&stack.child, rustix::process::Signal::TERM);
    let began = std::time::Instant::now();
    while std::net::TcpStream::connect(&stack.api).is_ok() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it stops listening"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    for (_, run) in &mut open {
        // The service may be gone, so that there is no answer.
        let _ = run.write_all(b"\r\n");
    }
    let mut accepted = 0;
    for (mut socket, mut run) in open {
        let mut answer = String::new();
        let _ = run.read_to_string(&mut answer);
        let mut came = Vec::new();
        let _ = socket.read_to_end(&mut came);
        let came = String::from_utf8_lossy(&came);
        if !answer.starts_with("HTTP/1.1 200 ") {
            continue;
        }
        accepted += 1;
        assert_eq!(came.matches(r#""type":"token""#).count(), 18, "{came}");
        assert!(came.contains(r#""finish":"stop""#), "{came}");
    }
    assert!(accepted > 0, "none of the runs was accepted");
    let mut printed = String::new();
    stack.rest.read_to_string(&mut printed).expect("text");
    assert!(
        printed.contains(&format!("runs {accepted}, tokens {}", accepted * 18)),
        "{printed}"
    );
    assert!(printed.contains("unfinished 0"), "{printed}");
}

#[test]
fn cut_off_sessions_do_not_fail() {
    let place = Place::new();
    let stack = Stack::start_with(&place, &["--tokens", "20000"]);
    let api = format!("session://{}", stack.api);
    let socket = format!("ws://{}", stack.gateway);
    let flags = ["--clients", "5", "--queries", "1", "--duration", "1s"];
    let end = ["--drain", "100ms", "--out", "run", "-q"];
    let arguments = [&["session", &api, "--socket", &socket][..], &flags, &end];
    // No query succeeded, and none failed.
    place.expect(1, &arguments.concat());
    let run = place.run_json("run");
    let total = &run["total"];
    assert_eq!(
        (&total["cut_off"], &total["errors"]),
        (&5.into(), &0.into())
    );
    assert_eq!(total["errors_by_code"], serde_json::json!([]), "{total}");
    assert_eq!(total["cut_off_by_code"][0]["code"], "CUT_OFF", "{total}");
    assert_eq!(total["measures"]["counts"]["sessions_failed"], 0, "{total}");
    assert_eq!(run["calls_per_connection"], 1, "{run}");
    assert_eq!(run["count_check"]["matches"], true, "{run}");
}
