//! Rejected certificates and their error messages.

use super::*;

/// Creates a CA in `ca.crt` and a certificate `NAME.crt` for localhost signed by it: `key` are
/// options of `openssl genpkey`, `sign` of `openssl x509`, and `more` is a line of extensions.
fn issue_certificate(place: &Place, name: &str, key: &str, sign: &str, more: &str) {
    let make = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        run_successfully(&mut openssl(place, &words));
    };
    if !place.path("ca.crt").exists() {
        make("ecparam -name prime256v1 -genkey -noout -out ca.key");
        make(
            "req -x509 -new -key ca.key -out ca.crt -days 9 -subj /CN=ca -addext basicConstraints=critical,CA:TRUE",
        );
    }
    let extensions = format!("subjectAltName=DNS:localhost\n{more}\n");
    fs::write(place.path("extensions"), extensions).expect("writable");
    make(&format!("genpkey {key} -out {name}.key"));
    make(&format!(
        "req -new -key {name}.key -subj /CN=localhost -out {name}.csr"
    ));
    make(&format!(
        "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 9 {sign} -extfile extensions -out {name}.crt"
    ));
}

const EC: &str = "-algorithm EC -pkeyopt ec_paramgen_curve:P-256";

#[test]
fn unsupported_server_certificates_are_explained() {
    let place = Place::new();
    for (name, key, sign, more, code, said) in [
        (
            "sha1",
            EC,
            "-sha1",
            "",
            "TLS_BAD_CERTIFICATE",
            &["signed with SHA-1", "sign it again with SHA-256"][..],
        ),
        (
            "short",
            "-algorithm RSA -pkeyopt rsa_keygen_bits:1024",
            "",
            "",
            "TLS_BAD_CERTIFICATE",
            &["RSA key has 1024 bits", "the minimum is 2048"],
        ),
        (
            "pss",
            "-algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048",
            "",
            "",
            "TLS_NO_COMMON_PARAMETERS",
            &[
                "key type in common with the server (RSA-PSS, Ed448 and DSA keys",
                "these are not supported",
            ],
        ),
        (
            "ed448",
            "-algorithm ED448",
            "",
            "",
            "TLS_NO_COMMON_PARAMETERS",
            &["Ed448"],
        ),
        (
            "any",
            EC,
            "",
            "extendedKeyUsage=anyExtendedKeyUsage",
            "TLS_BAD_CERTIFICATE",
            &[
                "any purpose (anyExtendedKeyUsage)",
                "extendedKeyUsage=serverAuth",
            ],
        ),
        (
            "client",
            EC,
            "",
            "extendedKeyUsage=clientAuth,1.2.3.4",
            "TLS_BAD_CERTIFICATE",
            &["TLS client authentication (clientAuth), 1.2.3.4"],
        ),
    ] {
        issue_certificate(&place, name, key, sign, more);
        let (cert, key) = (format!("{name}.crt"), format!("{name}.key"));
        let fixed = [
            "s_server",
            "-accept",
            "127.0.0.1:0",
            "-www",
            "-cipher",
            "DEFAULT:@SECLEVEL=0",
        ];
        let server = [&fixed[..], &["-cert", &cert, "-key", &key]].concat();
        let server = Server::start(openssl(&place, &server).stderr(Stdio::null()));
        let url = format!("https://localhost:{}/", server.port);
        let call = [
            "http",
            &url,
            "--clients",
            "1",
            "--calls",
            "1",
            "--out",
            "run",
        ];
        let refused = place.run(&[&call[..], &["--ca", "ca.crt"]].concat());
        let printed = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(1), "{name}: {printed}");
        assert!(printed.contains(code), "{name}: {printed}");
        for words in said {
            assert!(printed.contains(words), "{name}, {words:?}: {printed}");
        }
        // Signatures by a short key are rejected before the certificate is checked, and the message
        // says so.
        if name == "short" {
            let refused = place.run(&[&call[..], &["--insecure"]].concat());
            let printed = stderr_of(&refused);
            assert!(
                printed.contains("with or without a check of the certificate"),
                "{printed}"
            );
        }
    }
}

#[test]
fn missing_client_certificate_is_named() {
    let place = Place::new();
    issue_certificate(&place, "server", EC, "", "");
    for version in ["-tls1_2", "-tls1_3"] {
        let server = Server::start(
            openssl(
                &place,
                &[
                    "s_server",
                    "-accept",
                    "127.0.0.1:0",
                    "-www",
                    version,
                    "-cert",
                    "server.crt",
                    "-key",
                    "server.key",
                    "-Verify",
                    "2",
                    "-CAfile",
                    "ca.crt",
                ],
            )
            .stderr(Stdio::null()),
        );
        let url = format!("https://localhost:{}/", server.port);
        let run = format!("run{version}");
        let call = ["http", &url, "--ca", "ca.crt", "--clients", "1"];
        let refused = place.run(&[&call[..], &["--calls", "1", "--out", &run]].concat());
        // Over TLS 1.3, the connection is open before the server refuses it, so the call fails, and the report says why.
        let report = String::from_utf8_lossy(&refused.stdout);
        let printed = stderr_of(&refused) + &report;
        assert_eq!(refused.status.code(), Some(1), "{version}: {printed}");
        assert!(
            printed.contains("TLS_CLIENT_CERTIFICATE_REQUIRED"),
            "{version}: {printed}"
        );
    }
}
