//! Parses the addresses that servers, relays and telemetry listen on.

use std::net::SocketAddr;

use plimsoll_engine::Address;
use plimsoll_engine::transport::address::look_up;
use plimsoll_model::plan::UnixSocket;

use crate::failure::Failure;

/// Parses a listening address, the value of `flag`.
///
/// # Errors
/// When `typed` is not an address.
pub(crate) fn listening_address(flag: &str, typed: &str) -> Result<Address, Failure> {
    let help = "write HOST:PORT, such as 127.0.0.1:50051 or [::]:50051; port 0 takes any free one; or unix:/PATH";
    match UnixSocket::parse(typed) {
        Some(socket) => socket
            .map(Address::Unix)
            .map_err(|e| Failure::usage(format_args!("{flag}: {e}"), help)),
        None => tcp_address(flag, typed, help).map(Address::Tcp),
    }
}

/// Parses a listening address that must be TCP.
///
/// # Errors
/// When `typed` is not a TCP address; `help` is the error's help text.
pub(crate) fn tcp_address(flag: &str, typed: &str, help: &str) -> Result<SocketAddr, Failure> {
    let wrong = |problem: String| Failure::usage(format_args!("{flag}: {problem}"), help);
    let addresses = look_up(typed).map_err(|e| wrong(format!("`{typed}`: {e}")))?;
    // If a name has addresses of both kinds, prefer IPv4, which most clients expect.
    let first = addresses.into_iter().min_by_key(SocketAddr::is_ipv6);
    first.ok_or_else(|| wrong(format!("`{typed}` has no address")))
}
