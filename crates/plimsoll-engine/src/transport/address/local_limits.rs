//! Shortages of this process or machine that prevent a connection. No peer can cause or fix them: loads count
//! them as the client's failures, and relays do not blame an upstream.

use std::io;
use std::net::{IpAddr, SocketAddr};

use plimsoll_model::Outcome;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use crate::transport::descriptors::descriptor_limit;

/// The local resource that is exhausted or missing. The error message says what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocalResourceError {
    /// File descriptors of this process.
    #[error(
        "this process ran out of file descriptors (limit: {}): raise `ulimit -n`",
        format_limit()
    )]
    Descriptors,
    /// File descriptors of this machine.
    #[error("this machine ran out of file descriptors: raise fs.file-max")]
    Files,
    /// Ports of this machine for connections to the address.
    #[error(
        "this machine ran out of ports for the address pair: widen net.ipv4.ip_local_port_range, set \
         net.ipv4.tcp_tw_reuse to 1, or keep connections for longer"
    )]
    Ports,
    /// Either ports or a source address of the target's family: the system reports both with the same error.
    #[error(
        "this machine ran out of ports for the address pair, or has no address of its family: widen \
         net.ipv4.ip_local_port_range, or give it an address"
    )]
    PortsOrAddress,
    /// A source address from which the target's address can be reached.
    #[error(
        "this machine has no source address for the connection: give it one of the same family (IPv6 may be turned off)"
    )]
    Address,
    /// The configured source address, which does not belong to this machine.
    #[error("{0} is not an address of this machine")]
    Source(IpAddr),
    /// Memory for a socket.
    #[error(
        "this machine has no memory for another socket: close others, or raise net.ipv4.tcp_mem and \
         fs.epoll.max_user_watches"
    )]
    Memory,
    /// A further thread of this process, for resolving names.
    #[error("this process can't start more threads: raise `ulimit -u`")]
    Threads,
    /// Any other failure before the socket was connected.
    #[error("this machine refused a socket for the connection: {0}: check its security policy")]
    Socket(Errno),
    /// Permission, which this machine's security policy denies.
    #[error(
        "this machine does not permit the connection: check its security policy and its routes"
    )]
    Permission,
}

fn format_limit() -> String {
    match descriptor_limit() {
        u64::MAX => "no limit".to_owned(),
        limit => limit.to_string(),
    }
}

impl LocalResourceError {
    /// Returns the shortage behind an error of a connection or lookup; `None` if the peer or the network caused it.
    pub fn from_io_error(error: &io::Error) -> Option<LocalResourceError> {
        let named = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(shortage) = named {
            return Some(*shortage);
        }
        match Errno::from_io_error(error)? {
            Errno::MFILE => Some(LocalResourceError::Descriptors),
            Errno::NFILE => Some(LocalResourceError::Files),
            Errno::ADDRNOTAVAIL => Some(LocalResourceError::PortsOrAddress),
            // All ports of the address are in use.
            Errno::ADDRINUSE => Some(LocalResourceError::Ports),
            Errno::AFNOSUPPORT => Some(LocalResourceError::Address),
            // ENOSPC: epoll's limit of watched sockets is reached.
            Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC => Some(LocalResourceError::Memory),
            Errno::PERM => Some(LocalResourceError::Permission),
            _ => None,
        }
    }

    /// Returns the shortage behind an error of writing to an open connection, where EACCES is always local.
    pub(crate) fn from_write_error(error: &io::Error) -> Option<LocalResourceError> {
        match Errno::from_io_error(error) {
            Some(Errno::ACCESS) => Some(LocalResourceError::Permission),
            _ => LocalResourceError::from_io_error(error),
        }
    }

    /// Replaces the error of connecting to `to` with a more precise one if the cause can be determined.
    pub fn refine_connect_error(error: io::Error, to: SocketAddr) -> io::Error {
        let shortage = match Errno::from_io_error(&error) {
            Some(Errno::ADDRNOTAVAIL) => LocalResourceError::probe_address(to),
            // Over IPv6 a remote firewall can cause EACCES as well (RFC 4443 §3.1).
            Some(Errno::ACCESS) if to.is_ipv4() => LocalResourceError::Permission,
            _ => return error,
        };
        shortage.to_io_error(&error)
    }

    /// Does the same as [`LocalResourceError::refine_connect_error`] for an error that the system returned before it
    /// sent anything.
    pub(super) fn refine_immediate_error(error: io::Error, to: SocketAddr) -> io::Error {
        match Errno::from_io_error(&error) {
            Some(Errno::ACCESS) => LocalResourceError::Permission.to_io_error(&error),
            _ => LocalResourceError::refine_connect_error(error, to),
        }
    }

    /// Replaces the error of binding to `source`, with a port chosen by the system, with a more precise one.
    pub(super) fn refine_bind_error(error: io::Error, source: IpAddr) -> io::Error {
        match Errno::from_io_error(&error) {
            Some(Errno::ADDRNOTAVAIL) => LocalResourceError::Source(source).to_io_error(&error),
            _ => error,
        }
    }

    /// Determines whether ports or a source address are missing, by connecting a datagram socket: UDP has its own port
    /// range, uses the same addresses, and sends nothing on connect.
    fn probe_address(to: SocketAddr) -> LocalResourceError {
        let asked = Socket::new(Domain::for_address(to), Type::DGRAM.cloexec(), None);
        match asked.and_then(|socket| socket.connect(&to.into())) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::ADDRNOTAVAIL) => {
                LocalResourceError::Address
            }
            Ok(()) => LocalResourceError::Ports,
            Err(_) => LocalResourceError::PortsOrAddress,
        }
    }

    /// Does the same as [`LocalResourceError::from_io_error`] for errors of libraries that resolve names themselves.
    pub fn from_library_error(error: &io::Error) -> Option<LocalResourceError> {
        // The library's error has no errno, so its message is compared with the standard library's.
        let text = "failed to lookup address information";
        LocalResourceError::from_io_error(error).or_else(|| {
            let is_of_look_up = error.to_string().starts_with(text);
            is_of_look_up
                .then(LocalResourceError::probe_descriptors)
                .flatten()
        })
    }

    /// Replaces the error of a lookup with a more precise one. A resolver that cannot open a file reports existing
    /// names as missing, so its result is ignored while this process has no free descriptor.
    pub(super) fn refine_lookup_error(error: io::Error) -> io::Error {
        match LocalResourceError::from_io_error(&error)
            .or_else(LocalResourceError::probe_descriptors)
        {
            Some(shortage) => shortage.to_io_error(&error),
            None => error,
        }
    }

    /// Returns the shortage that currently prevents this process from opening descriptors.
    fn probe_descriptors() -> Option<LocalResourceError> {
        let opened = Socket::new(Domain::UNIX, Type::DGRAM.cloexec(), None);
        opened
            .err()
            .as_ref()
            .and_then(LocalResourceError::from_io_error)
    }

    /// Replaces the error of a socket that was not connected yet with a more precise one. Every error of an unconnected
    /// socket has a local cause.
    pub(crate) fn refine_socket_error(error: io::Error) -> io::Error {
        match (
            LocalResourceError::from_io_error(&error),
            Errno::from_io_error(&error),
        ) {
            (None, Some(errno)) => LocalResourceError::Socket(errno).to_io_error(&error),
            _ => error,
        }
    }

    /// Returns the error of a lookup for which no thread could be started.
    pub(crate) fn from_thread_error(error: &io::Error) -> io::Error {
        LocalResourceError::Threads.to_io_error(error)
    }

    /// Wraps this shortage into an I/O error of the same kind as `was`.
    fn to_io_error(self, was: &io::Error) -> io::Error {
        io::Error::new(was.kind(), self)
    }

    /// Returns the outcome of calls that fail because of this shortage.
    pub fn outcome(self) -> Outcome {
        match self {
            LocalResourceError::Descriptors | LocalResourceError::Files => Outcome::NoDescriptors,
            LocalResourceError::Ports | LocalResourceError::PortsOrAddress => Outcome::NoPorts,
            LocalResourceError::Address
            | LocalResourceError::Source(_)
            | LocalResourceError::Memory
            | LocalResourceError::Threads
            | LocalResourceError::Socket(_)
            | LocalResourceError::Permission => Outcome::NoSocket,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_and_peer_errors_are_distinguished() {
        for (errno, outcome, needle) in [
            (Errno::MFILE, Outcome::NoDescriptors, "): raise `ulimit -n`"),
            (Errno::NFILE, Outcome::NoDescriptors, "fs.file-max"),
            (Errno::ADDRNOTAVAIL, Outcome::NoPorts, "ip_local_port_range"),
            (Errno::ADDRINUSE, Outcome::NoPorts, "tcp_tw_reuse"),
            (Errno::AFNOSUPPORT, Outcome::NoSocket, "IPv6 may be"),
            (Errno::NOBUFS, Outcome::NoSocket, "no memory"),
            (Errno::NOMEM, Outcome::NoSocket, "no memory"),
            (Errno::NOSPC, Outcome::NoSocket, "max_user_watches"),
            (Errno::PERM, Outcome::NoSocket, "does not permit"),
        ] {
            let shortage = LocalResourceError::from_io_error(&errno.into()).unwrap();
            assert_eq!(shortage.outcome(), outcome, "{errno:?}");
            assert!(
                shortage.to_string().contains(needle),
                "{errno:?}: {shortage}"
            );
            let again = shortage.to_io_error(&errno.into());
            assert_eq!(LocalResourceError::from_io_error(&again), Some(shortage));
        }
        for errno in [Errno::CONNREFUSED, Errno::NETUNREACH, Errno::ACCESS] {
            assert_eq!(
                LocalResourceError::from_io_error(&errno.into()),
                None,
                "{errno:?}"
            );
        }
        assert_eq!(
            LocalResourceError::from_io_error(&io::Error::other("no")),
            None
        );
    }

    #[test]
    fn socket_creation_failure_is_local() {
        let named = |errno: Errno| {
            LocalResourceError::from_io_error(&LocalResourceError::refine_socket_error(
                errno.into(),
            ))
        };
        assert_eq!(
            named(Errno::INVAL),
            Some(LocalResourceError::Socket(Errno::INVAL))
        );
        assert_eq!(
            named(Errno::ACCESS),
            Some(LocalResourceError::Socket(Errno::ACCESS))
        );
        assert_eq!(named(Errno::MFILE), Some(LocalResourceError::Descriptors));
        let said = LocalResourceError::Socket(Errno::ACCESS).to_string();
        assert!(said.contains("Permission denied"), "{said}");
        assert_eq!(
            LocalResourceError::Socket(Errno::INVAL).outcome(),
            Outcome::NoSocket
        );
        let thread = LocalResourceError::from_thread_error(&Errno::AGAIN.into());
        assert_eq!(
            LocalResourceError::from_io_error(&thread),
            Some(LocalResourceError::Threads)
        );
        assert_eq!(LocalResourceError::Threads.outcome(), Outcome::NoSocket);
    }

    #[test]
    fn ipv6_access_denial_may_be_remote() {
        let denied = |named: fn(io::Error, SocketAddr) -> io::Error, to: &str| {
            LocalResourceError::from_io_error(&named(Errno::ACCESS.into(), to.parse().unwrap()))
        };
        let (ipv4, ipv6) = ("127.0.0.1:1", "[::1]:1");
        assert_eq!(
            denied(LocalResourceError::refine_connect_error, ipv4),
            Some(LocalResourceError::Permission)
        );
        assert_eq!(denied(LocalResourceError::refine_connect_error, ipv6), None);
        for to in [ipv4, ipv6] {
            assert_eq!(
                denied(LocalResourceError::refine_immediate_error, to),
                Some(LocalResourceError::Permission)
            );
        }
    }
}
