//! The testbed of a ladder: the servers and sidecars that its rungs need, and the figures of a slice that only it knows.

use std::path::Path;

use plimsoll_model::Plan;
use plimsoll_model::ladder::Slice;
use plimsoll_model::plan::Watch;
use plimsoll_model::run::{MANY_CONNECTIONS, Run};
use plimsoll_model::spec::RungSpec;

use super::servers::Servers;
use super::sidecars::{self, Sidecars};
use crate::failure::Failure;

/// Dropped, everything that was started ends.
pub(super) struct Testbed {
    servers: Servers,
    sidecars: Sidecars,
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
    sidecars_cpu_us: Option<u64>,
}

impl Testbed {
    /// Puts the sidecars that the rungs ask for before their targets.
    ///
    /// # Errors
    /// When one does not start.
    pub(super) fn build(
        servers: Servers,
        rungs: &mut [RungSpec],
        dir: &Path,
    ) -> Result<Testbed, Failure> {
        Ok(Testbed {
            servers,
            sidecars: sidecars::start(rungs, &dir.join("sidecars"))?,
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
            sidecars_cpu_us: self.sidecars.cpu_us(rung),
        })
    }

    /// Starts servers and sidecars afresh, where they were; the servers in the order of these rungs.
    ///
    /// # Errors
    /// When one does not start again.
    pub(super) fn renew(&mut self, order: &[u32]) -> Result<(), Failure> {
        self.servers.renew_all(order)?;
        self.sidecars.renew()
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
        if let (Some(before), Some(now)) = (before.sidecars_cpu_us, self.sidecars.cpu_us(rung))
            && calls > 0
        {
            let used = now.saturating_sub(before) as f64;
            slice.sidecar_cpu_us_per_call = Some(used / calls as f64);
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
