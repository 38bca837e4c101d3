//! Certificates for a test link: a CA, a server certificate and a client certificate.
//!
//! A set is made in memory, written under temporary names and moved into place only when
//! all of it is on disk. Every file is created with mode 0600, so that no key can be read
//! by others even for a moment. The CA exists for this one set: its name carries its
//! key's fingerprint, so two sets never pass for each other. The `certs` command and the
//! tests call this.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, RsaKeySize,
};
use tempfile::NamedTempFile;

/// Names that every server certificate covers.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The CA's own lifetime, unless the certificates it signs need a longer one.
const CA_DAYS: u32 = 3650;
/// Certificates are valid from so long before now: clocks of test machines disagree.
const BACKDATED: Duration = Duration::from_secs(3600);

/// What certificates to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// DNS names (a leading `*.` allowed) and IP addresses that the server certificate
    /// covers besides `localhost`, `127.0.0.1` and `::1`.
    pub names: Vec<String>,
    pub algorithm: Algorithm,
    /// Of the server and client certificates. The CA outlives them.
    pub validity: Validity,
    /// Overwrite a set that is there.
    pub force: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            names: Vec::new(),
            algorithm: Algorithm::EcdsaP256,
            validity: Validity::Days(365),
            force: false,
        }
    }
}

/// When certificates are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// From now on, for so many days.
    Days(u32),
    /// Any stretch of time; one in the past makes expired certificates for tests.
    Between {
        not_before: Timestamp,
        not_after: Timestamp,
    },
}

/// The kind of key, for all three certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    EcdsaP256,
    EcdsaP384,
    Rsa2048,
    Rsa3072,
    Rsa4096,
}

impl Algorithm {
    pub const ALL: [Algorithm; 5] = [
        Algorithm::EcdsaP256,
        Algorithm::EcdsaP384,
        Algorithm::Rsa2048,
        Algorithm::Rsa3072,
        Algorithm::Rsa4096,
    ];

    /// As typed: `ecdsa-p256`, `rsa-2048`, …
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::EcdsaP256 => "ecdsa-p256",
            Algorithm::EcdsaP384 => "ecdsa-p384",
            Algorithm::Rsa2048 => "rsa-2048",
            Algorithm::Rsa3072 => "rsa-3072",
            Algorithm::Rsa4096 => "rsa-4096",
        }
    }

    fn is_rsa(self) -> bool {
        !matches!(self, Algorithm::EcdsaP256 | Algorithm::EcdsaP384)
    }

    fn key(self) -> Result<KeyPair, rcgen::Error> {
        let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
        match self {
            Algorithm::EcdsaP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            Algorithm::EcdsaP384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            Algorithm::Rsa2048 => rsa(RsaKeySize::_2048),
            Algorithm::Rsa3072 => rsa(RsaKeySize::_3072),
            Algorithm::Rsa4096 => rsa(RsaKeySize::_4096),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<Algorithm, CertificateError> {
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == text)
            .ok_or_else(|| CertificateError::Algorithm {
                text: text.to_owned(),
            })
    }
}

/// Where a set is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSet {
    pub ca_cert: PathBuf,
    pub ca_key: PathBuf,
    pub server_cert: PathBuf,
    pub server_key: PathBuf,
    pub client_cert: PathBuf,
    pub client_key: PathBuf,
}

impl CertificateSet {
    /// The paths of a set in `dir`, whether it exists or not.
    pub fn in_dir(dir: &Path) -> CertificateSet {
        CertificateSet {
            ca_cert: dir.join("ca.crt"),
            ca_key: dir.join("ca.key"),
            server_cert: dir.join("server.crt"),
            server_key: dir.join("server.key"),
            client_cert: dir.join("client.crt"),
            client_key: dir.join("client.key"),
        }
    }

    pub fn paths(&self) -> [&Path; 6] {
        [
            &self.ca_cert,
            &self.ca_key,
            &self.server_cert,
            &self.server_key,
            &self.client_cert,
            &self.client_key,
        ]
    }
}

/// Why a set of certificates could not be made. Nothing was left half-written.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{} would be overwritten: {}; force it, or choose another directory", plural(files.len()), names(files))]
    Exists { files: Vec<PathBuf> },
    #[error("{} is there and is not a file; move it away, or choose another directory", path.display())]
    NotAFile { path: PathBuf },
    #[error("name {name:?} is neither a DNS name nor an IP address")]
    Name { name: String },
    #[error("algorithm {text:?} is unknown; known are {}", Algorithm::ALL.map(Algorithm::name).join(", "))]
    Algorithm { text: String },
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

fn plural(files: usize) -> &'static str {
    if files == 1 { "a file" } else { "files" }
}

fn names(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().map(|f| f.display().to_string()).collect();
    names.join(", ")
}

/// Makes `ca.crt`, `ca.key`, `server.crt`, `server.key`, `client.crt` and `client.key`
/// (PEM, mode 0600) in `dir`, which is made if it is missing.
///
/// # Errors
/// When files are there already and [`Options::force`] is not set, when an option makes
/// no sense, or when the directory can't be written to.
pub fn make_certificates(
    dir: &Path,
    options: &Options,
) -> Result<CertificateSet, CertificateError> {
    let set = CertificateSet::in_dir(dir);
    refuse_to_overwrite(&set, options.force)?;
    let contents = contents(options)?;

    fs::create_dir_all(dir).map_err(|e| io_error("making directory", dir, e))?;
    let mut staged = Vec::with_capacity(contents.len());
    for (path, content) in set.paths().into_iter().zip(&contents) {
        staged.push((path, stage(dir, path, content)?));
    }
    let mut placed: Vec<&Path> = Vec::with_capacity(staged.len());
    for (path, file) in staged {
        let result = if options.force {
            file.persist(path)
        } else {
            file.persist_noclobber(path)
        };
        if let Err(e) = result {
            // A file that appeared meanwhile is someone else's; ours go again.
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
    // So that the names survive a power cut too; not every filesystem can.
    let _ = fs::File::open(dir).and_then(|dir| dir.sync_all());
    Ok(set)
}

fn refuse_to_overwrite(set: &CertificateSet, force: bool) -> Result<(), CertificateError> {
    let mut there = Vec::new();
    for path in set.paths() {
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

/// Writes a file that disappears again unless it is moved into place. Temporary files
/// are created exclusively and with mode 0600.
fn stage(dir: &Path, path: &Path, content: &str) -> Result<NamedTempFile, CertificateError> {
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

/// The six files in the order of [`CertificateSet::paths`].
fn contents(options: &Options) -> Result<[String; 6], CertificateError> {
    let making = |what| move |source| CertificateError::Making { what, source };
    let (not_before, not_after) = stretch(options.validity)?;
    let server_names = server_names(&options.names)?;
    let algorithm = options.algorithm;

    let ca_key = algorithm.key().map_err(making("CA key"))?;
    let mut ca = CertificateParams::default();
    let fingerprint: String = ca
        .key_identifier(&ca_key)
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    name(&mut ca, &format!("Plimsoll test CA {fingerprint}"));
    let (ca_before, ca_after) = stretch(Validity::Days(CA_DAYS))?;
    valid(&mut ca, ca_before.min(not_before), ca_after.max(not_after));
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_cert = ca.self_signed(&ca_key).map_err(making("CA certificate"))?;
    let ca_key_pem = ca_key.serialize_pem();
    let issuer = Issuer::new(ca, ca_key);

    let leaf = |what, common_name: &str, names: Vec<String>, purpose| {
        let key = algorithm.key().map_err(making(what))?;
        let mut leaf = CertificateParams::new(names).map_err(making(what))?;
        name(&mut leaf, common_name);
        valid(&mut leaf, not_before, not_after);
        leaf.is_ca = IsCa::ExplicitNoCa;
        leaf.use_authority_key_identifier_extension = true;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if algorithm.is_rsa() {
            leaf.key_usages.push(KeyUsagePurpose::KeyEncipherment);
        }
        leaf.extended_key_usages = vec![purpose];
        let cert = leaf.signed_by(&key, &issuer).map_err(making(what))?;
        Ok((cert.pem(), key.serialize_pem()))
    };
    let (server_cert, server_key) = leaf(
        "server certificate",
        "localhost",
        server_names,
        ExtendedKeyUsagePurpose::ServerAuth,
    )?;
    let (client_cert, client_key) = leaf(
        "client certificate",
        "plimsoll client",
        Vec::new(),
        ExtendedKeyUsagePurpose::ClientAuth,
    )?;
    Ok([
        ca_cert.pem(),
        ca_key_pem,
        server_cert,
        server_key,
        client_cert,
        client_key,
    ])
}

fn name(certificate: &mut CertificateParams, common_name: &str) {
    let mut name = rcgen::DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    certificate.distinguished_name = name;
}

fn valid(certificate: &mut CertificateParams, not_before: Timestamp, not_after: Timestamp) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch =
        |at: Timestamp| Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0));
    certificate.not_before = epoch + since_epoch(not_before);
    certificate.not_after = epoch + since_epoch(not_after);
}

fn stretch(validity: Validity) -> Result<(Timestamp, Timestamp), CertificateError> {
    let bad = |problem: String| CertificateError::Validity { problem };
    match validity {
        Validity::Days(0) => Err(bad("0 days is no time at all; give at least 1".to_owned())),
        Validity::Days(days) => {
            let now = Timestamp::now();
            let not_after = now
                .checked_add(SignedDuration::from_hours(i64::from(days) * 24))
                .map_err(|_| bad(format!("{days} days end after the year 9999")))?;
            Ok((now - BACKDATED, not_after))
        }
        Validity::Between {
            not_before,
            not_after,
        } => {
            if not_before < Timestamp::UNIX_EPOCH {
                Err(bad(format!("{not_before} is before 1970")))
            } else if not_after <= not_before {
                Err(bad(format!(
                    "its end {not_after} is not after its start {not_before}"
                )))
            } else {
                Ok((not_before, not_after))
            }
        }
    }
}

/// The names given and the local ones, each once.
fn server_names(given: &[String]) -> Result<Vec<String>, CertificateError> {
    let mut seen = BTreeSet::new();
    let mut names = Vec::new();
    for name in LOCAL_NAMES
        .into_iter()
        .chain(given.iter().map(String::as_str))
    {
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let canonical = match bare.parse::<IpAddr>() {
            Ok(address) => address.to_string(),
            Err(_) if is_dns_name(name) => name.to_ascii_lowercase(),
            Err(_) => {
                return Err(CertificateError::Name {
                    name: name.to_owned(),
                });
            }
        };
        if seen.insert(canonical.clone()) {
            names.push(canonical);
        }
    }
    Ok(names)
}

/// Letters, digits, hyphens and underscores in labels of 1–63, 253 in all (RFC 1035
/// §2.3.4); a `*` as the whole first label (RFC 9525 §6.3). A name of digits and dots
/// only is a mistyped address.
fn is_dns_name(name: &str) -> bool {
    let labels = name.strip_prefix("*.").unwrap_or(name);
    name.len() <= 253
        && labels.contains(|c: char| c.is_ascii_alphabetic())
        && labels.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}
