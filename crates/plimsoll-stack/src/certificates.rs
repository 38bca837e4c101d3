//! Certificates for tests: a CA, a server certificate and a client certificate.
//!
//! A set is created in memory, written under temporary names, and moved into place only when all its files are on disk.
//! Every file is created with mode 0600, so that no other user can read a key even for a moment. Each set has its own
//! CA, whose name contains the fingerprint of its key, so that two sets can't be confused. The `certs` command and
//! tests call this.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{KeyPair, RsaKeySize};
use tempfile::NamedTempFile;

mod signing;

/// Options of a certificate set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateOptions {
    /// DNS names (a leading `*.` is allowed) and IP addresses that the server certificate covers, in addition to
    /// `localhost`, `127.0.0.1` and `::1`.
    pub names: Vec<String>,
    /// The number of additional generated DNS names, which increase the size of the server's certificate.
    pub more_names: u32,
    /// The algorithm of all keys, except where `client_algorithm` differs.
    pub algorithm: KeyAlgorithm,
    /// The algorithm of the client's key; `None` uses `algorithm`.
    pub client_algorithm: Option<KeyAlgorithm>,
    /// The number of intermediate CAs, whose certificates both ends send.
    pub intermediates: u32,
    /// The revoked certificates; with `None`, no CRL is created.
    pub revoked: Option<Vec<LeafCertificate>>,
    /// The validity of the server's and the client's certificate; the CA's is at least as long.
    pub validity: Validity,
    /// Whether existing files are overwritten.
    pub force: bool,
}

impl Default for CertificateOptions {
    fn default() -> CertificateOptions {
        CertificateOptions {
            names: Vec::new(),
            more_names: 0,
            algorithm: KeyAlgorithm::EcdsaP256,
            client_algorithm: None,
            intermediates: 0,
            revoked: None,
            validity: Validity::Days(365),
            force: false,
        }
    }
}

/// An end-entity certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafCertificate {
    /// `server.crt`.
    Server,
    /// `client.crt`.
    Client,
}

impl FromStr for LeafCertificate {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<LeafCertificate, CertificateError> {
        match text {
            "server" => Ok(LeafCertificate::Server),
            "client" => Ok(LeafCertificate::Client),
            _ => Err(CertificateError::Revoked {
                text: text.to_owned(),
            }),
        }
    }
}

/// The validity of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// The certificates are valid for this many days from now.
    Days(u32),
    /// The certificates are valid for this time from now, in whole seconds.
    For(Duration),
    /// The certificates are valid in this period; a period in the past creates expired certificates for tests.
    Between {
        /// The first second; not before 1970.
        not_before: Timestamp,
        /// The last second.
        not_after: Timestamp,
    },
}

/// The algorithm of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAlgorithm {
    /// Ed25519 (RFC 8410).
    Ed25519,
    /// Signs with SHA-256.
    EcdsaP256,
    /// Signs with SHA-384.
    EcdsaP384,
    /// Signs with SHA-256 (PKCS #1).
    Rsa2048,
    /// Signs with SHA-256 (PKCS #1).
    Rsa3072,
    /// Signs with SHA-256 (PKCS #1).
    Rsa4096,
    /// ML-DSA (FIPS 204), in certificates according to RFC 9881.
    MlDsa44,
    /// ML-DSA (FIPS 204), in certificates according to RFC 9881.
    MlDsa65,
    /// ML-DSA (FIPS 204), in certificates according to RFC 9881.
    MlDsa87,
}

impl KeyAlgorithm {
    /// Every algorithm, in the order in which error messages list them.
    pub const ALL: [KeyAlgorithm; 9] = [
        KeyAlgorithm::Ed25519,
        KeyAlgorithm::EcdsaP256,
        KeyAlgorithm::EcdsaP384,
        KeyAlgorithm::Rsa2048,
        KeyAlgorithm::Rsa3072,
        KeyAlgorithm::Rsa4096,
        KeyAlgorithm::MlDsa44,
        KeyAlgorithm::MlDsa65,
        KeyAlgorithm::MlDsa87,
    ];

    /// Returns the name on the command line: `ecdsa-p256`, `rsa-2048`, …
    pub fn name(self) -> &'static str {
        match self {
            KeyAlgorithm::Ed25519 => "ed25519",
            KeyAlgorithm::EcdsaP256 => "ecdsa-p256",
            KeyAlgorithm::EcdsaP384 => "ecdsa-p384",
            KeyAlgorithm::Rsa2048 => "rsa-2048",
            KeyAlgorithm::Rsa3072 => "rsa-3072",
            KeyAlgorithm::Rsa4096 => "rsa-4096",
            KeyAlgorithm::MlDsa44 => "ml-dsa-44",
            KeyAlgorithm::MlDsa65 => "ml-dsa-65",
            KeyAlgorithm::MlDsa87 => "ml-dsa-87",
        }
    }

    fn is_rsa(self) -> bool {
        self.name().starts_with("rsa-")
    }

    fn generate_key(self) -> Result<KeyPair, rcgen::Error> {
        let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
        match self {
            KeyAlgorithm::Ed25519 => generate_ed25519(),
            KeyAlgorithm::EcdsaP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            KeyAlgorithm::EcdsaP384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            KeyAlgorithm::Rsa2048 => rsa(RsaKeySize::_2048),
            KeyAlgorithm::Rsa3072 => rsa(RsaKeySize::_3072),
            KeyAlgorithm::Rsa4096 => rsa(RsaKeySize::_4096),
            KeyAlgorithm::MlDsa44 => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_44),
            KeyAlgorithm::MlDsa65 => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_65),
            KeyAlgorithm::MlDsa87 => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_87),
        }
    }
}

/// Generates a key in version 1 of PKCS #8 (RFC 8410 §7), since OpenSSL 3.0 can't read version 2, which includes the
/// public key.
fn generate_ed25519() -> Result<KeyPair, rcgen::Error> {
    // The bytes before the 32-byte seed. In version 2, the outer length and the version differ.
    const PKCS8_PREFIX: [u8; 16] = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20,
    ];
    let made = KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let second = made.serialized_der();
    match (second.get(5..16), second.get(16..48)) {
        (Some(head), Some(seed)) if head == &PKCS8_PREFIX[5..] => {
            KeyPair::try_from([&PKCS8_PREFIX, seed].concat())
        }
        _ => Ok(made),
    }
}

impl fmt::Display for KeyAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KeyAlgorithm {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<KeyAlgorithm, CertificateError> {
        // Names are also accepted without hyphens and prefix, regardless of case: `p256`, `rsa2048`, `ML-DSA-65`.
        let bare = |name: &str| {
            name.replace('-', "")
                .replace("ecdsa", "")
                .to_ascii_lowercase()
        };
        KeyAlgorithm::ALL
            .into_iter()
            .find(|algorithm| bare(algorithm.name()) == bare(text))
            .ok_or_else(|| CertificateError::Algorithm {
                text: text.to_owned(),
            })
    }
}

/// The paths of a set's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePaths {
    /// `ca.crt`.
    pub ca_cert: PathBuf,
    /// `ca.key`.
    pub ca_key: PathBuf,
    /// `server.crt`: the chain without the CA.
    pub server_cert: PathBuf,
    /// `server.key`.
    pub server_key: PathBuf,
    /// `client.crt`: the chain without the CA.
    pub client_cert: PathBuf,
    /// `client.key`.
    pub client_key: PathBuf,
    /// `ca.crl`, which exists only if a CRL was requested.
    pub crl: PathBuf,
}

impl CertificatePaths {
    /// Returns the paths of a set in `dir`, which need not exist.
    pub fn for_dir(dir: &Path) -> CertificatePaths {
        CertificatePaths {
            ca_cert: dir.join("ca.crt"),
            ca_key: dir.join("ca.key"),
            server_cert: dir.join("server.crt"),
            server_key: dir.join("server.key"),
            client_cert: dir.join("client.crt"),
            client_key: dir.join("client.key"),
            crl: dir.join("ca.crl"),
        }
    }

    /// Returns all paths except `crl`.
    pub fn paths_without_crl(&self) -> [&Path; 6] {
        [
            &self.ca_cert,
            &self.ca_key,
            &self.server_cert,
            &self.server_key,
            &self.client_cert,
            &self.client_key,
        ]
    }

    /// Returns the paths of the files of a set that is created with `options`.
    pub fn file_paths(&self, options: &CertificateOptions) -> Vec<&Path> {
        let crl = options.revoked.is_some().then_some(self.crl.as_path());
        self.paths_without_crl().into_iter().chain(crl).collect()
    }
}

/// The reason why a certificate set could not be created. No file is left incomplete.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{} would be overwritten: {}; use --force, or choose another directory", file_noun(files.len()), format_paths(files))]
    Exists { files: Vec<PathBuf> },
    #[error("{} exists and is not a file; move it away, or choose another directory", path.display())]
    NotAFile { path: PathBuf },
    #[error("name {name:?} is neither a DNS name nor an IP address")]
    Name { name: String },
    #[error("algorithm {text:?} is unknown; use one of {}", KeyAlgorithm::ALL.map(KeyAlgorithm::name).join(", "))]
    Algorithm { text: String },
    #[error("{text:?} can't be revoked; use server or client")]
    Revoked { text: String },
    #[error(
        "{asked} {what} are too many: a handshake with them exceeds the limits of TLS libraries; use {most} at most"
    )]
    TooMany {
        what: &'static str,
        asked: u32,
        most: u32,
    },
    #[error("validity: {problem}")]
    Validity { problem: String },
    #[error("{doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("making the {what}: {source}")]
    Making {
        what: &'static str,
        source: rcgen::Error,
    },
}

fn file_noun(files: usize) -> &'static str {
    if files == 1 { "a file" } else { "files" }
}

fn format_paths(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().map(|f| f.display().to_string()).collect();
    names.join(", ")
}

/// Creates `ca.crt`, `ca.key`, `server.crt`, `server.key`, `client.crt` and `client.key` (PEM, mode 0600) in `dir`,
/// which is created if it does not exist, and `ca.crl` if requested.
///
/// # Errors
/// Returns an error if files already exist and [`CertificateOptions::force`] is not set, if an option is invalid, or if
/// the directory can't be written.
pub fn make_certificates(
    dir: &Path,
    options: &CertificateOptions,
) -> Result<CertificatePaths, CertificateError> {
    let set = CertificatePaths::for_dir(dir);
    refuse_to_overwrite(&set.file_paths(options), options.force)?;
    let contents = signing::build_file_contents(options)?;

    fs::create_dir_all(dir).map_err(|e| io_error("making directory", dir, e))?;
    let mut staged = Vec::with_capacity(contents.len());
    for (path, content) in set.file_paths(options).into_iter().zip(&contents) {
        staged.push((path, write_temporary_file(dir, path, content)?));
    }
    let mut placed: Vec<&Path> = Vec::with_capacity(staged.len());
    for (path, file) in staged {
        let result = if options.force {
            file.persist(path)
        } else {
            file.persist_noclobber(path)
        };
        if let Err(e) = result {
            // A file that has appeared in the meantime was written by another process, so only our own files are
            // removed.
            for path in placed.iter().filter(|_| !options.force) {
                let _ = fs::remove_file(path);
            }
            return Err(match e.error.kind() {
                io::ErrorKind::AlreadyExists => CertificateError::Exists {
                    files: vec![path.to_owned()],
                },
                _ => io_error("moving into place", path, e.error),
            });
        }
        placed.push(path);
    }
    // This makes the directory entries survive a power failure; not every file system supports it.
    let _ = fs::File::open(dir).and_then(|dir| dir.sync_all());
    Ok(set)
}

fn refuse_to_overwrite(paths: &[&Path], force: bool) -> Result<(), CertificateError> {
    let mut there = Vec::new();
    for &path in paths {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => {
                return Err(CertificateError::NotAFile {
                    path: path.to_owned(),
                });
            }
            Ok(_) => there.push(path.to_owned()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(io_error("looking for", path, e)),
        }
    }
    if there.is_empty() || force {
        Ok(())
    } else {
        Err(CertificateError::Exists { files: there })
    }
}

/// Writes a temporary file, which is removed unless it is moved into place. The file is created exclusively, with mode
/// 0600.
fn write_temporary_file(
    dir: &Path,
    path: &Path,
    content: &str,
) -> Result<NamedTempFile, CertificateError> {
    let mut file = NamedTempFile::with_prefix_in(".plimsoll-", dir)
        .map_err(|e| io_error("writing", path, e))?;
    file.write_all(content.as_bytes())
        .and_then(|()| file.as_file().sync_all())
        .map_err(|e| io_error("writing", path, e))?;
    Ok(file)
}

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> CertificateError {
    CertificateError::Io {
        doing,
        path: path.to_owned(),
        source,
    }
}
