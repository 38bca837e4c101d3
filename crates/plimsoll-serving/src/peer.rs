//! The address of a connection's peer.

use std::fmt;
use std::net::SocketAddr;

/// The address of a connection's peer, for the log; `None` on a Unix socket.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub Option<SocketAddr>);

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("a client of the Unix socket"),
        }
    }
}
