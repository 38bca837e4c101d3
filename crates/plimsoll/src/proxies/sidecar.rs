//! Plimsoll's own sidecar, as a proxy that terminates the load's TLS.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_model::spec::WireFormat;

use super::{IdentityFiles, InstalledProxy, Proxy, ProxyRoute, ProxyVersion, quote};
use crate::version;

pub(super) static PROXY: Proxy = Proxy {
    name: "sidecar",
    title: "Plimsoll's sidecar",
    install: "it is part of Plimsoll",
    carries: &[
        WireFormat::Http1,
        WireFormat::Http2,
        WireFormat::Http2Trailers,
        WireFormat::Socket,
        WireFormat::Bytes,
    ],
    remark: "everything but gRPC is forwarded as bytes; accepts only TLS with client certificates",
    find: || std::env::current_exe().ok(),
    version: |_: &Path| {
        Some(ProxyVersion {
            number: env!("CARGO_PKG_VERSION").to_owned(),
            tls: Some(version::tls()),
            printed: String::new(),
        })
    },
    limitation: unsupported_reason,
    config_file: "sidecar.toml",
    configure,
    arguments,
    joins_keys: false,
};

fn arguments(command: &mut Command, file: &Path) {
    command.args(["relay", "sidecar"]).arg(file);
}

fn unsupported_reason(_: &InstalledProxy, route: &ProxyRoute) -> Option<String> {
    let tls = route.listen_tls.as_ref()?;
    if tls.client_ca.is_none() {
        return Some(
            "the sidecar accepts only TLS with client certificates: tls = \"mutual\"".to_owned(),
        );
    }
    (route.wire == WireFormat::Http2)
        .then(|| "the sidecar does not negotiate HTTP/2 over TLS, except for gRPC".to_owned())
}

fn configure(_: &InstalledProxy, route: &ProxyRoute) -> String {
    let protocol = match route.wire {
        WireFormat::Http2Trailers => "grpc",
        _ => "tcp",
    };
    let mut text = format!(
        "[[route]]\nname = \"load\"\nlisten = \"{}\"\nprotocol = \"{protocol}\"\nupstream = [\"{}\"]\n",
        route.listen, route.upstream
    );
    let files = |ca: Option<&PathBuf>, identity: Option<&IdentityFiles>| {
        let mut keys = Vec::new();
        keys.extend(ca.map(|ca| format!("ca = {}", quote(ca))));
        keys.extend(
            identity.map(|own| format!("cert = {}, key = {}", quote(&own.cert), quote(&own.key))),
        );
        keys.join(", ")
    };
    if let Some(tls) = &route.listen_tls {
        let keys = files(tls.client_ca.as_ref(), Some(&tls.identity));
        let _ = writeln!(text, "listen_tls = {{ {keys} }}");
    }
    if let Some(tls) = &route.upstream_tls {
        let mut keys = files(tls.ca.as_ref(), tls.identity.as_ref());
        if tls.ca.is_none() {
            keys += if keys.is_empty() { "" } else { ", " };
            keys += "insecure = true";
        }
        let name = &tls.server_name;
        let _ = writeln!(
            text,
            "upstream_tls = {{ {keys}, server_name = \"{name}\" }}"
        );
    }
    text
}
