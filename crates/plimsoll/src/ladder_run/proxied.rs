//! Starts and watches the third-party proxies that a ladder puts between the load and its servers, one per rung.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_model::ladder::SkippedRung;
use plimsoll_model::spec::{RungRoute, RungSecurity, RungSpec};
use plimsoll_stack::certificates::{CertificateOptions, CertificateSet, make_certificates};

use super::routes::{absolute, cannot_write, external_upstream_tls, join_keys, route};
use super::servers::RungServers;
use super::sidecars::ProxyTarget;
use crate::console;
use crate::failure::Failure;
use crate::proxies::process::{ProcessUsage, ProxyProcess, ProxyStartError, free_address};
use crate::proxies::{self, InstalledProxy, ProxyRoute, UpstreamTls};

/// Maximum number of free ports on which a proxy is started, in case another program takes one first.
const MAX_PORT_ATTEMPTS: u32 = 5;
const LOG_FILE: &str = "proxy.log";

/// Requested proxies that are installed on this machine, by name.
pub(super) type AvailableProxies = BTreeMap<&'static str, InstalledProxy>;

/// Removes rungs whose proxy is not installed, or can't carry their protocol.
///
/// # Errors
/// When no rung is left.
pub(super) fn remove_unavailable(
    rungs: &mut Vec<RungSpec>,
) -> Result<(AvailableProxies, Vec<SkippedRung>), Failure> {
    let mut available = AvailableProxies::new();
    let (mut kept, mut skipped) = (Vec::new(), Vec::new());
    for rung in std::mem::take(rungs) {
        match find(&rung, &mut available) {
            Ok(()) => kept.push(rung),
            Err(reason) => skipped.push(SkippedRung {
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

fn find(rung: &RungSpec, available: &mut AvailableProxies) -> Result<(), String> {
    let RungRoute::Proxy(name) = rung.route else {
        return Ok(());
    };
    if !available.contains_key(name) {
        let proxy = proxies::named(name).ok_or_else(|| format!("{name} is not a known proxy"))?;
        available.insert(name, proxy.installed()?);
    }
    let Some(installed) = available.get(name) else {
        return Ok(());
    };
    // The check does not depend on addresses or file names.
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let set = CertificateSet::in_dir(Path::new(""));
    let route = route(rung, (nowhere, nowhere), &set, None, PathBuf::new());
    installed.obstacle(&route).map_or(Ok(()), Err)
}

/// The proxies of all rungs; dropping it stops them.
#[derive(Default)]
pub(super) struct RungProxies {
    by_rung: Vec<Option<RungProxy>>,
}

/// The proxy of one rung.
struct RungProxy {
    rung: String,
    description: String,
    program: ProxyProgram,
    listen: SocketAddr,
    log: PathBuf,
    /// `None` if it could not be restarted.
    running: Option<ProxyProcess>,
    /// Why the rung was dropped.
    drop_reason: Option<String>,
    /// Files with private keys, deleted when the proxy stops.
    keys: Vec<PathBuf>,
}

/// The program of a proxy.
enum ProxyProgram {
    Known(InstalledProxy, Box<ProxyRoute>),
    Custom(Vec<String>),
}

impl ProxyProgram {
    fn start(&self, listen: SocketAddr, log: &Path) -> Result<ProxyProcess, ProxyStartError> {
        let mut command = match self {
            ProxyProgram::Known(installed, route) => installed.command(route),
            ProxyProgram::Custom(words) => {
                let mut words = words.iter();
                let mut command = Command::new(words.next().map_or("", String::as_str));
                command.args(words);
                command
            }
        };
        ProxyProcess::start(&mut command, listen, log)
    }
}

impl Drop for RungProxy {
    fn drop(&mut self) {
        drop(self.running.take());
        for key in &self.keys {
            // Best effort: the folder may already be gone.
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
        servers: &RungServers,
        dir: &Path,
    ) -> Result<RungProxies, Failure> {
        let mut proxied = RungProxies::default();
        let mut own_set = None;
        for (nth, rung) in rungs.iter_mut().enumerate() {
            let hop = match &rung.route {
                RungRoute::Proxy(name) => match available.get(name) {
                    Some(installed) => {
                        let folder = dir.join("proxies").join(format!("{}-{name}", nth + 1));
                        let target = ProxyTarget::of(rung)?;
                        let set = certificates(rung, servers, &mut own_set, dir)?;
                        let upstream = match servers.pid(nth) {
                            None if !rung.is_passed_through()
                                && rung.server_security() != RungSecurity::Off =>
                            {
                                Some(external_upstream_tls(rung, &target, &folder)?)
                            }
                            _ => None,
                        };
                        let ways = (&target, &set, upstream);
                        let hop = start_known(rung, installed.clone(), ways, &folder)?;
                        redirect_to_proxy(rung, &target, &set, servers, hop.listen);
                        Some(hop)
                    }
                    None => None,
                },
                RungRoute::Custom(own) => {
                    let target = ProxyTarget::of(rung)?;
                    let folder = dir.join("proxies").join(format!("{}-own", nth + 1));
                    fs::create_dir_all(&folder).map_err(|e| cannot_write(&folder, &e))?;
                    let program = ProxyProgram::Custom(own.command.clone());
                    let log = folder.join(LOG_FILE);
                    let (listen, described) = (own.listen, own.command.join(" "));
                    let running = program.start(listen, &log);
                    let running = running.map_err(|e| did_not_start(rung, &e, None, &log))?;
                    target.redirect(rung, listen);
                    Some(RungProxy {
                        rung: rung.name.clone(),
                        description: described,
                        program,
                        listen,
                        log,
                        running: Some(running),
                        drop_reason: None,
                        keys: Vec::new(),
                    })
                }
                _ => None,
            };
            proxied.by_rung.push(hop);
        }
        Ok(proxied)
    }

    /// Returns each rung's proxy with its version, or the command that the plan gives for it.
    pub(super) fn described(&self) -> impl Iterator<Item = Option<String>> + '_ {
        let described = |hop: &Option<RungProxy>| Some(hop.as_ref()?.description.clone());
        self.by_rung.iter().map(described)
    }

    /// Returns the resources a rung's proxy has used since its start; `None` without a proxy.
    pub(super) fn used(&self, rung: usize) -> Option<ProcessUsage> {
        let hop = self.by_rung.get(rung)?.as_ref()?;
        hop.running.as_ref()?.used()
    }

    /// Restarts all proxies at their addresses. One that does not restart is marked as down.
    pub(super) fn restart(&mut self) {
        self.report_exits();
        let mut all: Vec<&mut RungProxy> = self.by_rung.iter_mut().flatten().collect();
        all.iter_mut().for_each(|hop| drop(hop.running.take()));
        for hop in all {
            match hop.program.start(hop.listen, &hop.log) {
                Ok(running) => hop.running = Some(running),
                Err(error) => hop.drop_rung(error.to_string()),
            }
        }
    }

    /// Reports proxies that ended by themselves; returns whether any is down.
    pub(super) fn report_exits(&mut self) -> bool {
        let mut is_down = false;
        for hop in self.by_rung.iter_mut().flatten() {
            let death = hop.running.as_mut().map(ProxyProcess::death);
            match death {
                Some(None) => continue,
                Some(Some(how)) if hop.drop_reason.is_none() => {
                    hop.drop_rung(format!("the proxy exited during the measurement ({how})"));
                }
                _ => {}
            }
            is_down = true;
        }
        is_down
    }

    /// Returns whether the rung's proxy is down.
    pub(super) fn is_down(&mut self, rung: usize) -> bool {
        let hop = self.by_rung.get_mut(rung).and_then(Option::as_mut);
        hop.is_some_and(|hop| hop.running.as_mut().is_none_or(|r| r.ended().is_some()))
    }

    /// Returns why a rung was dropped after its measurement had started.
    pub(super) fn exit_reason(&self, rung: usize) -> Option<&str> {
        self.by_rung.get(rung)?.as_ref()?.drop_reason.as_deref()
    }
}

impl RungProxy {
    fn drop_rung(&mut self, why: String) {
        if self.drop_reason.is_some() {
            return;
        }
        let why = format!(
            "{}: {why}; its log is {}",
            self.description,
            self.log.display()
        );
        console::notice(format_args!(
            "{} is skipped, and the other rungs continue: {why}",
            self.rung
        ));
        self.drop_reason = Some(why);
    }
}

fn did_not_start(
    rung: &RungSpec,
    error: &ProxyStartError,
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

/// Returns the certificates with which a proxy stands in for the server of a rung.
fn certificates(
    rung: &RungSpec,
    servers: &RungServers,
    own: &mut Option<CertificateSet>,
    dir: &Path,
) -> Result<CertificateSet, Failure> {
    if let Some(set) = servers.certificates(rung) {
        return Ok(set.clone());
    }
    let folder = dir.join("certs");
    if rung.security == RungSecurity::Off || rung.is_passed_through() {
        return Ok(CertificateSet::in_dir(&folder));
    }
    if let Some(set) = own {
        return Ok(set.clone());
    }
    let made =
        make_certificates(&folder, &CertificateOptions::default()).map_err(Failure::error)?;
    Ok(own.insert(made).clone())
}

/// Starts a built-in proxy type at a free port.
fn start_known(
    rung: &RungSpec,
    installed: InstalledProxy,
    (target, set, upstream): (&ProxyTarget, &CertificateSet, Option<UpstreamTls>),
    folder: &Path,
) -> Result<RungProxy, Failure> {
    let folder = absolute(folder);
    fs::create_dir_all(&folder).map_err(|e| cannot_write(&folder, &e))?;
    let log = folder.join(LOG_FILE);
    let mut tries = 1;
    loop {
        let listen = free_address()
            .map_err(|e| Failure::error(format_args!("ladder.via: no port is free: {e}")))?;
        let ends = (listen, target.address);
        let route = route(rung, ends, set, upstream.clone(), folder.clone());
        let keys = if installed.joins_keys() {
            join_keys(&route)?
        } else {
            Vec::new()
        };
        let file = installed.configuration_file(&route);
        fs::write(&file, installed.configuration(&route)).map_err(|e| cannot_write(&file, &e))?;
        let described = installed.describe();
        let mut hop = RungProxy {
            rung: rung.name.clone(),
            description: described,
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
            // Another program took the port in the meantime.
            Err(_) if tries < MAX_PORT_ATTEMPTS && TcpStream::connect(listen).is_ok() => tries += 1,
            Err(error) => return Err(did_not_start(rung, &error, Some(&file), &log)),
        }
    }
}

/// Redirects a rung to its proxy, which presents the ladder's certificates unless it passes TLS through.
fn redirect_to_proxy(
    rung: &mut RungSpec,
    target: &ProxyTarget,
    set: &CertificateSet,
    servers: &RungServers,
    listen: SocketAddr,
) {
    if rung.security != RungSecurity::Off && !rung.is_passed_through() {
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
