//! Measures the CPU time of the cryptography in the connection setup of a rung (one variant in a ladder), so that
//! readers of the report can compare it with the CPU time of the whole setup. This is done only if a rung of the ladder
//! sets the kind of certificate.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_engine::tls::crypto_speed;
use plimsoll_model::comparisons::ladder::{ExtraMeasurement, PercentileEstimate, Rung};
use plimsoll_model::crypto_speeds::{HandshakeWork, PrimitiveCosts};
use plimsoll_model::plan::{ClientIdentity, ConnectionReuse, KeyExchangeGroup, TlsVersion};
use plimsoll_model::records::record::TimeHistogram;
use plimsoll_model::runs::run::Run;
use plimsoll_model::spec::{RungSecurity, RungSpec};
use plimsoll_model::{Plan, TimeMeasure};
use plimsoll_stack::certificates::CertificateOptions;

use super::SliceRounds;
use crate::failure::Failure;

/// Returns the handshake that new connections make, by rung. It is `None` if the ladder measures no new connections, or
/// if they don't use TLS 1.3 with certificates made by the ladder.
pub(super) fn handshakes_by_rung(
    rungs: &[RungSpec],
    plans: &[Plan],
    parts: &[SliceRounds],
) -> Vec<Option<HandshakeWork>> {
    let are_asked = rungs.iter().any(|rung| rung.certificate.is_some());
    let apart = parts.iter().any(SliceRounds::connects_for_every_call);
    let of = |(rung, plan): (&RungSpec, &Plan)| {
        let makes = apart || plan.load.reuse == ConnectionReuse::Never;
        (are_asked && makes)
            .then(|| rung_handshake(rung, plan))
            .flatten()
    };
    rungs.iter().zip(plans).map(of).collect()
}

fn rung_handshake(rung: &RungSpec, plan: &Plan) -> Option<HandshakeWork> {
    let tls = plan.tls.as_ref()?;
    // If the client offers TLS 1.3, the ladder's servers always negotiate it.
    if !tls.versions.contains(&TlsVersion::V1_3) || tls.full_share.is_some() {
        return None;
    }
    Some(HandshakeWork {
        group: tls.groups.first()?.name().to_owned(),
        certificate: canonical_algorithm_name(rung.certificate.as_deref())?,
        mutual: rung.security == RungSecurity::Mutual,
        resumed: tls.resume,
    })
}

/// Adds the connection setup times of a slice (a short run of one rung) to those of its rung.
pub(super) fn add_connection_times(
    plan: &Plan,
    run: &Run,
    all: &mut BTreeMap<ExtraMeasurement, TimeHistogram>,
    rung: &mut Rung,
) {
    if rung.handshake.is_none() || plan.load.reuse != ConnectionReuse::Never {
        return;
    }
    let part = if plan.tls.as_ref().is_some_and(|tls| tls.resume) {
        ExtraMeasurement::Resumed
    } else {
        ExtraMeasurement::Connections
    };
    let times = all.entry(part).or_default();
    times.merge(
        run.measured_record()
            .measures
            .times(TimeMeasure::Connection),
    );
    if let Some(p99) = PercentileEstimate::p99(times) {
        rung.connection_p99.insert(part, p99);
    }
}

/// Returns the canonical name of a certificate's key algorithm; `asked` is `None` for the default algorithm.
fn canonical_algorithm_name(asked: Option<&str>) -> Option<String> {
    let algorithm = match asked {
        None => CertificateOptions::default().algorithm,
        Some(asked) => asked.parse().ok()?,
    };
    Some(algorithm.name().to_owned())
}

/// Measures how much CPU time the cryptographic primitives of these handshakes take on this machine.
///
/// # Errors
/// When a certificate can't be used.
pub(super) fn measure_primitive_costs(
    handshakes: &[Option<HandshakeWork>],
    identities: &[(Option<String>, ClientIdentity)],
) -> Result<Option<PrimitiveCosts>, Failure> {
    let asked: BTreeSet<&str> = handshakes
        .iter()
        .flatten()
        .map(|h| h.group.as_str())
        .collect();
    if asked.is_empty() {
        return Ok(None);
    }
    let groups: Vec<KeyExchangeGroup> = KeyExchangeGroup::ALL
        .into_iter()
        .filter(|group| asked.contains(group.name()))
        .collect();
    let identities: Vec<(String, ClientIdentity)> = identities
        .iter()
        .filter_map(|(asked, identity)| {
            Some((
                canonical_algorithm_name(asked.as_deref())?,
                identity.clone(),
            ))
        })
        .collect();
    let measured = crypto_speed::measure_primitives(&groups, &identities);
    measured.map(Some).map_err(Failure::error)
}
