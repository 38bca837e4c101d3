//! Kinds of certificates, presented and verified at both ends.

use super::*;

#[track_caller]
fn assert_kind(agreed: &Value, kind: &str, signature: &str) {
    assert_eq!(agreed["certificate"], kind, "{agreed}");
    assert_eq!(agreed["chain"], 2, "{agreed}");
    let signed = agreed["signature"].as_str().expect("a signature");
    assert!(signed.starts_with(signature), "{agreed}");
}

#[test]
fn both_ends_verify_each_certificate_kind() {
    for (kind, signature) in CERTIFICATE_KINDS {
        let place = place_with_certificates(kind);
        let server = place.serve(&[&["files"], &SERVER_MTLS[..]].concat());
        let url = format!("https://localhost:{}/bytes/100", server.port);
        for records in ["own", "library"] {
            let flags = [&["--records", records], &CLIENT_IDENTITY[..]].concat();
            assert_kind(&uniform_handshake(&place, &url, &flags), kind, signature);
        }
        let refused = [
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
        let out = place.run(&[&refused[..], &CLIENT_TLS].concat());
        assert_eq!(out.status.code(), Some(1), "{kind}");
        let errors = &place.run_json("none")["total"]["errors_by_code"];
        assert_eq!(
            errors[0]["code"], "TLS_CLIENT_CERTIFICATE_REQUIRED",
            "{errors}"
        );
        // Held connections work with them, too.
        let server = place.serve(&[&["hold"], &SERVER_MTLS[..]].concat());
        let url = format!("tls://localhost:{}", server.port);
        let hold = [
            "hold",
            &url,
            "-q",
            "--json",
            "--connections",
            "3",
            "--for",
            "200ms",
        ];
        let ends = [&CLIENT_TLS[..], &CLIENT_IDENTITY].concat();
        let run = place.expect_run(0, &[&hold[..], &["--out", "hold"], &ends].concat());
        assert_kind(&run["tls"]["handshakes"][0], kind, signature);
    }
}

#[test]
fn openssl_interoperates_with_each_certificate_kind() {
    let version = Place::new();
    for (kind, signature) in known_to_openssl(&version, &CERTIFICATE_KINDS) {
        let place = place_with_certificates(kind);
        let ends = ["-CAfile", "certs/ca.crt", "-cert_chain", "certs/server.crt"];
        let demands = ["-Verify", "2", "-verify_return_error"];
        let server = s_server(
            &place,
            &[&["-WWW", "-tls1_3"], &ends[..], &demands].concat(),
        );
        let url = format!("https://localhost:{}/file.bin", server.port);
        let flags = [&["--size", "1000B"], &CLIENT_IDENTITY[..]].concat();
        let agreed = uniform_handshake(&place, &url, &flags);
        assert_eq!(agreed["certificate"], kind, "{agreed}");
        let signed = agreed["signature"].as_str().expect("a signature");
        assert!(signed.starts_with(signature), "{agreed}");

        let server = place.serve(&[&["files"], &SERVER_MTLS[..]].concat());
        let address = server.address();
        let fixed = ["s_client", "-connect", &address, "-servername", "localhost"];
        let trust = ["-CAfile", "certs/ca.crt", "-verify_return_error", "-quiet"];
        let shown = [
            "-cert",
            "certs/client.crt",
            "-key",
            "certs/client.key",
            "-cert_chain",
            "certs/client.crt",
        ];
        let mut client = openssl(&place, &[&fixed[..], &trust, &shown].concat());
        let child = client
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl");
        let request = b"GET /bytes/100 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        std::io::Write::write_all(&mut child.stdin.as_ref().expect("a pipe"), request)
            .expect("taken");
        let said = child.wait_with_output().expect("an end");
        let answer = text(&said.stdout);
        // Only a client that has presented its certificate is answered.
        assert!(
            answer.contains("200 OK"),
            "{kind}: {answer} {}",
            text(&said.stderr)
        );
    }
}

#[test]
fn both_ends_verify_crls_of_each_kind() {
    let version = Place::new();
    let theirs = known_to_openssl(&version, &CERTIFICATE_KINDS);
    for (kind, _) in CERTIFICATE_KINDS {
        let place = Place::new();
        let make = [
            "certs",
            "certs",
            "--algorithm",
            kind,
            "--intermediates",
            "1",
        ];
        place.expect(0, &[&make[..], &["--revoke", "client"]].concat());
        if theirs.iter().any(|(known, _)| *known == kind) {
            for (whose, good) in [("certs/server.crt", true), ("certs/client.crt", false)] {
                let check = [
                    "verify",
                    "-crl_check",
                    "-crl_check_all",
                    "-CAfile",
                    "certs/ca.crt",
                ];
                let chain = ["-untrusted", whose, "-CRLfile", "certs/ca.crl", whose];
                let out = output(
                    &mut openssl(&place, &[&check[..], &chain].concat()),
                    MAX_WAIT,
                );
                let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
                assert_eq!(out.status.success(), good, "{kind} {whose}: {said}");
                assert_eq!(
                    said.contains("certificate revoked"),
                    !good,
                    "{kind}: {said}"
                );
            }
        }
        let demand = ["--tls-client-crl", "certs/ca.crl"];
        let server = place.serve(&[&["files"], &SERVER_MTLS[..], &demand].concat());
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
            "run",
        ];
        let list = ["--crl", "certs/ca.crl"];
        // The client accepts the server's certificate, and the server finds the client's revoked.
        let out = place.run(&[&fetch[..], &list, &CLIENT_IDENTITY, &CLIENT_TLS].concat());
        assert_eq!(out.status.code(), Some(1), "{kind}");
        let errors = &place.run_json("run")["total"]["errors_by_code"];
        assert_eq!(
            errors[0]["code"], "TLS_CLIENT_CERTIFICATE_REJECTED",
            "{kind}: {errors}"
        );
    }
}

#[test]
fn multi_record_certificate_chain_works_with_peers() {
    let place = Place::new();
    let large = [
        "--names",
        "1000",
        "--intermediates",
        "2",
        "--algorithm",
        "ml-dsa-87",
    ];
    place.expect(0, &[&["certs", "certs"], &large[..]].concat());
    let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    for records in ["own", "library"] {
        let agreed = uniform_handshake(&place, &url, &["--records", records]);
        assert_eq!(agreed["chain"], 3, "{agreed}");
        assert!(agreed["chain_bytes"].as_u64() > Some(40_000), "{agreed}");
    }

    let place = Place::new();
    place.expect(0, &["certs", "certs", "--names", "1000"]);
    place.expect(0, &["payload", "1000B", "file.bin"]);
    let server = s_server(&place, &["-WWW", "-tls1_3"]);
    let url = format!("https://localhost:{}/file.bin", server.port);
    let agreed = uniform_handshake(&place, &url, &["--size", "1000B"]);
    assert!(agreed["chain_bytes"].as_u64() > Some(20_000), "{agreed}");
    let server = go_tls(&place, &[]);
    let url = format!("https://localhost:{}/", server.port);
    let agreed = uniform_handshake(&place, &url, &["--size", "4MiB"]);
    assert!(agreed["chain_bytes"].as_u64() > Some(20_000), "{agreed}");
    let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let mut client = s_client(&place, &server, &["-verify_return_error"]);
    let said = output(client.stdin(Stdio::null()), MAX_WAIT);
    assert!(said.status.success(), "{}", text(&said.stderr));
}
