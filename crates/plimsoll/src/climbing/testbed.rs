//! The testbed of a ladder: the servers, sidecars and proxies that its rungs need, and the figures of a slice that only it knows.

use std::path::Path;

use plimsoll_model::Plan;
use plimsoll_model::ladder::Slice;
use plimsoll_model::plan::Watch;
use plimsoll_model::run::{MANY_CONNECTIONS, Run};
use plimsoll_model::spec::RungSpec;

use super::proxied::{Available, Proxied};
use super::servers::Servers;
use super::sidecars::{self, Sidecars};
use crate::failure::Failure;
use crate::proxies::process::Used;

/// Dropped, everything that was started ends.
pub(super) struct Testbed {
    servers: Servers,
    sidecars: Sidecars,
    proxied: Proxied,
}

/// Which rungs are up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Company {
    /// One, so that its server can be started afresh.
    Alone,
    All,
}

/// What was there before a slice.
pub(super) struct Before {
    /// The server's memory, where it was started for this slice.
    server_rss: Option<u64>,
    /// What sidecars or a proxy had used.
    on_the_way: Option<Used>,
}

impl Testbed {
    /// Puts the sidecars and proxies that the rungs ask for before their targets.
    ///
    /// # Errors
    /// When one does not start.
    pub(super) fn build(
        servers: Servers,
        rungs: &mut [RungSpec],
        available: &Available,
        dir: &Path,
    ) -> Result<Testbed, Failure> {
        let sidecars = sidecars::start(rungs, &dir.join("sidecars"))?;
        let proxied = Proxied::start(rungs, available, &servers, dir)?;
        Ok(Testbed {
            servers,
            sidecars,
            proxied,
        })
    }

    /// Makes ready for a slice of `rung`, whose plan may have to watch another process.
    ///
    /// # Errors
    /// When the server does not start again.
    pub(super) fn before(
        &mut self,
        rung: usize,
        plan: &mut Plan,
        company: Company,
    ) -> Result<Before, Failure> {
        let is_many = plan.load.connections >= MANY_CONNECTIONS;
        let fresh = match company {
            Company::Alone if is_many => self.servers.renew(rung)?,
            _ => None,
        };
        if let Some(pid) = self.servers.pid(rung) {
            plan.watch = Watch::Pid(pid);
        }
        Ok(Before {
            server_rss: fresh.map(|(_, rss)| rss),
            on_the_way: self.used_on_the_way(rung),
        })
    }

    /// Starts servers, sidecars and proxies afresh, where they were; the servers in the order of these rungs. A proxy
    /// that does not start again is down.
    ///
    /// # Errors
    /// When a server or sidecar does not start again.
    pub(super) fn renew(&mut self, order: &[u32]) -> Result<(), Failure> {
        self.servers.renew_all(order)?;
        self.sidecars.renew()?;
        self.proxied.renew();
        Ok(())
    }

    /// What sidecars or a proxy of a rung have used so far; `None` where it has none.
    fn used_on_the_way(&self, rung: usize) -> Option<Used> {
        self.sidecars.used(rung).or_else(|| self.proxied.used(rung))
    }

    /// The proxies that rungs pass, each with its version.
    pub(super) fn proxies(&self) -> impl Iterator<Item = Option<String>> + '_ {
        self.proxied.described()
    }

    /// The proxies of rungs, which may have ended by themselves.
    pub(super) fn proxied(&mut self) -> &mut Proxied {
        &mut self.proxied
    }

    /// The ladder has started every rung's server, so that no call of another rung reaches it unseen, as one
    /// through a proxy would.
    pub(super) fn serves_all(&self, rungs: usize) -> bool {
        (0..rungs).all(|rung| self.servers.pid(rung).is_some())
    }

    /// Adds to the figures of a slice what `run` lacks.
    pub(super) fn after(&self, rung: usize, before: &Before, run: &Run, slice: &mut Slice) {
        let check = &run.summary.count_check;
        let calls = check.ok + check.errors + check.cut_off;
        if let (Some(before), Some(now)) = (before.on_the_way, self.used_on_the_way(rung))
            && calls > 0
        {
            let used = now.cpu_us.saturating_sub(before.cpu_us) as f64;
            slice.sidecar_cpu_us_per_call = Some(used / calls as f64);
            slice.proxy_rss_bytes_max = Some(now.rss_bytes_max);
        }
        let total = &run.summary.total;
        let open = total.connections_open_max;
        if let (Some(before), Some(server)) = (before.server_rss, total.server)
            && open >= u64::from(MANY_CONNECTIONS)
        {
            let grown = server.rss_bytes_max.saturating_sub(before) as f64;
            slice.server_bytes_per_connection = Some(grown / open as f64);
        }
    }
}
