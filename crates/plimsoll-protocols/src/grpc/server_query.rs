//! Queries a server for its schema before a load, over the same kind of connection that the load will use.

use std::time::Duration;

use plimsoll_engine::EngineError;
use plimsoll_engine::tls::TlsClient;
use plimsoll_engine::transport::tunnel::Tunnel;
use plimsoll_model::plan::{
    ChainCheck, ClientIdentity, ForwardProxy, RecordLayer, ServerTrust, Target, TlsPlan, TlsVersion,
};
use plimsoll_model::spec::{
    self, Spec, TlsSpec, find_tls_version, is_bare_unix_socket, parse_target, section_for_url,
    set_target_addresses, split_scheme,
};

use super::client::{ConnectError, GrpcConnection, ServerEndpoint};
use super::encoding::{ReflectionQuery, ReflectionResult};
use super::reflection::{self, SchemaQuery};
use super::schema::Schema;
use crate::interface::protocol_module::{PrepareError, ServerUnreachable};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Converts a failed connection to the error that a load would report.
pub(super) fn connect_failure(url: &str, error: ConnectError) -> PrepareError {
    match error {
        ConnectError::Link(failure) => PrepareError::Engine(EngineError::NoConnection {
            url: url.to_owned(),
            failure,
        }),
        other => PrepareError::Call(other.to_string()),
    }
}

/// Parses the URL of a gRPC target; returns the target and whether it uses TLS.
///
/// # Errors
/// Returns the reason why the URL is invalid.
pub(super) fn parse_grpc_target(url: &str) -> Result<(Target, bool), String> {
    let (target, secured) = parse_target(url)?;
    match (section_for_url(url), split_scheme(url)) {
        (Some("grpc"), _) | (_, None) => Ok((target, secured)),
        (_, Some((scheme, rest))) => Err(format!(
            "scheme `{scheme}` is not valid for a gRPC target: write {}{rest}",
            if secured { "grpcs" } else { "grpc" }
        )),
    }
}

/// Prepares the connection to a target from a spec. `tls` is `None` for plaintext.
///
/// # Errors
/// Returns an error if the name does not resolve, or if files of the TLS settings are invalid.
pub(super) fn server_endpoint(
    target: &Target,
    tls: Option<TlsSpec>,
    authority: Option<String>,
) -> Result<ServerEndpoint, PrepareError> {
    let tls = match tls {
        None => None,
        Some(tls) => {
            // Invalid settings are reported when the plan is resolved.
            let trust = spec::resolve_trust(&tls).unwrap_or(ServerTrust::System);
            let identity = tls.cert.zip(tls.key);
            let plan = TlsPlan {
                trust,
                crl: tls.crl,
                identity: identity.map(|(cert, key)| ClientIdentity { cert, key }),
                server_name: tls.server_name,
                suites: parse_known_names(tls.suites.as_deref(), spec::find_suite),
                groups: parse_known_names(tls.groups.as_deref(), spec::find_group),
                resume: false,
                early_data: false,
                full_share: None,
                // A query need not use the TLS settings of the load exactly.
                versions: tls_versions(tls.versions.as_deref()),
                compress_certificates: false,
                key_log: None,
                record_layer: RecordLayer::Own,
                chain_check: ChainCheck::Each,
            };
            Some(TlsClient::new(&plan, target, &[b"h2"])?)
        }
    };
    Ok(ServerEndpoint {
        authority: authority.unwrap_or_else(|| target.authority()),
        addresses: plimsoll_engine::resolve(target)?,
        tunnel: Tunnel::for_target(target),
        tls,
        metadata: Vec::new(),
        connect_timeout: CONNECT_TIMEOUT,
    })
}

/// Parses the names of TLS suites or groups that the user gave. Drops unknown names, which are reported when the plan
/// is resolved.
fn parse_known_names<T>(
    typed: Option<&[String]>,
    named: impl Fn(&str) -> Result<T, String>,
) -> Vec<T> {
    let typed = typed.unwrap_or_default().iter();
    typed.filter_map(|name| named(name).ok()).collect()
}

/// Returns the TLS versions that the plan names, or all. Unknown names are reported when the plan is resolved.
fn tls_versions(named: Option<&[String]>) -> Vec<TlsVersion> {
    let known = named.map(|all| {
        all.iter()
            .filter_map(|v| find_tls_version(v).ok())
            .collect()
    });
    known
        .filter(|known: &Vec<_>| !known.is_empty())
        .unwrap_or_else(|| TlsVersion::ALL.to_vec())
}

/// Answers the query by querying the server of `spec`. Returns an error if the server can't be reached.
pub(super) fn run_reflection_query(
    question: &mut ReflectionQuery,
    spec: &Spec,
    proxy: Option<&ForwardProxy>,
) -> Option<ServerUnreachable> {
    let why = match query_schema(spec, question, proxy) {
        Ok(answer) => {
            question.answer =
                answer.map_or_else(ReflectionResult::NoAnswer, ReflectionResult::Schema);
            return None;
        }
        Err(why) => why,
    };
    question.answer = ReflectionResult::Unreachable;
    let help = format!(
        "Plimsoll asks the server for the description of {}; with --proto or --descriptor-set it does not need to",
        question.method
    );
    Some(ServerUnreachable {
        why,
        help: (!question.is_required).then_some(help),
    })
}

/// Queries the server. The outer `Err` means that the server can't be reached, the inner `Err` that it gave no
/// schema.
fn query_schema(
    spec: &Spec,
    question: &ReflectionQuery,
    proxy: Option<&ForwardProxy>,
) -> Result<Result<Schema, String>, PrepareError> {
    let given = spec.load.resolve.as_deref().unwrap_or_default();
    let named = match &*question.target {
        "" => Err("no target is set".to_owned()),
        url => Ok(url),
    };
    let named = named.and_then(|url| {
        let (mut target, secured) = parse_grpc_target(url)?;
        set_target_addresses(given, &mut [&mut target]).map_err(|(_, problem)| problem)?;
        Ok((url, target, secured))
    });
    let (url, mut target, secured) = match named {
        Ok(named) => named,
        Err(why) => return Ok(Err(why)),
    };
    target.proxy = proxy.cloned();
    let secured = secured || spec.tls.is_some() && is_bare_unix_socket(url);
    let tls = secured.then(|| spec.tls.clone().unwrap_or_default());
    let authority = question.authority.clone();
    let mut server = server_endpoint(&target, tls, authority)?;
    server.metadata.clone_from(&question.metadata);
    if let Some(limit) = spec.load.connect_timeout {
        server.connect_timeout = limit.0;
    }
    let runtime = match plimsoll_serving::build_runtime(Some(1)) {
        Ok(runtime) => runtime,
        Err(e) => return Ok(Err(e.to_string())),
    };
    runtime.block_on(async {
        let opened = GrpcConnection::open(&server).await;
        let connection = opened.map_err(|e| connect_failure(url, e))?;
        let inquiry = match question.service.as_str() {
            "" => SchemaQuery::Services,
            service => SchemaQuery::Symbol(service),
        };
        let asked = reflection::request_schema(&connection, inquiry, &question.types).await;
        Ok(asked.map_err(|e| match e.advice() {
            Some(advice) => format!("{e}; {advice}"),
            None => e.to_string(),
        }))
    })
}
