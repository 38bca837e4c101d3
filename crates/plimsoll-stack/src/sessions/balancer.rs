//! The balancer's configuration: one template, for a stack on this machine and for one
//! in containers.

const TEMPLATE: &str = include_str!("haproxy.cfg");

/// What a balancer stands in front of. Addresses as haproxy has them: HOST:PORT, or *:PORT.
#[derive(Clone, Debug)]
pub struct Balancer {
    /// Connections from clients at once that it has to allow.
    pub connections: u64,
    /// The address at which it takes requests to the API.
    pub api: String,
    /// The address at which it takes WebSockets.
    pub sockets: String,
    /// The address at which it shows its statistics.
    pub stats: String,
    /// Requests to the API go to one after another.
    pub backends: Vec<String>,
    /// WebSockets go to the one that their session's hash names.
    pub gateways: Vec<String>,
    /// The hosts of `backends` and `gateways` are names whose addresses come and go: they are
    /// looked up again and again.
    pub looks_up_names: bool,
}

impl Balancer {
    /// The configuration file.
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
        TEMPLATE
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

/// Connections from clients that each of so many balancers has to allow: a session has a
/// socket and a connection to the API. The system spreads them by a hash, which is never
/// quite even.
pub(super) fn connections(sessions: u32, balancers: u16) -> u64 {
    let all = 2 * u64::from(sessions);
    match balancers {
        0 | 1 => all + 200,
        n => all.div_ceil(u64::from(n)) * 5 / 4 + 200,
    }
}
