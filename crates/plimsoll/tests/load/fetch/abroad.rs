//! OpenSSL and nginx as peers.

use super::*;

#[test]
fn openssl_server_serves_full_and_resumed_handshakes() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["payload", "1000B", "file.bin"]);
    let server = s_server(&place, &["-WWW", "-tls1_3"]);
    let load = ["--size", "1000B", "--calls", "30", "--clients", "3"];
    for (mode, full, resumed) in [("new", 30, 0), ("resumed", 0, 30)] {
        let flags = [&["--mode", mode, "--warmup", "300ms"], &load[..]].concat();
        let run = fetch(&place, 0, &url(&server, "/file.bin"), &flags);
        assert_eq!(run["total"]["ok"], 30, "{mode}: {run}");
        assert_eq!(run["total"]["connections_full"], full, "{mode}");
        assert_eq!(run["total"]["connections_resumed"], resumed, "{mode}");
    }
    // OpenSSL answers a missing file with an error text and status 200, like any text file.
    let load = ["--mode", "new", "--calls", "2", "--clients", "1"];
    for size in [&[][..], &["--size", "1000B"]] {
        let run = fetch(
            &place,
            1,
            &url(&server, "/none.txt"),
            &[&load, size].concat(),
        );
        assert_eq!(first_error(&run), ("FILE_MISSING", 2), "{run}");
        let details = run["details"].to_string();
        assert!(details.contains("missing on the server"), "{details}");
        assert!(details.contains("Error opening 'none.txt'"), "{details}");
    }
    fs::write(place.path("note.txt"), "Error opening 'none.txt'\n").expect("a file");
    let run = fetch(&place, 0, &url(&server, "/note.txt"), &load);
    assert_eq!(run["total"]["ok"], 2, "{run}");
    assert_eq!(run["total"]["bytes_received"], 2 * 25, "{run}");
}

#[test]
fn handshake_only_mode_sends_no_request() {
    let place = Place::new();
    place.certificates();
    let ours = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let theirs = s_server(&place, &["-WWW"]);
    let load = ["--handshake-only", "--calls", "20", "--clients", "2"];
    let new = (&["--mode", "new"][..], 20, 0);
    let tickets_of_1_2 = [
        "--mode",
        "resumed",
        "--tls-version",
        "1.2",
        "--warmup",
        "1s",
    ];
    // Our server has TLS 1.2 disabled.
    for (server, kinds) in [
        (&ours, vec![new]),
        (&theirs, vec![new, (&tickets_of_1_2, 0, 20)]),
    ] {
        for (flags, full, resumed) in kinds {
            let run = fetch(&place, 0, &url(server, ""), &[&load, flags].concat());
            let total = &run["total"];
            assert_eq!(total["ok"], 20, "{run}");
            assert_eq!(total["connections_full"], full, "{run}");
            assert_eq!(total["connections_resumed"], resumed, "{run}");
            assert_eq!(total["bytes_sent"], 0, "{run}");
            assert_eq!(total["phases"]["handshake"]["count"], 20, "{run}");
        }
    }
    // No request arrived.
    let (_, printed) = ours.stop();
    assert_eq!(server_count(&printed, "bytes"), 0, "{printed}");
    for (flags, why) in [
        (&["--mode", "resumed"][..], "tickets"),
        (&["--mode", "reused"], "makes a new one for every call"),
        (&["--size", "1B"], "sends no request"),
        (&["--mode", "resumed", "--early-data"], "sends no request"),
    ] {
        let typed = [
            "fetch",
            "https://localhost:1",
            "--handshake-only",
            "--clients",
            "1",
        ];
        let refused = place.run(&[&typed, flags, &["--calls", "1"]].concat());
        assert_eq!(refused.status.code(), Some(2), "{flags:?}");
        assert!(stderr_of(&refused).contains(why), "{}", stderr_of(&refused));
    }
}

#[test]
fn version_mismatch_differs_from_untrusted_server() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "other"]);
    let cold = ["--mode", "new", "--calls", "2", "--clients", "1"];
    let old = s_server(&place, &["-WWW", "-tls1_2"]);
    let only_1_3 = [&cold[..], &["--tls-version", "1.3"]].concat();
    let run = fetch(&place, 1, &url(&old, "/x"), &only_1_3);
    assert_eq!(first_error(&run), ("TLS_VERSION", 2));
    let _ = fs::remove_dir_all(place.path("run"));
    let new = s_server(&place, &["-WWW", "-tls1_3"]);
    let untrusting = [&cold[..], &["--ca", "other/ca.crt"]].concat();
    let _ = fs::remove_dir_all(place.path("run"));
    let url = url(&new, "/x");
    let fixed = ["fetch", &url, "-q", "--json", "--out", "run"];
    let run = place.expect_run(1, &[&fixed, &untrusting[..]].concat());
    assert_eq!(first_error(&run), ("TLS_UNKNOWN_CA", 2));
}

#[test]
fn nginx_and_client_count_same_resumptions() {
    let place = Place::new();
    place.certificates();
    fs::create_dir(place.path("site")).expect("a folder");
    place.expect(0, &["payload", "50000B", "site/file.bin"]);
    let nginx = Nginx::start(&place, "");
    let url = format!("https://localhost:{}/file.bin", nginx.port);
    let load = ["--size", "50000B", "--clients", "3", "--calls", "30"];
    let mut expected = (0, 0);
    for mode in ["new", "resumed"] {
        let flags = [&["--mode", mode, "--warmup", "200ms"], &load[..]].concat();
        let run = fetch(&place, 0, &url, &flags);
        assert_eq!(run["total"]["ok"], 30, "{mode}");
        let key = if mode == "new" {
            "connections_full"
        } else {
            "connections_resumed"
        };
        assert_eq!(run["total"][key], 30, "{mode}");
        let (full, resumed) = handshakes(&run);
        expected = (expected.0 + full, expected.1 + resumed);
    }
    let counted = || {
        let log = place.read("access.log");
        let resumed = log.lines().filter(|line| *line == "r 200 50000").count() as u64;
        let full = log.lines().filter(|line| *line == ". 200 50000").count() as u64;
        (full, resumed)
    };
    // nginx writes a log line once the connection has ended.
    let end = Instant::now() + Duration::from_secs(30);
    while counted() != expected && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(counted(), expected, "full and resumed, as nginx saw them");

    let kept = ["--size", "50000B", "--fleet", "3", "--calls", "30"];
    let run = fetch(&place, 0, &url, &kept);
    assert_eq!(run["total"]["ok"], 30);
    assert_eq!(handshakes(&run), (3, 0));
}

#[test]
fn openssl_clients_are_served_and_resume() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let address = server.address();
    let mut client = openssl(
        &place,
        &[
            "s_client",
            "-connect",
            &address,
            "-CAfile",
            "certs/ca.crt",
            "-verify_return_error",
            "-quiet",
            "-servername",
            "localhost",
        ],
    );
    let mut child = client
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl starts");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    std::io::Write::write_all(&mut stdin, b"GET /bytes/5 HTTP/1.0\r\n\r\n").expect("written");
    let answer = child.wait_with_output().expect("it ends");
    drop(stdin);
    let answer = text(&answer.stdout);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nxxxxx"), "{answer}");

    for kind in ["-new", "-reuse"] {
        let arguments = [
            "s_time",
            "-connect",
            &address,
            "-www",
            "/bytes/1024",
            kind,
            "-time",
            "1",
        ];
        let timed = output(&mut openssl(&place, &arguments), MAX_WAIT);
        assert!(timed.status.success(), "{}", text(&timed.stderr));
        assert!(text(&timed.stdout).contains("connections in"), "{kind}");
    }
    let (_, printed) = server.stop();
    let full = server_count(&printed, "full handshakes");
    let resumed = server_count(&printed, "resumed handshakes");
    assert!(full > 2 && resumed > 2, "{printed}");
    assert_eq!(server_count(&printed, "refused"), 0);
}
