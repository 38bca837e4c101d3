//! Revoked certificates.

use super::*;

/// Fetches three files, each over a new connection.
#[test]
fn revoked_server_certificate_has_own_error_code() {
    for intermediates in ["0", "2"] {
        let place = Place::new();
        let make = [
            "certs",
            "certs",
            "--force",
            "--intermediates",
            intermediates,
        ];
        for (revoke, good) in [(&["--crl"][..], true), (&["--revoke", "server"], false)] {
            place.expect(0, &[&make[..], revoke].concat());
            fs::write(place.path("file"), "content").expect("a file");
            let ours = place.serve(&[&["files"], &support::SERVER_TLS[..]].concat());
            let chain = ["-WWW", "-cert_chain", "certs/server.crt"];
            let theirs = s_server(&place, &chain);
            for url in [
                format!("https://localhost:{}/bytes/7", ours.port),
                format!("https://localhost:{}/file", theirs.port),
            ] {
                for more in [
                    &["--records", "own"][..],
                    &["--records", "library"],
                    &["--chain", "once"],
                ] {
                    let flags = [
                        &NEW[..],
                        &["--size", "7B", "--crl", "certs/ca.crl"],
                        &support::CLIENT_TLS,
                        more,
                    ]
                    .concat();
                    if good {
                        assert!(assert_load_succeeds(&place, &["fetch", &url], &flags).is_empty());
                    } else {
                        let words = ["TLS_CERTIFICATE_REVOKED", "on the revocation list"];
                        assert_load_fails(&place, &["fetch", &url], &flags, &words);
                        let _ = fs::remove_dir_all(place.path("never"));
                    }
                }
                // Without the flag no revocation list is checked.
                let unchecked = [&NEW[..], &["--size", "7B"], &support::CLIENT_TLS].concat();
                assert!(assert_load_succeeds(&place, &["fetch", &url], &unchecked).is_empty());
            }
        }
    }
}

#[test]
fn crl_without_matching_issuer_rejects_certificate() {
    let place = Place::new();
    place.expect(0, &["certs", "certs", "--crl", "--intermediates", "1"]);
    place.expect(0, &["certs", "others", "--crl"]);
    let server = place.serve(&[&["files"], &support::SERVER_TLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/7", server.port);
    let with = |list: &'static str| [&NEW[..], &support::CLIENT_TLS, &["--crl", list]].concat();
    let unknown = ["TLS_BAD_CERTIFICATE", "give the lists of all issuers"];
    assert_load_fails(&place, &["fetch", &url], &with("others/ca.crl"), &unknown);
    // The list of the last issuer alone does not help either.
    let all = place.read("certs/ca.crl");
    let end = "-----END X509 CRL-----";
    let first = all.split_once(end).expect("a list").0;
    fs::write(place.path("first.crl"), format!("{first}{end}\n")).expect("a file");
    let _ = fs::remove_dir_all(place.path("never"));
    assert_load_fails(&place, &["fetch", &url], &with("first.crl"), &unknown);
    let _ = fs::remove_dir_all(place.path("never"));
    // An invalid list is named, and so is a list for which there is no use.
    for (flags, code, words) in [
        (
            with("certs/ca.crt"),
            1,
            "certs/ca.crt: holds no list of revoked certificates",
        ),
        (with("certs/none"), 1, "certs/none"),
        (
            [&NEW[..], &["--insecure", "--crl", "certs/ca.crl"]].concat(),
            2,
            "without a CA, revocation can't be checked",
        ),
    ] {
        let out = run_command(
            &place,
            &[&["fetch", &url, "--out", "never"], &flags[..]].concat(),
        );
        let said = unwrapped_output(&out);
        assert_eq!(out.status.code(), Some(code), "{flags:?}: {said}");
        assert!(said.contains(words), "{words}: {said}");
    }
    let bare = [
        &["serve", "files", "--tls-client-crl", "certs/ca.crl"],
        &support::SERVER_TLS[..],
    ];
    let out = run_command(&place, &bare.concat());
    assert_eq!(out.status.code(), Some(2), "{}", unwrapped_output(&out));
    assert!(
        unwrapped_output(&out).contains("--tls-client-ca"),
        "{}",
        unwrapped_output(&out)
    );
}

#[test]
fn client_revoked_at_runtime_is_rejected() {
    let place = Place::new();
    place.expect(0, &["certs", "certs", "--crl"]);
    let good = place.read("certs/ca.crl");
    // The same CA revokes the client, as an operator would do it.
    let config = "[ca]\ndefault_ca=own\n[own]\ndatabase=index\ncrlnumber=number\ndefault_md=sha256\n\
        default_crl_days=1\n";
    fs::write(place.path("ca.cnf"), config).expect("a file");
    fs::write(place.path("index"), "").expect("a file");
    fs::write(place.path("number"), "02\n").expect("a file");
    let own = "ca -config ca.cnf -keyfile certs/ca.key -cert certs/ca.crt";
    openssl(&place, &format!("{own} -revoke certs/client.crt"));
    openssl(&place, &format!("{own} -gencrl -out revoked.crl"));
    let bad = place.read("revoked.crl");
    let replace = |list: &str| {
        fs::write(place.path("new.crl"), list).expect("a file");
        fs::rename(place.path("new.crl"), place.path("list.crl")).expect("replaced");
    };
    for name in ["files", "score"] {
        replace(&good);
        let list = ["--tls-client-crl", "list.crl"];
        let server = place.serve(&[&[name], &support::SERVER_MTLS[..], &list].concat());
        let load = ["--calls", "3", "--clients", "1"];
        let (url, tls) = (
            format!("https://localhost:{}/bytes/7", server.port),
            server.tls(),
        );
        let call = match name {
            "files" => vec!["fetch", &url],
            _ => [&["grpc", &tls], &SCORE[..]].concat(),
        };
        let comes_in = || {
            let _ = fs::remove_dir_all(place.path("run"));
            let flags = [&call[..], &load, &support::CLIENT_MTLS, &["--out", "run"]];
            let out = run_command(&place, &flags.concat());
            (out.status.success(), unwrapped_output(&out))
        };
        let (first, said) = comes_in();
        assert!(first, "{name}: {said}");
        replace(&bad);
        let end = std::time::Instant::now() + MAX_WAIT;
        let said = loop {
            let (inside, said) = comes_in();
            if !inside {
                break said;
            }
            assert!(std::time::Instant::now() < end, "{name}: never rejected");
            thread::sleep(Duration::from_millis(50));
        };
        assert!(
            said.contains("TLS_CLIENT_CERTIFICATE_REJECTED"),
            "{name}: {said}"
        );
        // OpenSSL is told the reason as well.
        let mut client = s_client(&place, &server, &SHOW_CERTIFICATE);
        let out = output(&mut client, MAX_WAIT);
        let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
        assert!(said.contains("certificate revoked"), "{name}: {said}");
        // An unusable list changes nothing; a list without the client admits it again.
        replace("no list");
        thread::sleep(Duration::from_millis(1100));
        assert!(!comes_in().0, "{name}");
        replace(&good);
        let end = std::time::Instant::now() + MAX_WAIT;
        while !comes_in().0 {
            assert!(std::time::Instant::now() < end, "{name}: never taken again");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn session_predating_revocation_is_not_resumed() {
    let place = Place::new();
    place.expect(0, &["certs", "certs", "--crl"]);
    let good = place.read("certs/ca.crl");
    place.expect(0, &["certs", "others", "--crl"]);
    fs::write(place.path("list.crl"), &good).expect("a file");
    let list = ["--tls-client-crl", "list.crl"];
    let server = place.serve(&[&["files"], &support::SERVER_MTLS[..], &list].concat());
    let request = b"GET /bytes/7 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let ask = |session: [&str; 2]| {
        let mut client = s_client(&place, &server, &[&SHOW_CERTIFICATE[..], &session].concat());
        let mut child = client
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("openssl");
        let written = std::io::Write::write_all(child.stdin.as_mut().expect("a pipe"), request);
        written.expect("taken");
        let out = child.wait_with_output().expect("an end");
        text(&out.stdout)
    };
    let first = ask(["-sess_out", "session"]);
    assert!(first.contains("New, TLSv1.3"), "{first}");
    assert!(first.contains("200 OK"), "{first}");
    let again = ask(["-sess_in", "session"]);
    assert!(again.contains("Reused, TLSv1.3"), "{again}");
    // Another list invalidates earlier sessions, even if it does not revoke the certificate.
    let both = good + &place.read("others/ca.crl");
    fs::write(place.path("new.crl"), both).expect("a file");
    fs::rename(place.path("new.crl"), place.path("list.crl")).expect("replaced");
    let end = std::time::Instant::now() + MAX_WAIT;
    loop {
        let later = ask(["-sess_in", "session"]);
        if later.contains("New, TLSv1.3") {
            assert!(later.contains("200 OK"), "{later}");
            break;
        }
        assert!(std::time::Instant::now() < end, "still resumed: {later}");
        thread::sleep(Duration::from_millis(100));
    }
}
