//! The addresses of a name, as the system has them.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use super::Lack;

/// Looks up a name with a port; nothing is asked about an address.
///
/// # Errors
/// The system's, or what this process lacks for asking.
pub fn look_up(name: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    let found = name.to_socket_addrs();
    Ok(found.map_err(Lack::named_of_look_up)?.collect())
}
