//! What links are secured with, by name: key-exchange groups and kinds of certificates, against
//! servers and clients of OpenSSL, Go and our own, and what the report of a run says of them.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod support;

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::openssl::{openssl, s_server};
use support::peers::{go_tls, succeeds};
use support::{CLIENT_TLS, Place, SERVER_MTLS, SERVER_TLS, output, text, told};

const LONGEST: Duration = Duration::from_secs(60);

/// Groups by our names, and by OpenSSL's.
const GROUPS: [(&str, &str); 8] = [
    ("X25519", "X25519"),
    ("secp256r1", "P-256"),
    ("secp384r1", "P-384"),
    ("X25519MLKEM768", "X25519MLKEM768"),
    ("SecP256r1MLKEM768", "SecP256r1MLKEM768"),
    ("SecP384r1MLKEM1024", "SecP384r1MLKEM1024"),
    ("MLKEM768", "MLKEM768"),
    ("MLKEM1024", "MLKEM1024"),
];

/// Those of `all` that the OpenSSL here knows: those without ML-KEM and ML-DSA where it is older than
/// 3.5, and all where it is not. `make test` has the system's, `make test-peers` a newer one.
fn known_to_openssl<'a>(place: &Place, all: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let said = text(&succeeds(&mut openssl(place, &["version"])).stdout);
    let number = said.split_whitespace().nth(1).expect("a version");
    let mut parts = number
        .split('.')
        .map(|part| part.parse::<u32>().expect("a number"));
    let version = (parts.next().expect("major"), parts.next().expect("minor"));
    let classical = |name: &str| !name.contains("MLKEM") && !name.contains("ml-dsa");
    let known = all
        .iter()
        .filter(|(ours, _)| version >= (3, 5) || classical(ours));
    known.copied().collect()
}

/// A run of `calls` new connections, and its kinds of handshakes.
#[track_caller]
fn handshakes(place: &Place, url: &str, flags: &[&str]) -> Vec<Value> {
    let _ = fs::remove_dir_all(place.path("run"));
    let fixed = [
        "fetch",
        url,
        "-q",
        "--json",
        "--out",
        "run",
        "--clients",
        "1",
    ];
    let run = place.expect_json(0, &[&fixed, flags, &CLIENT_TLS].concat());
    let handshakes = run["tls"]["handshakes"].as_array();
    let handshakes = handshakes.unwrap_or_else(|| panic!("no handshakes: {run}"));
    handshakes.clone()
}

/// A run of three new connections whose handshakes all agreed on the same.
#[track_caller]
fn alike(place: &Place, url: &str, flags: &[&str]) -> Value {
    let new = ["--mode", "new", "--calls", "3"];
    let all = handshakes(place, url, &[&new, flags].concat());
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0]["count"], 3, "{all:?}");
    all[0].clone()
}

fn place() -> Place {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["payload", "1000B", "file.bin"]);
    place
}

#[test]
fn each_group_is_agreed_on_by_name_with_our_server() {
    let place = place();
    let offered = GROUPS.iter().flat_map(|(group, _)| ["--group", *group]);
    let offered: Vec<&str> = offered.collect();
    let server = place.serve(&[&["files"], &offered[..], &SERVER_TLS].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    for (group, _) in GROUPS {
        let agreed = alike(&place, &url, &["--group", group]);
        assert_eq!(agreed["group"], group, "{agreed}");
        assert_eq!(agreed["retried"], Value::Null, "{agreed}");
        assert_eq!(agreed["version"], "TLSv1_3", "{agreed}");
        assert_eq!(agreed["signature"], "ecdsa_secp256r1_sha256", "{agreed}");
        assert_eq!(agreed["certificate"], "ecdsa-p256", "{agreed}");
        assert_eq!(agreed["chain"], 1, "{agreed}");
        let bytes = agreed["chain_bytes"].as_u64().expect("bytes");
        assert!((300..700).contains(&bytes), "{agreed}");
    }
    let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    let agreed = alike(&place, &url, &[]);
    assert_eq!(agreed["group"], "X25519MLKEM768", "{agreed}");
    // The report says the same.
    let shown = place.expect(0, &["report", "run"]);
    let words: Vec<&str> = shown.split_whitespace().collect();
    let shown = words.join(" ");
    assert!(shown.contains("handshakes 3: TLSv1_3, "), "{shown}");
    assert!(
        shown.contains("signed with ecdsa_secp256r1_sha256"),
        "{shown}"
    );
    place.expect(0, &["report", "run", "--html", "run.html"]);
    assert!(place.read("run.html").contains("TLS handshakes"));
}

#[test]
fn full_and_resumed_handshakes_are_counted_apart() {
    let place = place();
    let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    let resumed = ["--mode", "resumed", "--warmup", "300ms", "--calls", "20"];
    let all = handshakes(&place, &url, &resumed);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0]["count"].as_u64() >= Some(20), "{all:?}");
    assert_eq!(all[0]["resumed"], true, "{all:?}");
    assert_eq!(all[0]["certificate"], Value::Null, "{all:?}");
    assert_eq!(all[1]["count"], 1, "{all:?}");
    assert_eq!(all[1]["certificate"], "ecdsa-p256", "{all:?}");
}

#[test]
fn each_group_is_agreed_on_with_openssl_as_server_and_as_client() {
    let place = place();
    for (ours, theirs) in known_to_openssl(&place, &GROUPS) {
        let server = s_server(&place, &["-WWW", "-tls1_3", "-groups", theirs]);
        let url = format!("https://localhost:{}/file.bin", server.port);
        let agreed = alike(&place, &url, &["--size", "1000B", "--group", ours]);
        assert_eq!(agreed["group"], ours, "{agreed}");

        let server = place.serve(&[&["files", "--group", ours], &SERVER_TLS[..]].concat());
        let address = server.address();
        let mut client = openssl(
            &place,
            &[
                "s_client",
                "-connect",
                &address,
                "-servername",
                "localhost",
                "-CAfile",
                "certs/ca.crt",
                "-verify_return_error",
                "-groups",
                theirs,
            ],
        );
        let said = output(client.stdin(Stdio::null()), LONGEST);
        let told = format!("{}{}", text(&said.stdout), text(&said.stderr));
        assert!(said.status.success(), "{ours}: {told}");
        assert!(
            told.contains("Verify return code: 0 (ok)"),
            "{ours}: {told}"
        );
    }
}

#[test]
fn a_hybrid_and_its_classical_part_both_have_a_key_share() {
    let place = place();
    for (curve, group, retried) in [
        ("x25519mlkem768", "X25519MLKEM768", false),
        ("x25519", "X25519", false),
        ("p256", "secp256r1", true),
        ("p384", "secp384r1", true),
    ] {
        let server = go_tls(&place, &["-curve", curve]);
        let url = format!("https://localhost:{}/", server.port);
        let agreed = alike(&place, &url, &["--size", "4MiB"]);
        assert_eq!(agreed["group"], group, "{agreed}");
        assert_eq!(agreed["retried"] == true, retried, "{agreed}");
    }
    let hybrid = ["--group", "SecP256r1MLKEM768", "--group", "secp256r1"];
    let server = go_tls(&place, &["-curve", "p256"]);
    let url = format!("https://localhost:{}/", server.port);
    let agreed = alike(&place, &url, &[&["--size", "4MiB"], &hybrid[..]].concat());
    assert_eq!(agreed["group"], "secp256r1", "{agreed}");
    assert_eq!(agreed["retried"], Value::Null, "{agreed}");
}

/// Kinds of certificates by our names, and the signature with which a server that has one proves
/// itself.
const KINDS: [(&str, &str); 8] = [
    ("ed25519", "ed25519"),
    ("ecdsa-p256", "ecdsa_secp256r1_sha256"),
    ("ecdsa-p384", "ecdsa_secp384r1_sha384"),
    ("rsa-2048", "rsa_pss_rsae_sha"),
    ("rsa-3072", "rsa_pss_rsae_sha"),
    ("ml-dsa-44", "mldsa44"),
    ("ml-dsa-65", "mldsa65"),
    ("ml-dsa-87", "mldsa87"),
];

/// A place whose certificates are of `kind`, with one between them and the CA.
fn certified(kind: &str) -> Place {
    let place = Place::new();
    let chain = ["--algorithm", kind, "--intermediates", "1"];
    place.expect(0, &[&["certs", "certs"], &chain[..]].concat());
    place.expect(0, &["payload", "1000B", "file.bin"]);
    place
}

#[track_caller]
fn is_of_kind(agreed: &Value, kind: &str, signature: &str) {
    assert_eq!(agreed["certificate"], kind, "{agreed}");
    assert_eq!(agreed["chain"], 2, "{agreed}");
    let signed = agreed["signature"].as_str().expect("a signature");
    assert!(signed.starts_with(signature), "{agreed}");
}

const IDENTITY: [&str; 4] = ["--cert", "certs/client.crt", "--key", "certs/client.key"];

#[test]
fn each_kind_of_certificate_is_shown_and_checked_at_both_ends() {
    for (kind, signature) in KINDS {
        let place = certified(kind);
        let server = place.serve(&[&["files"], &SERVER_MTLS[..]].concat());
        let url = format!("https://localhost:{}/bytes/100", server.port);
        for records in ["own", "library"] {
            let flags = [&["--records", records], &IDENTITY[..]].concat();
            is_of_kind(&alike(&place, &url, &flags), kind, signature);
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
        // And where connections rest.
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
        let ends = [&CLIENT_TLS[..], &IDENTITY].concat();
        let run = place.expect_json(0, &[&hold[..], &["--out", "hold"], &ends].concat());
        is_of_kind(&run["tls"]["handshakes"][0], kind, signature);
    }
}

#[test]
fn each_kind_of_certificate_is_shown_to_and_checked_by_openssl() {
    let version = Place::new();
    for (kind, signature) in known_to_openssl(&version, &KINDS) {
        let place = certified(kind);
        let ends = ["-CAfile", "certs/ca.crt", "-cert_chain", "certs/server.crt"];
        let demands = ["-Verify", "2", "-verify_return_error"];
        let server = s_server(
            &place,
            &[&["-WWW", "-tls1_3"], &ends[..], &demands].concat(),
        );
        let url = format!("https://localhost:{}/file.bin", server.port);
        let flags = [&["--size", "1000B"], &IDENTITY[..]].concat();
        let agreed = alike(&place, &url, &flags);
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
        // Only who has shown its certificate is answered.
        assert!(
            answer.contains("200 OK"),
            "{kind}: {answer} {}",
            text(&said.stderr)
        );
    }
}

#[test]
fn a_chain_that_no_record_holds_is_read_by_openssl_go_and_us() {
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
        let agreed = alike(&place, &url, &["--records", records]);
        assert_eq!(agreed["chain"], 3, "{agreed}");
        assert!(agreed["chain_bytes"].as_u64() > Some(40_000), "{agreed}");
    }

    let place = Place::new();
    place.expect(0, &["certs", "certs", "--names", "1000"]);
    place.expect(0, &["payload", "1000B", "file.bin"]);
    let server = s_server(&place, &["-WWW", "-tls1_3"]);
    let url = format!("https://localhost:{}/file.bin", server.port);
    let agreed = alike(&place, &url, &["--size", "1000B"]);
    assert!(agreed["chain_bytes"].as_u64() > Some(20_000), "{agreed}");
    let server = go_tls(&place, &[]);
    let url = format!("https://localhost:{}/", server.port);
    let agreed = alike(&place, &url, &["--size", "4MiB"]);
    assert!(agreed["chain_bytes"].as_u64() > Some(20_000), "{agreed}");
    let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let address = server.address();
    let fixed = ["s_client", "-connect", &address, "-servername", "localhost"];
    let trust = ["-CAfile", "certs/ca.crt", "-verify_return_error"];
    let mut client = openssl(&place, &[&fixed[..], &trust].concat());
    let said = output(client.stdin(Stdio::null()), LONGEST);
    assert!(said.status.success(), "{}", text(&said.stderr));
}

#[test]
fn a_ladder_makes_certificates_of_each_kind_and_serves_with_them() {
    let place = Place::new();
    let plan = "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = { json = \"[1]\" }\n\
        [load]\nrate = \"50/s\"\nreuse = \"never\"\n\
        [ladder]\nslice = \"300ms\"\nrounds = 1\nserve = [\"score\", \"--delay\", \"0s\"]\ntls = [\"mutual\"]\n\
        certificate = [\"ed25519\", \"ml-dsa-44\"]\ngroup = [\"X25519MLKEM768\", \"secp256r1\"]\n";
    fs::write(place.path("plan.toml"), plan).expect("a file");
    let climb = ["ladder", "plan.toml", "--out", "ladder", "--json"];
    let document = place.expect_json(0, &climb);
    let rungs = document["rungs"].as_array().expect("rungs");
    assert_eq!(rungs.len(), 4, "{document}");
    for kind in ["ed25519", "ml-dsa-44"] {
        assert!(
            place
                .path(&format!("ladder/certs/{kind}/server.crt"))
                .exists()
        );
    }
    for (from, to, why) in [
        ("ed25519", "ed448", "is unknown"),
        ("[\"mutual\"]", "[\"off\"]", "shows no certificate"),
        (
            "serve = [\"score\", \"--delay\", \"0s\"]",
            "",
            "made for a server that the ladder starts",
        ),
    ] {
        fs::write(place.path("wrong.toml"), plan.replace(from, to)).expect("a file");
        let target = ["--target", "grpcs://localhost:1"];
        let wrong = ["ladder", "wrong.toml", "--out", "wrong"];
        let flags = if to.is_empty() { &target[..] } else { &[] };
        let out = place.run(&[&wrong[..], flags].concat());
        assert!(!out.status.success(), "{why}");
        let said = told(&out).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(why), "{why}: {said}");
    }
}
