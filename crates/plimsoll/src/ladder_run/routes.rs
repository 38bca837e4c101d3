//! Builds the routes of the proxies of a rung (one variant in a ladder): their addresses, protocols and certificates.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use plimsoll_model::spec::{ProxiedCalls, RungSecurity, RungSpec, TlsSpec, WireFormat};
use plimsoll_stack::certificates::CertificatePaths;

use super::sidecars::ProxyTarget;
use crate::failure::Failure;
use crate::proxies::{
    IdentityFiles, InstalledProxy, ListenTls, ProxyRoute, SameNeighbours, UpstreamTls,
};

/// Paths of the system's CA bundle in various distributions.
const SYSTEM_CA_BUNDLE_PATHS: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// The task of a proxy: the protocol and the security of both sides, and its place in a chain, without addresses and
/// files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProxyTask {
    pub(crate) calls: ProxiedCalls,
    /// Security of connections from the load or from the previous proxy.
    pub(crate) listen: RungSecurity,
    /// Security of connections to the next proxy or to the server.
    pub(crate) upstream: RungSecurity,
    pub(crate) workers: u32,
    pub(crate) neighbours: SameNeighbours,
}

impl ProxyTask {
    /// Returns the tasks of a rung's proxies, in order from the load to the server.
    pub(super) fn for_rung(rung: &RungSpec, proxies: &[&InstalledProxy]) -> Vec<ProxyTask> {
        let is_passed = rung.passes_tls_through();
        let mut calls = if is_passed && rung.security != RungSecurity::Off {
            WireFormat::Bytes.into()
        } else {
            rung.spec.call.proxied_calls(&rung.spec)
        };
        let at_end = |security| {
            if is_passed {
                RungSecurity::Off
            } else {
                security
            }
        };
        let last = proxies.len().saturating_sub(1);
        let mut tasks = Vec::new();
        for (nth, proxy) in proxies.iter().enumerate() {
            let is_same = |other: &&&InstalledProxy| other.proxy.name == proxy.proxy.name;
            tasks.push(ProxyTask {
                calls,
                listen: match nth {
                    0 => at_end(rung.security),
                    _ => rung.between_tls,
                },
                upstream: match nth {
                    _ if nth < last => rung.between_tls,
                    _ => at_end(rung.server_security()),
                },
                workers: rung.proxy_workers,
                neighbours: SameNeighbours {
                    before: proxies[..nth].iter().rev().take_while(is_same).count(),
                    after: proxies[nth + 1..].iter().take_while(is_same).count(),
                },
            });
            calls.wire = proxy.proxy.converted_protocol(calls.wire);
        }
        tasks
    }

    /// Returns the route of a proxy with this task between two addresses. `set` has the certificates; `external` is the
    /// TLS settings for a server that the ladder did not start.
    pub(super) fn build_route(
        self,
        (listen, upstream): (SocketAddr, SocketAddr),
        set: &CertificatePaths,
        external: Option<UpstreamTls>,
        dir: PathBuf,
    ) -> ProxyRoute {
        let identity = |cert: &Path, key: &Path, name: &str| IdentityFiles {
            cert: absolute_path(cert),
            key: absolute_path(key),
            both: dir.join(name),
        };
        let listen_tls = (self.listen != RungSecurity::Off).then(|| ListenTls {
            identity: identity(&set.server_cert, &set.server_key, "server.pem"),
            client_ca: (self.listen == RungSecurity::Mutual).then(|| absolute_path(&set.ca_cert)),
        });
        let of_ours = || UpstreamTls {
            ca: Some(absolute_path(&set.ca_cert)),
            identity: (self.upstream == RungSecurity::Mutual)
                .then(|| identity(&set.client_cert, &set.client_key, "client.pem")),
            server_name: "localhost".to_owned(),
        };
        let upstream_tls =
            (self.upstream != RungSecurity::Off).then(|| external.unwrap_or_else(of_ours));
        ProxyRoute {
            calls: self.calls,
            listen,
            upstream,
            listen_tls,
            upstream_tls,
            workers: self.workers,
            neighbours: self.neighbours,
            dir,
        }
    }
}

/// Returns an example configuration of a proxy for a task, with made-up addresses and files; `plimsoll proxies`
/// prints it.
///
/// # Errors
/// Returns the reason if the proxy can't perform the task.
pub(crate) fn example_configuration(
    installed: &InstalledProxy,
    task: ProxyTask,
) -> Result<String, String> {
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let set = CertificatePaths::for_dir(Path::new("/run/certs"));
    let route = task.build_route(
        (at(8080), at(9090)),
        &set,
        None,
        PathBuf::from("/run/proxy"),
    );
    match installed.route_obstacle(&route)? {
        Some(obstacle) => Err(obstacle),
        None => installed.configuration(&route),
    }
}

pub(super) fn absolute_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the TLS settings for a server that the ladder did not start, taken from the plan.
pub(super) fn external_upstream_tls(
    rung: &RungSpec,
    target: &ProxyTarget,
    dir: &Path,
) -> Result<UpstreamTls, Failure> {
    let tls = rung.spec.tls.clone().unwrap_or_default();
    let wrong = |what: &str, help: &str| {
        Failure::usage(
            format_args!("ladder.via: rung \"{}\": {what}", rung.name),
            help,
        )
    };
    if tls.pin.is_some() {
        return Err(wrong(
            "tls.pin: a proxy checks who signed the server's certificate, not its fingerprint",
            "give tls.ca, or put the proxy before a server that the ladder starts: serve = [\"score\"]",
        ));
    }
    let system = || {
        SYSTEM_CA_BUNDLE_PATHS
            .map(PathBuf::from)
            .into_iter()
            .find(|file| file.is_file())
    };
    let ca = match (&tls.ca, tls.insecure) {
        (_, Some(true)) => None,
        (Some(ca), _) => Some(absolute_path(ca)),
        (None, _) => Some(system().ok_or_else(|| {
            wrong(
                "no file of trusted CA certificates that a proxy can read was found on this machine",
                "give tls.ca",
            )
        })?),
    };
    let TlsSpec { cert, key, .. } = tls;
    let identity = match (rung.server_security(), cert, key) {
        (RungSecurity::Mutual, Some(cert), Some(key)) => Some(IdentityFiles {
            cert: absolute_path(&cert),
            key: absolute_path(&key),
            both: absolute_path(dir).join("client.pem"),
        }),
        (RungSecurity::Mutual, ..) => {
            return Err(wrong(
                "the proxy has no client certificate for the server",
                "give tls.cert and tls.key in the plan",
            ));
        }
        _ => None,
    };
    Ok(UpstreamTls {
        ca,
        identity,
        server_name: tls.server_name.unwrap_or_else(|| target.host.clone()),
    })
}

/// Writes each certificate and its key into one file with mode 0600, for proxies that need them together.
pub(super) fn join_certificates_and_keys(route: &ProxyRoute) -> Result<Vec<PathBuf>, Failure> {
    let listen = route.listen_tls.as_ref().map(|tls| &tls.identity);
    let upstream = route.upstream_tls.as_ref();
    let upstream = upstream.and_then(|tls| tls.identity.as_ref());
    let mut files = Vec::new();
    for identity in [listen, upstream].into_iter().flatten() {
        let join = || {
            let [cert, key] = [fs::read(&identity.cert)?, fs::read(&identity.key)?];
            let mut options = fs::OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&identity.both)?;
            file.write_all(&[cert, b"\n".to_vec(), key].concat())
        };
        join().map_err(|e| file_write_failure(&identity.both, &e))?;
        files.push(identity.both.clone());
    }
    Ok(files)
}

pub(super) fn file_write_failure(path: &Path, e: &io::Error) -> Failure {
    Failure::error(format_args!(
        "ladder.via: can't write {}: {e}",
        path.display()
    ))
}
