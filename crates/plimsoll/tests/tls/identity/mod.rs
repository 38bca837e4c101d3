//! TLS settings by name: key-exchange groups and kinds of certificates, against servers and clients
//! of OpenSSL, Go and our own, and how the report of a run describes them.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod groups;
mod kinds;
mod ladders;
mod lifetimes;
mod refused;
mod rotation;
mod versions;

use crate::support;

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::openssl::{openssl, s_client, s_server};
use support::peers::{go_tls, run_successfully};
use support::{
    CLIENT_TLS, MAX_WAIT, Place, SCORE, SERVER_MTLS, SERVER_TLS, Server, output, stderr_of, text,
};

/// The groups by our names and by OpenSSL's.
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

/// Returns those of `all` that the installed OpenSSL knows: without ML-KEM and ML-DSA before 3.5.
/// `make test` uses the system's OpenSSL, `make test-peers` a newer one.
fn known_to_openssl<'a>(place: &Place, all: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let said = text(&run_successfully(&mut openssl(place, &["version"])).stdout);
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

/// Runs `calls` new connections; returns the kinds of their handshakes.
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
    let run = place.expect_run(0, &[&fixed, flags, &CLIENT_TLS].concat());
    let handshakes = run["tls"]["handshakes"].as_array();
    let handshakes = handshakes.unwrap_or_else(|| panic!("no handshakes: {run}"));
    handshakes.clone()
}

/// Runs three new connections, whose handshakes must all agree on the same parameters.
#[track_caller]
fn uniform_handshake(place: &Place, url: &str, flags: &[&str]) -> Value {
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

/// The kinds of certificates by our names, and the signature algorithm that a server with such a
/// certificate uses.
const CERTIFICATE_KINDS: [(&str, &str); 9] = [
    ("ed25519", "ed25519"),
    ("ecdsa-p256", "ecdsa_secp256r1_sha256"),
    ("ecdsa-p384", "ecdsa_secp384r1_sha384"),
    ("rsa-2048", "rsa_pss_rsae_sha"),
    ("rsa-3072", "rsa_pss_rsae_sha"),
    ("rsa-4096", "rsa_pss_rsae_sha"),
    ("ml-dsa-44", "mldsa44"),
    ("ml-dsa-65", "mldsa65"),
    ("ml-dsa-87", "mldsa87"),
];

/// Returns a place whose certificates are of `kind`, with one intermediate certificate.
fn place_with_certificates(kind: &str) -> Place {
    let place = Place::new();
    let chain = ["--algorithm", kind, "--intermediates", "1"];
    place.expect(0, &[&["certs", "certs"], &chain[..]].concat());
    place.expect(0, &["payload", "1000B", "file.bin"]);
    place
}

const CLIENT_IDENTITY: [&str; 4] = ["--cert", "certs/client.crt", "--key", "certs/client.key"];

/// The cipher suites of TLS 1.2 by our names, with the kind of certificate that they need.
const TLS12_SUITES: [(&str, &str); 3] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ecdsa-p256"),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "ecdsa-p256",
    ),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "rsa-2048"),
];

const TLS12: [&str; 2] = ["--tls-version", "1.2"];
const BOTH_VERSIONS: [&str; 4] = ["--tls-version", "1.3", "--tls-version", "1.2"];

#[test]
fn tls_secrets_go_only_to_key_log() {
    let place = place();
    let server = place.serve(&[&["files"], &BOTH_VERSIONS[..], &SERVER_TLS].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    uniform_handshake(&place, &url, &[]);
    let here = fs::read_dir(place.path("")).expect("a folder");
    let names = here.map(|entry| entry.expect("an entry").file_name());
    assert!(
        !names
            .map(|n| n.to_string_lossy().into_owned())
            .any(|n| n.contains("keys"))
    );
    for records in ["own", "library"] {
        uniform_handshake(&place, &url, &["--records", records, "--key-log", "keys"]);
        let keys = place.read("keys");
        // Three connections, with two handshake secrets, two traffic secrets and the exporter
        // secret each.
        for label in [
            "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
            "SERVER_HANDSHAKE_TRAFFIC_SECRET",
            "CLIENT_TRAFFIC_SECRET_0",
            "SERVER_TRAFFIC_SECRET_0",
        ] {
            let lines = keys.lines().filter(|line| line.starts_with(label));
            let lines: Vec<Vec<&str>> = lines.map(|l| l.split(' ').collect()).collect();
            assert_eq!(lines.len(), 3, "{keys}");
            assert!(
                lines
                    .iter()
                    .all(|line| line.len() == 3 && line[1].len() == 64),
                "{keys}"
            );
        }
        fs::remove_file(place.path("keys")).expect("a file");
    }
    uniform_handshake(&place, &url, &[&TLS12[..], &["--key-log", "keys"]].concat());
    let keys = place.read("keys");
    assert_eq!(keys.matches("CLIENT_RANDOM ").count(), 3, "{keys}");
    let mode = fs::metadata(place.path("keys")).expect("a file");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
}

#[test]
fn certificates_are_compressed_when_both_support_it() {
    let place = Place::new();
    place.expect(0, &["certs", "certs", "--names", "500"]);
    let received = |place: &Place| {
        place.run_json("run")["total"]["ok"]
            .as_u64()
            .expect("calls")
    };
    let server = place.serve(&[&["files", "--compressed-certificates"], &SERVER_TLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    let agreed = uniform_handshake(&place, &url, &["--compressed-certificates"]);
    // The decompressed certificate.
    assert!(agreed["chain_bytes"].as_u64() > Some(12_000), "{agreed}");
    assert_eq!(received(&place), 3);
    uniform_handshake(&place, &url, &[]);
}

#[test]
fn servers_report_negotiated_parameters_at_exit() {
    let place = place();
    for server in ["files", "hold"] {
        let mut command = place.command(
            &[
                &["serve", server, "--listen", "127.0.0.1:0"],
                &SERVER_TLS[..],
            ]
            .concat(),
        );
        let printed = fs::File::create(place.path("stderr")).expect("a file");
        command.stderr(printed);
        let server_process = Server::start(&mut command);
        let _ = fs::remove_dir_all(place.path("run"));
        for group in ["X25519", "secp256r1"] {
            let port = server_process.port;
            let flags: Vec<String> = match server {
                "files" => vec![
                    "fetch".into(),
                    format!("https://localhost:{port}/bytes/1"),
                    "--calls".into(),
                    "2".into(),
                    "--mode".into(),
                    "new".into(),
                    "--clients".into(),
                    "1".into(),
                ],
                _ => vec![
                    "hold".into(),
                    format!("tls://localhost:{port}"),
                    "--connections".into(),
                    "2".into(),
                    "--for".into(),
                    "200ms".into(),
                ],
            };
            let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            flags.extend(["-q", "--group", group]);
            place.expect(0, &[&flags[..], &CLIENT_TLS].concat());
        }
        let (code, said) = server_process.stop();
        assert_eq!(code, 0, "{said}");
        let said = place.read("stderr");
        for group in ["X25519", "secp256r1"] {
            let mut lines = said.lines();
            let is_told = lines.any(|line| {
                line.contains("handshakes 2: TLS 1.3, ")
                    && line.contains(&format!(", {group}, full"))
            });
            assert!(is_told, "{group}: {said}");
        }
    }
}
