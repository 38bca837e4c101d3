//! Splits one load over several processes on this machine.
//!
//! The number of file descriptors of a process and the number of ports of an address are limited, so large loads are
//! split. [`ProcessLayout`] decides how. [`run`] starts the processes, which run this program with the command
//! [`crate::commands::shard`], and merges their results as if they came from one process. [`wire`] defines the messages
//! between the processes. This module does not depend on the protocol of the load.

pub(crate) mod aggregation;
mod server_memory;
mod supervisor;
pub(crate) mod wire;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::thread;

use plimsoll_engine::Address;
use plimsoll_engine::transport::descriptors::descriptor_limit;
use plimsoll_model::Plan;
use plimsoll_model::plan::Shard;

use crate::failure::Failure;
use crate::load::protocols::{self, LoadRequirements};
use plimsoll_report::quantity::count as thousands;

pub(crate) use supervisor::run;

/// Maximum number of processes; more would compete for the same cores.
const MAX_PROCESSES: u64 = 256;

/// How a load is divided among processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessLayout {
    pub(crate) processes: u32,
    /// Number of worker threads of each process; `None` lets the process decide.
    pub(crate) workers: Option<u16>,
    /// Local addresses to connect from; if empty, the operating system chooses.
    pub(crate) sources: Vec<IpAddr>,
    /// Notes on how the layout was chosen, for the report.
    pub(crate) notes: Vec<String>,
}

/// A load that several processes run.
pub(crate) struct MultiprocessLoad<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) layout: &'a ProcessLayout,
    /// The plan file, which contains no secrets.
    pub(crate) plan_file: &'a Path,
}

/// Resource limits of this machine.
#[derive(Clone, Copy, Debug)]
struct MachineLimits {
    /// Maximum number of connections of one process, from its limit of file descriptors.
    connections: u64,
    /// Maximum number of file descriptors of one process.
    descriptors: u64,
    /// Number of ephemeral ports for connections from one address to one server.
    ports: u64,
    cores: u32,
    /// Number that differs from run to run. It selects different loopback addresses for each run, because a port can't
    /// be reused for a minute after its connection was closed (TIME_WAIT).
    run_number: u32,
}

impl MachineLimits {
    fn detect() -> MachineLimits {
        MachineLimits {
            connections: plimsoll_engine::max_connections(),
            descriptors: descriptor_limit(),
            ports: ephemeral_port_count(),
            cores: thread::available_parallelism().map_or(1, |n| n.get() as u32),
            run_number: std::process::id(),
        }
    }
}

impl ProcessLayout {
    /// Returns the layout of a load that runs on other machines, and so has no processes here.
    pub(crate) fn external() -> ProcessLayout {
        ProcessLayout {
            processes: 1,
            ..ProcessLayout::default()
        }
    }

    /// Chooses the layout of `shard`'s share of `plan` on this machine.
    ///
    /// # Errors
    /// When this machine can't generate the load, or can't do so with the requested processes or addresses.
    pub(crate) fn choose(plan: &Plan, shard: Shard) -> Result<ProcessLayout, Failure> {
        let resolve = || {
            let addresses = plimsoll_engine::resolve(&plan.target);
            let addresses = addresses.map_err(|e| protocols::start_failure(e, plan))?;
            let mut hosts = addresses.iter().filter_map(Address::ip);
            let first = hosts.next();
            // Prefer IPv4: its loopback network, 127.0.0.0/8, has many source addresses.
            let first = hosts.find(IpAddr::is_ipv4).or(first);
            Ok(first.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
        };
        let needs = LoadRequirements::from_plan(plan).for_shard(shard);
        choose_for_limits(plan, needs, MachineLimits::detect(), resolve)
    }

    /// Returns the plan with this layout's source addresses.
    pub(crate) fn apply_to(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        plan.load.source_addresses.clone_from(&self.sources);
        plan
    }
}

/// Chooses the layout for these requirements and limits. `target` resolves the target's address; it is called only if
/// the layout depends on the address.
fn choose_for_limits(
    plan: &Plan,
    needs: LoadRequirements,
    limits: MachineLimits,
    target: impl Fn() -> Result<IpAddr, Failure>,
) -> Result<ProcessLayout, Failure> {
    if needs.max_parts == 0 {
        return Err(Failure::usage(
            "--shards: more shards than the load has connections, or clients of a closed loop",
            "use fewer shards, or more connections (--connections) or clients (--clients)",
        ));
    }
    let mut notes = Vec::new();
    let needed = needs.connections.div_ceil(limits.connections.max(1)).max(1);
    let holds = |processes: u64| thousands(processes.saturating_mul(limits.connections));
    let processes = match plan.load.processes.map(u64::from) {
        Some(asked) if asked < needed => {
            return Err(Failure::usage(
                format_args!(
                    "load.processes (--processes): with {asked}, at most {} connections are possible (ulimit -n), but the load has {}",
                    holds(asked),
                    thousands(needs.connections),
                ),
                &format!("use {needed} or more, or leave it out to derive it from the limit"),
            ));
        }
        Some(asked) => asked,
        None if limits.connections == 0 && needs.connections > 0 => {
            return Err(Failure::error_with_help(
                format_args!(
                    "a process can't open even one of {} connections: it may have {} descriptors (ulimit -n), and needs all of them for itself",
                    thousands(needs.connections),
                    thousands(limits.descriptors),
                ),
                "raise the limit of open files, for example with `ulimit -n 4096`",
            ));
        }
        None if needed > MAX_PROCESSES => {
            return Err(Failure::error_with_help(
                format_args!(
                    "{} connections need {} processes, as each may have {} (ulimit -n)",
                    thousands(needs.connections),
                    thousands(needed),
                    thousands(limits.connections),
                ),
                "raise the limit of open files, or use fewer connections",
            ));
        }
        None => {
            if needed > 1 {
                notes.push(format!(
                    "the load comes from {needed} processes: it has {} connections, and a process may have {} (ulimit -n)",
                    thousands(needs.connections),
                    thousands(limits.connections),
                ));
            }
            needed
        }
    };
    if processes > u64::from(needs.max_parts) {
        return Err(Failure::usage(
            format_args!(
                "load.processes (--processes): {processes} processes for a load that has only {}",
                match needs.max_parts {
                    1 => "one connection or client".to_owned(),
                    n => format!("{} connections or clients", thousands(u64::from(n))),
                }
            ),
            "every process needs a connection, and in a closed loop a client, of its own: use fewer processes, or more connections or clients",
        ));
    }
    let workers = match (plan.load.workers, processes) {
        (_, 1) => plan.load.workers,
        (Some(workers), _) => Some(workers),
        // Leave half of the cores to the target, as a load in a single process does.
        (None, n) => {
            let each = u64::from(limits.cores / 2) / n;
            Some(u16::try_from(each).unwrap_or(u16::MAX).max(1))
        }
    };
    let sources = source_addresses(plan, needs, limits, target, &mut notes)?;
    Ok(ProcessLayout {
        processes: processes as u32,
        workers,
        sources,
        notes,
    })
}

/// Returns enough source addresses for every connection to get a port; empty if the default address is enough.
fn source_addresses(
    plan: &Plan,
    needs: LoadRequirements,
    limits: MachineLimits,
    target: impl Fn() -> Result<IpAddr, Failure>,
    notes: &mut Vec<String>,
) -> Result<Vec<IpAddr>, Failure> {
    let given = &plan.load.source_addresses;
    let (wanted, ports) = (needs.connections, limits.ports.max(1));
    if !given.is_empty() {
        let room = ports * given.len() as u64;
        if wanted > room {
            let available = match given.len() {
                1 => "1 address has".to_owned(),
                many => format!("{many} addresses have"),
            };
            return Err(Failure::error_with_help(
                format_args!(
                    "load.source_addresses (--source): {} connections need more ports than {available} ({} each to one server)",
                    thousands(wanted),
                    thousands(ports),
                ),
                &format!("give {} addresses or more", wanted.div_ceil(ports)),
            ));
        }
        return Ok(given.clone());
    }
    // Connections to Unix sockets need no ports.
    if plan.target.socket.is_some() {
        return Ok(Vec::new());
    }
    // The kernel's search for a free port gets slow when nearly all ports of an address are in use.
    if wanted <= ports * 3 / 4 {
        return Ok(Vec::new());
    }
    let target = target()?;
    if let IpAddr::V4(address) = target
        && address.is_loopback()
    {
        // Use only half of each address's ports, so that the kernel finds free ports quickly.
        let n = wanted.div_ceil((ports / 2).max(1)) as u32;
        let first = first_source_address(limits.run_number, n);
        let last = Ipv4Addr::from(u32::from(first) + n - 1);
        notes.push(format!(
            "connections come from {first} to {last}: one address has {} ports to one server",
            thousands(ports),
        ));
        return Ok((u32::from(first)..=u32::from(last))
            .map(|n| IpAddr::V4(Ipv4Addr::from(n)))
            .collect());
    }
    if wanted <= ports {
        return Ok(Vec::new());
    }
    let help = if target.is_loopback() {
        "name the target 127.0.0.1: its network has more addresses to connect from"
    } else {
        "give more addresses of this machine to connect from: --source (load.source_addresses)"
    };
    Err(Failure::error_with_help(
        format_args!(
            "{} connections to one server, but one address has only {} ports (net.ipv4.ip_local_port_range)",
            thousands(wanted),
            thousands(ports),
        ),
        help,
    ))
}

/// Returns the first of `n` consecutive addresses in 127.0.0.0/8. The run number selects the block that contains them.
/// Servers do not usually listen on these addresses.
fn first_source_address(number: u32, n: u32) -> Ipv4Addr {
    const FIRST_LOOPBACK_ADDRESS: u32 = 0x7f10_0000;
    const ADDRESS_BLOCK_SIZE: u32 = 256;
    let blocks =
        (0x7ff0_0000 - FIRST_LOOPBACK_ADDRESS) / ADDRESS_BLOCK_SIZE - n / ADDRESS_BLOCK_SIZE - 1;
    Ipv4Addr::from(FIRST_LOOPBACK_ADDRESS + number % blocks * ADDRESS_BLOCK_SIZE + 1)
}

/// Returns the size of the ephemeral port range.
fn ephemeral_port_count() -> u64 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let bounds: Vec<u64> = range
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    match bounds[..] {
        [first, last] if last > first => last - first + 1,
        // Assume the default range of Linux, 32768 to 60999.
        _ => 28_232,
    }
}

#[cfg(test)]
mod tests;
