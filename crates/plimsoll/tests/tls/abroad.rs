//! TLS with OpenSSL, nginx and Go: messages in small records, long certificate chains and
//! certificate requests, handshakes with HelloRetryRequest, and every way to end a connection.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::support;

use std::fmt::Write;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use support::nginx::Nginx;
use support::openssl::{openssl, s_server};
use support::peers::{go_tls, peer, run_successfully};
use support::{CLIENT_MTLS, CLIENT_TLS, MAX_WAIT, Place, SERVER_MTLS, Server, output, text};

/// The least record size in bytes that OpenSSL supports.
const SMALL_RECORDS: [&str; 4] = ["-max_send_frag", "512", "-split_send_frag", "512"];

#[track_caller]
fn run_fetch(place: &Place, code: i32, url: &str, flags: &[&str]) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let fixed = ["fetch", url, "-q", "--json", "--out", "run"];
    place.expect_run(code, &[&fixed, flags].concat())
}

/// Creates certificates, a file to fetch, `chain.crt` of 60 certificates, and `many.crt`, whose
/// names exceed two records.
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
            let made = run_successfully(&mut openssl(
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

/// Fetches files over new and resumed connections with either record layer; all or none of the
/// handshakes were retried.
#[track_caller]
fn assert_fetches(place: &Place, url: &str, client: &[&str], retried: bool) {
    let load = ["--size", "100000B", "--calls", "10", "--clients", "2"];
    for records in ["own", "library"] {
        // Tickets are obtained in the warm-up.
        for (mode, key, warmup) in [
            ("new", "connections_full", "0s"),
            ("resumed", "connections_resumed", "1s"),
        ] {
            let flags = ["--mode", mode, "--warmup", warmup, "--records", records];
            let run = run_fetch(place, 0, url, &[&load, &flags[..], client].concat());
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
        // The line may be wrapped anywhere.
        let shown = place.expect(0, &["report", "run"]);
        let words: Vec<&str> = shown.split_whitespace().collect();
        let shown = words.join(" ");
        assert!(shown.contains("retried (HelloRetryRequest)"), "{shown}");
    }
}

#[test]
fn fetch_handles_openssl_small_records() {
    let place = place();
    let chain = ["-cert_chain", "chain.crt"];
    let request = ["-Verify", "2", "-CAfile", "many.crt"];
    let other_group = ["-groups", "P-384"];
    let shapes: [(&[&str], &[&str], bool); 5] = [
        (&SMALL_RECORDS, &CLIENT_TLS, false),
        (&chain, &CLIENT_TLS, false),
        (&[&SMALL_RECORDS[..], &chain].concat(), &CLIENT_TLS, false),
        (&other_group, &CLIENT_TLS, true),
        (
            &[&SMALL_RECORDS[..], &chain, &request, &other_group].concat(),
            &CLIENT_MTLS,
            true,
        ),
    ];
    for (flags, client, retried) in shapes {
        let server = s_server(&place, &[&["-WWW", "-tls1_3"], flags].concat());
        let url = format!("https://localhost:{}/file.bin", server.port);
        assert_fetches(&place, &url, client, retried);
    }
}

#[test]
fn hold_handles_openssl_small_records() {
    let place = place();
    let flags = [
        &["-rev", "-tls1_3", "-cert_chain", "chain.crt"][..],
        &SMALL_RECORDS,
        &["-Verify", "2", "-CAfile", "many.crt", "-groups", "P-384"],
    ];
    let server = s_server(&place, &flags.concat());
    let _ = fs::remove_dir_all(place.path("run"));
    let url = format!("tls://localhost:{}", server.port);
    let fixed = ["hold", &url, "-q", "--json", "--out", "run"];
    // It serves one connection after another.
    let one = ["--connections", "1", "--for", "300ms"];
    let run = place.expect_run(0, &[&fixed, &one[..], &CLIENT_MTLS].concat());
    assert_eq!(run["total"]["ok"], 1, "{run}");
    assert_eq!(run["total"]["connections_retried"], 1, "{run}");
}

#[test]
fn serve_hold_accepts_fragmented_openssl_handshakes() {
    let place = place();
    let server = place.serve(&[&["hold"], &SERVER_MTLS[..]].concat());
    let address = server.address();
    // A ClientHello of several records, and a chain that exceeds one record.
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
        let arguments = [&fixed[..], &SMALL_RECORDS, &identity, chain].concat();
        let mut client = openssl(&place, &arguments);
        let said = output(client.stdin(Stdio::null()), MAX_WAIT);
        let printed = format!("{}{}", text(&said.stdout), text(&said.stderr));
        assert!(said.status.success(), "{printed}");
        assert!(printed.contains("Verify return code: 0 (ok)"), "{printed}");
    }
    // The port listens for others, and the server has had time to count.
    let url = format!("tls://localhost:{}", server.port);
    let one = ["hold", &url, "-q", "--connections", "1", "--for", "1s"];
    place.expect(0, &[&one[..], &CLIENT_MTLS].concat());
    let (code, printed) = server.stop();
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("full handshakes 3"), "{printed}");
}

#[test]
fn nginx_long_handshakes_and_retries_succeed() {
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
        assert_fetches(&place, &url, client, retried);
    }
}

#[test]
fn go_fragmented_handshakes_and_retries_succeed() {
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
            let run = run_fetch(&place, 0, &url, &[&load, &more[..], &CLIENT_TLS].concat());
            assert_eq!(run["total"]["ok"], 3, "{records}: {run}");
            let expected = if retried { Value::from(3) } else { Value::Null };
            assert_eq!(run["total"]["connections_retried"], expected, "{run}");
        }
    }
}

#[test]
fn mid_body_failure_is_reported_promptly() {
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
                let run = run_fetch(&place, 1, &url, &[&load, &more[..], &CLIENT_TLS].concat());
                let errors = &run["total"]["errors_by_code"];
                assert_eq!(errors[0]["code"], code, "{end} {records} {mode}: {run}");
                assert_eq!(errors[0]["count"], 2, "{end} {records} {mode}: {run}");
            }
        }
    }
}

/// Key-exchange groups by our names and by Go's. The last two are new in Go 1.26.
const GO_GROUPS: [(&str, &str); 6] = [
    ("X25519", "x25519"),
    ("secp256r1", "p256"),
    ("secp384r1", "p384"),
    ("X25519MLKEM768", "x25519mlkem768"),
    ("SecP256r1MLKEM768", "secp256r1mlkem768"),
    ("SecP384r1MLKEM1024", "secp384r1mlkem1024"),
];

/// Returns those of [`GO_GROUPS`] that the installed Go supports.
fn known_to_go() -> Vec<(&'static str, &'static str)> {
    let printed = run_successfully(Command::new(peer("bin/go-tls")).arg("-groups"));
    let printed = text(&printed.stdout);
    let known = GO_GROUPS.into_iter();
    let known: Vec<_> = known
        .filter(|(_, theirs)| printed.lines().any(|line| line == *theirs))
        .collect();
    assert_eq!(known.len(), printed.lines().count(), "{printed}");
    assert!(known.len() >= 4, "{printed}");
    known
}

/// Kinds of certificates, and those that any Go version supports.
const GO_KINDS: [(&str, bool); 9] = [
    ("ed25519", true),
    ("ecdsa-p256", true),
    ("ecdsa-p384", true),
    ("rsa-2048", true),
    ("rsa-3072", true),
    ("rsa-4096", true),
    ("ml-dsa-44", false),
    ("ml-dsa-65", false),
    ("ml-dsa-87", false),
];

/// Starts Go as a client of `address`, which verifies the certificate.
fn go_client(place: &Place, address: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(peer("bin/go-tls"));
    command
        .args(["-connect", address, "-ca", "certs/ca.crt"])
        .args(flags)
        .current_dir(place.path(""));
    output(&mut command, MAX_WAIT)
}

/// Returns the lines that it prints.
#[track_caller]
fn go_request(place: &Place, address: &str, flags: &[&str]) -> String {
    let out = go_client(place, address, flags);
    let (said, errors) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{flags:?}: {said}{errors}");
    said
}

/// Returns whether Go can parse the certificates in `certs/`.
fn go_reads_certificates(place: &Place) -> bool {
    // Nothing listens there; Go fails on an unsupported certificate before it connects.
    let out = go_client(place, "127.0.0.1:1", &GO_IDENTITY);
    !text(&out.stderr).contains("-cert certs/client.crt")
}

const GO_IDENTITY: [&str; 4] = ["-cert", "certs/client.crt", "-key", "certs/client.key"];

/// Our servers, the request that Go sends to each, and its expected output.
const SERVERS: [(&str, &[&str], &str); 6] = [
    ("files", &["-path", "/bytes/100"], "HTTP/1.1 200 OK"),
    ("http", &["-path", "/bytes/100"], "HTTP/1.1 200 OK"),
    ("score", &["-speak", "grpc"], "score "),
    ("fast", &["-speak", "grpc"], "score "),
    ("hold", &["-speak", "echo"], "hello"),
    ("llm", &["-path", "/health"], "HTTP/1.1 200 OK"),
];

/// Starts one of our servers, including the gateway, that requires a client certificate; returns
/// its address.
fn serve_to_go(place: &Place, name: &str, flags: &[&str]) -> (Server, Vec<String>) {
    let gateway: &[&str] = match name {
        "llm" => &["--with-gateway", "127.0.0.1:0"],
        _ => &[],
    };
    let mut server = place.serve(&[&[name], gateway, &SERVER_MTLS, flags].concat());
    let mut addresses = vec![server.address()];
    if !gateway.is_empty() {
        addresses.push(server.next_address());
    }
    (server, addresses)
}

#[test]
fn go_interoperates_with_every_group() {
    let place = Place::new();
    place.certificates();
    for (ours, theirs) in known_to_go() {
        for (name, asks, answer) in SERVERS {
            // Our default and only this group.
            for flags in [&["--group", ours][..], &[]] {
                if flags.is_empty() && ours.starts_with("SecP") {
                    continue;
                }
                let (server, addresses) = serve_to_go(&place, name, flags);
                for address in addresses {
                    let asks = [asks, &["-curve", theirs], &GO_IDENTITY].concat();
                    let said = go_request(&place, &address, &asks);
                    assert!(said.contains(answer), "{name} {ours}: {said}");
                }
                drop(server);
            }
        }
        let server = go_tls(&place, &["-curve", theirs]);
        let url = format!("https://localhost:{}/", server.port);
        let load = ["--size", "4MiB", "--mode", "new", "--calls", "3"];
        let more = ["--clients", "1", "--group", ours];
        let run = run_fetch(&place, 0, &url, &[&load, &more[..], &CLIENT_TLS].concat());
        let agreed = &run["tls"]["handshakes"][0];
        assert_eq!(
            (&agreed["count"], &agreed["group"]),
            (&3.into(), &ours.into()),
            "{run}"
        );
    }
}

#[test]
fn go_interoperates_with_every_certificate_kind() {
    for (kind, expected) in GO_KINDS {
        let place = Place::new();
        let chain = ["--algorithm", kind, "--intermediates", "1"];
        place.expect(0, &[&["certs", "certs"], &chain[..]].concat());
        let known = go_reads_certificates(&place);
        assert!(known || !expected, "{kind}");
        if !known {
            // Go cannot parse this certificate, so it must reject it.
            let (_server, addresses) = serve_to_go(&place, "files", &[]);
            let out = go_client(&place, &addresses[0], &[]);
            assert!(!out.status.success(), "{kind}: {}", text(&out.stdout));
            continue;
        }
        for (name, asks, answer) in SERVERS {
            let (_server, addresses) = serve_to_go(&place, name, &[]);
            for address in addresses {
                let said = go_request(&place, &address, &[asks, &GO_IDENTITY].concat());
                assert!(said.contains(answer), "{name} {kind}: {said}");
                // Whether it first reads an alert or a reset is a race.
                let out = go_client(&place, &address, asks);
                assert!(
                    !out.status.success(),
                    "{name} {kind}: no certificate was demanded"
                );
            }
        }
        let server = go_tls(&place, &[]);
        let url = format!("https://localhost:{}/", server.port);
        let load = ["--size", "4MiB", "--mode", "new", "--calls", "3"];
        let run = run_fetch(
            &place,
            0,
            &url,
            &[&load[..], &["--clients", "1"], &CLIENT_TLS].concat(),
        );
        let agreed = &run["tls"]["handshakes"][0];
        assert_eq!(
            (&agreed["count"], &agreed["certificate"]),
            (&3.into(), &kind.into()),
            "{run}"
        );
    }
}

#[test]
fn go_negotiates_offered_tls_1_2() {
    for kind in ["ecdsa-p256", "rsa-2048"] {
        let place = Place::new();
        place.expect(0, &["certs", "certs", "--algorithm", kind]);
        for (name, asks, answer) in SERVERS {
            let both = ["--tls-version", "1.3", "--tls-version", "1.2"];
            for (offered, spoken) in [(&both[2..], &["1.2"][..]), (&both, &["1.2", "1.3"])] {
                let (_server, addresses) = serve_to_go(&place, name, offered);
                for (address, version) in addresses
                    .iter()
                    .flat_map(|address| spoken.iter().map(move |version| (address, version)))
                {
                    let asks = [asks, &["-version", version], &GO_IDENTITY].concat();
                    let said = go_request(&place, address, &asks);
                    assert!(said.contains(answer), "{name} {kind} {version}: {said}");
                    // The gRPC client only prints the score.
                    let is_named = said.contains(&format!("TLS {version} "));
                    assert!(is_named || answer == "score ", "{name} {version}: {said}");
                }
            }
            let (_server, addresses) = serve_to_go(&place, name, &[]);
            for address in addresses {
                let asks = [asks, &["-version", "1.2"], &GO_IDENTITY].concat();
                let out = go_client(&place, &address, &asks);
                assert!(!out.status.success(), "{name}: TLS 1.2 was not asked for");
                let errors = text(&out.stderr);
                assert!(errors.contains("protocol version"), "{name}: {errors}");
            }
        }
    }
}

#[test]
fn go_client_resumes_sessions() {
    let place = Place::new();
    place.certificates();
    for (name, asks, _) in SERVERS.iter().filter(|(.., answer)| *answer != "score ") {
        // With TLS 1.2 Go resumes only from tickets, which only these servers send.
        let versions: &[&str] = match *name {
            "files" | "hold" => &["1.3", "1.2"],
            _ => &["1.3"],
        };
        for version in versions {
            let (_server, addresses) = serve_to_go(&place, name, &["--tls-version", version]);
            for address in addresses {
                let more = ["-resume", "-version", version];
                let said = go_request(&place, &address, &[asks, &more[..], &GO_IDENTITY].concat());
                let resumed = said.lines().map(|line| line.contains("resumed true"));
                assert_eq!(
                    resumed.collect::<Vec<_>>(),
                    [false, true],
                    "{name} {version}: {said}"
                );
            }
        }
    }
}
