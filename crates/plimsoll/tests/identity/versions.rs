//! TLS 1.2, where it is asked for.

use super::*;

#[test]
fn tls_1_2_is_spoken_where_it_is_asked_for() {
    for (suite, kind) in OLD_SUITES {
        let place = certified(kind);
        // Both ends ours.
        let server = place.serve(&[&["files"], &BOTH[..], &SERVER_MTLS].concat());
        let url = format!("https://localhost:{}/bytes/100", server.port);
        let flags = [&OLD[..], &["--suite", suite], &IDENTITY].concat();
        let agreed = alike(&place, &url, &flags);
        assert_eq!(agreed["version"], "TLSv1_2", "{agreed}");
        assert_eq!(agreed["suite"], suite, "{agreed}");
        assert_eq!(agreed["certificate"], kind, "{agreed}");
        assert!(agreed["signature"].is_string(), "{agreed}");
        let newer = alike(&place, &url, &[&BOTH[..], &IDENTITY].concat());
        assert_eq!(newer["version"], "TLSv1_3", "{newer}");
        // OpenSSL at either end.
        let chain = ["-WWW", "-tls1_2", "-cert_chain", "certs/server.crt"];
        let server = s_server(&place, &chain);
        let url = format!("https://localhost:{}/file.bin", server.port);
        let flags = ["--size", "1000B", "--suite", suite];
        let chained = [&flags[..], &OLD].concat();
        let agreed = alike(&place, &url, &chained);
        assert_eq!(agreed["version"], "TLSv1_2", "{agreed}");
        assert_eq!(agreed["suite"], suite, "{agreed}");
        let server = place.serve(&[&["files"], &OLD[..], &SERVER_TLS].concat());
        let mut client = s_client(&place, &server, &["-verify_return_error"]);
        let said = output(client.stdin(Stdio::null()), LONGEST);
        let printed = format!("{}{}", text(&said.stdout), text(&said.stderr));
        assert!(said.status.success(), "{printed}");
        assert!(printed.contains("TLSv1.2"), "{printed}");
    }
}

#[test]
fn sessions_of_tls_1_2_are_resumed() {
    let place = place();
    let server = place.serve(&[&["files"], &OLD[..], &SERVER_TLS].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    let resumed = ["--mode", "resumed", "--warmup", "300ms", "--calls", "20"];
    let all = handshakes(&place, &url, &[&resumed[..], &OLD].concat());
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(all[0]["resumed"], true, "{all:?}");
    assert_eq!(all[0]["version"], "TLSv1_2", "{all:?}");
    assert_eq!(all[1]["count"], 1, "{all:?}");
}

#[test]
fn versions_that_do_not_meet_say_so() {
    let place = place();
    let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    let fetch = [
        "fetch",
        &url,
        "-q",
        "--calls",
        "1",
        "--clients",
        "1",
        "--out",
        "none",
    ];
    let out = place.run(&[&fetch[..], &OLD, &CLIENT_TLS].concat());
    assert_eq!(out.status.code(), Some(1));
    assert!(
        stderr_of(&out).contains("TLS_VERSION"),
        "{}",
        stderr_of(&out)
    );
    for (flags, why) in [
        (&["--tls-version", "1.1"][..], "is not a version of TLS"),
        (
            &["--tls-version", "1.2", "--records", "own"],
            "records of TLS 1.2 are the library's",
        ),
        (
            &["--tls-version", "1.2", "--suite", "TLS_AES_128_GCM_SHA256"],
            "is of TLS 1.3",
        ),
        (
            &["--tls-version", "1.2", "--resume", "--early-data"],
            "0-RTT is of TLS 1.3",
        ),
    ] {
        let out = place.run(&[&fetch[..], flags, &CLIENT_TLS].concat());
        assert_eq!(out.status.code(), Some(2), "{flags:?}");
        let said = stderr_of(&out)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(said.contains(why), "{flags:?}: {said}");
    }
}

#[test]
fn connections_rest_over_tls_1_2_where_it_is_asked_for() {
    let place = place();
    let server = place.serve(&[&["hold"], &BOTH[..], &SERVER_MTLS].concat());
    let url = format!("tls://localhost:{}", server.port);
    for (versions, spoken) in [(&OLD[..], "TLSv1_2"), (&BOTH, "TLSv1_3"), (&[], "TLSv1_3")] {
        let _ = fs::remove_dir_all(place.path("run"));
        let hold = ["hold", &url, "-q", "--json", "--out", "run"];
        // Each says something once it has rested.
        let many = ["--connections", "20", "--for", "1s"];
        let flags = [&hold[..], &many, versions, &IDENTITY, &CLIENT_TLS].concat();
        let run = place.expect_run(0, &flags);
        assert_eq!(run["total"]["ok"], 20, "{run}");
        let agreed = &run["tls"]["handshakes"][0];
        assert_eq!(agreed["count"], 20, "{run}");
        assert_eq!(agreed["version"], spoken, "{run}");
    }
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("connections broken"), "{said}");
    assert!(!said.contains("handshakes failed"), "{said}");
}
