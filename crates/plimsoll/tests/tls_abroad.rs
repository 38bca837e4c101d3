//! TLS as others speak it: OpenSSL, nginx and Go with messages in small records, with long
//! chains and long requests for a certificate, with handshakes that have to be retried, and
//! with every way to end.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod support;

use std::fmt::Write;
use std::fs;
use std::process::Stdio;
use std::sync::OnceLock;

use serde_json::Value;
use support::nginx::Nginx;
use support::openssl::{openssl, s_server};
use support::peers::{go_tls, succeeds};
use support::{CLIENT_MTLS, CLIENT_TLS, LONGEST, Place, SERVER_MTLS, output, text};

/// Records of so many bytes: the least that OpenSSL makes.
const SMALL: [&str; 4] = ["-max_send_frag", "512", "-split_send_frag", "512"];

#[track_caller]
fn fetch(place: &Place, code: i32, url: &str, flags: &[&str]) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let fixed = ["fetch", url, "-q", "--json", "--out", "run"];
    place.expect_json(code, &[&fixed, flags].concat())
}

/// Certificates, a file to fetch, `chain.crt`, 60 certificates long, and `many.crt`, whose
/// names take two records and more.
fn place() -> Place {
    static NAMES: OnceLock<String> = OnceLock::new();
    let place = Place::new();
    place.certificates();
    place.expect(0, &["payload", "100000B", "file.bin"]);
    let ca = place.read("certs/ca.crt");
    fs::write(place.path("chain.crt"), ca.repeat(60)).expect("a file");
    let names = NAMES.get_or_init(|| {
        let place = Place::new();
        place.certificates();
        (0..150).fold(String::new(), |mut all, n| {
            let long = |of: char| of.to_string().repeat(60);
            let subject = format!("/O={}/OU={}/CN={n:060}", long('o'), long('u'));
            let made = succeeds(&mut openssl(
                &place,
                &[
                    "req",
                    "-x509",
                    "-key",
                    "certs/server.key",
                    "-subj",
                    &subject,
                ],
            ));
            let _ = write!(all, "{}", text(&made.stdout));
            all
        })
    });
    fs::write(place.path("many.crt"), format!("{ca}{names}")).expect("a file");
    place
}

/// Files are fetched over new and over resumed connections, whoever does the records, and
/// all or none of the handshakes were retried.
#[track_caller]
fn fetches(place: &Place, url: &str, client: &[&str], retried: bool) {
    let load = ["--size", "100000B", "--calls", "10", "--clients", "2"];
    for records in ["own", "library"] {
        // Tickets are made in the warm-up.
        for (mode, key, warmup) in [
            ("new", "connections_full", "0s"),
            ("resumed", "connections_resumed", "1s"),
        ] {
            let flags = ["--mode", mode, "--warmup", warmup, "--records", records];
            let run = fetch(place, 0, url, &[&load, &flags[..], client].concat());
            let total = &run["total"];
            assert_eq!(total["ok"], 10, "{records} {mode}: {run}");
            assert_eq!(total[key], 10, "{records} {mode}: {run}");
            let expected = if retried {
                Value::from(10)
            } else {
                Value::Null
            };
            assert_eq!(total["connections_retried"], expected, "{records} {mode}");
        }
    }
    if retried {
        // The line may be broken anywhere.
        let shown = place.expect(0, &["report", "run"]);
        let words: Vec<&str> = shown.split_whitespace().collect();
        let shown = words.join(" ");
        assert!(shown.contains("retried (HelloRetryRequest)"), "{shown}");
    }
}

#[test]
fn openssl_cuts_its_messages_into_records_of_512_bytes() {
    let place = place();
    let chain = ["-cert_chain", "chain.crt"];
    let request = ["-Verify", "2", "-CAfile", "many.crt"];
    let other_group = ["-groups", "P-384"];
    let shapes: [(&[&str], &[&str], bool); 5] = [
        (&SMALL, &CLIENT_TLS, false),
        (&chain, &CLIENT_TLS, false),
        (&[&SMALL[..], &chain].concat(), &CLIENT_TLS, false),
        (&other_group, &CLIENT_TLS, true),
        (
            &[&SMALL[..], &chain, &request, &other_group].concat(),
            &CLIENT_MTLS,
            true,
        ),
    ];
    for (flags, client, retried) in shapes {
        let server = s_server(&place, &[&["-WWW", "-tls1_3"], flags].concat());
        let url = format!("https://localhost:{}/file.bin", server.port);
        fetches(&place, &url, client, retried);
    }
}

#[test]
fn openssl_holds_connections_after_handshakes_in_small_records() {
    let place = place();
    let flags = [
        &["-rev", "-tls1_3", "-cert_chain", "chain.crt"][..],
        &SMALL,
        &["-Verify", "2", "-CAfile", "many.crt", "-groups", "P-384"],
    ];
    let server = s_server(&place, &flags.concat());
    let _ = fs::remove_dir_all(place.path("run"));
    let url = format!("tls://localhost:{}", server.port);
    let fixed = ["hold", &url, "-q", "--json", "--out", "run"];
    // It serves one after another.
    let one = ["--connections", "1", "--for", "300ms"];
    let run = place.expect_json(0, &[&fixed, &one[..], &CLIENT_MTLS].concat());
    assert_eq!(run["total"]["ok"], 1, "{run}");
    assert_eq!(run["total"]["connections_retried"], 1, "{run}");
}

#[test]
fn openssl_s_client_cuts_hellos_and_chains_for_serve_hold() {
    let place = place();
    let server = place.serve(&[&["hold"], &SERVER_MTLS[..]].concat());
    let address = server.address();
    // A ClientHello of several records, and more chain than one of them holds.
    let names = (0..40).map(|n| format!("protocol-{n:040}"));
    let names = names.collect::<Vec<_>>().join(",");
    for chain in [&[][..], &["-cert_chain", "chain.crt"]] {
        let fixed = [
            "s_client",
            "-connect",
            &address,
            "-servername",
            "localhost",
            "-verify_return_error",
            "-alpn",
            &names,
        ];
        let identity = [
            "-CAfile",
            "certs/ca.crt",
            "-cert",
            "certs/client.crt",
            "-key",
            "certs/client.key",
        ];
        let arguments = [&fixed[..], &SMALL, &identity, chain].concat();
        let mut client = openssl(&place, &arguments);
        let said = output(client.stdin(Stdio::null()), LONGEST);
        let printed = format!("{}{}", text(&said.stdout), text(&said.stderr));
        assert!(said.status.success(), "{printed}");
        assert!(printed.contains("Verify return code: 0 (ok)"), "{printed}");
    }
    // It is there for others, and has had time to count.
    let url = format!("tls://localhost:{}", server.port);
    let one = ["hold", &url, "-q", "--connections", "1", "--for", "1s"];
    place.expect(0, &[&one[..], &CLIENT_MTLS].concat());
    let (code, printed) = server.stop();
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("full handshakes 3"), "{printed}");
}

#[test]
fn nginx_sends_long_chains_and_requests_and_wants_another_group() {
    let place = place();
    fs::create_dir(place.path("site")).expect("a folder");
    fs::copy(place.path("file.bin"), place.path("site/file.bin")).expect("a copy");
    let whole = place.read("certs/server.crt") + &place.read("chain.crt");
    fs::write(place.path("certs/server.crt"), whole).expect("a file");
    let dir = place.path("");
    let request = format!(
        "ssl_verify_client on; ssl_client_certificate {}/many.crt;",
        dir.display()
    );
    for (more, client, retried) in [
        ("ssl_buffer_size 1k;", &CLIENT_TLS[..], false),
        ("ssl_ecdh_curve secp384r1;", &CLIENT_TLS, true),
        (&request, &CLIENT_MTLS, false),
    ] {
        let nginx = Nginx::start(&place, more);
        let url = format!("https://localhost:{}/file.bin", nginx.port);
        fetches(&place, &url, client, retried);
    }
}

#[test]
fn go_sends_its_handshakes_in_small_pieces_and_wants_another_group() {
    let place = place();
    let whole = place.read("certs/server.crt") + &place.read("certs/ca.crt");
    fs::write(place.path("certs/server.crt"), whole).expect("a file");
    for (flags, retried) in [
        (&["-chain", "60", "-pieces", "1000"][..], false),
        (&["-pieces", "100", "-curve", "p384"], true),
    ] {
        let server = go_tls(&place, flags);
        let url = format!("https://localhost:{}/", server.port);
        for records in ["own", "library"] {
            let load = ["--size", "4MiB", "--mode", "new", "--calls", "3"];
            let more = ["--clients", "1", "--records", records];
            let run = fetch(&place, 0, &url, &[&load, &more[..], &CLIENT_TLS].concat());
            assert_eq!(run["total"]["ok"], 3, "{records}: {run}");
            let expected = if retried { Value::from(3) } else { Value::Null };
            assert_eq!(run["total"]["connections_retried"], expected, "{run}");
        }
    }
}

#[test]
fn what_go_says_in_mid_body_is_heard_long_before_the_deadline() {
    let place = place();
    for (end, code) in [
        ("close_notify", "BODY_LENGTH"),
        ("fin", "TRUNCATED"),
        ("reset", "RESET"),
        ("corrupt", "TLS_FAILED"),
    ] {
        let server = go_tls(&place, &["-end", end]);
        let url = format!("https://localhost:{}/", server.port);
        for records in ["own", "library"] {
            for mode in ["new", "reused"] {
                // Longer than a test may take.
                let load = ["--mode", mode, "--calls", "2", "--deadline", "600s"];
                let more = ["--clients", "1", "--records", records];
                let run = fetch(&place, 1, &url, &[&load, &more[..], &CLIENT_TLS].concat());
                let errors = &run["total"]["errors_by_code"];
                assert_eq!(errors[0]["code"], code, "{end} {records} {mode}: {run}");
                assert_eq!(errors[0]["count"], 2, "{end} {records} {mode}: {run}");
            }
        }
    }
}
