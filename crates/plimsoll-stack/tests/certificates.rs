//! Tests of certificate sets with the file system, rustls and openssl.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use plimsoll_stack::certificates::{
    CertificateError, CertificateOptions, CertificatePaths, KeyAlgorithm, LeafCertificate,
    Validity, make_certificates,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

fn chain(path: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

fn roots(path: &Path) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain(path));
    assert_eq!(roots.len(), 1);
    Arc::new(roots)
}

/// Makes a complete handshake with mutual authentication in memory, between the client of one set and the server of
/// another. The error is that of the side that refused first.
fn handshake(
    client: &CertificatePaths,
    server: &CertificatePaths,
    server_name: &str,
) -> Result<(), rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let client_config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots(&client.ca_cert))
        .with_client_auth_cert(
            chain(&client.client_cert),
            PrivateKeyDer::from_pem_file(&client.client_key).unwrap(),
        )?;
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots(&server.ca_cert), provider.clone())
            .build()
            .unwrap();
    let server_config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            chain(&server.server_cert),
            PrivateKeyDer::from_pem_file(&server.server_key).unwrap(),
        )?;
    let name = ServerName::try_from(server_name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client_config), name)?;
    let mut server = ServerConnection::new(Arc::new(server_config))?;
    for _ in 0..8 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut bytes = wire.as_slice();
        while !bytes.is_empty() {
            server.read_tls(&mut bytes).unwrap();
            server.process_new_packets()?;
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut bytes = wire.as_slice();
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(())
}

fn openssl(args: &[&str]) -> (bool, String) {
    let output = Command::new("openssl")
        .args(args)
        .output()
        .expect("openssl is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn rustls_and_openssl_accept_all_algorithms() {
    for algorithm in KeyAlgorithm::ALL {
        // Making its keys takes seconds, and it differs from the others only in their length.
        if algorithm == KeyAlgorithm::Rsa4096 {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = CertificateOptions {
            names: vec![
                "api.example.test".into(),
                "*.mesh.test".into(),
                "10.1.2.3".into(),
                "localhost".into(),
            ],
            algorithm,
            ..CertificateOptions::default()
        };
        let set = make_certificates(dir.path(), &options).unwrap();
        for name in [
            "localhost",
            "127.0.0.1",
            "::1",
            "api.example.test",
            "a.mesh.test",
            "10.1.2.3",
        ] {
            handshake(&set, &set, name).unwrap_or_else(|e| panic!("{algorithm} {name}: {e}"));
        }
        assert!(handshake(&set, &set, "elsewhere.test").is_err());

        // Older versions of OpenSSL do not know these: they are tested elsewhere, with one that does.
        if algorithm.name().starts_with("ml-dsa") {
            continue;
        }
        for (purpose, cert, good) in [
            ("sslserver", &set.server_cert, true),
            ("sslclient", &set.client_cert, true),
            ("sslserver", &set.client_cert, false),
            ("sslclient", &set.server_cert, false),
        ] {
            let (ok, said) = openssl(&[
                "verify",
                "-x509_strict",
                "-purpose",
                purpose,
                "-CAfile",
                text(&set.ca_cert),
                text(cert),
            ]);
            assert_eq!(ok, good, "{algorithm} {purpose} {cert:?}: {said}");
        }
        let (ok, printed) = openssl(&["x509", "-noout", "-text", "-in", text(&set.server_cert)]);
        assert!(ok, "{printed}");
        for wanted in [
            "DNS:localhost",
            "IP Address:127.0.0.1",
            "IP Address:0:0:0:0:0:0:0:1",
            "DNS:*.mesh.test",
        ] {
            assert_eq!(printed.matches(wanted).count(), 1, "{wanted} in {printed}");
        }
    }
}

#[test]
fn files_are_owner_only() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("new").join("certs");
    let set = make_certificates(&dir, &CertificateOptions::default()).unwrap();
    for path in set.paths_without_crl() {
        assert_eq!(
            fs::metadata(path).unwrap().permissions().mode() & 0o777,
            0o600,
            "{path:?}"
        );
    }
    // No temporary file is left.
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 6);
}

#[test]
fn existing_files_kept_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("server.key");
    fs::write(&kept, "precious").unwrap();
    symlink("nowhere", dir.path().join("client.crt")).unwrap();
    let error = make_certificates(dir.path(), &CertificateOptions::default()).unwrap_err();
    let said = error.to_string();
    assert!(
        matches!(error, CertificateError::Exists { ref files } if files.len() == 2),
        "{said}"
    );
    assert!(
        said.contains("server.key") && said.contains("client.crt"),
        "{said}"
    );
    assert!(!said.contains("ca.crt"), "{said}");
    assert_eq!(fs::read_to_string(&kept).unwrap(), "precious");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);

    let forced = CertificateOptions {
        force: true,
        ..CertificateOptions::default()
    };
    let first = make_certificates(dir.path(), &forced).unwrap();
    let old_ca = fs::read(&first.ca_cert).unwrap();
    let second = make_certificates(dir.path(), &forced).unwrap();
    assert_ne!(fs::read(&second.ca_cert).unwrap(), old_ca);
    handshake(&second, &second, "localhost").unwrap();
    assert_eq!(
        fs::metadata(&kept).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn failed_generation_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("client.key")).unwrap();
    let forced = CertificateOptions {
        force: true,
        ..CertificateOptions::default()
    };
    let error = make_certificates(dir.path(), &forced).unwrap_err();
    assert!(error.to_string().contains("client.key"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = make_certificates(&file, &CertificateOptions::default()).unwrap_err();
    assert!(error.to_string().contains("file"), "{error}");
}

#[test]
fn separate_sets_distrust_each_other() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = make_certificates(one.path(), &CertificateOptions::default()).unwrap();
    let two_dir = two;
    let two = make_certificates(two_dir.path(), &CertificateOptions::default()).unwrap();
    let error = handshake(&one, &two, "localhost").unwrap_err();
    assert_eq!(
        error,
        rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)
    );
    let mixed = CertificatePaths {
        ca_cert: two.ca_cert.clone(),
        ..one
    };
    assert_eq!(
        handshake(&mixed, &two, "localhost").unwrap_err(),
        rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)
    );
}

#[test]
fn expired_certificates_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let day = SignedDuration::from_hours(24);
    let options = CertificateOptions {
        validity: Validity::Between {
            not_before: now - day * 30,
            not_after: now - day,
        },
        ..CertificateOptions::default()
    };
    let expired = make_certificates(dir.path(), &options).unwrap();
    let error = handshake(&expired, &expired, "localhost").unwrap_err();
    assert!(
        matches!(
            error,
            rustls::Error::InvalidCertificate(rustls::CertificateError::ExpiredContext { .. })
        ),
        "{error:?}"
    );
    let (ok, said) = openssl(&[
        "verify",
        "-CAfile",
        text(&expired.ca_cert),
        text(&expired.client_cert),
    ]);
    assert!(!ok && said.contains("expired"), "{said}");
    // The CA itself is valid.
    let (ok, said) = openssl(&[
        "verify",
        "-CAfile",
        text(&expired.ca_cert),
        text(&expired.ca_cert),
    ]);
    assert!(ok, "{said}");
}

#[test]
fn invalid_options_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "",
        "two words",
        "http://x",
        "host:80",
        "1.2.3",
        "-a.test",
        "a..b",
        "münchen.test",
        "a.*.test",
    ] {
        let options = CertificateOptions {
            names: vec![name.into()],
            ..CertificateOptions::default()
        };
        let error = make_certificates(dir.path(), &options).unwrap_err();
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
    }
    let now = Timestamp::now();
    for validity in [
        Validity::Days(0),
        Validity::Days(u32::MAX),
        Validity::Between {
            not_before: now,
            not_after: now,
        },
        Validity::Between {
            not_before: Timestamp::MIN,
            not_after: now,
        },
    ] {
        let options = CertificateOptions {
            validity,
            ..CertificateOptions::default()
        };
        let error = make_certificates(dir.path(), &options).unwrap_err();
        assert!(error.to_string().starts_with("validity: "), "{error}");
    }
    let error = "rsa-1024".parse::<KeyAlgorithm>().unwrap_err();
    assert!(error.to_string().contains("rsa-2048"), "{error}");
    assert_eq!(
        "rsa-2048".parse::<KeyAlgorithm>().unwrap(),
        KeyAlgorithm::Rsa2048
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn chains_and_keys_match_options() {
    let dir = tempfile::tempdir().unwrap();
    let options = CertificateOptions {
        intermediates: 3,
        more_names: 1000,
        client_algorithm: Some(KeyAlgorithm::MlDsa44),
        ..CertificateOptions::default()
    };
    let set = make_certificates(dir.path(), &options).unwrap();
    handshake(&set, &set, "localhost").unwrap();
    handshake(&set, &set, "host-000999.plimsoll.test").unwrap();
    for (path, least) in [(&set.server_cert, 16_384), (&set.client_cert, 1_312)] {
        let sent = chain(path);
        assert_eq!(sent.len(), 4, "{path:?}");
        assert!(sent[0].len() > least, "{path:?}: {}", sent[0].len());
    }
    let (ok, said) = openssl(&[
        "verify",
        "-x509_strict",
        "-CAfile",
        text(&set.ca_cert),
        "-untrusted",
        text(&set.server_cert),
        text(&set.server_cert),
    ]);
    assert!(ok, "{said}");
    // Without the intermediates there is no path to the CA.
    let (ok, said) = openssl(&[
        "verify",
        "-CAfile",
        text(&set.ca_cert),
        text(&set.server_cert),
    ]);
    assert!(!ok, "{said}");

    for options in [
        CertificateOptions {
            more_names: 2_001,
            ..CertificateOptions::default()
        },
        CertificateOptions {
            intermediates: 21,
            ..CertificateOptions::default()
        },
    ] {
        let error = make_certificates(dir.path(), &options).unwrap_err();
        let exists = matches!(error, CertificateError::Exists { .. });
        assert!(exists, "{error}");
        let empty = tempfile::tempdir().unwrap();
        let error = make_certificates(empty.path(), &options).unwrap_err();
        assert!(error.to_string().contains("too many"), "{error}");
    }
}

#[test]
fn revoked_certificates_are_in_crl() {
    for intermediates in [0, 2] {
        let dir = tempfile::tempdir().unwrap();
        let options = CertificateOptions {
            intermediates,
            revoked: Some(vec![LeafCertificate::Client]),
            ..CertificateOptions::default()
        };
        let set = make_certificates(dir.path(), &options).unwrap();
        for (cert, good) in [(&set.server_cert, true), (&set.client_cert, false)] {
            // Checks the leaf only, and then every certificate of the chain.
            for depth in [&["-crl_check"][..], &["-crl_check", "-crl_check_all"]] {
                let verify = [
                    "-CAfile",
                    text(&set.ca_cert),
                    "-untrusted",
                    text(cert),
                    "-CRLfile",
                    text(&set.crl),
                    text(cert),
                ];
                let (ok, said) = openssl(&[&["verify", "-x509_strict"], depth, &verify].concat());
                assert_eq!(ok, good, "{intermediates} {cert:?} {depth:?}: {said}");
                assert_eq!(said.contains("certificate revoked"), !good, "{said}");
            }
        }
    }
}

#[test]
fn validity_in_seconds_sets_expiry() {
    let dir = tempfile::tempdir().unwrap();
    let options = |time| CertificateOptions {
        validity: Validity::For(time),
        ..CertificateOptions::default()
    };
    let error = make_certificates(dir.path(), &options(Duration::from_millis(999))).unwrap_err();
    assert!(error.to_string().contains("less than a second"), "{error}");
    let set = make_certificates(dir.path(), &options(Duration::from_secs(3600))).unwrap();
    for (seconds, good) in [("3000", true), ("3700", false)] {
        let (ok, said) = openssl(&[
            "x509",
            "-noout",
            "-checkend",
            seconds,
            "-in",
            text(&set.server_cert),
        ]);
        assert_eq!(ok, good, "{said}");
    }
}
