//! NGINX, 1.22 and newer.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_model::spec::WireFormat;

use super::{
    InstalledProxy, MAX_CALLS_PER_CONNECTION, MAX_IDLE_CONNECTIONS, MAX_STREAMS, Proxy, ProxyRoute,
    ProxyVersion, find_program, printed, quote, words_after,
};

pub(super) static PROXY: Proxy = Proxy {
    name: "nginx",
    title: "NGINX",
    install: "apt-get install nginx-light libnginx-mod-stream",
    carries: &[
        WireFormat::Http1,
        WireFormat::Http2,
        WireFormat::Http2Trailers,
        WireFormat::Socket,
        WireFormat::Bytes,
    ],
    remark: "HTTP/2 requests are forwarded as HTTP/1.1, except gRPC",
    find: || find_program("nginx"),
    version,
    limitation: lacks,
    config_file: "nginx.conf",
    configure,
    arguments,
    joins_keys: false,
};

/// Folders in which distributions install modules.
const MODULE_DIRS: [&str; 2] = ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules"];

fn version(program: &Path) -> Option<ProxyVersion> {
    let printed = printed(program, &["-V"])?;
    Some(ProxyVersion {
        number: words_after(&printed, "nginx version: nginx/", 1)?,
        tls: words_after(&printed, "built with ", 2).filter(|library| library.contains("SSL")),
        printed,
    })
}

fn arguments(command: &mut Command, file: &Path) {
    let dir = file.parent().unwrap_or(Path::new(""));
    command.arg("-p").arg(dir).arg("-c").arg(file);
    // NGINX would log to its default file until it has read the configuration.
    command.args(["-e", "stderr"]);
}

/// Finds the stream module, which relays raw TCP: `None` if it is built in, otherwise its file.
fn stream_module(installed: &InstalledProxy) -> Result<Option<PathBuf>, ()> {
    let mut built = installed.version.printed.split_whitespace();
    if built.any(|word| word == "--with-stream") {
        return Ok(None);
    }
    let files = MODULE_DIRS.map(|dir| Path::new(dir).join("ngx_stream_module.so"));
    files
        .into_iter()
        .find(|file| file.is_file())
        .map(Some)
        .ok_or(())
}

fn lacks(installed: &InstalledProxy, route: &ProxyRoute) -> Option<String> {
    (route.wire == WireFormat::Bytes && stream_module(installed).is_err()).then(|| {
        "this NGINX has no module that forwards bytes: apt-get install libnginx-mod-stream"
            .to_owned()
    })
}

/// Returns whether this version has the `http2` directive. Since 1.25.1 the `listen` parameter is deprecated.
fn has_http2_directive(number: &str) -> bool {
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next()) >= (1, 25, 1)
}

fn configure(installed: &InstalledProxy, route: &ProxyRoute) -> String {
    let mut text = "daemon off;\nworker_processes 1;\n".to_owned();
    // A worker of another user might not be able to read the files.
    if rustix::process::geteuid().is_root() {
        text += "user root;\n";
    }
    let pid = quote(&route.dir.join("nginx.pid"));
    let _ = writeln!(text, "pid {pid};\nerror_log stderr warn;");
    if route.wire == WireFormat::Bytes
        && let Ok(Some(module)) = stream_module(installed)
    {
        let _ = writeln!(text, "load_module {};", quote(&module));
    }
    text += "events {\n    worker_connections 16384;\n}\n";
    if route.wire == WireFormat::Bytes {
        text += &stream(route);
    } else {
        text += &requests(installed, route);
    }
    text
}

/// Returns the directives towards the load, for both http and stream servers.
fn listen(route: &ProxyRoute, more: &str) -> String {
    let Some(tls) = &route.listen_tls else {
        return format!("        listen {}{more};\n", route.listen);
    };
    let mut text = format!(
        "        listen {} ssl{more};\n        ssl_protocols TLSv1.2 TLSv1.3;\n        ssl_session_cache shared:load:1m;\n        ssl_certificate {};\n        ssl_certificate_key {};\n",
        route.listen,
        quote(&tls.identity.cert),
        quote(&tls.identity.key)
    );
    if let Some(ca) = &tls.client_ca {
        let _ = writeln!(
            text,
            "        ssl_verify_client on;\n        ssl_verify_depth 5;\n        ssl_client_certificate {};",
            quote(ca)
        );
    }
    text
}

/// Returns the TLS directives towards the server, with the prefix `of`.
fn upstream_tls(route: &ProxyRoute, of: &str) -> String {
    let Some(tls) = &route.upstream_tls else {
        return String::new();
    };
    let mut text = format!(
        "            {of}_ssl_protocols TLSv1.2 TLSv1.3;\n            {of}_ssl_server_name on;\n            {of}_ssl_name {};\n",
        tls.server_name
    );
    if let Some(ca) = &tls.ca {
        let _ = writeln!(
            text,
            "            {of}_ssl_verify on;\n            {of}_ssl_verify_depth 5;\n            {of}_ssl_trusted_certificate {};",
            quote(ca)
        );
    }
    if let Some(identity) = &tls.identity {
        let _ = writeln!(
            text,
            "            {of}_ssl_certificate {};\n            {of}_ssl_certificate_key {};",
            quote(&identity.cert),
            quote(&identity.key)
        );
    }
    text
}

fn stream(route: &ProxyRoute) -> String {
    let mut text = "stream {\n    server {\n".to_owned();
    text += &listen(route, "");
    let _ = writeln!(
        text,
        "        proxy_pass {};\n        proxy_timeout 1h;\n        tcp_nodelay on;",
        route.upstream
    );
    if route.upstream_tls.is_some() {
        text += "        proxy_ssl on;\n";
        text += &upstream_tls(route, "proxy").replace("            ", "        ");
    }
    text + "    }\n}\n"
}

fn requests(installed: &InstalledProxy, route: &ProxyRoute) -> String {
    let mut text = "http {\n    access_log off;\n".to_owned();
    for module in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let dir = quote(&route.dir.join("temp"));
        let _ = writeln!(text, "    {module}_temp_path {dir};");
    }
    let _ = write!(
        text,
        "    map $http_upgrade $connection_upgrade {{\n        default upgrade;\n        '' '';\n    }}\n\
         \x20   upstream server {{\n        server {};\n        keepalive {MAX_IDLE_CONNECTIONS};\n        keepalive_requests {MAX_CALLS_PER_CONNECTION};\n        keepalive_timeout 1h;\n    }}\n    server {{\n",
        route.upstream
    );
    let is_multiplexed = matches!(route.wire, WireFormat::Http2 | WireFormat::Http2Trailers);
    let has_directive = has_http2_directive(&installed.version.number);
    let more = if is_multiplexed && !has_directive {
        " http2"
    } else {
        ""
    };
    text += &listen(route, more);
    if is_multiplexed {
        if has_directive {
            text += "        http2 on;\n";
        }
        let _ = writeln!(text, "        http2_max_concurrent_streams {MAX_STREAMS};");
    }
    let _ = writeln!(
        text,
        "        keepalive_requests {MAX_CALLS_PER_CONNECTION};\n        keepalive_timeout 1h;\n        client_body_timeout 1h;\n        client_max_body_size 0;\n        send_timeout 1h;\n        location / {{"
    );
    let secured = if route.upstream_tls.is_some() {
        "s"
    } else {
        ""
    };
    if route.wire == WireFormat::Http2Trailers {
        let _ = writeln!(
            text,
            "            grpc_pass grpc{secured}://server;\n            grpc_read_timeout 1h;\n            grpc_send_timeout 1h;"
        );
        text += &upstream_tls(route, "grpc");
    } else {
        let _ = writeln!(
            text,
            "            proxy_pass http{secured}://server;\n            proxy_http_version 1.1;\n            proxy_set_header Host $http_host;\n            proxy_set_header Upgrade $http_upgrade;\n            proxy_set_header Connection $connection_upgrade;\n            proxy_buffering off;\n            proxy_request_buffering off;\n            proxy_read_timeout 1h;\n            proxy_send_timeout 1h;"
        );
        text += &upstream_tls(route, "proxy");
    }
    text + "        }\n    }\n}\n"
}
