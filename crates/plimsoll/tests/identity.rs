//! What links are secured with, by name: key-exchange groups and kinds of certificates, against
//! servers and clients of OpenSSL, Go and our own, and what the report of a run says of them.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod support;

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::openssl::{openssl, s_client, s_server};
use support::peers::{go_tls, succeeds};
use support::{
    CLIENT_TLS, LONGEST, Place, SCORE, SERVER_MTLS, SERVER_TLS, Server, output, stderr_of, text,
};

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
        let printed = format!("{}{}", text(&said.stdout), text(&said.stderr));
        assert!(said.status.success(), "{ours}: {printed}");
        assert!(
            printed.contains("Verify return code: 0 (ok)"),
            "{ours}: {printed}"
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
const KINDS: [(&str, &str); 9] = [
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
fn lists_of_revoked_certificates_are_signed_by_each_kind_and_verified_at_both_ends() {
    let version = Place::new();
    let theirs = known_to_openssl(&version, &KINDS);
    for (kind, _) in KINDS {
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
                    LONGEST,
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
        // The client finds the server good, and the server finds the client revoked.
        let out = place.run(&[&fetch[..], &list, &IDENTITY, &CLIENT_TLS].concat());
        assert_eq!(out.status.code(), Some(1), "{kind}");
        let errors = &place.run_json("run")["total"]["errors_by_code"];
        assert_eq!(
            errors[0]["code"], "TLS_CLIENT_CERTIFICATE_REJECTED",
            "{kind}: {errors}"
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
    let mut client = s_client(&place, &server, &["-verify_return_error"]);
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
        let said = stderr_of(&out)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(said.contains(why), "{why}: {said}");
    }
}

#[test]
fn a_ladder_in_turns_lists_what_new_and_resumed_connections_cost() {
    let place = Place::new();
    let plan = "[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = { json = \"[1]\" }\n\
        [load]\nrate = \"400/s\"\nduration = \"1s\"\n\
        [ladder]\nserve = [\"score\", \"--delay\", \"0s\"]\nparts = [\"connections\", \"resumed\"]\n\
        tls = [\"server\", \"mutual\"]\ncertificate = [\"ecdsa-p256\"]\n";
    fs::write(place.path("plan.toml"), plan).expect("a file");
    let climb = ["ladder", "plan.toml", "--out", "ladder", "--json"];
    let document = place.expect_json(0, &climb);
    for rung in document["rungs"].as_array().expect("rungs") {
        // The p99 is of the connections of all rounds together.
        for part in ["connections", "resumed"] {
            let slices = rung["parts"][part].as_array().expect("slices");
            let made: u64 = slices
                .iter()
                .map(|slice| slice["carried"]["connections"].as_u64().expect("a count"))
                .sum();
            let p99 = &rung["connection_p99"][part];
            let Some(of) = p99["count"].as_u64() else {
                // 368 of them have one, warm-up and the rounds' ends aside.
                assert!(made < 1_000, "{part}: {made} connections: {rung}");
                continue;
            };
            assert!(of >= 368 && of <= made, "{part}: {of} of {made}: {rung}");
            let at = |key: &str| p99[key].as_f64().expect("a time");
            assert!(
                at("low_us") <= at("us") && at("us") <= at("high_us"),
                "{p99}"
            );
        }
    }
    let shown = place.expect(0, &["report", "ladder", "--markdown", "-"]);
    let prices: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.starts_with("| a new connection with a call"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let names = [
        "tls server, full",
        "tls server, resumed",
        "tls mutual, full",
        "tls mutual, resumed",
    ];
    assert_eq!(prices.len(), names.len(), "{shown}");
    for (row, name) in prices.iter().zip(names) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells[0].ends_with(name), "{row}");
        let known = |i: usize| i == 2 || cells[i] != "–";
        assert!((1..cells.len()).all(known), "{row}");
    }
}

#[test]
fn a_ladder_prices_openssl_at_the_server_beside_ours() {
    let place = Place::new();
    let version = text(&succeeds(&mut openssl(&place, &["version"])).stdout);
    let version: Vec<&str> = version.split_whitespace().take(2).collect();
    let version = version.join(" ");
    let mine = [("ecdsa-p256", ""), ("rsa-2048", ""), ("ml-dsa-65", "")];
    let kinds = known_to_openssl(&place, &mine);
    let groups = known_to_openssl(&place, &[("X25519", ""), ("X25519MLKEM768", "")]);
    let list = |known: &[(&str, &str)]| {
        let quoted = known.iter().map(|(name, _)| format!("\"{name}\""));
        quoted.collect::<Vec<_>>().join(", ")
    };
    let plan = format!(
        "[call.fetch]\n[load]\nrate = \"20/s\"\nreuse = \"never\"\nwarmup = \"300ms\"\n\
        [ladder]\nslice = \"500ms\"\nrounds = 1\nserve = [\"files\"]\nsize = [\"1KiB\"]\n\
        tls = [\"mutual\"]\nconnection = [\"new\", \"resumed\"]\nlibrary = [\"rustls\", \"openssl\"]\n\
        certificate = [{}]\ngroup = [{}]\n",
        list(&kinds),
        list(&groups)
    );
    fs::write(place.path("plan.toml"), plan).expect("a file");
    let mut command = place.command(&["ladder", "plan.toml", "--out", "ladder", "--json"]);
    let path = std::env::var_os("PATH").expect("a path");
    let out = output(command.env("PATH", &path), LONGEST);
    assert_eq!(out.status.code(), Some(0), "{}", stderr_of(&out));
    let document: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let rungs = document["rungs"].as_array().expect("rungs");
    assert_eq!(rungs.len(), kinds.len() * groups.len() * 4, "{document}");
    let ours = document["client_tls"].as_str().expect("a library");
    assert!(
        ours.contains("rustls ") && ours.contains("aws-lc"),
        "{ours}"
    );
    let primitives = &document["primitives"];
    for rung in rungs {
        let settings = &rung["settings"];
        // What the cryptography takes is known for each group and kind, and is part of the whole.
        let handshake = &rung["handshake"];
        let of = |what: &str, key: &Value| {
            let us = primitives[what][key.as_str().expect("a name")].as_f64();
            us.unwrap_or_else(|| panic!("{what} {key}: {primitives}"))
        };
        assert_eq!(handshake["mutual"], true, "{rung}");
        assert_eq!(
            handshake["resumed"] == true,
            settings["connection"] == "resumed"
        );
        for (what, key) in [
            ("client_exchange_us", &handshake["group"]),
            ("server_exchange_us", &handshake["group"]),
            ("sign_us", &handshake["certificate"]),
            ("verify_us", &handshake["certificate"]),
        ] {
            assert!(of(what, key) > 0.0, "{what} {key}: {primitives}");
        }
        let library = match settings["library"].as_str() {
            Some("openssl") => version.as_str(),
            _ => ours,
        };
        assert_eq!(rung["server_tls"], library, "{rung}");
        let slice = &rung["slices"][0];
        assert_eq!(slice["errors"], 0, "{rung}");
        assert!(
            slice["server_cpu_us_per_call"].as_f64() > Some(0.0),
            "{rung}"
        );
        // It is what it is called, of the server's certificate and of both ends' key exchange.
        let run = place.run_json(&format!("ladder/{}", slice["run"].as_str().expect("a run")));
        assert_eq!(run["security"], "mutual-tls", "{run}");
        assert_eq!(run["tls"]["group"], settings["group"], "{run}");
        let kinds = run["tls"]["handshakes"].as_array().expect("a list");
        let full = kinds
            .iter()
            .find(|h| h["resumed"] != true)
            .expect("a full one");
        assert_eq!(full["certificate"], settings["certificate"], "{run}");
        let resumed = kinds.iter().any(|h| h["resumed"] == true);
        assert_eq!(resumed, settings["connection"] == "resumed", "{run}");
    }
    let shown = place.expect(0, &["report", "ladder"]);
    let words: Vec<&str> = shown.split_whitespace().collect();
    let shown = words.join(" ");
    assert!(
        shown.contains(&format!("TLS at the client is {ours}, at the server")),
        "{shown}"
    );
    assert!(shown.contains(&version), "{shown}");
    assert!(shown.contains("a new connection with a call"), "{shown}");
    place.expect(0, &["report", "ladder", "--html", "ladder.html"]);
    assert!(place.read("ladder.html").contains(&version));
}

#[test]
fn a_ladder_says_what_openssl_can_not_do() {
    let place = Place::new();
    let plan = "[call.fetch]\n[load]\nrate = \"20/s\"\nreuse = \"never\"\n\
        [ladder]\nslice = \"300ms\"\nrounds = 1\nserve = [\"files\"]\nsize = [\"1KiB\", \"2KiB\"]\n\
        tls = [\"server\"]\nlibrary = [\"openssl\"]\n";
    for (from, to, why) in [
        ("\"server\"", "\"off\"", "is plaintext"),
        (
            "[\"files\"]",
            "[\"score\"]",
            "takes the place of a file server",
        ),
        ("\"never\"", "\"always\"", "closes each connection"),
        ("openssl", "gnutls", "use \"rustls\" or \"openssl\""),
        // There is no openssl on this PATH.
        ("", "", "can't run `openssl`"),
    ] {
        fs::write(place.path("wrong.toml"), plan.replace(from, to)).expect("a file");
        let _ = fs::remove_dir_all(place.path("wrong"));
        let mut command = place.command(&["ladder", "wrong.toml", "--out", "wrong"]);
        let out = output(command.env("PATH", place.path("")), LONGEST);
        assert!(!out.status.success(), "{why}");
        assert!(stderr_of(&out).contains(why), "{why}: {}", stderr_of(&out));
    }
}

/// Suites of TLS 1.2 by our names, with the kind of certificate that they are for.
const OLD_SUITES: [(&str, &str); 3] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ecdsa-p256"),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "ecdsa-p256",
    ),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "rsa-2048"),
];

const OLD: [&str; 2] = ["--tls-version", "1.2"];
const BOTH: [&str; 4] = ["--tls-version", "1.3", "--tls-version", "1.2"];

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
        let run = place.expect_json(0, &flags);
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

#[test]
fn secrets_are_written_where_that_is_asked_for_and_nowhere_else() {
    let place = place();
    let server = place.serve(&[&["files"], &BOTH[..], &SERVER_TLS].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    alike(&place, &url, &[]);
    let here = fs::read_dir(place.path("")).expect("a folder");
    let names = here.map(|entry| entry.expect("an entry").file_name());
    assert!(
        !names
            .map(|n| n.to_string_lossy().into_owned())
            .any(|n| n.contains("keys"))
    );
    for records in ["own", "library"] {
        alike(&place, &url, &["--records", records, "--key-log", "keys"]);
        let keys = place.read("keys");
        // Three connections, with two secrets of the handshake, two of the data and the exporter's.
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
    alike(&place, &url, &[&OLD[..], &["--key-log", "keys"]].concat());
    let keys = place.read("keys");
    assert_eq!(keys.matches("CLIENT_RANDOM ").count(), 3, "{keys}");
    let mode = fs::metadata(place.path("keys")).expect("a file");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
}

#[test]
fn certificates_are_compressed_where_both_ends_want_that() {
    let place = Place::new();
    place.expect(0, &["certs", "certs", "--names", "500"]);
    let received = |place: &Place| {
        place.run_json("run")["total"]["ok"]
            .as_u64()
            .expect("calls")
    };
    let server = place.serve(&[&["files", "--compressed-certificates"], &SERVER_TLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    let agreed = alike(&place, &url, &["--compressed-certificates"]);
    // What it is opened to.
    assert!(agreed["chain_bytes"].as_u64() > Some(12_000), "{agreed}");
    assert_eq!(received(&place), 3);
    alike(&place, &url, &[]);
}

/// What our server counted: full and resumed handshakes.
#[track_caller]
fn counted(server: Server) -> (u64, u64) {
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    let number = |name: &str| {
        let rest = said.split(name).nth(1);
        let word = rest.and_then(|rest| rest.split([',', '\n', ' ']).find(|word| !word.is_empty()));
        word.map_or(0, |word| {
            word.parse()
                .unwrap_or_else(|e| panic!("{word}: {e}: {said}"))
        })
    };
    (number("full handshakes"), number("resumed handshakes"))
}

#[test]
fn a_share_of_the_handshakes_is_full_as_the_server_counts_them() {
    for (share, clients, version) in [
        ("10%", "1", "1.3"),
        ("25%", "4", "1.3"),
        ("50%", "1", "1.2"),
    ] {
        let place = place();
        let versions = ["--tls-version", version];
        let server = place.serve(&[&["files"], &versions[..], &SERVER_TLS].concat());
        let url = format!("https://localhost:{}/bytes/100", server.port);
        let load = [
            "fetch",
            &url,
            "-q",
            "--json",
            "--out",
            "run",
            "--cold",
            "--workers",
            "1",
        ];
        let more = ["--clients", clients, "--calls", "400", "--full", share];
        let run = place.expect_json(0, &[&load[..], &more, &versions, &CLIENT_TLS].concat());
        let (full, resumed) = counted(server);
        assert_eq!(full + resumed, 400, "{run}");
        let part: f64 = share.trim_end_matches('%').parse().expect("a number");
        let asked = part / 100.0 * 400.0;
        assert!((full as f64 - asked).abs() <= 1.0, "{share}: {full} of 400");
        assert_eq!(run["total"]["connections_full"], full, "{run}");
        assert_eq!(run["full_share"], part / 100.0, "{run}");
    }
}

#[test]
fn connections_live_for_so_many_calls() {
    let place = place();
    let server = place.serve(&[&["score", "--delay", "0s"], &SERVER_TLS[..]].concat());
    let url = format!("grpcs://localhost:{}", server.port);
    let call = [
        "--method",
        "score.ScoreService/GetScore",
        "--data",
        "{\"json\":\"[1]\"}",
    ];
    let load = [
        "--clients",
        "4",
        "--connections",
        "2",
        "--calls",
        "1000",
        "--workers",
        "1",
    ];
    let life = [
        "--calls-per-connection",
        "100",
        "--json",
        "-q",
        "--out",
        "run",
    ];
    let run = place.expect_json(
        0,
        &[&["grpc", &url], &call[..], &load, &life, &CLIENT_TLS].concat(),
    );
    assert_eq!(run["total"]["ok"], 1000, "{run}");
    assert_eq!(run["total"]["errors"], 0, "{run}");
    assert_eq!(run["calls_per_connection"], 100, "{run}");
    // The first of the two ends after half of its calls; the last ones carry what is left, or nothing.
    let made = run["total"]["connections_full"].as_u64().expect("a number");
    assert!((10..=13).contains(&made), "{run}");
    assert_eq!(run["total"]["connections_lost"], 0, "{run}");
    assert_eq!(run["total"]["connections_unused"], Value::Null, "{run}");
}

#[test]
fn connections_live_for_a_time_whether_they_are_used_or_not() {
    let place = place();
    let server = place.serve(&[&["score", "--delay", "0s"], &SERVER_TLS[..]].concat());
    let url = format!("grpcs://localhost:{}", server.port);
    let call = [
        "--method",
        "score.ScoreService/GetScore",
        "--data",
        "{\"json\":\"[1]\"}",
    ];
    let load = [
        "--rate",
        "20/s",
        "--connections",
        "4",
        "--duration",
        "2s",
        "--workers",
        "1",
    ];
    let life = [
        "--connection-lifetime",
        "250ms",
        "--json",
        "-q",
        "--out",
        "run",
    ];
    let run = place.expect_json(
        0,
        &[&["grpc", &url], &call[..], &load, &life, &CLIENT_TLS].concat(),
    );
    assert_eq!(run["total"]["errors"], 0, "{run}");
    let made = run["total"]["connections_full"].as_u64().expect("a number");
    // Four, replaced some eight times each; fewer where the machine is busy.
    assert!((12..=44).contains(&made), "{run}");
    assert_eq!(run["connection_lifetime_us"], 250_000, "{run}");
}

#[test]
fn certificates_are_replaced_at_both_ends_while_the_load_goes_on() {
    let place = place();
    let server = place.serve(&[&["files"], &SERVER_MTLS[..]].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    let load = [
        "fetch", &url, "-q", "--json", "--out", "run", "--mode", "new", "--rate", "50/s",
    ];
    let more = ["--duration", "60s", "--workers", "1"];
    let trust = [&CLIENT_TLS[..], &IDENTITY].concat();
    let mut command = place.command(&[&load[..], &more, &trust].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // New leaves of another kind, under the CA that both ends trust, made with OpenSSL.
    let wait_for = |wanted: &dyn Fn() -> bool, what: &str| {
        let end = std::time::Instant::now() + LONGEST;
        while !wanted() {
            assert!(std::time::Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let lines = || {
        let path = place.path("run/intervals.jsonl");
        fs::read_to_string(path).map_or(0, |text| text.lines().count())
    };
    // There are handshakes with the old ones first.
    wait_for(&|| lines() > 0, "the load never began");
    for (name, purpose) in [("server", "serverAuth"), ("client", "clientAuth")] {
        fs::write(
            place.path("ext"),
            format!("subjectAltName=DNS:localhost\nextendedKeyUsage={purpose}\n"),
        )
        .expect("a file");
        for line in [
            &[
                "req",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-subj",
                "/CN=localhost",
                "-keyout",
                "new.key",
                "-out",
                "new.csr",
            ][..],
            &[
                "x509",
                "-req",
                "-in",
                "new.csr",
                "-CA",
                "certs/ca.crt",
                "-CAkey",
                "certs/ca.key",
                "-CAcreateserial",
                "-days",
                "1",
                "-extfile",
                "ext",
                "-out",
                "new.crt",
            ],
        ] {
            succeeds(&mut openssl(&place, line));
        }
        // Not at one moment: in between they do not belong together.
        for kind in ["crt", "key"] {
            let to = place.path(&format!("certs/{name}.{kind}"));
            fs::rename(place.path(&format!("new.{kind}")), to).expect("replaced");
        }
    }
    // The load has met the new ones when both ends have read them again: each does within a second of
    // handshakes, so two whole intervals more are enough.
    let now = lines();
    wait_for(&|| lines() >= now + 6, "the load stands still");
    support::signal(&child, rustix::process::Signal::INT);
    let ended = support::wait(&mut child);
    assert_eq!(ended, 130);
    let run = place.run_json("run");
    assert_eq!(run["total"]["errors"], 0, "{run}");
    assert_eq!(run["tls"]["renewed"], 1, "{run}");
    let kinds = run["tls"]["handshakes"].as_array().expect("a list");
    let has = |kind: &str| kinds.iter().any(|h| h["certificate"] == kind);
    assert!(has("ecdsa-p256") && has("rsa-2048"), "{run}");
    // What it cost is set beside the rest of the run.
    let rotation = &run["rotation"];
    let seconds = rotation["intervals"].as_u64().expect("a count");
    assert!((1..=2).contains(&seconds), "{rotation}");
    let (around, rest) = (&rotation["around"], &rotation["rest"]);
    for part in [around, rest] {
        assert!(part["calls"].as_u64() > Some(0), "{rotation}");
        assert_eq!(part["connections"], part["calls"], "{rotation}");
        assert_eq!(part["errors"], 0, "{rotation}");
        assert_eq!(part["connect_failures"], 0, "{rotation}");
        assert_eq!(part["handshake"]["count"], part["calls"], "{rotation}");
        for end in ["client_cpu_us_per_call", "server_cpu_us_per_call"] {
            assert!(part[end].as_f64() > Some(0.0), "{end}: {rotation}");
        }
    }
    let sum = around["calls"].as_u64().zip(rest["calls"].as_u64());
    let sum = sum.map(|(around, rest)| around + rest);
    assert_eq!(sum, run["total"]["ok"].as_u64(), "{run}");
    let shown = place.expect(0, &["report", "run"]);
    let words: Vec<&str> = shown.split_whitespace().collect();
    let shown = words.join(" ");
    assert!(shown.contains("certificates were replaced in"), "{shown}");
    assert!(shown.contains("0 failed of"), "{shown}");
    place.expect(0, &["report", "run", "--html", "run.html"]);
    assert!(
        place
            .read("run.html")
            .contains("certificates were replaced in")
    );
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("handshakes failed"), "{said}");
}

#[test]
fn a_client_ca_that_is_replaced_decides_who_comes_in() {
    let place = place();
    place.expect(0, &["certs", "others"]);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = std::time::Instant::now() + LONGEST;
        while !is_so() {
            assert!(std::time::Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let load = ["--clients", "1", "--calls", "1", "-q", "--out", "run"];
    for server in ["files", "score", "fast"] {
        let replace = |whose: &str| {
            let from = place.path(whose).join("ca.crt");
            fs::copy(from, place.path("new.crt")).expect("a copy");
            fs::rename(place.path("new.crt"), place.path("clients.crt")).expect("replaced");
        };
        replace("certs");
        let demand = ["--tls-client-ca", "clients.crt"];
        let running = place.serve(&[&[server], &SERVER_TLS[..], &demand].concat());
        let call = match server {
            "files" => vec![
                "fetch".to_owned(),
                format!("https://localhost:{}/bytes/10", running.port),
            ],
            _ => [&["grpc", &running.tls()], &SCORE[..]]
                .concat()
                .iter()
                .map(|word| (*word).to_owned())
                .collect(),
        };
        let comes_in = |whose: &str| {
            let _ = fs::remove_dir_all(place.path("run"));
            let (cert, key) = (format!("{whose}/client.crt"), format!("{whose}/client.key"));
            let shown = ["--cert", &cert, "--key", &key];
            let call: Vec<&str> = call.iter().map(String::as_str).collect();
            place
                .run(&[&call[..], &load, &CLIENT_TLS, &shown].concat())
                .status
                .success()
        };
        assert!(comes_in("certs") && !comes_in("others"), "{server}");
        replace("others");
        until("the other CA's client is never taken", &|| {
            comes_in("others")
        });
        assert!(!comes_in("certs"), "{server}");
        // Files that can't be used change nothing.
        fs::write(place.path("clients.crt"), "no certificate").expect("a file");
        std::thread::sleep(Duration::from_millis(1100));
        assert!(comes_in("others") && !comes_in("certs"), "{server}");
        replace("certs");
        until("the first CA's client is never taken again", &|| {
            comes_in("certs")
        });
        assert!(!comes_in("others"), "{server}");
    }
}

#[test]
fn servers_say_at_their_end_what_clients_chose() {
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
                line.contains("handshakes 2: TLSv1_3, ")
                    && line.contains(&format!(", {group}, full"))
            });
            assert!(is_told, "{group}: {said}");
        }
    }
}
