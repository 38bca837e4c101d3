//! The testbed of a ladder: the servers, sidecars and proxies of its rungs (variants). It also adds their resource
//! usage to the results of slices (short runs of one rung).

use std::path::Path;

use plimsoll_model::Plan;
use plimsoll_model::comparisons::ladder::SliceResult;
use plimsoll_model::plan::WatchedProcess;
use plimsoll_model::runs::run::{MIN_CONNECTIONS_FOR_MEMORY, Run};
use plimsoll_model::spec::RungSpec;

use super::rung_proxies::{AvailableProxies, RungProxies};
use super::servers::RungServers;
use super::sidecars::{self, SidecarChains};
use crate::failure::Failure;
use crate::proxies::process::ProcessUsage;

/// All processes that a ladder has started; dropping it stops them.
pub(super) struct Testbed<'a> {
    servers: RungServers<'a>,
    sidecars: SidecarChains,
    proxies: RungProxies,
}

/// Which servers are running during a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServersInUse {
    /// Only the server of the measured rung is in use, so it may be restarted.
    OnlyThis,
    All,
}

/// Resource usage before a slice, which is subtracted from the usage after it.
pub(super) struct UsageBaseline {
    /// Resident memory of the server, bytes; `None` if the server was not restarted for this slice.
    server_rss: Option<u64>,
    /// Resources that the rung's sidecars or proxies had used before the slice.
    proxy_usage: Option<ProcessUsage>,
}

impl<'a> Testbed<'a> {
    /// Starts the sidecars and proxies of the rungs in front of their targets.
    ///
    /// # Errors
    /// When a sidecar or proxy does not start.
    pub(super) fn build(
        servers: RungServers<'a>,
        rungs: &mut [RungSpec],
        available: &AvailableProxies,
        dir: &Path,
    ) -> Result<Testbed<'a>, Failure> {
        let sidecars = sidecars::start(rungs, &dir.join("sidecars"))?;
        let proxied = RungProxies::start(rungs, available, &servers, dir)?;
        Ok(Testbed {
            servers,
            sidecars,
            proxies: proxied,
        })
    }

    /// Prepares a slice of `rung`: restarts its server if the slice measures memory, and sets the server's process as
    /// the plan's watched process.
    ///
    /// # Errors
    /// When the server does not restart.
    pub(super) fn prepare_slice(
        &mut self,
        rung: usize,
        plan: &mut Plan,
        company: ServersInUse,
    ) -> Result<UsageBaseline, Failure> {
        let is_many = plan.load.connections >= MIN_CONNECTIONS_FOR_MEMORY;
        let fresh = match company {
            ServersInUse::OnlyThis if is_many => self.servers.restart(rung)?,
            _ => None,
        };
        match self.servers.pid(rung) {
            Some(pid) => plan.watch = WatchedProcess::Pid(pid),
            None if self.servers.are_user_services() => plan.watch = WatchedProcess::Nothing,
            None => {}
        }
        if let Some(profile) = &mut plan.profile {
            profile.proxy_pids = [self.sidecars.pids(rung), self.proxies.pids(rung)].concat();
        }
        Ok(UsageBaseline {
            server_rss: fresh.map(|(_, rss)| rss),
            proxy_usage: self.proxy_usage(rung),
        })
    }

    /// Restarts servers, in the given order of rungs, and sidecars and proxies at their addresses. A proxy that does
    /// not restart is marked as down.
    ///
    /// # Errors
    /// When a server or sidecar does not restart.
    pub(super) fn restart_all(&mut self, order: &[u32]) -> Result<(), Failure> {
        self.servers.restart_all(order)?;
        self.sidecars.restart()?;
        self.proxies.restart();
        Ok(())
    }

    /// Returns the resources that a rung's sidecars or proxies have used so far; `None` if the rung has none.
    fn proxy_usage(&self, rung: usize) -> Option<ProcessUsage> {
        self.sidecars
            .resource_usage(rung)
            .or_else(|| self.proxies.resource_usage(rung))
    }

    /// Returns the proxies with their versions, by rung.
    pub(super) fn proxy_descriptions(&self) -> impl Iterator<Item = Option<String>> + '_ {
        self.proxies.proxy_descriptions()
    }

    /// Returns the proxies, so that callers can check which of them have exited or are down.
    pub(super) fn proxies_mut(&mut self) -> &mut RungProxies {
        &mut self.proxies
    }

    /// Returns whether the rungs' servers are the user's own services.
    pub(super) fn compares_services(&self) -> bool {
        self.servers.are_user_services()
    }

    /// Returns whether the ladder started the servers of all `rungs` rungs. If so, calls can't reach another rung's
    /// server, as they could behind a shared proxy.
    pub(super) fn starts_all_servers(&self, rungs: usize) -> bool {
        (0..rungs).all(|rung| self.servers.pid(rung).is_some())
    }

    /// Adds to a slice's result the figures that its run does not contain: CPU and memory of proxies, and server memory
    /// per connection.
    pub(super) fn add_server_and_proxy_usage(
        &self,
        rung: usize,
        before: &UsageBaseline,
        run: &Run,
        slice: &mut SliceResult,
    ) {
        let check = &run.summary.count_check;
        let calls = check.ok + check.errors + check.cut_off;
        if let (Some(before), Some(now)) = (before.proxy_usage, self.proxy_usage(rung))
            && calls > 0
        {
            let used = now.cpu_us.saturating_sub(before.cpu_us) as f64;
            slice.sidecar_cpu_us_per_call = Some(used / calls as f64);
            slice.memory.proxy_rss_bytes_max = Some(now.rss_bytes_max);
        }
        let total = &run.summary.total;
        let open = total.connections_open_max;
        if self.servers.are_user_services() {
            slice.memory.server_rss_bytes_max = total.server.map(|server| server.rss_bytes_max);
        }
        if let (Some(before), Some(server)) = (before.server_rss, total.server)
            && open >= u64::from(MIN_CONNECTIONS_FOR_MEMORY)
        {
            let grown = server.rss_bytes_max.saturating_sub(before) as f64;
            slice.memory.server_bytes_per_connection = Some(grown / open as f64);
        }
    }
}
