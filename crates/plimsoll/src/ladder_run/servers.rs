//! Starts the servers of a ladder's rungs (variants): one server per kind of TLS and network, or one per rung.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use plimsoll_engine::host::resources::WatchedProcesses;
use plimsoll_engine::{host::cores, structures::memory_layout};
use plimsoll_model::comparisons::ladder::SkippedRung;
use plimsoll_model::plan::ClientIdentity;
use plimsoll_model::spec::{RungNetwork, RungRoute, RungSecurity, RungSpec, TlsLibrary};
use plimsoll_stack::certificates::{CertificateOptions, CertificatePaths, make_certificates};
use plimsoll_stack::namespace::NetworkNamespace;

use super::openssl;
use super::services::{RunningServer, ServiceComparison};
use crate::failure::Failure;
use crate::load::process::ProcessContext;
use crate::system::child::ServerProcess;
use crate::system::version;

/// Whether the rungs of a ladder share servers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum ServerSharing {
    /// Rungs with equal requirements share a server.
    #[default]
    Shared,
    /// Each rung has its own server, on cores that the generators leave free, because rungs run at the same time and
    /// each server's CPU time must be attributed to its rung.
    PerRung,
}

/// The running servers of a ladder. Dropping it stops the servers, then removes their namespace.
#[derive(Default)]
pub(super) struct RungServers<'a> {
    /// The user's own services, one per rung; `None` if all servers are those of this program or of OpenSSL.
    services: Option<(&'a ServiceComparison, &'a ProcessContext)>,
    /// Certificates by key algorithm, as rungs request it; `None` for the default algorithm.
    sets: BTreeMap<Option<String>, CertificatePaths>,
    running: Vec<RungServer>,
    /// Index into `running`, by rung.
    by_rung: Vec<usize>,
    namespace: Option<NetworkNamespace>,
    whose: ServerSharing,
    /// The ladder's directory.
    dir: PathBuf,
    /// Version of OpenSSL, if it serves any rung.
    openssl: Option<String>,
    /// Rungs that can't be measured on this machine.
    pub(super) skipped: Vec<SkippedRung>,
}

/// A running server with its requirements.
struct RungServer {
    process: RunningServer,
    address: String,
    wanted: ServerRequirements,
}

/// The requirements of a rung on its server; rungs with equal requirements can share a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ServerRequirements {
    /// Arguments of `plimsoll serve`.
    words: Vec<String>,
    network: RungNetwork,
    secured: RungSecurity,
    /// Key algorithm of its certificate; `None` for the default algorithm.
    kind: Option<String>,
    /// Options of OpenSSL's server; `None` for Plimsoll's own server.
    openssl: Option<openssl::OpenSslOptions>,
    /// The address, if a proxy's configuration names one; `None` for any free address.
    fixed_address: Option<SocketAddr>,
}

impl ServerRequirements {
    fn for_rung(words: &[String], rung: &RungSpec) -> ServerRequirements {
        ServerRequirements {
            words: rung.serve.as_deref().unwrap_or(words).to_vec(),
            network: rung.network,
            secured: rung.server_security(),
            kind: rung.certificate.clone(),
            openssl: (rung.library == TlsLibrary::OpenSsl)
                .then(|| openssl::OpenSslOptions::from_spec(&rung.spec)),
            fixed_address: match &rung.route {
                RungRoute::Custom(own) => Some(own.upstream),
                _ => None,
            },
        }
    }
}

/// Starts the servers that the rungs need and makes them the rungs' targets. A server runs `plimsoll serve` with the
/// arguments in `words` or, if a rung sets arguments, with those. Rungs whose network can't be created are removed.
pub(super) fn start(
    words: &[String],
    rungs: &mut Vec<RungSpec>,
    whose: ServerSharing,
    dir: &Path,
) -> Result<RungServers<'static>, Failure> {
    let mut servers = RungServers {
        whose,
        dir: dir.to_owned(),
        ..RungServers::default()
    };
    if rungs.iter().any(|rung| rung.library == TlsLibrary::OpenSsl) {
        servers.openssl = Some(openssl::version()?);
    }
    servers.create_network_namespace(rungs)?;
    let mut started: BTreeMap<(ServerRequirements, usize), usize> = BTreeMap::new();
    for (nth, rung) in rungs.iter_mut().enumerate() {
        let wanted = ServerRequirements::for_rung(words, rung);
        let kind = wanted.kind.clone();
        let is_plain =
            rung.security == RungSecurity::Off && rung.server_security() == RungSecurity::Off;
        if !is_plain && !servers.sets.contains_key(&kind) {
            let set = servers.make_certificate_set(kind.as_deref(), dir)?;
            servers.sets.insert(kind.clone(), set);
        }
        let key = match whose {
            ServerSharing::PerRung => (wanted, nth),
            ServerSharing::Shared => (wanted, 0),
        };
        let place = match started.get(&key) {
            Some(known) => *known,
            None => {
                let place = servers.running.len();
                let at = key.0.fixed_address.map(|at| at.to_string());
                let server = servers.start_server(key.0.clone(), place, at.as_deref())?;
                servers.running.push(server);
                started.insert(key, place);
                place
            }
        };
        servers.by_rung.push(place);
        let server = &servers.running[place];
        let (address, pid) = (&server.address, server.process.id());
        let scheme = rung.spec.call.scheme(rung.security != RungSecurity::Off);
        rung.spec.target = Some(format!("{scheme}://{address}"));
        // Watch the process by its id, because a listener in another network namespace can't be found by its port.
        rung.spec.watch = Some(rung.spec.watch.take().unwrap_or_default().with_process(pid));
        if let (Some(set), RungSecurity::Server | RungSecurity::Mutual) =
            (servers.sets.get(&kind), rung.security)
        {
            let tls = rung.spec.tls.get_or_insert_default();
            tls.ca = Some(set.ca_cert.clone());
            (tls.pin, tls.insecure) = (None, None);
            let mutual = rung.security == RungSecurity::Mutual;
            tls.cert = mutual.then(|| set.client_cert.clone());
            tls.key = mutual.then(|| set.client_key.clone());
        }
    }
    Ok(servers)
}

/// Starts a service for each rung, in the order of the rungs, and watches its processes.
///
/// # Errors
/// When a service does not start in time, or the user interrupts the start.
pub(super) fn start_services<'a>(
    compared: &'a ServiceComparison,
    process: &'a ProcessContext,
    rungs: &mut [RungSpec],
) -> Result<RungServers<'a>, Failure> {
    let mut servers = RungServers {
        services: Some((compared, process)),
        whose: ServerSharing::PerRung,
        dir: compared.dir.clone(),
        ..RungServers::default()
    };
    for (place, rung) in rungs.iter_mut().enumerate() {
        let wanted = ServerRequirements {
            words: Vec::new(),
            network: RungNetwork::Localhost,
            secured: RungSecurity::Off,
            kind: None,
            openssl: None,
            fixed_address: None,
        };
        let server = servers.start_server(wanted, place, None)?;
        let watch = rung.spec.watch.take().unwrap_or_default();
        rung.spec.watch = Some(watch.with_process(server.process.id()));
        servers.running.push(server);
        servers.by_rung.push(place);
    }
    Ok(servers)
}

impl RungServers<'_> {
    /// Creates certificates with a key algorithm, in a separate folder.
    fn make_certificate_set(
        &self,
        kind: Option<&str>,
        dir: &Path,
    ) -> Result<CertificatePaths, Failure> {
        let address = self.namespace.as_ref().map(|n| n.address().to_string());
        let mut options = CertificateOptions {
            names: address.into_iter().collect(),
            ..CertificateOptions::default()
        };
        let mut folder = dir.join("certs");
        if let Some(kind) = kind {
            options.algorithm = kind
                .parse()
                .map_err(|e| Failure::error(format_args!("ladder.certificate: {e}")))?;
            folder = folder.join(options.algorithm.name());
        }
        make_certificates(&folder, &options).map_err(Failure::error)
    }

    /// Creates the network namespace that rungs request, and removes those rungs if that fails.
    fn create_network_namespace(&mut self, rungs: &mut Vec<RungSpec>) -> Result<(), Failure> {
        let is_inside = |rung: &RungSpec| rung.network == RungNetwork::Namespaces;
        if !rungs.iter().any(is_inside) {
            return Ok(());
        }
        match NetworkNamespace::create() {
            Ok(namespace) => {
                self.namespace = Some(namespace);
                // The generator uses more cores for a target that is not on a loopback address. This target's address
                // is not loopback although the server runs on the same machine, so set the workers here.
                let cores = thread::available_parallelism().map_or(1, |n| n.get());
                let workers = u16::try_from(cores / 2).unwrap_or(u16::MAX).max(1);
                for rung in rungs {
                    rung.spec.load.workers.get_or_insert(workers);
                }
                Ok(())
            }
            Err(error) => {
                let reason = format!("no network namespace: {error}");
                let (out, left) = std::mem::take(rungs).into_iter().partition(is_inside);
                *rungs = left;
                if rungs.is_empty() {
                    return Err(Failure::error_with_help(
                        format_args!("ladder.network: {reason}"),
                        "run it as a user with the right to administer the network (such as root), or measure \"localhost\" as well",
                    ));
                }
                let out: Vec<RungSpec> = out;
                self.skipped.extend(out.into_iter().map(|rung| SkippedRung {
                    name: rung.name,
                    reason: reason.clone(),
                }));
                Ok(())
            }
        }
    }

    /// Restarts a rung's server at its address before a slice that measures memory, so that memory left from earlier
    /// slices is not counted. Returns its process id and its resident memory before the first connection, bytes.
    ///
    /// # Errors
    /// When the server does not restart.
    pub(super) fn restart(&mut self, rung: usize) -> Result<Option<(u32, u64)>, Failure> {
        let Some(&place) = self.by_rung.get(rung) else {
            return Ok(None);
        };
        self.running[place].process.stop();
        let pid = self.start_server_again(place)?;
        let usage = |pid| Some((pid, WatchedProcesses::process_tree(pid).usage()?.rss_bytes));
        Ok(pid.and_then(usage))
    }

    /// Restarts all servers at their addresses, in the given order of rungs.
    ///
    /// # Errors
    /// When a server does not restart.
    pub(super) fn restart_all(&mut self, order: &[u32]) -> Result<(), Failure> {
        let all = self.running.iter_mut();
        all.for_each(|server| server.process.stop());
        let mut left: BTreeSet<usize> = (0..self.running.len()).collect();
        for rung in order {
            let place = self.by_rung.get(*rung as usize).copied();
            if let Some(place) = place.filter(|place| left.remove(place)) {
                self.start_server_again(place)?;
            }
        }
        Ok(())
    }

    /// Starts a stopped server again at its address; returns its process id, unless this user can't see the process.
    fn start_server_again(&mut self, place: usize) -> Result<Option<u32>, Failure> {
        let old = &self.running[place];
        let (wanted, address) = (old.wanted.clone(), old.address.clone());
        let server = self.start_server(wanted, place, Some(&address))?;
        let pid = server.process.id();
        self.running[place] = server;
        Ok(pid)
    }

    /// Returns the process id of a rung's server; `None` if the ladder did not start the server, or this user can't see
    /// the process.
    pub(super) fn pid(&self, rung: usize) -> Option<u32> {
        self.running.get(*self.by_rung.get(rung)?)?.process.id()
    }

    /// Returns whether the servers are the user's own services, started for this ladder.
    pub(super) fn are_user_services(&self) -> bool {
        self.services.is_some()
    }

    /// Returns the servers' certificates and private keys, by key algorithm.
    pub(super) fn identities(&self) -> Vec<(Option<String>, ClientIdentity)> {
        let identity = |set: &CertificatePaths| ClientIdentity {
            cert: set.server_cert.clone(),
            key: set.server_key.clone(),
        };
        let sets = self.sets.iter();
        sets.map(|(kind, set)| (kind.clone(), identity(set)))
            .collect()
    }

    /// Returns the TLS library of a rung's server; `None` if the server is external or uses plaintext.
    pub(super) fn tls_library(&self, rung: usize) -> Option<String> {
        let wanted = &self.running.get(*self.by_rung.get(rung)?)?.wanted;
        match (&wanted.openssl, wanted.secured) {
            (_, RungSecurity::Off) => None,
            (Some(_), _) => self.openssl.clone(),
            (None, _) => Some(version::tls()),
        }
    }

    /// Returns the certificates of a rung's server; `None` if the server is external.
    pub(super) fn certificates(&self, rung: &RungSpec) -> Option<&CertificatePaths> {
        self.sets.get(&rung.certificate)
    }

    /// Returns a command that runs in a server's network namespace, and the server's host address there.
    fn command_in_network(
        &self,
        program: impl AsRef<OsStr>,
        network: RungNetwork,
    ) -> (Command, String) {
        match (&self.namespace, network) {
            (Some(namespace), RungNetwork::Namespaces) => {
                (namespace.command(program), namespace.address().to_string())
            }
            _ => (Command::new(program), "127.0.0.1".to_owned()),
        }
    }

    /// Starts a server at the given address, or at a free address if none is given.
    fn start_server(
        &self,
        wanted: ServerRequirements,
        place: usize,
        fixed_address: Option<&str>,
    ) -> Result<RungServer, Failure> {
        if let Some((compared, process)) = self.services {
            let service = &compared.services[place];
            let log = compared.log_path(service);
            let started = service.start(&log, process)?;
            return Ok(RungServer {
                process: RunningServer::Service(started),
                address: service.address.to_string(),
                wanted,
            });
        }
        let set = self.sets.get(&wanted.kind);
        let set = set.filter(|_| wanted.secured != RungSecurity::Off);
        if let (Some(asked), Some(set)) = (&wanted.openssl, set) {
            let (command, host) = self.command_in_network("openssl", wanted.network);
            let at = fixed_address.map_or_else(|| format!("{host}:0"), str::to_owned);
            let log = format!("openssl-{}", place + 1);
            let log = self.dir.join(log).with_extension("log");
            let command = asked.command(command, &at, set, wanted.secured, &self.dir)?;
            let (process, address) =
                openssl::start(command, &log, |c| self.spawn_on_server_cores(c))?;
            return Ok(RungServer {
                process: RunningServer::Own(process),
                address,
                wanted,
            });
        }
        let program = std::env::current_exe().map_err(|e| {
            Failure::error(format_args!(
                "can't find this program to start a server: {e}"
            ))
        })?;
        let (mut command, host) = self.command_in_network(program, wanted.network);
        command
            .arg("serve")
            .args(&wanted.words)
            .arg("--listen")
            .arg(fixed_address.map_or_else(|| format!("{host}:0"), str::to_owned))
            .arg("--json");
        if let Some(set) = set {
            command.arg("--tls-cert").arg(&set.server_cert);
            command.arg("--tls-key").arg(&set.server_key);
            if wanted.secured == RungSecurity::Mutual {
                command.arg("--tls-client-ca").arg(&set.ca_cert);
            }
        }
        let started = ServerProcess::start(&mut command, |c| self.spawn_on_server_cores(c));
        let (process, line) = started
            .map_err(|e| Failure::error(format_args!("ladder.serve: can't start a server: {e}")))?;
        let printed: Option<serde_json::Value> = serde_json::from_str(&line).ok();
        let Some(address) = printed
            .as_ref()
            .and_then(|printed| printed["address"].as_str())
        else {
            let words = wanted.words.join(" ");
            return Err(Failure::usage(
                format_args!("ladder.serve: `plimsoll serve {words}` did not start"),
                "its message is above; write, for example, serve = [\"score\", \"--delay\", \"5ms\"]",
            ));
        };
        Ok(RungServer {
            process: RunningServer::Own(process),
            address: address.to_owned(),
            wanted,
        })
    }

    fn spawn_on_server_cores(&self, command: &mut Command) -> io::Result<Child> {
        let mut start = || memory_layout::run_with_fixed_layout(|| command.spawn());
        match self.whose {
            ServerSharing::PerRung => cores::run_on_server_cores(start),
            ServerSharing::Shared => start(),
        }
    }
}
