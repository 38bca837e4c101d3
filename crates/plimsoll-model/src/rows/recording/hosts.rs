//! The hosts to which the requests of a recording went.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::formats::quantity;

/// Maximum number of hosts that are counted one by one.
const MAX_COUNTED_HOSTS: usize = 1_000;
/// Maximum number of hosts that are listed in a text.
const MAX_LISTED_HOSTS: usize = 5;

/// Numbers of requests, by host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    requests: BTreeMap<String, u64>,
    /// Requests to further hosts.
    uncounted: u64,
}

impl HostCounts {
    /// Counts a request.
    pub(super) fn add(&mut self, host: &str) {
        if let Some(count) = self.requests.get_mut(host) {
            *count += 1;
        } else if self.requests.len() < MAX_COUNTED_HOSTS {
            self.requests.insert(host.to_owned(), 1);
        } else {
            self.uncounted += 1;
        }
    }

    /// Returns the number of all requests.
    pub fn total(&self) -> u64 {
        self.requests.values().sum::<u64>() + self.uncounted
    }

    /// Returns the number of hosts, as far as they are counted.
    pub fn hosts(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether some requests went to `authority` (`host:port`), and others did not.
    pub fn includes_others_than(&self, authority: &str) -> bool {
        let own = self.requests.keys();
        let own = own.filter(|host| is_host_of(host, authority)).count();
        own > 0 && own < self.requests.len()
    }

    /// Returns the hosts of most requests with their numbers, such as `a.test (12), b.test (3) and 2 more`.
    pub(super) fn list(&self) -> String {
        let mut hosts: Vec<(&String, u64)> = self.requests.iter().map(|(h, n)| (h, *n)).collect();
        hosts.sort_by_key(|(_, count)| Reverse(*count));
        let listed = hosts.iter().take(MAX_LISTED_HOSTS);
        let listed: Vec<String> = listed
            .map(|(host, count)| format!("{host} ({})", quantity::count(*count)))
            .collect();
        let listed = listed.join(", ");
        match hosts.len().saturating_sub(MAX_LISTED_HOSTS) {
            0 => listed,
            more => format!("{listed} and {more} more"),
        }
    }
}

/// Returns whether a recorded host, which may lack a default port, is that of `authority` (`host:port`).
pub(super) fn is_host_of(recorded: &str, authority: &str) -> bool {
    let without_default_port = match authority.rsplit_once(':') {
        Some((host, "80" | "443")) => Some(host),
        _ => None,
    };
    let mut names = [Some(authority), without_default_port]
        .into_iter()
        .flatten();
    names.any(|name| recorded.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_ports_may_be_left_out() {
        assert!(is_host_of("Shop.test", "shop.test:443"));
        assert!(is_host_of("shop.test:8080", "shop.test:8080"));
        assert!(is_host_of("[::1]", "[::1]:80"));
        assert!(!is_host_of("shop.test", "shop.test:8080"));
        assert!(!is_host_of("cdn.shop.test", "shop.test:443"));
    }

    #[test]
    fn hosts_are_listed_by_their_requests() {
        let mut counts = HostCounts::default();
        for host in ["b", "a", "b", "c", "d", "e", "f", "g"] {
            counts.add(host);
        }
        assert_eq!(
            counts.list(),
            "b (2), a (1), c (1), d (1), e (1) and 2 more"
        );
        assert_eq!((counts.total(), counts.hosts()), (8, 7));
        assert!(counts.includes_others_than("a:80"));
        assert!(!counts.includes_others_than("x:80"));
    }
}
