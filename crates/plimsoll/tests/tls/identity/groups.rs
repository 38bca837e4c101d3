//! Key-exchange groups, configured by name and agreed on by both ends.

use super::*;

#[test]
fn each_group_is_negotiated_with_our_server() {
    let place = place();
    let offered = GROUPS.iter().flat_map(|(group, _)| ["--group", *group]);
    let offered: Vec<&str> = offered.collect();
    let server = place.serve(&[&["files"], &offered[..], &SERVER_TLS].concat());
    let url = format!("https://localhost:{}/bytes/100", server.port);
    for (group, _) in GROUPS {
        let agreed = uniform_handshake(&place, &url, &["--group", group]);
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
    let agreed = uniform_handshake(&place, &url, &[]);
    assert_eq!(agreed["group"], "X25519MLKEM768", "{agreed}");
    // The report names the same group.
    let shown = place.expect(0, &["report", "run"]);
    let words: Vec<&str> = shown.split_whitespace().collect();
    let shown = words.join(" ");
    assert!(shown.contains("handshakes 3: TLS 1.3, "), "{shown}");
    assert!(
        shown.contains("signed with ecdsa_secp256r1_sha256"),
        "{shown}"
    );
    place.expect(0, &["report", "run", "--html", "run.html"]);
    assert!(place.read("run.html").contains("TLS handshakes"));
}

#[test]
fn full_and_resumed_handshakes_are_counted_separately() {
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
fn each_group_is_negotiated_with_openssl() {
    let place = place();
    for (ours, theirs) in known_to_openssl(&place, &GROUPS) {
        let server = s_server(&place, &["-WWW", "-tls1_3", "-groups", theirs]);
        let url = format!("https://localhost:{}/file.bin", server.port);
        let agreed = uniform_handshake(&place, &url, &["--size", "1000B", "--group", ours]);
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
        let said = output(client.stdin(Stdio::null()), MAX_WAIT);
        let printed = format!("{}{}", text(&said.stdout), text(&said.stderr));
        assert!(said.status.success(), "{ours}: {printed}");
        assert!(
            printed.contains("Verify return code: 0 (ok)"),
            "{ours}: {printed}"
        );
    }
}

#[test]
fn hybrid_group_also_sends_classical_key_share() {
    let place = place();
    for (curve, group, retried) in [
        ("x25519mlkem768", "X25519MLKEM768", false),
        ("x25519", "X25519", false),
        ("p256", "secp256r1", true),
        ("p384", "secp384r1", true),
    ] {
        let server = go_tls(&place, &["-curve", curve]);
        let url = format!("https://localhost:{}/", server.port);
        let agreed = uniform_handshake(&place, &url, &["--size", "4MiB"]);
        assert_eq!(agreed["group"], group, "{agreed}");
        assert_eq!(agreed["retried"] == true, retried, "{agreed}");
    }
    let hybrid = ["--group", "SecP256r1MLKEM768", "--group", "secp256r1"];
    let server = go_tls(&place, &["-curve", "p256"]);
    let url = format!("https://localhost:{}/", server.port);
    let agreed = uniform_handshake(&place, &url, &[&["--size", "4MiB"], &hybrid[..]].concat());
    assert_eq!(agreed["group"], "secp256r1", "{agreed}");
    assert_eq!(agreed["retried"], Value::Null, "{agreed}");
}
