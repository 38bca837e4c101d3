//! The limits of this machine, checked before a stack is started.

use std::fs;
use std::net::{SocketAddr, TcpListener};

use plimsoll_engine::transport::descriptors::descriptor_limit;

use super::StackTopology;
use super::balancer::max_client_connections;

/// Number of descriptors that a process needs in addition to those of its clients.
const RESERVED_DESCRIPTORS: u64 = 500;
const MAX_BALANCERS: u16 = 16;

/// The limits of a machine that matter to a stack.
#[derive(Clone, Copy, Debug)]
pub struct StackLimits {
    /// Maximum number of descriptors of a process (`ulimit -n`).
    pub descriptors: u64,
    /// The number of local ports for connections to one address.
    pub ports: u64,
}

impl StackLimits {
    /// Reads the limits of this machine.
    pub fn for_this_machine() -> StackLimits {
        let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let range = range.unwrap_or_default();
        let mut bounds = range.split_whitespace().map(str::parse::<u64>);
        let ports = match (bounds.next(), bounds.next()) {
            (Some(Ok(first)), Some(Ok(last))) if first <= last => last - first + 1,
            _ => u64::MAX,
        };
        StackLimits {
            descriptors: descriptor_limit(),
            ports,
        }
    }

    /// Returns how many balancers on the same ports are needed for `sessions` sessions.
    pub fn required_balancer_count(&self, sessions: u32) -> u16 {
        let fits = |n: &u16| descriptors_per_balancer(sessions, *n) <= self.descriptors;
        (1..=MAX_BALANCERS).find(fits).unwrap_or(MAX_BALANCERS)
    }

    /// Returns the limits that are too low for a stack of this topology, each with advice.
    pub fn problems(&self, topology: &StackTopology) -> Vec<String> {
        let sessions = u64::from(topology.sessions);
        let mut problems = Vec::new();
        // Sessions are distributed to gateways by a hash, which is never quite even.
        let needs = if topology.embedded {
            vec![("the server", 2 * sessions + RESERVED_DESCRIPTORS)]
        } else {
            let gateways = u64::from(topology.gateways.max(1));
            vec![
                (
                    "a balancer",
                    descriptors_per_balancer(topology.sessions, topology.balancers),
                ),
                (
                    "a gateway",
                    sessions * 3 / (2 * gateways) + RESERVED_DESCRIPTORS,
                ),
            ]
        };
        for (whose, needed) in needs {
            if needed > self.descriptors {
                problems.push(format!(
                    "{sessions} sessions need {needed} descriptors in {whose}, and processes may have {}: \
                     raise `ulimit -n`, or ask for fewer with --sessions",
                    self.descriptors
                ));
            }
        }
        if sessions > self.ports {
            problems.push(format!(
                "{sessions} sessions on one client address need as many ports, and there are {}: widen \
                 net.ipv4.ip_local_port_range, give the load more source addresses, or ask for fewer \
                 with --sessions",
                self.ports
            ));
        }
        problems
    }
}

/// Returns the number of descriptors that each balancer needs: two per client connection, and the reserved ones.
fn descriptors_per_balancer(sessions: u32, balancers: u16) -> u64 {
    2 * max_client_connections(sessions, balancers) + RESERVED_DESCRIPTORS
}

/// Returns the first of `addresses` that is already in use.
pub(super) fn find_address_in_use<'a>(
    addresses: impl IntoIterator<Item = (&'a str, SocketAddr)>,
) -> Option<(&'a str, SocketAddr)> {
    // Ports are bound in the same way as by the servers, so that old connections in TIME_WAIT do not matter.
    let free = |address: SocketAddr| TcpListener::bind(address).is_ok();
    addresses.into_iter().find(|(_, address)| !free(*address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceeded_limits_suggest_remedy() {
        let topology = |sessions, embedded| StackTopology {
            sessions,
            embedded,
            balancers: 1,
            ..StackTopology::default()
        };
        let limits = StackLimits {
            descriptors: 20_000,
            ports: 28_232,
        };
        assert_eq!(limits.problems(&topology(4_000, false)).len(), 0);
        let problems = limits.problems(&topology(10_000, false));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].contains("40900 descriptors in a balancer")
                && problems[0].contains("20000")
        );
        assert_eq!(
            [100, 4_000, 5_000, 10_000].map(|n| limits.required_balancer_count(n)),
            [1, 1, 2, 3]
        );
        let several = StackTopology {
            balancers: 3,
            ..topology(10_000, false)
        };
        assert_eq!(limits.problems(&several).len(), 0);
        assert_eq!(limits.problems(&topology(9_000, true)).len(), 0);
        let problems = limits.problems(&topology(50_000, false));
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[1].contains("in a gateway") && problems[2].contains("ports"));
    }

    #[test]
    fn occupied_port_is_detected() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(
            find_address_in_use([("redis", address)]),
            Some(("redis", address))
        );
        drop(listener);
        assert_eq!(find_address_in_use([("redis", address)]), None);
    }
}
