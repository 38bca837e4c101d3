//! Recognises a gRPC server by reflection, and proposes its methods.

use super::query_commands::ListFlags;
use crate::server_query::{QueryCommand, QueryContext};
use crate::service_offer::{OfferDetail, OfferedCall, ServiceOffer, urls_of};

/// How long the server may take until a connection is up.
const CONNECT_TIMEOUT: &str = "3s";

/// Services that describe or observe a server, and are not what it is for.
const AUXILIARY_SERVICES: [&str; 3] = ["grpc.reflection.", "grpc.health.", "grpc.channelz."];

/// Returns the methods of the server at `address`; `None`: none describes itself there.
pub(super) fn probe(address: &str, asking: QueryContext<'_>) -> Option<ServiceOffer> {
    let urls = urls_of(address, ["grpc", "grpcs"]);
    urls.iter().find_map(|url| {
        let calls = methods(url, asking)?;
        let service = "gRPC, with these methods (server reflection)".to_owned();
        Some(ServiceOffer {
            detail: OfferDetail::Calls,
            service,
            calls,
        })
    })
}

fn methods(url: &str, asking: QueryContext<'_>) -> Option<Vec<OfferedCall>> {
    let query = QueryCommand::of::<ListFlags>();
    let words = [query.name, url, "--connect-timeout", CONNECT_TIMEOUT];
    let typed = query.command().try_get_matches_from(words).ok()?;
    let listed = query.ask(&typed, asking).ok()?.text;
    let names = listed.lines().filter_map(|line| {
        let name = line.split([' ', '(']).next()?;
        name.contains('/').then_some(name)
    });
    let is_auxiliary = |name: &str| {
        AUXILIARY_SERVICES
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    let calls: Vec<OfferedCall> = names
        .filter(|name| !is_auxiliary(name))
        .map(|name| OfferedCall {
            name: name.to_owned(),
            words: [url, "-m", name].map(str::to_owned).into(),
        })
        .collect();
    (!calls.is_empty()).then_some(calls)
}
