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
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason,
    RevokedCertParams, RsaKeySize, SerialNumber,
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
    /// So many more DNS names, which make the server's certificate large.
    pub more_names: u32,
    pub algorithm: Algorithm,
    /// Of the client's certificate; `None`: the others'.
    pub client_algorithm: Option<Algorithm>,
    /// Certificates between the CA and the server's and client's, which both ends send.
    pub intermediates: u32,
    /// Make a list of certificates that are revoked, with these in it.
    pub revoked: Option<Vec<Leaf>>,
    /// Of the server and client certificates. The CA outlives them.
    pub validity: Validity,
    /// Overwrite a set that is there.
    pub force: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            names: Vec::new(),
            more_names: 0,
            algorithm: Algorithm::EcdsaP256,
            client_algorithm: None,
            intermediates: 0,
            revoked: None,
            validity: Validity::Days(365),
            force: false,
        }
    }
}

/// A certificate that is no CA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    Server,
    Client,
}

impl FromStr for Leaf {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<Leaf, CertificateError> {
        match text {
            "server" => Ok(Leaf::Server),
            "client" => Ok(Leaf::Client),
            _ => Err(CertificateError::Revoked {
                text: text.to_owned(),
            }),
        }
    }
}

/// More makes a certificate that no TLS library takes: handshake messages beyond 64 KiB.
const MAX_NAMES: u32 = 2_000;
const MAX_INTERMEDIATES: u32 = 20;

/// When certificates are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// From now on, for so many days.
    Days(u32),
    /// From now on, for so long; whole seconds.
    For(Duration),
    /// Any stretch of time; one in the past makes expired certificates for tests.
    Between {
        not_before: Timestamp,
        not_after: Timestamp,
    },
}

/// The kind of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Ed25519,
    EcdsaP256,
    EcdsaP384,
    Rsa2048,
    Rsa3072,
    Rsa4096,
    /// FIPS 204, in certificates as RFC 9881 has it.
    MlDsa44,
    MlDsa65,
    MlDsa87,
}

impl Algorithm {
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Ed25519,
        Algorithm::EcdsaP256,
        Algorithm::EcdsaP384,
        Algorithm::Rsa2048,
        Algorithm::Rsa3072,
        Algorithm::Rsa4096,
        Algorithm::MlDsa44,
        Algorithm::MlDsa65,
        Algorithm::MlDsa87,
    ];

    /// As typed: `ecdsa-p256`, `rsa-2048`, …
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Ed25519 => "ed25519",
            Algorithm::EcdsaP256 => "ecdsa-p256",
            Algorithm::EcdsaP384 => "ecdsa-p384",
            Algorithm::Rsa2048 => "rsa-2048",
            Algorithm::Rsa3072 => "rsa-3072",
            Algorithm::Rsa4096 => "rsa-4096",
            Algorithm::MlDsa44 => "ml-dsa-44",
            Algorithm::MlDsa65 => "ml-dsa-65",
            Algorithm::MlDsa87 => "ml-dsa-87",
        }
    }

    fn is_rsa(self) -> bool {
        self.name().starts_with("rsa-")
    }

    fn key(self) -> Result<KeyPair, rcgen::Error> {
        let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
        match self {
            Algorithm::Ed25519 => ed25519(),
            Algorithm::EcdsaP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            Algorithm::EcdsaP384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            Algorithm::Rsa2048 => rsa(RsaKeySize::_2048),
            Algorithm::Rsa3072 => rsa(RsaKeySize::_3072),
            Algorithm::Rsa4096 => rsa(RsaKeySize::_4096),
            Algorithm::MlDsa44 => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_44),
            Algorithm::MlDsa65 => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_65),
            Algorithm::MlDsa87 => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_87),
        }
    }
}

/// A key in the first version of PKCS #8 (RFC 8410 §7): of the second, which has the public key in it,
/// OpenSSL 3.0 reads nothing.
fn ed25519() -> Result<KeyPair, rcgen::Error> {
    // What stands before the 32 octets of the seed, and in the second version after a longer length.
    const HEAD: [u8; 16] = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20,
    ];
    let made = KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let second = made.serialized_der();
    match (second.get(5..16), second.get(16..48)) {
        (Some(head), Some(seed)) if head == &HEAD[5..] => KeyPair::try_from([&HEAD, seed].concat()),
        _ => Ok(made),
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
        // `p256`, `rsa2048` and `ML-DSA-65` are the same.
        let bare = |name: &str| {
            name.replace('-', "")
                .replace("ecdsa", "")
                .to_ascii_lowercase()
        };
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| bare(algorithm.name()) == bare(text))
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
    /// There only where it was asked for.
    pub crl: PathBuf,
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
            crl: dir.join("ca.crl"),
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

    /// The files of a set that is made with `options`.
    pub fn files(&self, options: &Options) -> Vec<&Path> {
        let crl = options.revoked.is_some().then_some(self.crl.as_path());
        self.paths().into_iter().chain(crl).collect()
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
    #[error("{text:?} can't be revoked: server or client can")]
    Revoked { text: String },
    #[error(
        "{asked} {what} are too many: a handshake with them is more than TLS libraries take; use {most} at most"
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

fn plural(files: usize) -> &'static str {
    if files == 1 { "a file" } else { "files" }
}

fn names(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().map(|f| f.display().to_string()).collect();
    names.join(", ")
}

/// Makes `ca.crt`, `ca.key`, `server.crt`, `server.key`, `client.crt` and `client.key`
/// (PEM, mode 0600) in `dir`, which is made if it is missing, and `ca.crl` where it is asked for.
///
/// # Errors
/// When files are there already and [`Options::force`] is not set, when an option makes
/// no sense, or when the directory can't be written to.
pub fn make_certificates(
    dir: &Path,
    options: &Options,
) -> Result<CertificateSet, CertificateError> {
    let set = CertificateSet::in_dir(dir);
    refuse_to_overwrite(&set.files(options), options.force)?;
    let contents = contents(options)?;

    fs::create_dir_all(dir).map_err(|e| io_error("making directory", dir, e))?;
    let mut staged = Vec::with_capacity(contents.len());
    for (path, content) in set.files(options).into_iter().zip(&contents) {
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

/// The files in the order of [`CertificateSet::files`].
fn contents(options: &Options) -> Result<Vec<String>, CertificateError> {
    for (what, asked, most) in [
        ("names", options.more_names, MAX_NAMES),
        (
            "intermediate certificates",
            options.intermediates,
            MAX_INTERMEDIATES,
        ),
    ] {
        if asked > most {
            return Err(CertificateError::TooMany { what, asked, most });
        }
    }
    let (not_before, not_after) = stretch(options.validity)?;
    let authority = Authority::make(options, not_before, not_after)?;
    let leaf = |what, common_name: &str, names, algorithm: Algorithm, purpose| {
        let key = algorithm.key().map_err(making(what))?;
        let mut leaf = CertificateParams::new(names).map_err(making(what))?;
        name(&mut leaf, common_name);
        valid(&mut leaf, not_before, not_after);
        leaf.serial_number = Some(serial(&leaf, &key));
        leaf.is_ca = IsCa::ExplicitNoCa;
        leaf.use_authority_key_identifier_extension = true;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if algorithm.is_rsa() {
            leaf.key_usages.push(KeyUsagePurpose::KeyEncipherment);
        }
        leaf.extended_key_usages = vec![purpose];
        let cert = leaf
            .signed_by(&key, &authority.issuer)
            .map_err(making(what))?;
        // What is sent: the CA's own certificate is known to who checks it.
        let chain = cert.pem() + &authority.between;
        Ok((chain, key.serialize_pem(), leaf.serial_number))
    };
    let (server_cert, server_key, server_serial) = leaf(
        "server certificate",
        "localhost",
        server_names(options)?,
        options.algorithm,
        ExtendedKeyUsagePurpose::ServerAuth,
    )?;
    let (client_cert, client_key, client_serial) = leaf(
        "client certificate",
        "plimsoll client",
        Vec::new(),
        options.client_algorithm.unwrap_or(options.algorithm),
        ExtendedKeyUsagePurpose::ClientAuth,
    )?;
    let mut contents = vec![
        authority.cert_pem.clone(),
        authority.key_pem.clone(),
        server_cert,
        server_key,
        client_cert,
        client_key,
    ];
    if let Some(revoked) = &options.revoked {
        let serials = [(Leaf::Server, server_serial), (Leaf::Client, client_serial)];
        let serials = serials
            .into_iter()
            .filter(|(leaf, _)| revoked.contains(leaf))
            .filter_map(|(_, serial)| serial);
        contents.push(authority.lists(serials.collect(), not_before, not_after)?);
    }
    Ok(contents)
}

fn making(what: &'static str) -> impl Fn(rcgen::Error) -> CertificateError {
    move |source| CertificateError::Making { what, source }
}

/// Who signs.
struct Authority {
    /// The CA's own.
    cert_pem: String,
    key_pem: String,
    /// The certificates between the CA and what is signed, the last one first.
    between: String,
    issuer: Issuer<'static, KeyPair>,
    /// Those above the one that signs, the last one first.
    above: Vec<Issuer<'static, KeyPair>>,
}

impl Authority {
    fn make(
        options: &Options,
        not_before: Timestamp,
        not_after: Timestamp,
    ) -> Result<Authority, CertificateError> {
        let (ca_before, ca_after) = stretch(Validity::Days(CA_DAYS))?;
        let (before, after) = (ca_before.min(not_before), ca_after.max(not_after));
        let params = |common_name: &str, below: u32| {
            let mut ca = CertificateParams::default();
            name(&mut ca, common_name);
            valid(&mut ca, before, after);
            let below = u8::try_from(below).unwrap_or(u8::MAX);
            ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
            ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            ca
        };
        let key = options.algorithm.key().map_err(making("CA key"))?;
        let fingerprint: String = CertificateParams::default()
            .key_identifier(&key)
            .iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let ca = params(
            &format!("Plimsoll test CA {fingerprint}"),
            options.intermediates,
        );
        let cert = ca.self_signed(&key).map_err(making("CA certificate"))?;
        let key_pem = key.serialize_pem();
        let (mut issuer, mut between) = (Issuer::new(ca, key), String::new());
        let mut above = Vec::new();
        for n in 1..=options.intermediates {
            let making = making("intermediate certificate");
            let key = options.algorithm.key().map_err(&making)?;
            let common_name = format!("Plimsoll test CA {fingerprint}, intermediate {n}");
            let mut ca = params(&common_name, options.intermediates - n);
            ca.use_authority_key_identifier_extension = true;
            let signed = ca.signed_by(&key, &issuer).map_err(&making)?;
            between.insert_str(0, &signed.pem());
            above.insert(0, std::mem::replace(&mut issuer, Issuer::new(ca, key)));
        }
        Ok(Authority {
            cert_pem: cert.pem(),
            key_pem,
            between,
            issuer,
            above,
        })
    }

    /// What is revoked: a list of every issuer (RFC 5280 §5), that of the leaves first. The others'
    /// are empty, and there because a chain is checked whole.
    fn lists(
        &self,
        serials: Vec<SerialNumber>,
        this_update: Timestamp,
        next_update: Timestamp,
    ) -> Result<String, CertificateError> {
        let mut lists = list(&self.issuer, serials, this_update, next_update)?;
        for issuer in &self.above {
            lists += &list(issuer, Vec::new(), this_update, next_update)?;
        }
        Ok(lists)
    }
}

/// The list of one issuer.
fn list(
    issuer: &Issuer<'static, KeyPair>,
    serials: Vec<SerialNumber>,
    this_update: Timestamp,
    next_update: Timestamp,
) -> Result<String, CertificateError> {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let (this_update, next_update) = (
        epoch + since_epoch(this_update),
        epoch + since_epoch(next_update),
    );
    let revoked = serials.into_iter().map(|serial_number| RevokedCertParams {
        serial_number,
        revocation_time: this_update,
        reason_code: Some(RevocationReason::KeyCompromise),
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update,
        next_update,
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let making = making("list of revoked certificates");
    let signed = list.signed_by(issuer).map_err(&making)?;
    signed.pem().map_err(&making)
}

/// A positive number of 16 octets (RFC 5280 §4.1.2.2), as good as random.
fn serial(certificate: &CertificateParams, key: &KeyPair) -> SerialNumber {
    let mut number = certificate.key_identifier(key);
    number.truncate(16);
    if let Some(first) = number.first_mut() {
        *first = *first & 0x3f | 0x40;
    }
    SerialNumber::from(number)
}

fn name(certificate: &mut CertificateParams, common_name: &str) {
    let mut name = rcgen::DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    certificate.distinguished_name = name;
}

fn valid(certificate: &mut CertificateParams, not_before: Timestamp, not_after: Timestamp) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    certificate.not_before = epoch + since_epoch(not_before);
    certificate.not_after = epoch + since_epoch(not_after);
}

/// None is before 1970.
fn since_epoch(at: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0))
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
        Validity::For(time) if time < Duration::from_secs(1) => {
            Err(bad(format!("{time:?} is less than a second")))
        }
        Validity::For(time) => {
            let now = Timestamp::now();
            let not_after = now
                .checked_add(time)
                .map_err(|_| bad(format!("{time:?} end after the year 9999")))?;
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

/// The names given, the local ones and made-up ones, each once.
fn server_names(options: &Options) -> Result<Vec<String>, CertificateError> {
    let mut seen = BTreeSet::new();
    let mut names = Vec::new();
    let more: Vec<String> = (0..options.more_names)
        .map(|n| format!("host-{n:06}.plimsoll.test"))
        .collect();
    for name in LOCAL_NAMES
        .into_iter()
        .chain(options.names.iter().chain(&more).map(String::as_str))
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
