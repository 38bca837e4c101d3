//! Names the client of a connection or a request, for the log.
//!
//! Behind a trusted load balancer the client is the address that the balancer reports: in a PROXY
//! header, which replaces the connection's peer address, or in each request's `X-Forwarded-For`.

use std::fmt;
use std::net::IpAddr;

use plimsoll_serving::{PeerAddress, TrustedProxies};

#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientAddress {
    Peer(PeerAddress),
    /// The client address that trusted proxies report in `X-Forwarded-For`.
    Forwarded(IpAddr),
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientAddress::Peer(peer) => peer.fmt(f),
            ClientAddress::Forwarded(address) => address.fmt(f),
        }
    }
}

impl ClientAddress {
    /// Returns the address to log: the peer, or the client that it forwards for if the peer is a
    /// trusted proxy. Each proxy appends to `forwarded`, the values of `X-Forwarded-For`, so an
    /// entry left of an untrusted address may be forged.
    pub(crate) fn resolve<'a>(
        peer: PeerAddress,
        forwarded: impl Iterator<Item = &'a str>,
        trusted: &TrustedProxies,
    ) -> ClientAddress {
        if !trusted.trusts(peer) {
            return ClientAddress::Peer(peer);
        }
        let named = forwarded.flat_map(|value| value.split(',')).map(str::trim);
        let named: Vec<&str> = named.collect();
        let mut client = ClientAddress::Peer(peer);
        for name in named.into_iter().rev() {
            let Ok(address) = name.parse::<IpAddr>() else {
                break;
            };
            client = ClientAddress::Forwarded(address);
            if !trusted.contains(address) {
                break;
            }
        }
        client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_address_comes_from_trusted_proxies() {
        // An IPv4 address in IPv6-mapped form, as a dual-stack socket reports it.
        let trusted: [IpAddr; 2] = ["::ffff:127.0.0.1".parse().unwrap(), [10, 0, 0, 9].into()];
        let trusted = TrustedProxies::new(&trusted);
        let (proxy, other) = ([127, 0, 0, 1], [192, 0, 2, 1]);
        let cases: [(_, &[&str], _); 7] = [
            (proxy, &[], "127.0.0.1:5"),
            (other, &["203.0.113.7"], "192.0.2.1:5"),
            (proxy, &["203.0.113.7"], "203.0.113.7"),
            (proxy, &["6.6.6.6, 203.0.113.7, 10.0.0.9"], "203.0.113.7"),
            (proxy, &["6.6.6.6", "2001:db8::7"], "2001:db8::7"),
            (proxy, &["<script>, 10.0.0.9"], "10.0.0.9"),
            (proxy, &["unknown"], "127.0.0.1:5"),
        ];
        for (from, forwarded, expected) in cases {
            let peer = PeerAddress(Some((from, 5).into()));
            let asker = ClientAddress::resolve(peer, forwarded.iter().copied(), &trusted);
            assert_eq!(asker.to_string(), expected, "{forwarded:?}");
        }
    }
}
