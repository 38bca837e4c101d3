//! Starts and watches the proxies that a ladder puts between the load and its servers: one proxy per rung (variant), or
//! a chain.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_model::comparisons::ladder::SkippedRung;
use plimsoll_model::spec::{CustomProxy, RungRoute, RungSecurity, RungSpec};
use plimsoll_stack::certificates::{CertificateOptions, CertificatePaths, make_certificates};

use super::routes::{
    ProxyTask, absolute_path, external_upstream_tls, file_write_failure, join_certificates_and_keys,
};
use super::servers::RungServers;
use super::sidecars::ProxyTarget;
use crate::failure::Failure;
use crate::proxies::process::{ManagedProcess, ProcessStartError, ProcessUsage, find_free_address};
use crate::proxies::{InstalledProxy, ProxyCatalog, ProxyRoute, UpstreamTls};
use crate::screen::console;

/// Maximum number of free ports to try for a proxy, in case another program binds the chosen port first.
const MAX_PORT_ATTEMPTS: u32 = 5;
const LOG_FILE_NAME: &str = "proxy.log";

/// Requested proxies that are installed on this machine, by name.
pub(super) type AvailableProxies = BTreeMap<String, InstalledProxy>;

/// Removes rungs whose proxies are not installed, or can't relay the rung's protocol. `folder` contains definitions of
/// proxies.
///
/// # Errors
/// When a definition is invalid, or no rung is left.
pub(super) fn remove_unavailable_rungs(
    rungs: &mut Vec<RungSpec>,
    folder: Option<&Path>,
) -> Result<(AvailableProxies, Vec<SkippedRung>), Failure> {
    let catalog = ProxyCatalog::load(folder)?;
    let mut available = AvailableProxies::new();
    let (mut kept, mut skipped) = (Vec::new(), Vec::new());
    for rung in std::mem::take(rungs) {
        match relay_obstacle(&rung, &catalog, &mut available).map_err(Failure::error)? {
            None => kept.push(rung),
            Some(reason) => skipped.push(SkippedRung {
                name: rung.name,
                reason,
            }),
        }
    }
    *rungs = kept;
    match skipped.first().filter(|_| rungs.is_empty()) {
        Some(first) => Err(Failure::error_with_help(
            format_args!("ladder.via: no rung can be measured: {}", first.reason),
            "`plimsoll proxies` lists the proxies of this machine, what each supports, and how to install others",
        )),
        None => Ok((available, skipped)),
    }
}

/// Returns why a rung's proxies can't relay its calls on this machine; `None` if they can. Adds the installed proxies
/// among them to `available`.
///
/// # Errors
/// When a proxy's definition is invalid.
fn relay_obstacle(
    rung: &RungSpec,
    catalog: &ProxyCatalog,
    available: &mut AvailableProxies,
) -> Result<Option<String>, String> {
    let RungRoute::Proxies(names) = &rung.route else {
        return Ok(None);
    };
    for name in names {
        if available.contains_key(name) {
            continue;
        }
        let Some(proxy) = catalog.find_proxy(name) else {
            return Ok(Some(format!("{name} is not a known proxy")));
        };
        match proxy.find_installed() {
            Ok(installed) => drop(available.insert(name.clone(), installed)),
            Err(reason) => return Ok(Some(reason)),
        }
    }
    // The check does not depend on addresses or file names, so use placeholders.
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let set = CertificatePaths::for_dir(Path::new(""));
    for (installed, task) in proxy_chain(rung, names, available) {
        let route = task.build_route((nowhere, nowhere), &set, None, PathBuf::new());
        if let Some(reason) = installed.route_obstacle(&route)? {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// Returns a rung's proxies in order from the load to the server, each with its task: the protocol and the security of
/// both sides.
fn proxy_chain<'a>(
    rung: &RungSpec,
    names: &[String],
    available: &'a AvailableProxies,
) -> Vec<(&'a InstalledProxy, ProxyTask)> {
    let found: Vec<&InstalledProxy> = names
        .iter()
        .filter_map(|name| available.get(name))
        .collect();
    let tasks = ProxyTask::for_rung(rung, &found);
    found.into_iter().zip(tasks).collect()
}

/// The proxies of all rungs; dropping it stops them.
#[derive(Default)]
pub(super) struct RungProxies {
    /// The proxies, by rung, each rung's in order from the server to the load, which is the order in which they start.
    by_rung: Vec<Vec<RungProxy>>,
}

/// A proxy of one rung.
struct RungProxy {
    rung: String,
    description: String,
    program: ProxyProgram,
    listen: SocketAddr,
    log: PathBuf,
    /// The running process; `None` if it could not be restarted.
    running: Option<ManagedProcess>,
    /// Why the rung was dropped; `None` if it was not.
    drop_reason: Option<String>,
    /// Files with private keys, deleted when the proxy stops.
    keys: Vec<PathBuf>,
}

/// The program that runs as a proxy.
enum ProxyProgram {
    Known(InstalledProxy, Box<ProxyRoute>),
    Custom(Vec<String>),
}

impl ProxyProgram {
    fn start(&self, listen: SocketAddr, log: &Path) -> Result<ManagedProcess, ProcessStartError> {
        let mut command = match self {
            ProxyProgram::Known(installed, route) => {
                installed.command(route).map_err(ProcessStartError::new)?
            }
            ProxyProgram::Custom(words) => {
                let mut words = words.iter();
                let mut command = Command::new(words.next().map_or("", String::as_str));
                command.args(words);
                command
            }
        };
        ManagedProcess::start(&mut command, listen, log)
    }
}

impl Drop for RungProxy {
    fn drop(&mut self) {
        drop(self.running.take());
        for key in &self.keys {
            // Ignore errors: the folder may already have been removed.
            let _ = fs::remove_file(key);
        }
    }
}

impl RungProxies {
    /// Starts the proxies of the rungs, with their files in subfolders of `dir`, and redirects the rungs to them.
    ///
    /// # Errors
    /// When a target has no address, or a proxy does not start.
    pub(super) fn start(
        rungs: &mut [RungSpec],
        available: &AvailableProxies,
        servers: &RungServers<'_>,
        dir: &Path,
    ) -> Result<RungProxies, Failure> {
        let mut proxied = RungProxies::default();
        let mut own_set = None;
        for (nth, rung) in rungs.iter_mut().enumerate() {
            let folder = |name: &str| dir.join("proxies").join(format!("{}-{name}", nth + 1));
            let started = match rung.route.clone() {
                RungRoute::Proxies(names) => {
                    let target = ProxyTarget::from_rung(rung)?;
                    let hops = proxy_chain(rung, &names, available);
                    let set = certificates(rung, &hops, servers, &mut own_set, dir)?;
                    let mut started: Vec<RungProxy> = Vec::new();
                    for (place, (installed, task)) in hops.iter().enumerate().rev() {
                        let name = &installed.proxy.name;
                        let folder = match hops.len() {
                            1 => folder(name),
                            _ => folder(&format!("{}-{name}", place + 1)),
                        };
                        let is_last = started.is_empty();
                        let upstream = started.last().map_or(target.address, |next| next.listen);
                        let external = match servers.pid(nth) {
                            None if is_last && task.upstream != RungSecurity::Off => {
                                Some(external_upstream_tls(rung, &target, &folder)?)
                            }
                            _ => None,
                        };
                        let hop = ProxyHop {
                            installed,
                            task: *task,
                            upstream,
                            set: &set,
                            external,
                        };
                        started.push(hop.start(rung, &folder)?);
                    }
                    if let Some(first) = started.last() {
                        redirect_to_proxy(rung, &target, &set, servers, first.listen);
                    }
                    started
                }
                RungRoute::Custom(own) => vec![start_custom_proxy(rung, &own, &folder("own"))?],
                _ => Vec::new(),
            };
            proxied.by_rung.push(started);
        }
        Ok(proxied)
    }

    /// Returns, by rung, the proxies with their versions, or the plan's command for a proxy.
    pub(super) fn proxy_descriptions(&self) -> impl Iterator<Item = Option<String>> + '_ {
        self.by_rung.iter().map(|hops| {
            let all: Vec<&str> = hops
                .iter()
                .rev()
                .map(|hop| hop.description.as_str())
                .collect();
            (!all.is_empty()).then(|| all.join(" + "))
        })
    }

    /// Returns the process ids of a rung's proxies.
    pub(super) fn pids(&self, rung: usize) -> Vec<u32> {
        let hops = self.by_rung.get(rung).into_iter().flatten();
        let running = hops.filter_map(|hop| hop.running.as_ref());
        running.map(ManagedProcess::id).collect()
    }

    /// Returns the resources that a rung's proxies have used since their start; `None` if the rung has no proxy.
    pub(super) fn resource_usage(&self, rung: usize) -> Option<ProcessUsage> {
        let hops = self.by_rung.get(rung)?.iter();
        let used = hops.map(|hop| hop.running.as_ref()?.usage());
        used.reduce(|a, b| Some(a?.plus(b?)))?
    }

    fn proxies_mut(&mut self) -> impl Iterator<Item = &mut RungProxy> {
        self.by_rung.iter_mut().flatten()
    }

    /// Restarts all proxies at their addresses. A proxy that does not restart is marked as down.
    pub(super) fn restart(&mut self) {
        self.report_exits();
        self.proxies_mut().for_each(|hop| drop(hop.running.take()));
        for hop in self.proxies_mut() {
            match hop.program.start(hop.listen, &hop.log) {
                Ok(running) => hop.running = Some(running),
                Err(error) => hop.mark_rung_dropped(error.to_string()),
            }
        }
    }

    /// Reports proxies that have exited unexpectedly; returns whether any proxy is down.
    pub(super) fn report_exits(&mut self) -> bool {
        let mut is_down = false;
        for hop in self.proxies_mut() {
            let death = hop
                .running
                .as_mut()
                .map(ManagedProcess::describe_exit_with_log);
            match death {
                Some(None) => continue,
                Some(Some(how)) if hop.drop_reason.is_none() => {
                    hop.mark_rung_dropped(format!(
                        "the proxy exited during the measurement ({how})"
                    ));
                }
                _ => {}
            }
            is_down = true;
        }
        is_down
    }

    /// Returns whether a proxy of the rung is down.
    pub(super) fn is_down(&mut self, rung: usize) -> bool {
        let mut hops = self.by_rung.get_mut(rung).into_iter().flatten();
        hops.any(|hop| {
            hop.running
                .as_mut()
                .is_none_or(|r| r.exit_status().is_some())
        })
    }

    /// Returns why a rung was dropped after its measurement had started.
    pub(super) fn drop_reason(&self, rung: usize) -> Option<&str> {
        let mut hops = self.by_rung.get(rung)?.iter();
        hops.find_map(|hop| hop.drop_reason.as_deref())
    }
}

impl RungProxy {
    fn mark_rung_dropped(&mut self, why: String) {
        if self.drop_reason.is_some() {
            return;
        }
        let why = format!(
            "{}: {why}; its log is {}",
            self.description,
            self.log.display()
        );
        console::print_notice(format_args!(
            "{} is skipped, and the other rungs continue: {why}",
            self.rung
        ));
        self.drop_reason = Some(why);
    }
}

fn start_failure(
    rung: &RungSpec,
    error: &ProcessStartError,
    configuration: Option<&Path>,
    log: &Path,
) -> Failure {
    let file = configuration.map_or_else(String::new, |file| {
        format!("its configuration is {}; ", file.display())
    });
    Failure::error_with_help(
        format_args!("ladder.via: rung \"{}\": {error}", rung.name),
        &format!("{file}its log is {}", log.display()),
    )
}

/// Returns the certificates that a rung's proxies present to the load in place of the server's.
fn certificates(
    rung: &RungSpec,
    hops: &[(&InstalledProxy, ProxyTask)],
    servers: &RungServers<'_>,
    own: &mut Option<CertificatePaths>,
    dir: &Path,
) -> Result<CertificatePaths, Failure> {
    if let Some(set) = servers.certificates(rung) {
        return Ok(set.clone());
    }
    let folder = dir.join("certs");
    let last = hops.len().saturating_sub(1);
    let needs_identity = |(nth, (_, task)): (usize, &(&InstalledProxy, ProxyTask))| {
        // On the hop to a server that the ladder did not start, the plan's certificates are used.
        task.listen != RungSecurity::Off || nth < last && task.upstream != RungSecurity::Off
    };
    if !hops.iter().enumerate().any(needs_identity) {
        return Ok(CertificatePaths::for_dir(&folder));
    }
    if let Some(set) = own {
        return Ok(set.clone());
    }
    let made =
        make_certificates(&folder, &CertificateOptions::default()).map_err(Failure::error)?;
    Ok(own.insert(made).clone())
}

/// A proxy that is to be started.
struct ProxyHop<'a> {
    installed: &'a InstalledProxy,
    task: ProxyTask,
    /// The address of the server or of the next proxy.
    upstream: SocketAddr,
    set: &'a CertificatePaths,
    /// The TLS settings for a server that the ladder did not start.
    external: Option<UpstreamTls>,
}

impl ProxyHop<'_> {
    /// Starts the proxy on a free port, with its files in `folder`.
    fn start(self, rung: &RungSpec, folder: &Path) -> Result<RungProxy, Failure> {
        let folder = absolute_path(folder);
        fs::create_dir_all(&folder).map_err(|e| file_write_failure(&folder, &e))?;
        let log = folder.join(LOG_FILE_NAME);
        let installed = self.installed;
        let mut tries = 1;
        loop {
            let listen = find_free_address()
                .map_err(|e| Failure::error(format_args!("ladder.via: no port is free: {e}")))?;
            let ends = (listen, self.upstream);
            let route =
                (self.task).build_route(ends, self.set, self.external.clone(), folder.clone());
            let keys = if installed.proxy.joined_keys {
                join_certificates_and_keys(&route)?
            } else {
                Vec::new()
            };
            let file = installed.configuration_file(&route);
            let text = installed.configuration(&route).map_err(Failure::error)?;
            fs::write(&file, text).map_err(|e| file_write_failure(&file, &e))?;
            let mut hop = RungProxy {
                rung: rung.name.clone(),
                description: installed.describe(),
                program: ProxyProgram::Known(installed.clone(), Box::new(route)),
                listen,
                log: log.clone(),
                running: None,
                drop_reason: None,
                keys,
            };
            match hop.program.start(listen, &log) {
                Ok(running) => {
                    hop.running = Some(running);
                    return Ok(hop);
                }
                // Another program has bound the port in the meantime: try another port.
                Err(_) if tries < MAX_PORT_ATTEMPTS && TcpStream::connect(listen).is_ok() => {
                    tries += 1;
                }
                Err(error) => return Err(start_failure(rung, &error, Some(&file), &log)),
            }
        }
    }
}

/// Starts a proxy by the command in the plan, and redirects the rung to it.
fn start_custom_proxy(
    rung: &mut RungSpec,
    own: &CustomProxy,
    folder: &Path,
) -> Result<RungProxy, Failure> {
    let target = ProxyTarget::from_rung(rung)?;
    fs::create_dir_all(folder).map_err(|e| file_write_failure(folder, &e))?;
    let program = ProxyProgram::Custom(own.command.clone());
    let log = folder.join(LOG_FILE_NAME);
    let running = program.start(own.listen, &log);
    let running = running.map_err(|e| start_failure(rung, &e, None, &log))?;
    target.redirect(rung, own.listen);
    Ok(RungProxy {
        rung: rung.name.clone(),
        description: own.command.join(" "),
        program,
        listen: own.listen,
        log,
        running: Some(running),
        drop_reason: None,
        keys: Vec::new(),
    })
}

/// Redirects a rung to its proxy, which presents the ladder's certificates unless it passes TLS through.
fn redirect_to_proxy(
    rung: &mut RungSpec,
    target: &ProxyTarget,
    set: &CertificatePaths,
    servers: &RungServers<'_>,
    listen: SocketAddr,
) {
    if rung.security != RungSecurity::Off && !rung.passes_tls_through() {
        let is_ours = servers.certificates(rung).is_some();
        let tls = rung.spec.tls.get_or_insert_default();
        tls.server_name = Some("localhost".to_owned());
        if !is_ours {
            tls.ca = Some(set.ca_cert.clone());
            (tls.pin, tls.insecure) = (None, None);
            let is_mutual = rung.security == RungSecurity::Mutual;
            tls.cert = is_mutual.then(|| set.client_cert.clone());
            tls.key = is_mutual.then(|| set.client_key.clone());
        }
    }
    target.redirect(rung, listen);
}
