//! Measures the crypto speed of one core of this machine in memory: the upper limit with which encrypted connections
//! are compared. Costs are CPU time of this thread, so that other load on the machine hardly affects them.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair,
    UnparsedPublicKey,
};
use plimsoll_model::crypto_speeds::{CryptoSpeeds, PrimitiveCosts};
use plimsoll_model::plan::{ClientIdentity, KeyExchangeGroup, TlsSuite};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::sign::CertifiedKey;

use super::files::{self, NamedFile};
use super::x509_version_1::parse;
use super::{TlsSetupError, crypto_provider};
use crate::clock::Clock;
use crate::host::resources::thread_cpu;

/// Number of measurements, of which the fastest counts, because other load can only slow them down.
const MEASUREMENT_COUNT: usize = 5;
/// CPU time of one measurement.
const MEASUREMENT_CPU_TIME: Duration = Duration::from_millis(15);
/// Size of a full-size record in bytes: plaintext, its content type, and the tag.
const FULL_RECORD_BYTES: usize = super::record::MAX_PLAINTEXT_BYTES + 1 + 16;

/// Returns the CPU time of `work` in nanoseconds.
fn cost_ns<E>(mut work: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut best = f64::INFINITY;
    let clock = Clock::new();
    for _ in 0..MEASUREMENT_COUNT {
        let (begun, begun_at) = (thread_cpu(), clock.now());
        let mut times = 0u32;
        let spent = loop {
            for _ in 0..8 {
                work()?;
            }
            times += 8;
            let spent = thread_cpu().saturating_sub(begun);
            let passed = clock.now().duration_since(begun_at);
            // If a sandbox hides the thread's CPU time, elapsed time is an upper bound.
            let spent = if spent.is_zero() { passed } else { spent };
            if spent >= MEASUREMENT_CPU_TIME {
                break spent;
            }
        };
        best = best.min(spent.as_nanos() as f64 / f64::from(times));
    }
    Ok(best)
}

/// Measures the speeds of `suites` and `groups`. Takes about a second.
///
/// # Errors
/// Returns an error if the TLS library rejects its own keys, which no input can cause.
pub fn measure(
    suites: &[TlsSuite],
    groups: &[KeyExchangeGroup],
) -> Result<CryptoSpeeds, TlsSetupError> {
    let refused = |_: Unspecified| {
        TlsSetupError::Library(rustls::Error::General(
            "the library rejected its own test key".to_owned(),
        ))
    };
    let mut limits = CryptoSpeeds::default();
    for suite in suites {
        let cost = record_open_cost_ns(*suite).map_err(refused)?;
        let speed = super::record::MAX_PLAINTEXT_BYTES as f64 / cost * 1e9;
        limits
            .open_bytes_per_s
            .insert(suite.name().to_owned(), speed);
    }
    (limits.client_exchange_us, limits.server_exchange_us) = exchange_costs_us(groups)?;
    let (sign, verify) = signature_cost_ns().map_err(refused)?;
    (limits.sign_us, limits.verify_us) = (ns_to_us(sign), ns_to_us(verify));
    Ok(limits)
}

fn ns_to_us(ns: f64) -> f64 {
    ns / 1e3
}

/// Measures the handshake operations of `groups` and of the given certificates, each of which is paired with the name
/// of its key's kind. Takes about a quarter of a second for each.
///
/// # Errors
/// Returns an error if a file cannot be used, or the library rejects its own keys.
pub fn measure_primitives(
    groups: &[KeyExchangeGroup],
    certificates: &[(String, ClientIdentity)],
) -> Result<PrimitiveCosts, TlsSetupError> {
    let mut found = PrimitiveCosts::default();
    (found.client_exchange_us, found.server_exchange_us) = exchange_costs_us(groups)?;
    let provider = crypto_provider(&[], groups);
    for (kind, identity) in certificates {
        let cert = NamedFile("certificate", &identity.cert);
        let identity = files::read_identity(cert, NamedFile("key", &identity.key), &provider)?;
        let (sign, verify) = certificate_signature_cost_ns(&identity, &provider)?;
        found.sign_us.insert(kind.clone(), ns_to_us(sign));
        found.verify_us.insert(kind.clone(), ns_to_us(verify));
    }
    Ok(found)
}

/// Returns the CPU time in nanoseconds for signing with a certificate's key, and for verifying with the certificate.
fn certificate_signature_cost_ns(
    identity: &CertifiedKey,
    provider: &CryptoProvider,
) -> Result<(f64, f64), rustls::Error> {
    let refused = || rustls::Error::General("the key cannot sign handshakes".to_owned());
    let algorithms = &provider.signature_verification_algorithms;
    let signer = identity.key.choose_scheme(&algorithms.supported_schemes());
    let signer = signer.ok_or_else(refused)?;
    // rustls lists the algorithm of TLS 1.3 first.
    let known = algorithms.mapping.iter();
    let mut known = known.filter(|(scheme, _)| *scheme == signer.scheme());
    let algorithm = known.next().and_then(|(_, all)| all.first());
    let algorithm = algorithm.ok_or_else(refused)?;
    let certificate = parse(identity.end_entity_cert()?)?;
    let public = &certificate.public_key().subject_public_key.data;
    let message = [0x20; 130];
    let signature = signer.sign(&message)?;
    let sign = cost_ns(|| signer.sign(&message).map(drop))?;
    let verify = cost_ns(|| {
        let verdict = algorithm.verify_signature(public, &message, &signature);
        verdict.map_err(|_| refused())
    })?;
    Ok((sign, verify))
}

/// Returns the CPU time in nanoseconds for decrypting a full-size record in place.
fn record_open_cost_ns(suite: TlsSuite) -> Result<f64, Unspecified> {
    let algorithm = match suite {
        TlsSuite::Aes128GcmSha256
        | TlsSuite::EcdheEcdsaAes128GcmSha256
        | TlsSuite::EcdheRsaAes128GcmSha256 => &aead::AES_128_GCM,
        TlsSuite::Aes256GcmSha384
        | TlsSuite::EcdheEcdsaAes256GcmSha384
        | TlsSuite::EcdheRsaAes256GcmSha384 => &aead::AES_256_GCM,
        TlsSuite::Chacha20Poly1305Sha256
        | TlsSuite::EcdheEcdsaChacha20Poly1305Sha256
        | TlsSuite::EcdheRsaChacha20Poly1305Sha256 => &aead::CHACHA20_POLY1305,
    };
    let key = LessSafeKey::new(UnboundKey::new(algorithm, &[7; 32][..algorithm.key_len()])?);
    let nonce = || Nonce::assume_unique_for_key([0; 12]);
    let mut sealed = vec![0; FULL_RECORD_BYTES - 16];
    let tag = key.seal_in_place_separate_tag(nonce(), Aad::from([0; 5]), &mut sealed)?;
    sealed.extend_from_slice(tag.as_ref());
    let mut record = sealed.clone();
    // Decryption overwrites the record, so each iteration copies the ciphertext; the cost of the copy is subtracted.
    let copy = cost_ns(|| {
        record.copy_from_slice(&sealed);
        std::hint::black_box(&mut record);
        Ok::<(), Unspecified>(())
    })?;
    let both = cost_ns(|| {
        record.copy_from_slice(&sealed);
        key.open_in_place(nonce(), Aad::from([0; 5]), &mut record)?;
        Ok::<(), Unspecified>(())
    })?;
    Ok((both - copy).max(1.0))
}

/// Costs of key exchange groups in microseconds, by name.
type GroupCosts = BTreeMap<String, f64>;

/// Returns the results of [`exchange_cost_ns`] for client and server in microseconds, by group name.
fn exchange_costs_us(
    groups: &[KeyExchangeGroup],
) -> Result<(GroupCosts, GroupCosts), rustls::Error> {
    let of_library = crypto_provider(&[], groups).kx_groups;
    let both = groups.iter().zip(of_library).map(|(group, exchange)| {
        let (client, server) = exchange_cost_ns(exchange)?;
        let name = || group.name().to_owned();
        Ok(((name(), ns_to_us(client)), (name(), ns_to_us(server))))
    });
    both.collect()
}

/// Returns the CPU time in nanoseconds of a key exchange for client and server.
fn exchange_cost_ns(group: &'static dyn SupportedKxGroup) -> Result<(f64, f64), rustls::Error> {
    // In some groups (KEMs), the two sides differ, so the complete exchange and the server's part are measured.
    let both = cost_ns(|| {
        let client = group.start()?;
        let server = group.start_and_complete(client.pub_key())?;
        client.complete(&server.pub_key)?;
        Ok::<(), rustls::Error>(())
    })?;
    let client_share = group.start()?.pub_key().to_vec();
    let server = cost_ns(|| {
        std::hint::black_box(group.start_and_complete(&client_share)?);
        Ok::<(), rustls::Error>(())
    })?;
    Ok(((both - server).max(0.0), server))
}

/// Returns the CPU time in nanoseconds for an ECDSA P-256 signature and for its verification.
fn signature_cost_ns() -> Result<(f64, f64), Unspecified> {
    // The message is as long as the content signed by CertificateVerify (RFC 8446 §4.4.3).
    let message = [0x20; 130];
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)?;
    let signature = key.sign(&random, &message)?;
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key.public_key().as_ref());
    let sign = cost_ns(|| key.sign(&random, &message).map(|_| ()))?;
    let verify = cost_ns(|| public.verify(&message, signature.as_ref()))?;
    Ok((sign, verify))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crypto_cost_is_best_batch() {
        let begun = thread_cpu();
        let mut times = 0;
        let ns = cost_ns(|| {
            times += 1;
            Ok::<(), ()>(())
        });
        let spent = thread_cpu() - begun;
        assert!(
            spent >= MEASUREMENT_CPU_TIME * MEASUREMENT_COUNT as u32,
            "{spent:?}"
        );
        let each = spent.as_nanos() as f64 / f64::from(times);
        assert!(ns.unwrap() <= each, "the best of them, {each} ns each");
    }

    #[test]
    fn nanoseconds_are_reported_in_microseconds() {
        assert!((ns_to_us(41_500.0) - 41.5).abs() < 1e-9);
    }

    #[test]
    fn rsa_signing_costs_more_than_verifying() {
        let folder = tempfile::tempdir().unwrap();
        let key =
            rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048);
        let key = key.unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let identity = ClientIdentity {
            cert: folder.path().join("server.crt"),
            key: folder.path().join("server.key"),
        };
        std::fs::write(&identity.cert, params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(&identity.key, key.serialize_pem()).unwrap();
        let found =
            measure_primitives(&[KeyExchangeGroup::X25519], &[("rsa".to_owned(), identity)])
                .unwrap();
        let (sign, verify) = (found.sign_us["rsa"], found.verify_us["rsa"]);
        // About thirty times, in CPU time, which other load hardly affects.
        assert!(
            verify > 0.5 && sign > 5.0 * verify,
            "{sign} µs, {verify} µs"
        );
        let exchange = [&found.client_exchange_us, &found.server_exchange_us];
        assert!(exchange.iter().all(|end| end["X25519"] > 0.5), "{found:?}");
    }

    #[test]
    fn every_suite_and_group_has_speed() {
        let suites = [
            TlsSuite::Aes128GcmSha256,
            TlsSuite::Aes256GcmSha384,
            TlsSuite::Chacha20Poly1305Sha256,
        ];
        let limits = measure(
            &suites,
            &[KeyExchangeGroup::X25519, KeyExchangeGroup::X25519Mlkem768],
        )
        .unwrap();
        assert_eq!(limits.open_bytes_per_s.len(), 3);
        for (suite, speed) in &limits.open_bytes_per_s {
            assert!((1e5..1e13).contains(speed), "{suite}: {speed}");
        }
        for us in [limits.sign_us, limits.verify_us] {
            assert!((0.5..1e6).contains(&us), "{us}");
        }
        let x25519 = limits.client_exchange_us["X25519"];
        let with_kem = limits.client_exchange_us["X25519MLKEM768"];
        // The hybrid group contains X25519. Other load may slow either of them down.
        assert!(with_kem > x25519 / 5.0, "{with_kem} {x25519}");
        assert!(x25519 > 0.5, "{x25519}");
    }
}
