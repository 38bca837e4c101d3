//! The testbed of a ladder: servers, sidecars and proxies of its rungs, and the figures of a slice that only it can
//! read.

use std::path::Path;

use plimsoll_model::Plan;
use plimsoll_model::ladder::SliceResult;
use plimsoll_model::plan::WatchedProcess;
use plimsoll_model::run::{MANY_CONNECTIONS, Run};
use plimsoll_model::spec::RungSpec;

use super::proxied::{AvailableProxies, RungProxies};
use super::servers::RungServers;
use super::sidecars::{self, SidecarChains};
use crate::failure::Failure;
use crate::proxies::process::ProcessUsage;

/// Everything a ladder has started; dropping it stops all of it.
pub(super) struct Testbed<'a> {
    servers: RungServers<'a>,
    sidecars: SidecarChains,
    proxies: RungProxies,
}

/// Which rungs' servers are running.
#[derive(Clone, Copy, Debug)]
pub(super) enum ServersUp {
    /// Only the server of the measured rung, which may therefore be restarted.
    OnlyThis,
    All,
}

/// Resource usage before a slice, to be subtracted afterwards.
pub(super) struct UsageBaseline {
    /// Resident memory of the server in bytes, if it was restarted for this slice.
    server_rss: Option<u64>,
    /// Resources that the rung's sidecars or proxy had used.
    proxy_usage: Option<ProcessUsage>,
}

impl<'a> Testbed<'a> {
    /// Starts the sidecars and proxies of the rungs in front of their targets.
    ///
    /// # Errors
    /// When one does not start.
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

    /// Prepares a slice of `rung`: restarts its server if memory is measured, and points the plan's watch at its
    /// process.
    ///
    /// # Errors
    /// When the server does not restart.
    pub(super) fn prepare_slice(
        &mut self,
        rung: usize,
        plan: &mut Plan,
        company: ServersUp,
    ) -> Result<UsageBaseline, Failure> {
        let is_many = plan.load.connections >= MANY_CONNECTIONS;
        let fresh = match company {
            ServersUp::OnlyThis if is_many => self.servers.restart(rung)?,
            _ => None,
        };
        match self.servers.pid(rung) {
            Some(pid) => plan.watch = WatchedProcess::Pid(pid),
            None if self.servers.are_services() => plan.watch = WatchedProcess::Nothing,
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

    /// Restarts servers (in this order of rungs), sidecars and proxies at their addresses. A proxy that does not
    /// restart is marked as down.
    ///
    /// # Errors
    /// When a server or sidecar does not restart.
    pub(super) fn restart_all(&mut self, order: &[u32]) -> Result<(), Failure> {
        self.servers.restart_all(order)?;
        self.sidecars.restart()?;
        self.proxies.restart();
        Ok(())
    }

    /// Returns what a rung's sidecars or proxy have used so far; `None` if it has none.
    fn proxy_usage(&self, rung: usize) -> Option<ProcessUsage> {
        self.sidecars.used(rung).or_else(|| self.proxies.used(rung))
    }

    /// Returns the proxies of the rungs with their versions, by rung.
    pub(super) fn proxy_descriptions(&self) -> impl Iterator<Item = Option<String>> + '_ {
        self.proxies.described()
    }

    /// Returns the proxies, so that callers can check which of them have exited or are down.
    pub(super) fn proxies_mut(&mut self) -> &mut RungProxies {
        &mut self.proxies
    }

    /// Returns whether the rungs are services of the user's own.
    pub(super) fn compares_services(&self) -> bool {
        self.servers.are_services()
    }

    /// Returns whether the ladder started the server of every rung. Then no call of a rung can reach the server of
    /// another, as it could behind a shared proxy.
    pub(super) fn serves_all(&self, rungs: usize) -> bool {
        (0..rungs).all(|rung| self.servers.pid(rung).is_some())
    }

    /// Adds the figures that `run` lacks to a slice: proxy CPU and memory, and server memory per connection.
    pub(super) fn complete_slice(
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
            slice.proxy_rss_bytes_max = Some(now.rss_bytes_max);
        }
        let total = &run.summary.total;
        let open = total.connections_open_max;
        if self.servers.are_services() {
            slice.server_rss_bytes_max = total.server.map(|server| server.rss_bytes_max);
        }
        if let (Some(before), Some(server)) = (before.server_rss, total.server)
            && open >= u64::from(MANY_CONNECTIONS)
        {
            let grown = server.rss_bytes_max.saturating_sub(before) as f64;
            slice.server_bytes_per_connection = Some(grown / open as f64);
        }
    }
}
