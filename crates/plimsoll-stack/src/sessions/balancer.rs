//! The configuration of the balancer: one template for stacks on this machine and for stacks in containers.

const CONFIG_TEMPLATE: &str = include_str!("haproxy.cfg");

/// The settings of a balancer. Addresses are in haproxy's format: HOST:PORT, or *:PORT.
#[derive(Clone, Debug)]
pub struct BalancerConfig {
    /// Maximum number of concurrent client connections.
    pub connections: u64,
    /// The address at which the balancer accepts API requests.
    pub api: String,
    /// The address at which the balancer accepts WebSockets.
    pub sockets: String,
    /// The address at which the balancer serves its statistics.
    pub stats: String,
    /// The servers to which API requests are distributed, round-robin.
    pub backends: Vec<String>,
    /// The servers to which WebSockets are distributed, by the hash of the session.
    pub gateways: Vec<String>,
    /// Whether the hosts of `backends` and `gateways` are names whose addresses change and must therefore be resolved
    /// repeatedly.
    pub looks_up_names: bool,
}

impl BalancerConfig {
    /// Returns the content of the configuration file.
    pub fn configuration(&self) -> String {
        let servers = |name: &str, addresses: &[String]| {
            let lines = addresses.iter().enumerate();
            let lines = lines.map(|(i, address)| format!("    server {name}{} {address}", i + 1));
            lines.collect::<Vec<_>>().join("\n")
        };
        let (names, look_up) = if self.looks_up_names {
            (
                "\nresolvers names\n    parse-resolv-conf\n    hold valid 1s\n",
                " resolvers names init-addr last,libc,none",
            )
        } else {
            ("", "")
        };
        CONFIG_TEMPLATE
            .replace("{maxconn}", &self.connections.to_string())
            .replace("{names}", names)
            .replace("{look-up}", look_up)
            .replace("{api}", &self.api)
            .replace("{sockets}", &self.sockets)
            .replace("{stats}", &self.stats)
            .replace("{backends}", &servers("backend", &self.backends))
            .replace("{gateways}", &servers("gateway", &self.gateways))
    }
}

/// Returns the number of client connections that each balancer has to allow: a session uses a WebSocket and a
/// connection to the API. The kernel distributes connections by a hash, which is never quite even.
pub(super) fn max_client_connections(sessions: u32, balancers: u16) -> u64 {
    let all = 2 * u64::from(sessions);
    match balancers {
        0 | 1 => all + 200,
        n => all.div_ceil(u64::from(n)) * 5 / 4 + 200,
    }
}
