//! The addresses at which servers, relays and telemetry listen.

use std::net::SocketAddr;

use plimsoll_engine::Address;
use plimsoll_engine::address::look_up;
use plimsoll_model::plan::UnixSocket;

use crate::failure::Failure;

/// Returns the address to listen on that was typed for a flag.
///
/// # Errors
/// When it is no address.
pub(crate) fn listening_address(flag: &str, typed: &str) -> Result<Address, Failure> {
    let help = "write HOST:PORT, such as 127.0.0.1:50051 or [::]:50051; port 0 takes any free one; or unix:/PATH";
    match UnixSocket::parse(typed) {
        Some(socket) => socket
            .map(Address::Unix)
            .map_err(|e| Failure::usage(format_args!("{flag}: {e}"), help)),
        None => tcp_address(flag, typed, help).map(Address::Tcp),
    }
}

/// Does the same for what must be a TCP port.
///
/// # Errors
/// When it is none, with `help`.
pub(crate) fn tcp_address(flag: &str, typed: &str, help: &str) -> Result<SocketAddr, Failure> {
    let wrong = |problem: String| Failure::usage(format_args!("{flag}: {problem}"), help);
    let addresses = look_up(typed).map_err(|e| wrong(format!("`{typed}`: {e}")))?;
    // Where a name has both kinds of address, the older one is what others expect.
    let first = addresses.into_iter().min_by_key(SocketAddr::is_ipv6);
    first.ok_or_else(|| wrong(format!("`{typed}` has no address")))
}
