//! Renders the templates in proxy definitions: [MiniJinja](https://docs.rs/minijinja) with the variables of a proxy's
//! route (addresses, protocol, TLS) and a few functions.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use minijinja::value::Rest;
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use plimsoll_model::spec::WireFormat;
use serde::Serialize;

use super::{IdentityFiles, InstalledProxy, ListenTls, ProxyRoute, UpstreamTls};

/// Maximum number of idle upstream connections that a proxy keeps, high enough that calls never wait for a new
/// connection.
const MAX_IDLE_CONNECTIONS: u32 = 1024;
/// Maximum number of concurrent HTTP/2 streams per connection.
const MAX_STREAMS: u32 = 1024;
/// Number of calls after which a proxy may close a connection; higher than the number of calls of any load.
const MAX_CALLS_PER_CONNECTION: u32 = 1_000_000_000;

/// The variables that templates can use. The documentation of ladders lists them.
#[derive(Debug, Serialize)]
pub(super) struct TemplateContext<'a> {
    /// The protocol's name, as in the definition's key `carries`.
    wire: &'static str,
    /// Whether the protocol is HTTP/2 or gRPC.
    multiplexed: bool,
    calls_model: bool,
    listen: AddressContext,
    upstream: AddressContext,
    listen_tls: Option<ListenContext<'a>>,
    upstream_tls: Option<UpstreamContext<'a>>,
    workers: u32,
    same_before: usize,
    same_after: usize,
    dir: &'a Path,
    config_file: PathBuf,
    version: &'a str,
    version_output: &'a str,
    is_root: bool,
    #[serde(flatten)]
    limits: LimitsContext,
}

/// Limits that all proxies have alike.
#[derive(Debug, Serialize)]
struct LimitsContext {
    max_idle_connections: u32,
    max_streams: u32,
    max_calls_per_connection: u32,
}

#[derive(Debug, Serialize)]
struct AddressContext {
    /// `ADDRESS:PORT`.
    address: String,
    ip: String,
    port: u16,
}

#[derive(Debug, Serialize)]
struct IdentityContext<'a> {
    cert: &'a Path,
    key: &'a Path,
    both: &'a Path,
}

#[derive(Debug, Serialize)]
struct ListenContext<'a> {
    #[serde(flatten)]
    identity: IdentityContext<'a>,
    client_ca: Option<&'a Path>,
}

#[derive(Debug, Serialize)]
struct UpstreamContext<'a> {
    ca: Option<&'a Path>,
    identity: Option<IdentityContext<'a>>,
    server_name: &'a str,
    name_is_address: bool,
}

impl<'a> TemplateContext<'a> {
    pub(super) fn new(installed: &'a InstalledProxy, route: &'a ProxyRoute) -> TemplateContext<'a> {
        let wire = route.calls.wire;
        TemplateContext {
            wire: wire.name(),
            multiplexed: matches!(wire, WireFormat::Http2 | WireFormat::Http2Trailers),
            calls_model: route.calls.calls_model,
            listen: AddressContext::new(route.listen),
            upstream: AddressContext::new(route.upstream),
            listen_tls: route.listen_tls.as_ref().map(ListenContext::new),
            upstream_tls: route.upstream_tls.as_ref().map(UpstreamContext::new),
            workers: route.workers,
            same_before: route.neighbours.before,
            same_after: route.neighbours.after,
            dir: &route.dir,
            config_file: installed.configuration_file(route),
            version: &installed.version.number,
            version_output: &installed.version.printed,
            is_root: rustix::process::geteuid().is_root(),
            limits: LimitsContext {
                max_idle_connections: MAX_IDLE_CONNECTIONS,
                max_streams: MAX_STREAMS,
                max_calls_per_connection: MAX_CALLS_PER_CONNECTION,
            },
        }
    }
}

impl AddressContext {
    fn new(address: SocketAddr) -> AddressContext {
        AddressContext {
            address: address.to_string(),
            ip: address.ip().to_string(),
            port: address.port(),
        }
    }
}

impl<'a> IdentityContext<'a> {
    fn new(identity: &'a IdentityFiles) -> IdentityContext<'a> {
        let IdentityFiles { cert, key, both } = identity;
        IdentityContext { cert, key, both }
    }
}

impl<'a> ListenContext<'a> {
    fn new(tls: &'a ListenTls) -> ListenContext<'a> {
        ListenContext {
            identity: IdentityContext::new(&tls.identity),
            client_ca: tls.client_ca.as_deref(),
        }
    }
}

impl<'a> UpstreamContext<'a> {
    fn new(tls: &'a UpstreamTls) -> UpstreamContext<'a> {
        UpstreamContext {
            ca: tls.ca.as_deref(),
            identity: tls.identity.as_ref().map(IdentityContext::new),
            server_name: &tls.server_name,
            name_is_address: tls.server_name.parse::<IpAddr>().is_ok(),
        }
    }
}

/// Renders a template.
///
/// # Errors
/// Returns an error if the template can't be parsed, or uses a variable that does not exist; the error names the line.
pub(super) fn render(text: &str, context: &TemplateContext) -> Result<String, String> {
    template_environment()
        .render_str(text, context)
        .map_err(|e| describe_error(&e))
}

/// Checks whether a template can be parsed.
///
/// # Errors
/// Returns an error if the template can't be parsed; the error names the line.
pub(super) fn check(text: &str) -> Result<(), String> {
    let environment = template_environment();
    let parsed = environment.template_from_str(text);
    parsed.map(|_| ()).map_err(|e| describe_error(&e))
}

fn template_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // Remove lines that contain only a tag.
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_keep_trailing_newline(true);
    environment.add_filter("quote", quote);
    environment.add_function("find_file", first_existing_file);
    environment.add_function("version_at_least", version_at_least);
    environment
}

fn describe_error(error: &minijinja::Error) -> String {
    let what = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

/// Puts a text in double quotes, with backslash escapes as in most configuration languages.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the first of the files that exists; empty if none does.
fn first_existing_file(files: Rest<String>) -> String {
    let mut files = files.0.into_iter();
    let found = files.find(|file| Path::new(file).is_file());
    found.unwrap_or_default()
}

/// Returns whether `version` is at least `least`, comparing the first three numbers of both.
fn version_at_least(version: &str, least: &str) -> bool {
    let numbers = |text: &str| {
        let mut parts = text
            .split(['.', '-', '+'])
            .map(|part| part.parse().unwrap_or(0));
        [(); 3].map(|()| parts.next().unwrap_or(0u32))
    };
    numbers(version) >= numbers(least)
}
