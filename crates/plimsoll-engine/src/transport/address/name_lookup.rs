//! Name lookup with the system's resolver.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use super::LocalResourceError;

/// Resolves a name with a port; a literal address needs no query.
///
/// # Errors
/// Returns the system's error, or the local shortage that prevented the lookup.
pub fn look_up(name: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    let found = name.to_socket_addrs();
    Ok(found
        .map_err(LocalResourceError::refine_lookup_error)?
        .collect())
}
