//! Apache httpd 2.4.47 and newer, as Debian packages it (`apache2`), with the event MPM.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_model::spec::WireFormat;

use super::{
    InstalledProxy, MAX_IDLE_CONNECTIONS, Proxy, ProxyRoute, ProxyVersion, find_program, printed,
    quote, words_after,
};

pub(super) static PROXY: Proxy = Proxy {
    name: "apache2",
    title: "Apache httpd",
    install: "apt-get install apache2-bin",
    carries: &[WireFormat::Http1, WireFormat::Http2, WireFormat::Socket],
    remark: "HTTP/2 requests are forwarded as HTTP/1.1; one process of many threads",
    find: || find_program("apache2"),
    version,
    limitation: |_, _| {
        let is_missing = modules_dir().is_none();
        is_missing.then(|| {
            "this Apache httpd has its modules elsewhere: apt-get install apache2-bin".to_owned()
        })
    },
    config_file: "httpd.conf",
    configure,
    arguments,
    joins_keys: true,
};

/// Maximum number of concurrent connections of the load; each takes a thread of the one process.
const MAX_WORKERS: u32 = 1024;

fn modules_dir() -> Option<PathBuf> {
    let dirs = ["/usr/lib/apache2/modules", "/usr/lib64/httpd/modules"];
    dirs.map(PathBuf::from).into_iter().find(|dir| dir.is_dir())
}

fn version(program: &Path) -> Option<ProxyVersion> {
    let printed = printed(program, &["-v"])?;
    Some(ProxyVersion {
        number: words_after(&printed, "Apache/", 1)?,
        // The TLS library is linked to a module, not to the program.
        tls: None,
        printed,
    })
}

fn arguments(command: &mut Command, file: &Path) {
    let dir = file.parent().unwrap_or(Path::new(""));
    command
        .arg("-d")
        .arg(dir)
        .arg("-f")
        .arg(file)
        .arg("-DFOREGROUND");
}

fn configure(_: &InstalledProxy, route: &ProxyRoute) -> String {
    let mut text = String::new();
    let modules = modules_dir().unwrap_or_default();
    let is_multiplexed = route.wire == WireFormat::Http2;
    let mut names = vec!["mpm_event", "unixd", "authz_core", "proxy", "proxy_http"];
    if route.listen_tls.is_some() || route.upstream_tls.is_some() {
        names.extend(["socache_shmcb", "ssl"]);
    }
    names.extend(is_multiplexed.then_some("http2"));
    names.extend((route.wire == WireFormat::Socket).then_some("proxy_wstunnel"));
    for name in names {
        let file = modules.join(format!("mod_{name}.so"));
        // Modules without a file are built in.
        if file.is_file() {
            let _ = writeln!(text, "LoadModule {name}_module {}", quote(&file));
        }
    }
    let pid = quote(&route.dir.join("httpd.pid"));
    let runtime = quote(&route.dir);
    let _ = writeln!(
        text,
        "ServerName localhost\nListen {}\nPidFile {pid}\nDefaultRuntimeDir {runtime}\nErrorLog /dev/stderr\nLogLevel warn",
        route.listen
    );
    // Apache httpd refuses to serve as root.
    if rustix::process::geteuid().is_root() {
        text += "User nobody\nGroup #65534\n";
    }
    let _ = writeln!(
        text,
        "StartServers 1\nServerLimit 1\nThreadsPerChild {MAX_WORKERS}\nThreadLimit {MAX_WORKERS}\nMaxRequestWorkers {MAX_WORKERS}\nMinSpareThreads 1\nMaxSpareThreads {MAX_WORKERS}\nMaxConnectionsPerChild 0\nKeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 3600\nTimeout 3600\nLimitRequestBody 0"
    );
    let protocols = match (is_multiplexed, &route.listen_tls) {
        (false, _) => "http/1.1",
        (true, Some(_)) => "h2",
        (true, None) => "h2c",
    };
    let _ = writeln!(text, "Protocols {protocols}");
    if let Some(tls) = &route.listen_tls {
        let identity = &tls.identity;
        let _ = writeln!(
            text,
            "SSLEngine on\nSSLProtocol -all +TLSv1.2 +TLSv1.3\nSSLSessionCache shmcb:{}(512000)\nSSLCertificateFile {}\nSSLCertificateKeyFile {}",
            route.dir.join("resumption").display(),
            quote(&identity.cert),
            quote(&identity.key)
        );
        if let Some(ca) = &tls.client_ca {
            let _ = writeln!(
                text,
                "SSLVerifyClient require\nSSLVerifyDepth 5\nSSLCACertificateFile {}",
                quote(ca)
            );
        }
    }
    let secured = if route.upstream_tls.is_some() {
        "s"
    } else {
        ""
    };
    if let Some(tls) = &route.upstream_tls {
        text += "SSLProxyEngine on\nSSLProxyProtocol -all +TLSv1.2 +TLSv1.3\n";
        match &tls.ca {
            // The URL has an address instead of a name, so only the certificate's chain is verified.
            Some(ca) => {
                let _ = writeln!(
                    text,
                    "SSLProxyVerify require\nSSLProxyVerifyDepth 5\nSSLProxyCheckPeerName off\nSSLProxyCheckPeerCN off\nSSLProxyCACertificateFile {}",
                    quote(ca)
                );
            }
            None => {
                text += "SSLProxyVerify none\nSSLProxyCheckPeerName off\nSSLProxyCheckPeerCN off\nSSLProxyCheckPeerExpire off\n";
            }
        }
        if let Some(identity) = &tls.identity {
            let _ = writeln!(
                text,
                "SSLProxyMachineCertificateFile {}",
                quote(&identity.both)
            );
        }
    }
    let upgrade = if route.wire == WireFormat::Socket {
        " upgrade=websocket"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "ProxyRequests Off\nProxyPreserveHost On\nProxyPass / http{secured}://{}/ keepalive=On max={MAX_IDLE_CONNECTIONS} ttl=3600 flushpackets=on timeout=3600{upgrade}",
        route.upstream
    );
    text
}
