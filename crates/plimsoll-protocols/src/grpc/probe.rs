//! Recognises a gRPC server by its reflection, and suggests calls of its methods.

use clap::{Args, Command, FromArgMatches};

use super::query_commands::ListFlags;
use crate::interface::server_query::{QueryContext, ServerQuery};
use crate::interface::service_offer::{
    OfferDetail, OfferedCall, OfferedContent, ServiceOffer, candidate_urls,
};

/// The timeout for connecting to the server, as the flag's value.
const CONNECT_TIMEOUT: &str = "3s";

/// Prefixes of services for describing and observing a server, which are not suggested.
const AUXILIARY_SERVICE_PREFIXES: [&str; 3] =
    ["grpc.reflection.", "grpc.health.", "grpc.channelz."];

/// Returns the methods of the server at `address`; `None`: no server there supports reflection.
pub(super) fn probe(address: &str, asking: QueryContext<'_>) -> Option<ServiceOffer> {
    let urls = candidate_urls(address, ["grpc", "grpcs"]);
    urls.iter().find_map(|url| {
        let calls = find_methods(url, asking)?;
        let service = "gRPC, with these methods (server reflection)".to_owned();
        Some(ServiceOffer {
            detail: OfferDetail::Calls,
            service,
            calls,
        })
    })
}

fn find_methods(url: &str, asking: QueryContext<'_>) -> Option<Vec<OfferedCall>> {
    let command =
        ListFlags::augment_args(Command::new(ListFlags::COMMAND_NAME).no_binary_name(true));
    let words = [url, "--connect-timeout", CONNECT_TIMEOUT];
    let typed = command.try_get_matches_from(words).ok()?;
    let schema = ListFlags::from_arg_matches(&typed)
        .ok()?
        .schema(asking)
        .ok()?;
    let is_auxiliary =
        |name: &String| (AUXILIARY_SERVICE_PREFIXES.iter()).any(|prefix| name.starts_with(prefix));
    let calls: Vec<OfferedCall> = schema
        .methods()
        .filter(|method| !is_auxiliary(&method.path()))
        .map(|method| {
            let (name, blank) = (method.path(), method.blank_request());
            OfferedCall {
                words: vec![url.to_owned(), "-m".to_owned(), name.clone()],
                content: (blank != "{}").then_some(OfferedContent { flag: "-d", blank }),
                name,
            }
        })
        .collect();
    (!calls.is_empty()).then_some(calls)
}
