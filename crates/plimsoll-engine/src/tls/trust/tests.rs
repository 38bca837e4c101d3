//! Tests of verification with certificates made by openssl.

use super::*;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustls::server::danger::ClientCertVerifier;
use tempfile::TempDir;

const DAY: u64 = 86_400;

struct TestCertificates(TempDir);

impl TestCertificates {
    /// Makes the certificates of a gRPC test suite, except for the client's, and another CA of the same name.
    fn new() -> TestCertificates {
        let made = TestCertificates(tempfile::tempdir().unwrap());
        for ca in ["ca", "other"] {
            made.openssl(&format!("genrsa -out {ca}.key 2048"));
            made.openssl(&format!(
                "req -x509 -new -key {ca}.key -subj /CN=CA -days 30 -out {ca}.crt"
            ));
        }
        made.openssl("genrsa -out server.key 2048");
        made.openssl("req -new -key server.key -subj /CN=a.test -out server.csr");
        made.openssl("x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out server.crt");
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        let command = command
            .args(arguments.split(' '))
            .current_dir(self.0.path());
        let out = command.output().expect("openssl (apt: openssl)");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "openssl {arguments}: {said}");
    }

    /// Makes a version 3 certificate with these extensions, signed by `ca` or an intermediate.
    fn version_3(&self, name: &str, issuer: &str, extensions: &str) {
        let lines = extensions.replace(", ", "\n");
        std::fs::write(self.path("extensions"), lines).unwrap();
        self.openssl(&format!("genrsa -out {name}.key 2048"));
        self.openssl(&format!(
            "req -new -key {name}.key -subj /CN={name}.test -out {name}.csr"
        ));
        self.openssl(&format!("x509 -req -in {name}.csr -CA {issuer}.crt -CAkey {issuer}.key -CAcreateserial -days 30 -extfile extensions -out {name}.crt"));
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        let path = self.path(&format!("{name}.crt"));
        files::read_certificates(NamedFile("certificate", &path))
            .unwrap()
            .remove(0)
    }

    fn anchors(&self, name: &str) -> TrustPolicy {
        let path = self.path(&format!("{name}.crt"));
        TrustPolicy::Anchors(TrustAnchors::read(NamedFile("CA file", &path)).unwrap())
    }
}

/// Verifies a server's certificate as of `days` from now. Returns the result, the exceptions that were recorded, and
/// the explanation, if there is one.
fn verify_server(
    trust: TrustPolicy,
    certificate: &CertificateDer<'_>,
    above: &[CertificateDer<'_>],
    name: &str,
    days: u64,
) -> (
    Result<(), Error>,
    Vec<CertificateAcceptance>,
    Option<String>,
) {
    let observations = Arc::new(CertificateObservations::default());
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let check = ServerVerifier::new(trust, &provider, Arc::clone(&observations));
    let at = UnixTime::since_unix_epoch(Duration::from_secs(unix_now() + days * DAY));
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let verdict = check.verify_server_cert(certificate, above, &name, &[], at);
    let why = verdict
        .as_ref()
        .err()
        .and_then(|e| observations.explanation_for(e));
    (verdict.map(|_| ()), observations.exceptions_made(), why)
}

fn problem(
    verdict: (
        Result<(), Error>,
        Vec<CertificateAcceptance>,
        Option<String>,
    ),
) -> String {
    let error = verdict.0.expect_err("refused");
    super::super::certificate_expiry::describe_tls_error(&error) + &verdict.2.unwrap_or_default()
}

#[test]
fn version_1_certificate_is_accepted_conditionally() {
    use CertificateAcceptance::{CommonName, Version1};
    let made = TestCertificates::new();
    let leaf = made.certificate("server");
    assert!(is_version_1(&leaf) && !is_version_1(&made.certificate("ca")));
    let with = |ca, name, days| verify_server(made.anchors(ca), &leaf, &[], name, days);
    assert_eq!(
        with("ca", "A.test", 0),
        (Ok(()), vec![Version1, CommonName], None)
    );
    assert!(problem(with("ca", "b.test", 0)).contains("only valid for common name \"a.test\""));
    assert!(problem(with("ca", "127.0.0.1", 0)).contains("not valid for name"));
    assert!(problem(with("ca", "a.test", 31)).contains("expired at"));
    assert_eq!(
        with("other", "a.test", 0).0,
        Err(CertificateError::BadSignature.into())
    );
    made.openssl("req -x509 -new -key other.key -subj /CN=Else -days 30 -out else.crt");
    assert!(problem(with("else", "a.test", 0)).contains("an intermediate certificate is missing"));
    // A change of any byte is detected.
    for at in 0..leaf.len() {
        let mut changed = leaf.to_vec();
        changed[at] ^= 1;
        let changed = CertificateDer::from(changed);
        let (verdict, taken, _) = verify_server(made.anchors("ca"), &changed, &[], "a.test", 0);
        assert!(verdict.is_err() && taken.is_empty(), "byte {at}");
    }
    // It is not accepted if an intermediate CA signed it, nor with the system's trust store.
    made.version_3("middle", "ca", "basicConstraints=critical,CA:TRUE");
    made.openssl("x509 -req -in server.csr -CA middle.crt -CAkey middle.key -CAcreateserial -days 30 -out below.crt");
    let below = made.certificate("below");
    let middle = [made.certificate("middle")];
    let (verdict, ..) = verify_server(made.anchors("ca"), &below, &middle, "a.test", 0);
    assert_eq!(verdict, Err(CertificateError::UnknownIssuer.into()));
    assert!(
        verify_server(made.anchors("middle"), &below, &[], "a.test", 0)
            .0
            .is_ok()
    );
    let TrustPolicy::Anchors(anchors) = made.anchors("ca") else {
        panic!("a CA file has anchors");
    };
    let system = TrustPolicy::Anchors(TrustAnchors {
        ca_certificates: Vec::new(),
        ..anchors
    });
    assert!(
        problem(verify_server(system, &leaf, &[], "a.test", 0))
            .contains("an X.509 version 1 certificate")
    );
}

#[test]
fn common_name_is_used_without_san() {
    use CertificateAcceptance::CommonName;
    let made = TestCertificates::new();
    made.version_3("plain", "ca", "keyUsage=digitalSignature");
    made.version_3("named", "ca", "subjectAltName=DNS:else.test");
    let with = |leaf, name, days| {
        verify_server(made.anchors("ca"), &made.certificate(leaf), &[], name, days)
    };
    assert_eq!(
        with("plain", "plain.test", 0),
        (Ok(()), vec![CommonName], None)
    );
    assert_eq!(with("named", "else.test", 0), (Ok(()), vec![], None));
    assert!(problem(with("named", "named.test", 0)).contains("else.test"));
    assert!(problem(with("plain", "else.test", 0)).contains("plain.test"));
    assert!(problem(with("plain", "plain.test", 31)).contains("expired at"));
    // Name constraints must not be circumvented.
    made.openssl("req -x509 -new -key ca.key -subj /CN=CA -days 30 -out bound.crt -addext nameConstraints=permitted;DNS:b.test");
    let plain = made.certificate("plain");
    let bound = verify_server(made.anchors("bound"), &plain, &[], "plain.test", 0);
    assert!(bound.0.is_err() && bound.1.is_empty());
    let old = made.certificate("server");
    assert!(
        verify_server(made.anchors("bound"), &old, &[], "a.test", 0)
            .0
            .is_err()
    );
}

#[test]
fn hostnames_match_label_by_label() {
    for (presented, wanted, same) in [
        ("a.test", "A.TEST.", true),
        ("*.a.test", "b.a.test", true),
        ("*.a.test", "a.test", false),
        ("*.a.test", "c.b.a.test", false),
        ("*.a.test", ".a.test", false),
        ("*.test", "a.test", false),
        ("*", "a", false),
        ("b*.a.test", "bc.a.test", false),
        ("", "a.test", false),
    ] {
        assert_eq!(
            name_matches(presented, wanted),
            same,
            "{presented} {wanted}"
        );
    }
}

#[test]
fn directly_trusted_certificate_still_expires() {
    use CertificateAcceptance::{InCaFile, Pinned, Unchecked};
    let made = TestCertificates::new();
    made.openssl("req -x509 -newkey rsa:2048 -keyout own.key -out own.crt -days 30 -nodes -subj /C=AU/ST=Some-State/O=Widgits");
    let own = made.certificate("own");
    let mut changed = own.to_vec();
    *changed.last_mut().unwrap() ^= 1;
    let changed = CertificateDer::from(changed);
    let pinned = || TrustPolicy::Pinned(vec![fingerprint(&own)]);
    for (trust, how) in [
        (
            &(|| made.anchors("own")) as &dyn Fn() -> TrustPolicy,
            InCaFile,
        ),
        (&pinned as &dyn Fn() -> TrustPolicy, Pinned),
    ] {
        let with =
            |leaf: &CertificateDer<'_>, days| verify_server(trust(), leaf, &[], "any.test", days);
        assert_eq!(with(&own, 0), (Ok(()), vec![how], None));
        assert!(problem(with(&own, 31)).contains("expired at"));
        assert!(with(&changed, 0).0.is_err() && with(&changed, 0).1.is_empty());
        assert!(with(&made.certificate("ca"), 0).0.is_err());
    }
    let said = problem(verify_server(pinned(), &changed, &[], "any.test", 0));
    assert!(said.contains("its fingerprint is sha256:"), "{said}");
    let any = verify_server(TrustPolicy::Unchecked, &changed, &[], "any.test", 31);
    assert_eq!(any, (Ok(()), vec![Unchecked], None));
}

#[test]
fn missing_intermediate_is_named() {
    let made = TestCertificates::new();
    made.version_3("middle", "ca", "basicConstraints=critical,CA:TRUE");
    made.version_3("leaf", "middle", "subjectAltName=DNS:leaf.test");
    made.openssl("req -x509 -new -key other.key -subj /CN=Else -days 30 -out else.crt");
    let (leaf, middle) = (made.certificate("leaf"), made.certificate("middle"));
    let whole = [middle.clone(), made.certificate("ca")];
    let with = |ca, above: &[CertificateDer<'_>]| {
        verify_server(made.anchors(ca), &leaf, above, "leaf.test", 0)
    };
    assert_eq!(with("ca", &whole), (Ok(()), vec![], None));
    for (ca, above, words) in [
        (
            "ca",
            &[][..],
            "issuer \"CN=middle.test\" is not trusted, and the certificate of that issuer was not sent: an intermediate certificate is missing",
        ),
        ("else", &whole[..1], "issuer \"CN=CA\" is not trusted"),
        (
            "else",
            &whole[..],
            "ends at \"CN=CA\", which is not trusted",
        ),
    ] {
        let verdict = with(ca, above);
        assert_eq!(verdict.0, Err(CertificateError::UnknownIssuer.into()));
        assert!(problem(verdict.clone()).contains(words), "{verdict:?}");
    }
    let alone = verify_server(
        made.anchors("else"),
        &made.certificate("ca"),
        &[],
        "a.test",
        0,
    );
    assert!(problem(alone).contains("it is self-signed"));
    let said = problem(verify_server(
        made.anchors("ca"),
        &middle,
        &[],
        "middle.test",
        0,
    ));
    assert!(said.contains("it is a CA certificate"), "{said}");
}

#[test]
fn earliest_certificate_limits_session_lifetime() {
    let made = TestCertificates::new();
    let observations = CertificateObservations::default();
    assert_eq!(observations.resumable_until(), u64::MAX);
    made.openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 3 -out short.crt",
    );
    let (short, long) = (made.certificate("short"), made.certificate("server"));
    let (soon, later) = (not_after(&short).unwrap(), not_after(&long).unwrap());
    observations.record_validity([&long].into_iter());
    assert_eq!(observations.resumable_until(), later);
    observations.record_validity([&short].into_iter());
    observations.record_validity([&long].into_iter());
    assert_eq!(observations.resumable_until(), soon);
    observations
        .valid_until
        .store(unix_now() - 1, Ordering::Relaxed);
    observations.record_validity([&long].into_iter());
    assert_eq!(observations.resumable_until(), later);
}

/// A client certificate that was reloaded twice counts twice, however often that is reported.
#[test]
fn reloaded_certificate_is_one_replacement() {
    let observations = CertificateObservations::default();
    observations.record_reload_count(0);
    assert!(!observations.take_replaced_flag());
    for times in [1, 3] {
        observations.record_reload_count(times);
        assert!(observations.take_replaced_flag(), "{times}");
        observations.record_reload_count(times);
        assert!(!observations.take_replaced_flag(), "{times}");
    }
    assert_eq!(observations.seen.lock().unwrap().reload_count, 3);
}

/// RFC 8446 §4.2.4: a client with several certificates chooses one by the CA names.
#[test]
fn clients_receive_trusted_ca_names() {
    let made = TestCertificates::new();
    let TrustPolicy::Anchors(anchors) = made.anchors("ca") else {
        panic!("a CA file has anchors");
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let check = ClientVerifier::new(anchors, &provider, Arc::default()).unwrap();
    let ca = made.certificate("ca");
    let names: Vec<&[u8]> = check
        .root_hint_subjects()
        .iter()
        .map(AsRef::as_ref)
        .collect();
    assert_eq!(names, [parse(&ca).unwrap().subject().as_raw()]);
}

#[test]
fn changed_certificate_is_one_replacement() {
    let observations = CertificateObservations::default();
    let [first, second] = [b"first", b"other"].map(|der| CertificateDer::from(&der[..]));
    for (certificate, replaced) in [
        (&first, false),
        (&first, false),
        (&second, true),
        (&first, false),
    ] {
        observations.record_certificate(certificate);
        assert_eq!(
            observations.take_replaced_flag(),
            replaced,
            "{certificate:?}"
        );
    }
}
