//! Reads certificates and private keys from files, in their common formats.
//!
//! PEM and DER are supported. Files encrypted with a passphrase are not; their error message names the format and a
//! command that decrypts the file. Both ends of every TLS connection use this module.
//!
//! Each of these files may contain a private key, so errors of libraries, which may quote the contents, are never
//! shown.
//!
//! This file is long because it reads all kinds of key and certificate files, with error messages for each.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use plimsoll_model::formats::input;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::certificate_expiry::not_after;
use super::der::{SEQUENCE, read_element, read_tagged};
use super::x509_version_1::{self, is_version_1};
use super::{key_kinds, pem_errors};

/// The reason why a file cannot be used, with the file's role and path.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FileError(String);

/// A file with a description for error messages, such as `("client key", path)`.
#[derive(Clone, Copy, Debug)]
pub struct NamedFile<'a>(pub &'static str, pub &'a Path);

impl NamedFile<'_> {
    fn read(self) -> Result<Vec<u8>, FileError> {
        let content = input::read(self.1).map_err(|e| self.error(e))?;
        Ok(input::strip_byte_order_mark(content))
    }

    /// Returns an error with `problem` for this file.
    pub fn error(self, problem: impl Display) -> FileError {
        let NamedFile(what, path) = self;
        FileError(format!("{what} {}: {problem}", path.display()))
    }

    /// Returns the error for an unreadable PEM section.
    fn pem_error(self, content: &[u8], error: &pem::Error) -> FileError {
        let own = self.1.extension().and_then(|extension| extension.to_str());
        let extension = format!("lines.{}", own.unwrap_or("pem"));
        self.error(pem_errors::describe_pem_problem(
            content,
            error,
            |command| self.shell_command(command, &extension),
        ))
    }

    /// Returns an `openssl` command, formatted by [`NamedFile::shell_command`].
    fn openssl_command(self, command: &str, extension: &str) -> String {
        self.shell_command(&format!("openssl {command}"), extension)
    }

    /// Returns a shell command that reads this file and writes another one next to it, with `extension`. Their paths
    /// replace `{in}` and `{out}` in `command`.
    fn shell_command(self, command: &str, extension: &str) -> String {
        let quoted = |path: &Path| {
            let text = path.display().to_string();
            let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,@%".contains(c);
            if text.chars().all(plain) {
                return text;
            }
            format!("'{}'", text.replace('\'', r"'\''"))
        };
        let out = self.1.with_extension(extension);
        let command = command.replace("{in}", &quoted(self.1));
        format!("`{}`", command.replace("{out}", &quoted(&out)))
    }
}

/// Reads the certificates of a file, in file order; at least one.
///
/// # Errors
/// Returns an error if the file cannot be read or contains no certificate.
pub fn read_certificates(file: NamedFile<'_>) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let content = file.read()?;
    if !is_der(&content) {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&content)
            .collect::<Result<_, _>>()
            .map_err(|e| file.pem_error(&content, &e))?;
        if chain.is_empty() {
            let hint = if has_pem_label(&content, "TRUSTED CERTIFICATE") {
                let command = file.openssl_command("x509 -in {in} -out {out}", "plain.crt");
                format!(", but an OpenSSL trusted certificate; convert it: {command}")
            } else if has_pem_label(&content, "PKCS7") {
                let command = file.openssl_command("pkcs7 -in {in} -print_certs -out {out}", "crt");
                format!(", but PKCS #7; convert it: {command}")
            } else {
                String::new()
            };
            return Err(file.error(format!(
                "holds no PEM certificate (expected -----BEGIN CERTIFICATE-----){hint}"
            )));
        }
        return Ok(chain);
    }
    if is_pkcs12(&content) {
        let command = file.openssl_command("pkcs12 -in {in} -nokeys -out {out}", "crt");
        return Err(file.error(format!(
            "a PKCS #12 file, not a certificate in PEM or DER; extract the certificates: {command}"
        )));
    }
    // Other problems are reported by the TLS library when the certificate is used.
    match not_after(&content) {
        Some(_) => Ok(vec![CertificateDer::from(content)]),
        None => Err(file.error("holds DER, but no certificate")),
    }
}

/// Reads the revocation lists of a file, in file order; at least one.
///
/// # Errors
/// Returns an error if the file cannot be read or contains no revocation list.
pub fn read_revocation_lists(
    file: NamedFile<'_>,
) -> Result<Vec<CertificateRevocationListDer<'static>>, FileError> {
    let content = file.read()?;
    if is_der(&content) {
        return match not_after(&content) {
            None => Ok(vec![CertificateRevocationListDer::from(content)]),
            Some(_) => Err(file.error("holds a certificate, not a list of revoked certificates")),
        };
    }
    let lists: Vec<_> = CertificateRevocationListDer::pem_slice_iter(&content)
        .collect::<Result<_, _>>()
        .map_err(|e| file.pem_error(&content, &e))?;
    if lists.is_empty() {
        return Err(
            file.error("holds no list of revoked certificates (expected -----BEGIN X509 CRL-----)")
        );
    }
    Ok(lists)
}

/// Reads the first private key of a file.
///
/// # Errors
/// Returns an error if the file cannot be read or contains no unencrypted key.
pub fn read_private_key(file: NamedFile<'_>) -> Result<PrivateKeyDer<'static>, FileError> {
    const ENCRYPTED_KEY_HINT: &str = "encrypted with a passphrase; decrypt it";
    let content = file.read()?;
    if is_der(&content) {
        return if is_pkcs12(&content) {
            let command = file.openssl_command("pkcs12 -in {in} -nocerts -nodes -out {out}", "key");
            Err(file.error(format!(
                "a PKCS #12 file, not a private key in PEM or DER; extract the key: {command}"
            )))
        } else if is_encrypted(&content) {
            let command =
                file.openssl_command("pkcs8 -inform DER -in {in} -out {out}", "plain.key");
            Err(file.error(format!(
                "a PKCS #8 key in DER, {ENCRYPTED_KEY_HINT}: {command}"
            )))
        } else if not_after(&content).is_some() {
            Err(file.error("holds a certificate in DER, not a private key"))
        } else {
            PrivateKeyDer::try_from(content).map_err(|_| {
                file.error("holds DER, but no private key of PKCS #8, PKCS #1 or SEC 1")
            })
        };
    }
    let open = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];
    let legacy = contains_bytes(&content, b"Proc-Type: 4,ENCRYPTED");
    if legacy || !open.iter().any(|label| has_pem_label(&content, label)) {
        let command = file.openssl_command("pkey -in {in} -out {out}", "plain.key");
        if legacy {
            return Err(file.error(format!(
                "a private key in legacy PEM (Proc-Type: 4,ENCRYPTED), {ENCRYPTED_KEY_HINT}: {command}"
            )));
        }
        if has_pem_label(&content, "ENCRYPTED PRIVATE KEY") {
            return Err(file.error(format!(
                "a PKCS #8 key in PEM, {ENCRYPTED_KEY_HINT}: {command}"
            )));
        }
        if has_pem_label(&content, "OPENSSH PRIVATE KEY") {
            return Err(file.error("an OpenSSH key, which TLS does not support: make one with `openssl genpkey`, or use a PEM key"));
        }
    }
    PrivateKeyDer::from_pem_slice(&content).map_err(|e| match e {
        pem::Error::NoItemsFound => {
            file.error("holds no PEM private key (expected -----BEGIN PRIVATE KEY-----)")
        }
        other => file.pem_error(&content, &other),
    })
}

/// Reads a certificate chain, beginning with the end entity, and its private key.
///
/// # Errors
/// Returns an error if one of the files cannot be used, or the key does not belong to the certificate.
pub fn read_identity(
    cert: NamedFile<'_>,
    key: NamedFile<'_>,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, FileError> {
    let chain = read_certificates(cert)?;
    let private = read_private_key(key)?;
    let key_problem = key_kinds::describe_key_problem(&private);
    let certified = if chain.first().is_some_and(|first| is_version_1(first)) {
        x509_version_1::certified_key(chain, private, provider)
    } else {
        CertifiedKey::from_der(chain, private, provider)
    };
    certified.map(Arc::new).map_err(|e| {
        let NamedFile(what, path) = cert;
        let files = format!("{what} {} and key {}", path.display(), key.1.display());
        FileError(match e {
            rustls::Error::InconsistentKeys(_) => {
                format!("{files}: the key does not belong to the certificate")
            }
            rustls::Error::InvalidCertificate(_) => {
                format!("{files}: the certificate can't be read, so it may be damaged")
            }
            _ => format!("{files}: {key_problem}"),
        })
    })
}

/// Returns whether the content is DER: it begins with a sequence, which text does not.
fn is_der(content: &[u8]) -> bool {
    content.first() == Some(&SEQUENCE) && read_element(content).is_some()
}

/// Returns whether the content is a PFX: a sequence that begins with version 3 (RFC 7292 §4).
fn is_pkcs12(der: &[u8]) -> bool {
    read_tagged(der, SEQUENCE).is_some_and(|(body, _)| body.starts_with(&[0x02, 0x01, 0x03]))
}

/// Returns whether the content is an `EncryptedPrivateKeyInfo`, which begins with the encryption algorithm (RFC 5958
/// §3). Certificates and unencrypted keys begin with other elements.
fn is_encrypted(der: &[u8]) -> bool {
    const OBJECT_IDENTIFIER: u8 = 0x06;
    let algorithm = read_tagged(der, SEQUENCE).and_then(|(body, _)| read_tagged(body, SEQUENCE));
    algorithm.is_some_and(|(algorithm, _)| algorithm.first() == Some(&OBJECT_IDENTIFIER))
}

fn has_pem_label(content: &[u8], label: &str) -> bool {
    contains_bytes(content, format!("-----BEGIN {label}-----").as_bytes())
}

fn contains_bytes(content: &[u8], part: &[u8]) -> bool {
    content.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    use tempfile::TempDir;

    /// A temporary folder with files made by openssl.
    struct TestFiles(TempDir);

    impl TestFiles {
        fn new() -> TestFiles {
            let made = TestFiles(TempDir::with_prefix("with 'quotes' ").unwrap());
            made.openssl(
                "req -x509 -newkey rsa:2048 -nodes -subj /CN=a.test -keyout a.key -out a.crt",
            );
            made
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn openssl(&self, arguments: &str) {
            self.shell(&format!("openssl {arguments}"));
        }

        fn shell(&self, line: &str) {
            let mut command = Command::new("sh");
            let out = command.args(["-c", line]).current_dir(self.0.path());
            let out = out.output().expect("a shell, and openssl (apt: openssl)");
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{line}: {said}");
        }

        fn key(&self, name: &str) -> Result<PrivateKeyDer<'static>, FileError> {
            read_private_key(NamedFile("client key", &self.path(name)))
        }

        fn identity(&self, cert: &str, key: &str) -> Result<Arc<CertifiedKey>, FileError> {
            let (cert, key) = (self.path(cert), self.path(key));
            read_identity(
                NamedFile("client certificate", &cert),
                NamedFile("client key", &key),
                &rustls::crypto::aws_lc_rs::default_provider(),
            )
        }
    }

    /// Runs the command that an error suggests, with the passphrase it asks for.
    fn run_suggested_command(made: &TestFiles, error: &FileError) {
        let said = error.to_string();
        let command = said.split('`').nth(1).expect("a command");
        made.shell(&format!("{command} -passin pass:secret"));
    }

    #[test]
    fn unencrypted_identities_load_in_every_format() {
        let made = TestFiles::new();
        for (cert, key, how) in [
            ("a.crt", "a.key", "version"),
            ("a.der", "a.key", "x509 -in a.crt -outform DER -out a.der"),
            (
                "a.crt",
                "8.der",
                "pkcs8 -topk8 -nocrypt -in a.key -outform DER -out 8.der",
            ),
            (
                "a.crt",
                "1.der",
                "rsa -in a.key -traditional -outform DER -out 1.der",
            ),
            ("a.crt", "1.pem", "rsa -in a.key -traditional -out 1.pem"),
        ] {
            made.openssl(how);
            if let Err(e) = made.identity(cert, key) {
                panic!("{cert}, {key}: {e}");
            }
        }
        made.openssl("ecparam -name prime256v1 -genkey -out ec.pem");
        made.openssl("ec -in ec.pem -outform DER -out ec.der");
        made.openssl("req -x509 -new -key ec.pem -subj /CN=b.test -out ec.crt");
        for key in ["ec.pem", "ec.der"] {
            assert!(made.identity("ec.crt", key).is_ok(), "{key}");
            let error = made.identity("a.crt", key).unwrap_err().to_string();
            assert!(error.contains("does not belong"), "{error}");
        }
    }

    #[test]
    fn pem_with_bom_is_read() {
        let made = TestFiles::new();
        for name in ["a.crt", "a.key"] {
            let marked = [b"\xef\xbb\xbf", &fs::read(made.path(name)).unwrap()[..]].concat();
            fs::write(made.path(&format!("marked-{name}")), marked).unwrap();
        }
        if let Err(e) = made.identity("marked-a.crt", "marked-a.key") {
            panic!("{e}");
        }
    }

    #[test]
    fn encrypted_files_explain_decryption() {
        let made = TestFiles::new();
        for (name, how, what, opened) in [
            (
                "8.pem",
                "pkcs8 -topk8 -in a.key -passout pass:secret -out 8.pem",
                "PKCS #8 key in PEM, encrypted",
                "8.plain.key",
            ),
            (
                "8.der",
                "pkcs8 -topk8 -in a.key -passout pass:secret -outform DER -out 8.der",
                "PKCS #8 key in DER, encrypted",
                "8.plain.key",
            ),
            (
                "old.pem",
                "rsa -aes128 -in a.key -passout pass:secret -traditional -out old.pem",
                "legacy PEM (Proc-Type: 4,ENCRYPTED), encrypted",
                "old.plain.key",
            ),
            (
                "store.p12",
                "pkcs12 -export -in a.crt -inkey a.key -passout pass:secret -out store.p12",
                "PKCS #12",
                "store.key",
            ),
        ] {
            made.openssl(how);
            let error = made.key(name).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
            run_suggested_command(&made, &error);
            assert!(made.identity("a.crt", opened).is_ok(), "{name}");
        }
        let store = made.path("store.p12");
        let error = read_certificates(NamedFile("CA file", &store)).unwrap_err();
        assert!(error.to_string().contains("PKCS #12"), "{error}");
        run_suggested_command(&made, &error);
        assert!(made.identity("store.crt", "a.key").is_ok());
    }

    #[test]
    fn wrong_file_kinds_are_named() {
        let made = TestFiles::new();
        made.openssl("x509 -in a.crt -outform DER -out a.der");
        made.openssl("crl2pkcs7 -nocrl -certfile a.crt -out a.p7b");
        made.openssl("x509 -in a.crt -trustout -addtrust serverAuth -out trusted.pem");
        fs::write(made.path("half.der"), [SEQUENCE, 2, 5, 0]).unwrap();
        let cert =
            |name: &str| read_certificates(NamedFile("CA file", &made.path(name))).unwrap_err();
        let said = made.key("a.der").unwrap_err().to_string();
        assert!(
            said.ends_with("a certificate in DER, not a private key"),
            "{said}"
        );
        let said = made.key("a.crt").unwrap_err().to_string();
        assert!(said.contains("no PEM private key"), "{said}");
        let said = made.key("half.der").unwrap_err().to_string();
        assert!(said.contains("holds DER, but no private key"), "{said}");
        let said = cert("half.der").to_string();
        assert!(said.ends_with("holds DER, but no certificate"), "{said}");
        let said = cert("a.key").to_string();
        assert!(said.contains("holds no PEM certificate"), "{said}");
        for (name, opened) in [("a.p7b", "a.crt"), ("trusted.pem", "trusted.plain.crt")] {
            let error = cert(name);
            let said = error.to_string();
            made.shell(said.split('`').nth(1).expect("a command"));
            assert!(
                read_certificates(NamedFile("CA file", &made.path(opened))).is_ok(),
                "{said}"
            );
        }
    }

    #[test]
    fn newline_free_pem_error_names_repair() {
        let made = TestFiles::new();
        let whole = fs::read_to_string(made.path("a.key")).unwrap();
        let lines: Vec<&str> = whole.lines().collect();
        for (name, text) in [
            ("joined.key", lines.concat()),
            ("blanks.key", lines.join(" ")),
            ("escaped.key", lines.join(r"\n")),
            ("returns.key", lines.join(r"\r\n")),
            ("half.key", lines[..3].concat()),
        ] {
            fs::write(made.path(name), text).unwrap();
            let path = made.path(name);
            let error = made.key(name).unwrap_err();
            let as_certificate = read_certificates(NamedFile("CA file", &path)).unwrap_err();
            for said in [error.to_string(), as_certificate.to_string()] {
                assert!(said.contains("PEM without its newlines"), "{said}");
                assert!(!said.contains(&lines[1][..20]), "{said}");
                // The library's errors print bytes as numbers.
                assert!(!said.contains("77, 73"), "{said}");
            }
            if name != "half.key" {
                let said = error.to_string();
                made.shell(said.split('`').nth(1).expect("a command"));
                let mended = name.replace(".key", ".lines.key");
                assert!(made.identity("a.crt", &mended).is_ok(), "{name}");
            }
        }
    }

    #[test]
    fn broken_pem_error_leaks_no_bytes() {
        let made = TestFiles::new();
        let whole = fs::read_to_string(made.path("a.key")).unwrap();
        let lines: Vec<&str> = whole.lines().collect();
        let (first, last) = (lines[0], lines[lines.len() - 1]);
        for (text, problem) in [
            (lines[..4].join("\n"), "no -----END …----- line"),
            (format!("{first}\nc4nary?c4nary\n{last}\n"), "not base64"),
            ("-----BEGIN c4nary\n".to_owned(), "does not end with -----"),
            (format!("{first}\nYzRuYXJ5\n{last}\n"), "damaged"),
        ] {
            fs::write(made.path("broken.key"), &text).unwrap();
            let said = made
                .identity("a.crt", "broken.key")
                .unwrap_err()
                .to_string();
            assert!(said.contains(problem), "{said}");
            assert!(!said.contains("c4nary"), "{said}");
            assert!(!said.contains(lines[1]), "{said}");
        }
        for (algorithm, kind) in [("RSA-PSS", "RSA-PSS"), ("ED448", "Ed448")] {
            made.openssl(&format!("genpkey -algorithm {algorithm} -out other.key"));
            let said = made.identity("a.crt", "other.key").unwrap_err().to_string();
            assert!(
                said.contains(&format!("{kind} keys are not supported")),
                "{said}"
            );
        }
    }

    /// Truncated files of any kind are rejected without a panic.
    #[test]
    fn truncated_identity_files_are_rejected() {
        let made = TestFiles::new();
        made.openssl("x509 -in a.crt -outform DER -out a.der");
        made.openssl("pkcs8 -topk8 -in a.key -passout pass:secret -outform DER -out 8.der");
        for name in ["a.der", "8.der", "a.key", "a.crt"] {
            let whole = fs::read(made.path(name)).unwrap();
            for length in (0..whole.len() - 20).step_by(7) {
                fs::write(made.path("cut"), &whole[..length]).unwrap();
                assert!(made.key("cut").is_err(), "{name} {length}");
                assert!(
                    read_certificates(NamedFile("CA file", &made.path("cut"))).is_err(),
                    "{name} {length}"
                );
            }
        }
    }
}
