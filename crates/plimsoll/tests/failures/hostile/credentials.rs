//! Certificates and keys that do not match.

use super::*;

#[test]
fn unknown_ca_is_rejected() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "others"]);
    let server = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    let flags = ["--ca", "others/ca.crt"];
    assert_fails_everywhere(&place, &server.tls(), &flags, "TLS_UNKNOWN_CA", "--ca");
}

#[test]
fn expired_certificate_is_rejected() {
    let place = Place::new();
    let time = |text: &str| text.parse().expect("a time of day");
    let options = CertificateOptions {
        validity: Validity::Between {
            not_before: time("2024-01-01T00:00:00Z"),
            not_after: time("2024-02-01T00:00:00Z"),
        },
        ..CertificateOptions::default()
    };
    make_certificates(&place.path("certs"), &options).expect("certificates");
    let server = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    let code = "TLS_CERTIFICATE_EXPIRED";
    assert_fails_everywhere(&place, &server.tls(), &CLIENT_TLS, code, "renew");
}

/// Certificates are verified anew for each connection, or once per distinct chain; an expired one
/// must be rejected either way.
#[test]
fn certificate_expiring_during_load_is_rejected() {
    let place = Place::new();
    place.certificates_for(Duration::from_secs(5));
    // Mutual TLS is not used, because which side detects the expiry first would be a race.
    let server = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    let url = server.tls();
    let runs: Vec<Output> = thread::scope(|scope| {
        let started = ["each", "once"].map(|chain| {
            let mut arguments = score_load(&url, &["--cold", "--rate", "20/s", "--duration", "8s"]);
            arguments.extend(CLIENT_TLS);
            arguments.extend(["--chain", chain, "--out", chain, "--json"]);
            let mut command = place.command(&arguments);
            scope.spawn(move || run_to_end(&mut command))
        });
        started.map(|run| run.join().expect("a run")).into()
    });
    for (chain, output) in ["each", "once"].into_iter().zip(runs) {
        assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
        let run = place.run_json(chain);
        assert_eq!(run["count_check"]["matches"], true, "{run}");
        let total = &run["total"];
        let [(code, failed)] = errors(&run)[..] else {
            panic!("one kind of error: {run}");
        };
        assert_eq!(code, "TLS_CERTIFICATE_EXPIRED", "{run}");
        let ok = total["ok"].as_u64().expect("a count");
        // The last second of validity counts in full: at most six of eight seconds, minus the
        // server's startup time.
        assert!((1..=120).contains(&ok), "{ok} and {failed}");
        assert_eq!(ok + failed, 160, "{run}");
        let said = run["details"][0]["text"].as_str().expect("a text");
        assert!(said.contains("the certificate expired at 20"), "{said}");
    }
}

#[test]
fn missing_and_foreign_client_certificates_are_rejected() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "others"]);
    let server = place.serve(&[&["score"], &SERVER_MTLS[..]].concat());
    let code = "TLS_CLIENT_CERTIFICATE_REQUIRED";
    assert_fails_everywhere(&place, &server.tls(), &CLIENT_TLS, code, "--cert");
    let flags = [
        &CLIENT_TLS[..],
        &["--cert", "others/client.crt", "--key", "others/client.key"],
    ]
    .concat();
    let code = "TLS_CLIENT_CERTIFICATE_REJECTED";
    assert_fails_everywhere(&place, &server.tls(), &flags, code, "--cert");
}

#[test]
fn certificate_for_other_host_is_rejected() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    let flags = [&CLIENT_TLS[..], &["--server-name", "api.test"]].concat();
    let code = "TLS_NAME_MISMATCH";
    assert_fails_everywhere(&place, &server.tls(), &flags, code, "--server-name");
}

#[test]
fn unusable_key_files_are_named() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "others"]);
    fs::write(place.path("text.key"), "not a key\n").expect("writable");
    for (key, words) in [
        ("nowhere.key", &["nowhere.key", "no such file"][..]),
        ("certs", &["client key certs", "a folder, not a file"]),
        ("text.key", &["text.key", "PRIVATE KEY"]),
        ("certs/client.crt", &["certs/client.crt", "PRIVATE KEY"]),
        (
            "others/client.key",
            &["others/client.key", "does not belong"],
        ),
    ] {
        let flags = [
            &["--clients", "1", "--calls", "1", "--out", "never"],
            &CLIENT_TLS[..],
            &["--cert", "certs/client.crt", "--key", key],
        ]
        .concat();
        let output = run_to_end(&mut place.command(&score_load("grpcs://localhost:1", &flags)));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        for word in words {
            assert!(printed.contains(word), "{word:?}: {printed}");
        }
        assert!(!place.path("never").exists());
    }
}

/// Runs as another user if this one may read everything.
#[test]
fn unreadable_key_file_is_reported() {
    let place = Place::new();
    place.certificates();
    // A folder that everyone may enter, with a key that only its owner may read.
    let dir = place.path("");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("ours");
    fs::set_permissions(place.path("certs"), fs::Permissions::from_mode(0o755)).expect("ours");
    for readable in ["certs/ca.crt", "certs/client.crt"] {
        fs::set_permissions(place.path(readable), fs::Permissions::from_mode(0o644)).expect("ours");
    }
    // The binary may be where other users cannot reach it.
    let binary = place.path("plimsoll");
    fs::copy(env!("CARGO_BIN_EXE_plimsoll"), &binary).expect("a copy of plimsoll");
    let flags = [
        &["--clients", "1", "--calls", "1"],
        &CLIENT_MTLS[..],
        &["--out", "/tmp/never-kept-by-plimsoll-tests"],
    ]
    .concat();
    let mut command = Command::new(&binary);
    command
        .args(score_load("grpcs://localhost:1", &flags))
        .current_dir(&dir)
        .env_clear();
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    } else {
        let none = fs::Permissions::from_mode(0o000);
        fs::set_permissions(place.path("certs/client.key"), none).expect("ours");
    }
    let output = run_to_end(&mut command);
    let printed = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("client key certs/client.key: permission denied"),
        "{printed}"
    );
}
