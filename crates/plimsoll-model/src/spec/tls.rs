//! Resolves `[tls]`: the handshake and its suites and groups.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};

use super::target::secured_schemes;
use super::{Problem, Problems, objective};
use crate::formats::fingerprint::Fingerprint;
use crate::formats::suggest::suggest;
use crate::plan::{
    ChainCheck, ClientIdentity, KeyExchangeGroup, RecordLayer, ServerTrust, TlsPlan, TlsSuite,
    TlsVersion,
};

/// How the link is secured.
// Keys without a flag here have one elsewhere: it is defined for all commands that connect to a server, even those that
// generate no load.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "TLS", next_display_order = 1000)]
pub struct TlsSpec {
    /// Trusted CA certificates (PEM or DER), or the server's own. Default: the system's trust store.
    #[arg(skip)]
    pub ca: Option<PathBuf>,
    /// Fingerprints of the server certificates to accept, `sha256:…`; their names and issuers are not checked. In place
    /// of `ca`.
    #[arg(skip)]
    pub pin: Option<Vec<String>>,
    /// Accept any server certificate. In place of `ca` and `pin`. Default false.
    #[arg(skip)]
    pub insecure: Option<bool>,
    /// Lists of revoked certificates (CRL, PEM or DER) of every issuer in the server's chain. Default:
    /// revocation is not checked.
    #[arg(skip)]
    pub crl: Option<PathBuf>,
    /// Client certificate chain (PEM), for mutual TLS.
    #[arg(skip)]
    pub cert: Option<PathBuf>,
    /// The private key of that certificate (PEM).
    #[arg(skip)]
    pub key: Option<PathBuf>,
    /// The name to check the certificate against. Default: the target's host.
    #[arg(skip)]
    pub server_name: Option<String>,
    /// Versions of TLS to offer: `"1.3"`, `"1.2"`. Default both, of which the server chooses the newest that it
    /// supports; 1.3 alone where suites, groups or `early_data` need it.
    #[arg(
        help = "A version of TLS to offer, 1.3 or 1.2; repeatable [default: both]",
        id = "tls_version",
        long = "tls-version",
        value_name = "VERSION"
    )]
    pub versions: Option<Vec<String>>,
    /// Cipher suites to offer, by their names in the IANA registry. Default: all of the versions.
    #[arg(
        help = "A cipher suite to offer, such as TLS_AES_128_GCM_SHA256; repeatable",
        id = "suite",
        long,
        value_name = "SUITE"
    )]
    pub suites: Option<Vec<String>>,
    /// Key-exchange groups to offer, the preferred one first. Default X25519MLKEM768, X25519, secp256r1, secp384r1.
    #[arg(
        help = "A key-exchange group to offer, such as X25519; repeatable",
        id = "group",
        long,
        value_name = "GROUP"
    )]
    pub groups: Option<Vec<String>>,
    /// Resume TLS sessions from tickets.
    ///
    /// Default false: every handshake is a full one.
    #[arg(long, action = ArgAction::SetTrue)]
    pub resume: Option<bool>,
    /// This part of new connections makes a full handshake, "10%", and the others resume
    /// sessions.
    ///
    /// Default: `resume` applies to all.
    #[arg(long, value_name = "PERCENT")]
    pub full: Option<String>,
    /// Send requests with the first bytes of a resumed session (0-RTT), where the server allows it; needs `resume`.
    /// Such requests can be replayed. Default false.
    #[arg(
        help = "Send requests with the first bytes of a resumed session (0-RTT), where the server allows it; needs --resume. Such requests can be replayed",
        long,
        action = ArgAction::SetTrue
    )]
    pub early_data: Option<bool>,
    /// Which code encrypts and decrypts TLS records: `"own"` (Plimsoll's, in place) or `"library"`. Default own.
    #[arg(
        help = "What encrypts and decrypts TLS records: own (in place) or library [default: own]",
        long,
        value_name = "WHOSE"
    )]
    pub records: Option<String>,
    /// Accept compressed certificates, and compress the client's (RFC 8879).
    ///
    /// Default false.
    #[arg(id = "compressed_certificates", long = "compressed-certificates", action = ArgAction::SetTrue)]
    pub compressed: Option<bool>,
    /// Append the secrets of all connections to this file, for Wireshark; the variable SSLKEYLOGFILE has the same
    /// effect. Anyone who has the file can read the traffic.
    ///
    /// Default: nothing is written.
    #[arg(long, value_name = "FILE")]
    pub key_log: Option<PathBuf>,
    /// When to check the server's certificate chain: `"each"` full handshake, or `"once"` a minute for all connections
    /// that are shown the same. Default each.
    // The flag is listed before --compressed-certificates.
    #[arg(
        help = "When to check the server's certificate chain: each full handshake, or once a minute for all connections that are shown the same [default: each]",
        long,
        value_name = "WHEN",
        display_order = 1007
    )]
    pub chain: Option<String>,
}

/// Returns the TLS versions to offer by default: those of the suites. Without suites, it is 1.3 alone if a setting
/// requires 1.3, and otherwise all versions.
fn default_versions(
    suites: Option<&[TlsSuite]>,
    groups: Option<&[KeyExchangeGroup]>,
    early_data: bool,
) -> Vec<TlsVersion> {
    let needs_new = early_data
        || groups.is_some_and(|groups| groups.iter().all(|group| group.is_post_quantum()));
    let is_wanted = |version: &TlsVersion| match suites {
        Some(suites) => suites.iter().any(|suite| suite.version() == *version),
        None => *version == TlsVersion::V1_3 || !needs_new,
    };
    let versions: Vec<_> = TlsVersion::ALL.into_iter().filter(is_wanted).collect();
    match versions.is_empty() {
        // No suite was valid, which is reported elsewhere.
        true => vec![TlsVersion::V1_3],
        false => versions,
    }
}

/// Returns the cipher suite with this name, ignoring case.
///
/// # Errors
/// Returns the valid names if there is no such suite.
pub fn find_suite(name: &str) -> Result<TlsSuite, String> {
    find_ignoring_case(name, &TlsSuite::ALL, TlsSuite::name)
}

/// Returns the TLS version with this number.
///
/// # Errors
/// Returns the valid numbers if there is no such version.
pub fn find_tls_version(name: &str) -> Result<TlsVersion, String> {
    find_ignoring_case(name, &TlsVersion::ALL, TlsVersion::name)
}

/// Returns the key-exchange group with this name, ignoring case.
///
/// # Errors
/// Returns the valid names if there is no such group.
pub fn find_group(name: &str) -> Result<KeyExchangeGroup, String> {
    find_ignoring_case(name, &KeyExchangeGroup::ALL, KeyExchangeGroup::name)
}

/// Resolves how the server's certificate is verified.
///
/// # Errors
/// When more than one setting is given, or a fingerprint is invalid.
pub fn resolve_trust(spec: &TlsSpec) -> Result<ServerTrust, Vec<Problem>> {
    let insecure = spec.insecure == Some(true);
    let mut problems = Vec::new();
    if insecure && (spec.ca.is_some() || spec.pin.is_some()) {
        problems.push(
            Problem::new("tls.insecure", "it disables all certificate checks")
                .help("remove it, or remove the CA (tls.ca) and the fingerprints (tls.pin)"),
        );
    } else if spec.ca.is_some() && spec.pin.is_some() {
        problems.push(
            Problem::new(
                "tls.pin",
                "a pinned certificate is not checked against a CA",
            )
            .help("give the fingerprints or the CA file, not both"),
        );
    }
    if spec.crl.is_some() && (insecure || spec.pin.is_some()) {
        problems.push(
            Problem::new("tls.crl", "without a CA, revocation can't be checked").help(
                "give a CA file (tls.ca) in place of tls.pin or tls.insecure, or remove tls.crl",
            ),
        );
    }
    let mut pinned = Vec::new();
    for text in spec.pin.iter().flatten() {
        match text.parse::<Fingerprint>() {
            Ok(known) => pinned.push(known),
            Err(e) => problems.push(Problem::new("tls.pin", e)),
        }
    }
    if spec.pin.as_ref().is_some_and(Vec::is_empty) {
        problems.push(Problem::new(
            "tls.pin",
            "empty: give at least one fingerprint, or leave it out",
        ));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(match &spec.ca {
        _ if insecure => ServerTrust::Unchecked,
        Some(ca) => ServerTrust::Ca(ca.clone()),
        None if pinned.is_empty() => ServerTrust::System,
        None => ServerTrust::Pinned(pinned),
    })
}

fn find_ignoring_case<T: Copy>(
    typed: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, String> {
    let known = all.iter().find(|v| name(**v).eq_ignore_ascii_case(typed));
    known.copied().ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|v| name(*v)).collect();
        match suggest(typed, &names) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => format!("use {}", names.join(", ")),
        }
    })
}

impl Problems {
    pub(super) fn resolve_tls(
        &mut self,
        spec: Option<&TlsSpec>,
        secured: Option<bool>,
    ) -> Option<TlsPlan> {
        self.check_plaintext_settings(spec.filter(|_| secured == Some(false)));
        let spec = spec.cloned().unwrap_or_default();
        let trust = resolve_trust(&spec).unwrap_or_else(|problems| {
            self.0.extend(problems);
            ServerTrust::System
        });
        self.report_failed_checks([
            (
                spec.cert.is_some() && spec.key.is_none(),
                "tls.key",
                "missing: a client certificate (tls.cert) needs its private key",
            ),
            (
                spec.key.is_some() && spec.cert.is_none(),
                "tls.cert",
                "missing: a private key (tls.key) needs its certificate",
            ),
        ]);
        let versions = self.find_by_names(
            "tls.versions",
            spec.versions,
            find_tls_version,
            "a version of TLS",
        );
        let suites = self.find_by_names("tls.suites", spec.suites, find_suite, "a cipher suite");
        let groups = self.find_by_names(
            "tls.groups",
            spec.groups,
            find_group,
            "a key-exchange group",
        );
        let full = self.resolve_full_share(spec.full.as_deref(), spec.resume);
        let resume = spec.resume.unwrap_or(full.is_some());
        let early_data = spec.early_data.unwrap_or(false);
        let versions = versions
            .unwrap_or_else(|| default_versions(suites.as_deref(), groups.as_deref(), early_data));
        self.check_suites(&versions, suites.as_deref().unwrap_or_default());
        let only_old = !versions.contains(&TlsVersion::V1_3);
        let is_own = spec.records.as_deref() == Some("own");
        self.report_failed_checks([
            (
                early_data && !resume,
                "tls.early_data",
                "0-RTT is for resumed sessions: set tls.resume as well",
            ),
            (
                early_data && is_own,
                "tls.records",
                "0-RTT is encrypted by the library: use \"library\", or leave it out",
            ),
            (
                only_old && is_own,
                "tls.records",
                "records of TLS 1.2 are handled by the library: use \"library\", or leave it out",
            ),
            (
                early_data && only_old,
                "tls.early_data",
                "0-RTT needs TLS 1.3: allow it (tls.versions)",
            ),
        ]);
        let records = match spec.records.as_deref() {
            None if early_data || only_old => RecordLayer::Library,
            typed => {
                self.resolve_choice("tls.records", typed, &RecordLayer::ALL, RecordLayer::name)
            }
        };
        let chain_check = self.resolve_chain_check(spec.chain.as_deref());
        if secured != Some(true) {
            return None;
        }
        Some(TlsPlan {
            trust,
            crl: spec.crl,
            identity: spec
                .cert
                .zip(spec.key)
                .map(|(cert, key)| ClientIdentity { cert, key }),
            server_name: spec.server_name,
            suites: suites.unwrap_or_else(|| {
                let all = TlsSuite::ALL.into_iter();
                all.filter(|suite| versions.contains(&suite.version()))
                    .collect()
            }),
            versions,
            compress_certificates: spec.compressed.unwrap_or(false),
            key_log: spec.key_log,
            groups: groups.unwrap_or_else(|| KeyExchangeGroup::DEFAULT_GROUPS.to_vec()),
            resume,
            full_share: full,
            early_data,
            record_layer: records,
            chain_check,
        })
    }

    fn resolve_chain_check(&mut self, typed: Option<&str>) -> ChainCheck {
        self.resolve_choice("tls.chain", typed, &ChainCheck::ALL, ChainCheck::name)
    }

    fn check_plaintext_settings(&mut self, spec: Option<&TlsSpec>) {
        // A key log is allowed without TLS, because SSLKEYLOGFILE may be set for all programs.
        let keys: Vec<String> = match spec.map(toml::Table::try_from) {
            None => return,
            // Serialisation fails only if a file name is not UTF-8.
            Some(Err(_)) => vec!["tls".to_owned()],
            Some(Ok(table)) => {
                let keys = table.into_iter().map(|(key, _)| key);
                let keys = keys.filter(|key| key != "key_log");
                keys.map(|key| format!("tls.{key}")).collect()
            }
        };
        if let Some(first) = keys.first() {
            let schemes: Vec<String> = secured_schemes()
                .map(|scheme| format!("{scheme}://"))
                .collect();
            let schemes = schemes.join(", ");
            self.0.push(
                Problem::new(first, "a TLS setting for a plaintext target").help(format!(
                    "write the target with a secured scheme ({schemes}), or leave out {}",
                    keys.join(", ")
                )),
            );
        }
    }

    /// Checks that suites and versions match.
    fn check_suites(&mut self, versions: &[TlsVersion], suites: &[TlsSuite]) {
        for suite in suites
            .iter()
            .filter(|suite| !versions.contains(&suite.version()))
        {
            self.0.push(
                Problem::new(
                    "tls.suites",
                    format!("{} is for TLS {}", suite.name(), suite.version().name()),
                )
                .help("allow that version (tls.versions), or leave the suite out"),
            );
        }
        let bare = versions.iter().find(|version| {
            !suites.is_empty() && suites.iter().all(|suite| suite.version() != **version)
        });
        if let Some(version) = bare {
            self.0.push(
                Problem::new(
                    "tls.suites",
                    format!("none of these suites is for TLS {}", version.name()),
                )
                .help("name one, or leave the version out (tls.versions)"),
            );
        }
    }

    /// Resolves the share of new connections that make a full handshake while the others resume sessions.
    fn resolve_full_share(&mut self, typed: Option<&str>, resume: Option<bool>) -> Option<f64> {
        let typed = typed?;
        let share = objective::parse_percent(typed.trim());
        if share.is_none() {
            self.add(
                "tls.full",
                format!("`{typed}` is not a share of the connections: write \"10%\""),
            );
        }
        if resume == Some(false) {
            self.add(
                "tls.full",
                "the rest resumes sessions, and tls.resume = false forbids that: leave one of them out",
            );
        }
        share
    }

    /// Resolves values from the names that the user gave, ignoring case.
    fn find_by_names<T>(
        &mut self,
        key: &str,
        typed: Option<Vec<String>>,
        named: fn(&str) -> Result<T, String>,
        what: &str,
    ) -> Option<Vec<T>> {
        let typed = typed?;
        if typed.is_empty() {
            self.add(key, "empty: name at least one, or leave it out");
        }
        let mut values = Vec::new();
        for (i, name) in typed.iter().enumerate() {
            match named(name) {
                Ok(value) => values.push(value),
                Err(help) => self.0.push(
                    Problem::new(format!("{key}.{i}"), format!("`{name}` is not {what}"))
                        .help(help),
                ),
            }
        }
        Some(values)
    }
}
