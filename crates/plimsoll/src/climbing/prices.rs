//! What the cryptography itself takes of a rung's new connections: the part of the measured CPU that a reader
//! can check. Of ladders whose rungs differ in the kind of certificate.

use std::collections::BTreeSet;

use plimsoll_engine::tls::limits;
use plimsoll_model::Plan;
use plimsoll_model::limits::{Handshake, Primitives};
use plimsoll_model::plan::{Group, Identity, Reuse, TlsVersion};
use plimsoll_model::spec::{RungSpec, Secured};
use plimsoll_stack::certificates::Options;

use crate::failure::Failure;

/// Whether the ladder is one of prices.
pub(super) fn are_asked(rungs: &[RungSpec]) -> bool {
    rungs.iter().any(|rung| rung.certificate.is_some())
}

/// What each new connection of a rung asks of the cryptography; `None` where calls share connections,
/// or it is not TLS 1.3 with certificates of the ladder's.
pub(super) fn handshake((rung, plan): (&RungSpec, &Plan)) -> Option<Handshake> {
    let tls = plan.tls.as_ref()?;
    if plan.load.reuse != Reuse::Never || tls.versions != [TlsVersion::V1_3] || tls.full.is_some() {
        return None;
    }
    Some(Handshake {
        group: tls.groups.first()?.name().to_owned(),
        certificate: kind(rung.certificate.as_deref())?,
        mutual: rung.secured == Secured::Mutual,
        resumed: tls.resume,
    })
}

/// The name of a kind; the usual one where none is asked for.
fn kind(asked: Option<&str>) -> Option<String> {
    let algorithm = match asked {
        None => Options::default().algorithm,
        Some(asked) => asked.parse().ok()?,
    };
    Some(algorithm.name().to_owned())
}

/// What those take of a core here.
///
/// # Errors
/// When a certificate can't be used.
pub(super) fn primitives(
    handshakes: &[Option<Handshake>],
    identities: &[(Option<String>, Identity)],
) -> Result<Option<Primitives>, Failure> {
    let asked: BTreeSet<&str> = handshakes
        .iter()
        .flatten()
        .map(|h| h.group.as_str())
        .collect();
    if asked.is_empty() {
        return Ok(None);
    }
    let groups: Vec<Group> = Group::ALL
        .into_iter()
        .filter(|group| asked.contains(group.name()))
        .collect();
    let identities: Vec<(String, Identity)> = identities
        .iter()
        .filter_map(|(asked, identity)| Some((kind(asked.as_deref())?, identity.clone())))
        .collect();
    let measured = limits::primitives(&groups, &identities);
    measured.map(Some).map_err(Failure::error)
}
