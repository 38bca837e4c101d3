//! Creates and signs the certificates and revocation lists of a set, in memory.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason,
    RevokedCertParams, SerialNumber,
};

use super::{CertificateError, CertificateOptions, KeyAlgorithm, LeafCertificate, Validity};

/// Names that every server certificate covers.
const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The validity of the CA in days, unless the certificates that it signs need a longer one.
const CA_VALIDITY_DAYS: u32 = 3650;
/// How long before the current time certificates become valid, to allow for clock skew between test machines.
const CLOCK_SKEW_MARGIN: Duration = Duration::from_secs(3600);
/// Maximum number of generated names: with more names, no TLS library accepts the certificate, because handshake
/// messages are limited to 64 KiB.
const MAX_GENERATED_NAMES: u32 = 2_000;
const MAX_INTERMEDIATES: u32 = 20;

/// Returns the contents of the files, in the order of [`super::CertificatePaths::file_paths`].
pub(super) fn build_file_contents(
    options: &CertificateOptions,
) -> Result<Vec<String>, CertificateError> {
    for (what, asked, most) in [
        ("names", options.more_names, MAX_GENERATED_NAMES),
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
    let (not_before, not_after) = validity_period(options.validity)?;
    let authority = CertificateAuthority::generate(options, not_before, not_after)?;
    let leaf = |what, common_name: &str, names, algorithm: KeyAlgorithm, purpose| {
        let key = algorithm.generate_key().map_err(creation_error(what))?;
        let mut leaf = CertificateParams::new(names).map_err(creation_error(what))?;
        set_common_name(&mut leaf, common_name);
        set_validity(&mut leaf, not_before, not_after);
        leaf.serial_number = Some(serial_number(&leaf, &key));
        leaf.is_ca = IsCa::ExplicitNoCa;
        leaf.use_authority_key_identifier_extension = true;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if algorithm.is_rsa() {
            leaf.key_usages.push(KeyUsagePurpose::KeyEncipherment);
        }
        leaf.extended_key_usages = vec![purpose];
        let cert = leaf
            .signed_by(&key, &authority.issuer)
            .map_err(creation_error(what))?;
        // The chain is sent without the CA's own certificate, which the verifier already has.
        let chain = cert.pem() + &authority.intermediates_pem;
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
        let serials = [
            (LeafCertificate::Server, server_serial),
            (LeafCertificate::Client, client_serial),
        ];
        let serials = serials
            .into_iter()
            .filter(|(leaf, _)| revoked.contains(leaf))
            .filter_map(|(_, serial)| serial);
        contents.push(authority.revocation_lists_pem(serials.collect(), not_before, not_after)?);
    }
    Ok(contents)
}

fn creation_error(what: &'static str) -> impl Fn(rcgen::Error) -> CertificateError {
    move |source| CertificateError::Making { what, source }
}

/// The certificate authority of a set, with its intermediates.
struct CertificateAuthority {
    /// The certificate of the root CA.
    cert_pem: String,
    key_pem: String,
    /// The certificates between the root CA and the leaves, the lowest first.
    intermediates_pem: String,
    issuer: Issuer<'static, KeyPair>,
    /// The issuers above `issuer` in the chain, the lowest first.
    upper_issuers: Vec<Issuer<'static, KeyPair>>,
}

impl CertificateAuthority {
    fn generate(
        options: &CertificateOptions,
        not_before: Timestamp,
        not_after: Timestamp,
    ) -> Result<CertificateAuthority, CertificateError> {
        let (ca_before, ca_after) = validity_period(Validity::Days(CA_VALIDITY_DAYS))?;
        let (before, after) = (ca_before.min(not_before), ca_after.max(not_after));
        let params = |common_name: &str, below: u32| {
            let mut ca = CertificateParams::default();
            set_common_name(&mut ca, common_name);
            set_validity(&mut ca, before, after);
            let below = u8::try_from(below).unwrap_or(u8::MAX);
            ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
            ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            ca
        };
        let key = options
            .algorithm
            .generate_key()
            .map_err(creation_error("CA key"))?;
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
        let cert = ca
            .self_signed(&key)
            .map_err(creation_error("CA certificate"))?;
        let key_pem = key.serialize_pem();
        let (mut issuer, mut between) = (Issuer::new(ca, key), String::new());
        let mut above = Vec::new();
        for n in 1..=options.intermediates {
            let making = creation_error("intermediate certificate");
            let key = options.algorithm.generate_key().map_err(&making)?;
            let common_name = format!("Plimsoll test CA {fingerprint}, intermediate {n}");
            let mut ca = params(&common_name, options.intermediates - n);
            ca.use_authority_key_identifier_extension = true;
            let signed = ca.signed_by(&key, &issuer).map_err(&making)?;
            between.insert_str(0, &signed.pem());
            above.insert(0, std::mem::replace(&mut issuer, Issuer::new(ca, key)));
        }
        Ok(CertificateAuthority {
            cert_pem: cert.pem(),
            key_pem,
            intermediates_pem: between,
            issuer,
            upper_issuers: above,
        })
    }

    /// Creates a CRL for every issuer (RFC 5280 §5), beginning with the issuer of the leaves. The other lists are
    /// empty; they are needed because verifiers check the whole chain.
    fn revocation_lists_pem(
        &self,
        serials: Vec<SerialNumber>,
        this_update: Timestamp,
        next_update: Timestamp,
    ) -> Result<String, CertificateError> {
        let mut lists = revocation_list_pem(&self.issuer, serials, this_update, next_update)?;
        for issuer in &self.upper_issuers {
            lists += &revocation_list_pem(issuer, Vec::new(), this_update, next_update)?;
        }
        Ok(lists)
    }
}

/// Creates the CRL of one issuer.
fn revocation_list_pem(
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
    let making = creation_error("list of revoked certificates");
    let signed = list.signed_by(issuer).map_err(&making)?;
    signed.pem().map_err(&making)
}

/// Derives a positive serial number of 16 octets (RFC 5280 §4.1.2.2) from the key's hash.
fn serial_number(certificate: &CertificateParams, key: &KeyPair) -> SerialNumber {
    let mut number = certificate.key_identifier(key);
    number.truncate(16);
    if let Some(first) = number.first_mut() {
        *first = *first & 0x3f | 0x40;
    }
    SerialNumber::from(number)
}

fn set_common_name(certificate: &mut CertificateParams, common_name: &str) {
    let mut name = rcgen::DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    certificate.distinguished_name = name;
}

fn set_validity(certificate: &mut CertificateParams, not_before: Timestamp, not_after: Timestamp) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    certificate.not_before = epoch + since_epoch(not_before);
    certificate.not_after = epoch + since_epoch(not_after);
}

/// Converts a time to a duration since 1970; the time must not be before 1970.
fn since_epoch(at: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(at.as_second()).unwrap_or(0))
}

fn validity_period(validity: Validity) -> Result<(Timestamp, Timestamp), CertificateError> {
    let bad = |problem: String| CertificateError::Validity { problem };
    match validity {
        Validity::Days(0) => Err(bad("0 days is too short; use at least 1".to_owned())),
        Validity::Days(days) => {
            let now = Timestamp::now();
            let not_after = now
                .checked_add(SignedDuration::from_hours(i64::from(days) * 24))
                .map_err(|_| bad(format!("{days} days end after the year 9999")))?;
            Ok((now - CLOCK_SKEW_MARGIN, not_after))
        }
        Validity::For(time) if time < Duration::from_secs(1) => {
            Err(bad(format!("{time:?} is less than a second")))
        }
        Validity::For(time) => {
            let now = Timestamp::now();
            let not_after = now
                .checked_add(time)
                .map_err(|_| bad(format!("{time:?} end after the year 9999")))?;
            Ok((now - CLOCK_SKEW_MARGIN, not_after))
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

/// Returns the given names, the local ones and generated ones, without duplicates.
fn server_names(options: &CertificateOptions) -> Result<Vec<String>, CertificateError> {
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

/// Returns whether `name` is a DNS name: letters, digits, hyphens and underscores in labels of 1–63 characters, at most
/// 253 in total (RFC 1035 §2.3.4); `*` is allowed only as the whole first label (RFC 9525 §6.3). A name that consists
/// only of digits and dots is a mistyped address.
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
