//! HAProxy 2.6 and newer; directives are those of its Configuration Manual.

use std::path::Path;
use std::process::Command;

use plimsoll_model::spec::WireFormat;

use super::{
    InstalledProxy, MAX_IDLE_CONNECTIONS, MAX_STREAMS, Proxy, ProxyRoute, ProxyVersion,
    find_program, printed, quote, words_after,
};

pub(super) static PROXY: Proxy = Proxy {
    name: "haproxy",
    title: "HAProxy",
    install: "apt-get install haproxy",
    carries: &[
        WireFormat::Http1,
        WireFormat::Http2,
        WireFormat::Http2Trailers,
        WireFormat::Socket,
        WireFormat::Bytes,
    ],
    remark: "",
    find: || find_program("haproxy"),
    version,
    limitation: |_, _| None,
    config_file: "haproxy.cfg",
    configure,
    arguments,
    joins_keys: true,
};

fn version(program: &Path) -> Option<ProxyVersion> {
    let printed = printed(program, &["-vv"])?;
    Some(ProxyVersion {
        number: words_after(&printed, "HAProxy version ", 1)?,
        tls: words_after(&printed, "Running on OpenSSL version : ", 2),
        printed,
    })
}

fn arguments(command: &mut Command, file: &Path) {
    // Stay in the foreground, whatever the file says.
    command.arg("-db").arg("-f").arg(file);
}

fn configure(_: &InstalledProxy, route: &ProxyRoute) -> String {
    let is_bytes = route.wire == WireFormat::Bytes;
    let mode = if is_bytes { "tcp" } else { "http" };
    let alpn = match route.wire {
        WireFormat::Bytes => None,
        WireFormat::Http1 | WireFormat::Socket => Some("http/1.1"),
        WireFormat::Http2 | WireFormat::Http2Trailers => Some("h2"),
    };
    let mut bind = format!("bind {}", route.listen);
    let mut server = format!("server server {}", route.upstream);
    match (&route.listen_tls, alpn) {
        (Some(tls), alpn) => {
            bind += &format!(" ssl crt {}", quote(&tls.identity.both));
            if let Some(alpn) = alpn {
                bind += &format!(" alpn {alpn}");
            }
            if let Some(ca) = &tls.client_ca {
                bind += &format!(" ca-file {} verify required", quote(ca));
            }
        }
        (None, Some("h2")) => bind += " proto h2",
        (None, _) => {}
    }
    match (&route.upstream_tls, alpn) {
        (Some(tls), alpn) => {
            server += " ssl";
            if let Some(alpn) = alpn {
                server += &format!(" alpn {alpn}");
            }
            match &tls.ca {
                Some(ca) => server += &format!(" verify required ca-file {}", quote(ca)),
                None => server += " verify none",
            }
            // SNI must not be an IP address (RFC 6066 §3).
            if tls.server_name.parse::<std::net::IpAddr>().is_err() {
                server += &format!(" sni str({})", tls.server_name);
                if tls.ca.is_some() {
                    server += &format!(" verifyhost {}", tls.server_name);
                }
            }
            if let Some(identity) = &tls.identity {
                server += &format!(" crt {}", quote(&identity.both));
            }
        }
        (None, Some("h2")) => server += " proto h2",
        (None, _) => {}
    }
    let mut defaults = format!(
        "    mode {mode}\n    timeout connect 10s\n    timeout client 1h\n    timeout server 1h\n    timeout tunnel 1h\n"
    );
    if !is_bytes {
        server += &format!(" pool-max-conn {MAX_IDLE_CONNECTIONS} pool-purge-delay 1h");
        defaults +=
            "    timeout http-keep-alive 1h\n    http-reuse always\n    option http-no-delay\n";
    }
    format!(
        "global\n    nbthread 1\n    tune.h2.max-concurrent-streams {MAX_STREAMS}\n\
         defaults\n{defaults}\
         frontend load\n    {bind}\n    default_backend upstream\n\
         backend upstream\n    {server}\n"
    )
}
