//! TLS 1.2, on request and with servers that have nothing newer.

use super::*;

#[test]
fn tls12_is_negotiated_on_request() {
    for (suite, kind) in TLS12_SUITES {
        let place = place_with_certificates(kind);
        // Our implementation at both ends.
        let server = place.serve(&[&["files"], &BOTH_VERSIONS[..], &SERVER_MTLS].concat());
        let url = format!("https://localhost:{}/bytes/100", server.port);
        let flags = [&TLS12[..], &["--suite", suite], &CLIENT_IDENTITY].concat();
        let agreed = uniform_handshake(&place, &url, &flags);
        assert_eq!(agreed["version"], "TLSv1_2", "{agreed}");
        assert_eq!(agreed["suite"], suite, "{agreed}");
        assert_eq!(agreed["certificate"], kind, "{agreed}");
        assert!(agreed["signature"].is_string(), "{agreed}");
        let newer = uniform_handshake(
            &place,
            &url,
            &[&BOTH_VERSIONS[..], &CLIENT_IDENTITY].concat(),
        );
        assert_eq!(newer["version"], "TLSv1_3", "{newer}");
        // OpenSSL at either end.
        let chain = ["-WWW", "-tls1_2", "-cert_chain", "certs/server.crt"];
        let server = s_server(&place, &chain);
        let url = format!("https://localhost:{}/file.bin", server.port);
        let flags = ["--size", "1000B", "--suite", suite];
        let chained = [&flags[..], &TLS12].concat();
        let agreed = uniform_handshake(&place, &url, &chained);
        assert_eq!(agreed["version"], "TLSv1_2", "{agreed}");
        assert_eq!(agreed["suite"], suite, "{agreed}");
        let server = place.serve(&[&["files"], &TLS12[..], &SERVER_TLS].concat());
        let mut client = s_client(&place, &server, &["-verify_return_error"]);
        let said = output(client.stdin(Stdio::null()), MAX_WAIT);
        let printed = format!("{}{}", text(&said.stdout), text(&said.stderr));
        assert!(said.status.success(), "{printed}");
        assert!(printed.contains("TLSv1.2"), "{printed}");
    }
}

#[test]
fn tls12_sessions_are_resumed() {
    let place = place();
    let server = place.serve(&[&["files"], &TLS12[..], &SERVER_TLS].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    let resumed = ["--mode", "resumed", "--warmup", "300ms", "--calls", "20"];
    let all = handshakes(&place, &url, &[&resumed[..], &TLS12].concat());
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(all[0]["resumed"], true, "{all:?}");
    assert_eq!(all[0]["version"], "TLSv1_2", "{all:?}");
    assert_eq!(all[1]["count"], 1, "{all:?}");
}

#[test]
fn tls_version_conflicts_are_reported() {
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
    let out = place.run(&[&fetch[..], &TLS12, &CLIENT_TLS].concat());
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
            "records of TLS 1.2 are handled by the library",
        ),
        (
            &["--tls-version", "1.2", "--suite", "TLS_AES_128_GCM_SHA256"],
            "is for TLS 1.3",
        ),
        (
            &["--tls-version", "1.2", "--resume", "--early-data"],
            "0-RTT needs TLS 1.3",
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
fn held_connections_use_tls12_on_request() {
    let place = place();
    let server = place.serve(&[&["hold"], &BOTH_VERSIONS[..], &SERVER_MTLS].concat());
    let url = format!("tls://localhost:{}", server.port);
    for (versions, spoken) in [
        (&TLS12[..], "TLSv1_2"),
        (&BOTH_VERSIONS, "TLSv1_3"),
        (&[], "TLSv1_3"),
    ] {
        let _ = fs::remove_dir_all(place.path("run"));
        let hold = ["hold", &url, "-q", "--json", "--out", "run"];
        // Each connection sends something after being idle.
        let many = ["--connections", "20", "--for", "1s"];
        let flags = [&hold[..], &many, versions, &CLIENT_IDENTITY, &CLIENT_TLS].concat();
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

/// With default settings a client agrees on a version with servers of either, for every protocol.
#[test]
fn tls12_only_servers_work_by_default() {
    let place = place_with_certificates("ecdsa-p256");
    for (server_versions, spoken) in [
        (&TLS12[..], "TLSv1_2"),
        (&BOTH_VERSIONS, "TLSv1_3"),
        (&[], "TLSv1_3"),
    ] {
        let server = place.serve(&[&["files"], server_versions, &SERVER_MTLS[..]].concat());
        let url = format!("https://localhost:{}/bytes/100000", server.port);
        for records in [&[][..], &["--records", "own"], &["--records", "library"]] {
            let agreed = uniform_handshake(&place, &url, &[records, &CLIENT_IDENTITY].concat());
            assert_eq!(
                agreed["version"], spoken,
                "{server_versions:?} {records:?}: {agreed}"
            );
        }
        // An explicit 1.3 excludes 1.2.
        let fetch = [
            "fetch",
            &url,
            "--calls",
            "1",
            "--clients",
            "1",
            "-q",
            "--out",
            "only",
        ];
        let _ = fs::remove_dir_all(place.path("only"));
        let only = ["--tls-version", "1.3"];
        let out = place.run(&[&fetch[..], &only, &CLIENT_IDENTITY, &CLIENT_TLS].concat());
        assert_eq!(
            out.status.success(),
            spoken == "TLSv1_3",
            "{}",
            stderr_of(&out)
        );
    }
    // OpenSSL, which sends and accepts several records at a time.
    let server = s_server(
        &place,
        &["-WWW", "-tls1_2", "-cert_chain", "certs/server.crt"],
    );
    let url = format!("https://localhost:{}/file.bin", server.port);
    let agreed = uniform_handshake(&place, &url, &["--size", "1000B"]);
    assert_eq!(agreed["version"], "TLSv1_2", "{agreed}");
}

#[test]
fn every_protocol_works_over_tls12_by_default() {
    let place = place();
    let server = place.serve(&[&["score"], &TLS12[..], &SERVER_TLS].concat());
    let grpc = [
        "grpc",
        &server.tls(),
        "-m",
        "score.ScoreService/GetScore",
        "-d",
        r#"{"json": "[0.1]"}"#,
    ];
    let http = place.serve(&[&["http"], &TLS12[..], &SERVER_TLS].concat());
    let https = format!("https://localhost:{}/bytes/70000", http.port);
    let load = ["--clients", "4", "--calls", "200", "-q", "--json", "--out"];
    for (name, call) in [
        ("grpc", &grpc[..]),
        ("http1", &["http", &https, "--http-version", "1.1"]),
        ("http2", &["http", &https, "--http-version", "2"]),
    ] {
        let run = place.expect_run(0, &[call, &load, &[name], &CLIENT_TLS].concat());
        assert_eq!(run["total"]["ok"], 200, "{name}: {run}");
        assert_eq!(run["tls"]["version"], "TLSv1_2", "{name}: {run}");
    }
}

#[test]
fn held_connections_work_with_tls12_servers() {
    let place = place();
    let server = place.serve(&[&["hold"], &TLS12[..], &SERVER_TLS].concat());
    let url = format!("tls://localhost:{}", server.port);
    let hold = ["hold", &url, "-q", "--json", "--out", "run"];
    let many = ["--connections", "20", "--for", "1s"];
    let run = place.expect_run(0, &[&hold[..], &many, &CLIENT_TLS].concat());
    assert_eq!(run["total"]["ok"], 20, "{run}");
    assert_eq!(run["tls"]["version"], "TLSv1_2", "{run}");
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("connections broken"), "{said}");
}

/// Connections counted as resumed were resumed, also if the server only has TLS 1.2.
#[test]
fn sessions_resume_with_either_tls_version() {
    let place = place();
    for (versions, spoken) in [(&TLS12[..], "TLSv1_2"), (&BOTH_VERSIONS, "TLSv1_3")] {
        let server = place.serve(&[&["files"], versions, &SERVER_TLS[..]].concat());
        let url = format!("https://localhost:{}/bytes/100", server.port);
        for full in [&[][..], &["--full", "50%"]] {
            let resumed = ["--mode", "resumed", "--warmup", "0s", "--calls", "40"];
            let all = handshakes(&place, &url, &[&resumed[..], full].concat());
            let count = |resumed: bool| -> u64 {
                let is_it = |one: &&Value| one["resumed"].as_bool().unwrap_or(false) == resumed;
                let of = all.iter().filter(is_it);
                of.map(|one| one["count"].as_u64().expect("a count")).sum()
            };
            assert_eq!(count(false) + count(true), 40, "{all:?}");
            let whole = if full.is_empty() { 1..=1 } else { 19..=21 };
            assert!(whole.contains(&count(false)), "{spoken} {full:?}: {all:?}");
            assert!(all.iter().all(|one| one["version"] == spoken), "{all:?}");
        }
    }
}

#[test]
fn tls13_only_options_imply_tls13() {
    let place = place();
    let url = "https://localhost:1/bytes/100";
    let shown = |flags: &[&str]| {
        let fetch = [
            "fetch",
            url,
            "--clients",
            "1",
            "--calls",
            "1",
            "--dry-run",
            "-q",
        ];
        place.expect(0, &[&fetch[..], flags].concat())
    };
    let both = "versions = [\"1.3\", \"1.2\"]";
    assert!(shown(&[]).contains(both), "{}", shown(&[]));
    assert!(shown(&["--group", "X25519MLKEM768", "--group", "X25519"]).contains(both));
    for flags in [
        &["--tls-version", "1.3"][..],
        &["--suite", "TLS_AES_128_GCM_SHA256"],
        &["--group", "X25519MLKEM768"],
        &["--cold", "--resume", "--early-data"],
    ] {
        let plan = shown(flags);
        assert!(plan.contains("versions = [\"1.3\"]"), "{flags:?}: {plan}");
    }
    let old = shown(&["--suite", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]);
    assert!(
        old.contains("versions = [\"1.2\"]") && old.contains("records = \"library\""),
        "{old}"
    );
}
