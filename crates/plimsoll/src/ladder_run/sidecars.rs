//! Starts the Plimsoll sidecars that a ladder puts between the load and the targets of its rungs (variants).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_engine::{Address, structures::memory_layout};
use plimsoll_model::spec::{
    RungRoute, RungSecurity, RungSpec, WatchSpec, parse_target, set_target_addresses,
};
use plimsoll_protocols::interface::relayed::RelayMode;
use plimsoll_protocols::registry::RELAYED_PROTOCOLS;
use plimsoll_stack::certificates::{CertificateOptions, CertificatePaths, make_certificates};

use crate::failure::Failure;
use crate::proxies::process::ProcessUsage;
use crate::system::child::ServerProcess;

/// The key of a chain of sidecars: the target's address and the rung's route, which determines the number of sidecars.
type ChainKey = (SocketAddr, RungRoute);

/// Sidecars of all rungs; dropping it stops them.
#[derive(Default)]
pub(super) struct SidecarChains {
    /// The sidecars of each chain, in order from the target to the load.
    chains: BTreeMap<ChainKey, Vec<SidecarProcess>>,
    by_rung: Vec<Option<ChainKey>>,
}

/// A running `plimsoll relay sidecar`.
struct SidecarProcess {
    process: ServerProcess,
    address: SocketAddr,
    /// Path of the configuration file.
    file: PathBuf,
    route: String,
}

/// Starts the sidecars that the rungs need, with files and certificates in `dir`, and redirects the rungs to them.
///
/// # Errors
/// When a target has no address, or a sidecar does not start.
pub(super) fn start(rungs: &mut [RungSpec], dir: &Path) -> Result<SidecarChains, Failure> {
    let mut sidecars = SidecarChains::default();
    let mut set = None;
    for rung in rungs {
        if !matches!(rung.route, RungRoute::OneSidecar | RungRoute::TwoSidecars) {
            sidecars.by_rung.push(None);
            continue;
        }
        if rung.route == RungRoute::TwoSidecars && set.is_none() {
            let made = make_certificates(&dir.join("certs"), &CertificateOptions::default());
            set = Some(made.map_err(Failure::error)?);
        }
        let end = ProxyTarget::from_rung(rung)?;
        let way = (end.address, rung.route.clone());
        if !sidecars.chains.contains_key(&way) {
            let started = start_sidecar_chain(
                way.clone(),
                rung,
                set.as_ref(),
                dir,
                sidecars.chains.len() + 1,
            )?;
            sidecars.chains.insert(way.clone(), started);
        }
        if let Some(first) = sidecars.chains.get(&way).and_then(|way| way.last()) {
            end.redirect(rung, first.address);
        }
        sidecars.by_rung.push(Some(way));
    }
    Ok(sidecars)
}

impl SidecarChains {
    /// Restarts all sidecars at their addresses.
    ///
    /// # Errors
    /// When a sidecar does not restart.
    pub(super) fn restart(&mut self) -> Result<(), Failure> {
        let mut all: Vec<&mut SidecarProcess> = self.chains.values_mut().flatten().collect();
        all.iter_mut().for_each(|sidecar| sidecar.process.kill());
        for old in all {
            let (file, route) = (old.file.clone(), old.route.clone());
            *old = start_sidecar(file, route, old.address)?;
        }
        Ok(())
    }

    /// Returns the process ids of a rung's sidecars.
    pub(super) fn pids(&self, rung: usize) -> Vec<u32> {
        let way = self.by_rung.get(rung).and_then(Option::as_ref);
        let all = way
            .and_then(|way| self.chains.get(way))
            .into_iter()
            .flatten();
        all.map(|sidecar| sidecar.process.0.id()).collect()
    }

    /// Returns the resources that a rung's sidecars have used so far; `None` if the rung has no sidecars.
    pub(super) fn resource_usage(&self, rung: usize) -> Option<ProcessUsage> {
        let way = self.by_rung.get(rung)?.as_ref()?;
        let all = self.chains.get(way)?.iter();
        let used = all.map(|sidecar| ProcessUsage::from_process_tree(sidecar.process.0.id()));
        used.reduce(|a, b| Some(a?.plus(b?)))?
    }
}

/// Starts the sidecars of chain `n` in order from the target to the load, because each sidecar needs the address of the
/// next.
fn start_sidecar_chain(
    (end, via): ChainKey,
    rung: &RungSpec,
    set: Option<&CertificatePaths>,
    dir: &Path,
    n: usize,
) -> Result<Vec<SidecarProcess>, Failure> {
    // End-to-end TLS is opaque to a sidecar, so it is relayed as raw TCP.
    let framed = RELAYED_PROTOCOLS.iter().find(|relayed| {
        matches!(relayed.mode, RelayMode::Frames { has_file, .. } if !has_file)
            && rung.spec.call.sections.contains_key(relayed.name)
            && rung.security == RungSecurity::Off
    });
    let protocol = framed.map_or("tcp", |relayed| relayed.name);
    let file = |end: &str| dir.join(format!("proxy-chain-{n}{end}.toml"));
    let route = |upstream: SocketAddr, tls: &str| {
        format!("protocol = \"{protocol}\"\nupstream = [\"{upstream}\"]\n{tls}")
    };
    match (via, set) {
        (RungRoute::OneSidecar, _) => Ok(vec![start_sidecar(
            file(""),
            route(end, ""),
            FREE_LOOPBACK_PORT,
        )?]),
        (RungRoute::TwoSidecars, Some(set)) => {
            let files = |cert: &Path, key: &Path| {
                let [ca, cert, key] = [&set.ca_cert, cert, key].map(toml_path);
                format!("ca = {ca}, cert = {cert}, key = {key}")
            };
            let listen = files(&set.server_cert, &set.server_key);
            let far = route(end, &format!("listen_tls = {{ {listen} }}\n"));
            let far = start_sidecar(file("-far"), far, FREE_LOOPBACK_PORT)?;
            let upstream = files(&set.client_cert, &set.client_key);
            let tls = format!("upstream_tls = {{ {upstream}, server_name = \"localhost\" }}\n");
            let near = start_sidecar(file("-near"), route(far.address, &tls), FREE_LOOPBACK_PORT)?;
            Ok(vec![far, near])
        }
        _ => Ok(Vec::new()),
    }
}

/// Loopback address with port 0: the system chooses a free port.
const FREE_LOOPBACK_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Starts a sidecar with one route, which listens on `at`.
fn start_sidecar(file: PathBuf, route: String, at: SocketAddr) -> Result<SidecarProcess, Failure> {
    let shown = file.display().to_string();
    let wrong = |what: &str, e: std::io::Error| {
        Failure::error(format_args!("ladder.via: {what} {shown}: {e}"))
    };
    let name = file.file_stem().unwrap_or_default().display();
    let text = format!("[[route]]\nname = \"{name}\"\nlisten = \"{at}\"\n{route}");
    std::fs::create_dir_all(file.parent().unwrap_or(Path::new("")))
        .and_then(|()| std::fs::write(&file, text))
        .map_err(|e| wrong("can't write", e))?;
    let program = std::env::current_exe().map_err(|e| wrong("can't find this program for", e))?;
    let mut command = Command::new(program);
    command.args(["relay", "sidecar"]).arg(&file);
    let started = ServerProcess::start(&mut command, |c| {
        memory_layout::run_with_fixed_layout(|| c.spawn())
    });
    let (process, line) = started.map_err(|e| wrong("can't start a sidecar of", e))?;
    let address = line.split("listening on ").nth(1);
    let address = address.and_then(|address| address.trim().parse().ok());
    Ok(SidecarProcess {
        process,
        address: address.ok_or_else(|| {
            Failure::error(format_args!(
                "ladder.via: the sidecar of {shown} did not start; its message is above"
            ))
        })?,
        file,
        route,
    })
}

/// The server behind a rung's proxy or sidecars.
pub(super) struct ProxyTarget {
    pub(super) address: SocketAddr,
    pub(super) host: String,
}

impl ProxyTarget {
    /// Resolves the rung's target.
    ///
    /// # Errors
    /// When the target has no TCP address.
    pub(super) fn from_rung(rung: &RungSpec) -> Result<ProxyTarget, Failure> {
        let url = rung.spec.target.as_deref().unwrap_or_default();
        let wrong = |why: String| {
            Failure::usage(
                format_args!("ladder.via: the target {url:?} can't be put behind a proxy: {why}"),
                "give a target that resolves, or let the ladder start its own server: serve = [\"score\"]",
            )
        };
        let (mut target, _) = parse_target(url).map_err(wrong)?;
        let given = rung.spec.load.resolve.as_deref().unwrap_or_default();
        set_target_addresses(given, &mut [&mut target]).map_err(|(_, problem)| wrong(problem))?;
        // A proxy has a single upstream address, so use the first address that the name resolves to.
        let address = plimsoll_engine::resolve(&target)
            .map_err(|e| wrong(e.to_string()))?
            .iter()
            .find_map(Address::tcp_address)
            .ok_or_else(|| {
                wrong("it is a Unix socket, which has no port: give HOST:PORT".to_owned())
            })?;
        Ok(ProxyTarget {
            address,
            host: target.host,
        })
    }

    /// Redirects `rung` to the proxy at `address`; the certificate name and the watched process are still the target's.
    pub(super) fn redirect(&self, rung: &mut RungSpec, address: SocketAddr) {
        if let Some(tls) = &mut rung.spec.tls {
            tls.server_name.get_or_insert_with(|| self.host.clone());
        }
        let watch = rung.spec.watch.get_or_insert_with(WatchSpec::default);
        if !watch.selects_process() {
            let local = self.address.ip().is_loopback();
            watch.port = local.then_some(self.address.port());
            watch.off = (!local).then_some(true);
        }
        rung.spec.load.resolve = None;
        if let Some(url) = &mut rung.spec.target
            && let Some((scheme, rest)) = url.split_once("://")
        {
            let path = rest.find('/').map_or("", |at| &rest[at..]);
            *url = format!("{scheme}://{address}{path}");
        }
    }
}

/// Returns the absolute path as a TOML string.
fn toml_path(path: &Path) -> String {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let text = whole.display().to_string();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
