//! The address of an endpoint: an IP address with a port, or a Unix socket. Loads, servers and relays use this.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::str::FromStr;

use plimsoll_model::plan::UnixSocket;
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};

mod local_limits;
mod name_lookup;

pub use local_limits::LocalResourceError;
pub use name_lookup::look_up;

/// An address to connect to or listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// A Unix socket, by its path or abstract name.
    Unix(UnixSocket),
}

impl Address {
    /// Returns the IP address and port; `None` for a Unix socket.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Address::Tcp(address) => Some(*address),
            Address::Unix(_) => None,
        }
    }

    /// Returns the IP address; `None` for a Unix socket.
    pub fn ip(&self) -> Option<IpAddr> {
        self.tcp_address().map(|address| address.ip())
    }

    /// Describes in a sentence why connecting to this address failed.
    pub fn describe_failure(&self, error: &io::Error) -> String {
        if let Some(shortage) = LocalResourceError::from_io_error(error) {
            return format!("connect to {self}: {shortage}");
        }
        let why = match self {
            Address::Tcp(_) => None,
            Address::Unix(socket) => match Errno::from_io_error(error) {
                Some(Errno::NOENT) => {
                    Some("there is no such file; a server creates it when it starts")
                }
                Some(Errno::NOTDIR) => Some("a part of its path is not a folder"),
                Some(Errno::ACCESS) => Some(
                    "not permitted; it takes write permission on the file, and search permission on its folders",
                ),
                Some(Errno::CONNREFUSED) if !is_socket_file(socket) => Some("it is not a socket"),
                Some(Errno::CONNREFUSED) => {
                    Some("nothing listens on it; a server that was killed leaves its file behind")
                }
                Some(Errno::AGAIN) => Some("the server's listen backlog is full"),
                Some(Errno::PROTOTYPE) => Some("it is not a stream socket"),
                _ => None,
            },
        };
        match why {
            Some(why) => format!("connect to {self}: {why}"),
            None => format!("connect to {self}: {error}"),
        }
    }

    /// Starts a non-blocking connection attempt, which has ended when the socket becomes writable. `source` is the
    /// address to connect from; `None` lets the system choose it.
    ///
    /// # Errors
    /// Returns the error that the system reports immediately; [`LocalResourceError::from_io_error`] tells whether the
    /// cause is local.
    pub fn start_connect(&self, source: Option<IpAddr>) -> io::Result<TcpStream> {
        let stream = Type::STREAM.nonblocking().cloexec();
        let socket = match self {
            Address::Tcp(address) => {
                let socket = Socket::new(Domain::for_address(*address), stream, None)
                    .and_then(|socket| socket.set_tcp_nodelay(true).map(|()| socket))
                    .map_err(LocalResourceError::refine_socket_error)?;
                if let Some(source) = source {
                    let bound = socket.bind(&SocketAddr::new(source, 0).into());
                    bound.map_err(|e| LocalResourceError::refine_bind_error(e, source))?;
                }
                match socket.connect(&(*address).into()) {
                    Err(e) if e.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
                    begun => begun
                        .map_err(|e| LocalResourceError::refine_immediate_error(e, *address))?,
                }
                socket
            }
            Address::Unix(at) => {
                let socket = Socket::new(Domain::UNIX, stream, None);
                let socket = socket.map_err(LocalResourceError::refine_socket_error)?;
                // Unix sockets connect at once or fail; EAGAIN means that the server's queue is full (unix(7)).
                socket.connect(&socket_address(at)?)?;
                socket
            }
        };
        // A `TcpStream` may wrap a Unix socket too: reading, writing and closing are the same on all stream sockets.
        Ok(socket.into())
    }

    /// Returns whether the address is certainly on this machine.
    pub fn is_local(&self) -> bool {
        self.ip().is_none_or(|ip| ip.is_loopback())
    }
}

/// Returns whether the path leads to a socket; an abstract name cannot be checked and counts as a socket.
fn is_socket_file(socket: &UnixSocket) -> bool {
    match socket {
        UnixSocket::Path(path) => {
            fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
        }
        UnixSocket::Abstract(_) => true,
    }
}

impl<T: Into<SocketAddr>> From<T> for Address {
    fn from(address: T) -> Address {
        Address::Tcp(address.into())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(socket) => socket.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match UnixSocket::parse(text) {
            Some(socket) => socket.map(Address::Unix),
            None => text.parse().map(Address::Tcp).map_err(|_| {
                format!("`{text}` is not an address: write IP:PORT, or unix:/PATH for a socket of this machine")
            }),
        }
    }
}

/// Converts the path or name of a Unix socket to the system's socket address.
///
/// # Errors
/// Returns an error if the path or the name is too long.
pub fn socket_address(socket: &UnixSocket) -> io::Result<SockAddr> {
    match socket {
        UnixSocket::Path(path) => SockAddr::unix(path),
        // Abstract names begin with a zero byte (unix(7)).
        UnixSocket::Abstract(name) => SockAddr::unix(format!("\0{name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_foreign_source_address() {
        let to = Address::Tcp("127.0.0.1:1".parse().unwrap());
        let source = "192.0.2.1".parse().unwrap();
        let error = to.start_connect(Some(source)).unwrap_err();
        assert_eq!(
            LocalResourceError::from_io_error(&error),
            Some(LocalResourceError::Source(source)),
            "{error}"
        );
        assert_eq!(
            to.describe_failure(&error),
            "connect to 127.0.0.1:1: 192.0.2.1 is not an address of this machine"
        );
    }

    #[test]
    fn unix_connect_errors_are_explained() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let at = |path: &std::path::Path| Address::Unix(UnixSocket::Path(path.into()));
        let reported = |address: &Address, errno: Errno| address.describe_failure(&errno.into());
        assert!(reported(&at(&file), Errno::CONNREFUSED).ends_with("it is not a socket"));
        for (errno, needle) in [
            (Errno::ACCESS, "not permitted"),
            (Errno::NOENT, "no such file"),
            (Errno::NOTDIR, "not a folder"),
            (Errno::AGAIN, "listen backlog is full"),
            (Errno::PROTOTYPE, "not a stream socket"),
        ] {
            let text = reported(&at(&file), errno);
            assert!(
                text.contains(needle) && !text.contains("os error"),
                "{text}"
            );
        }
        let abstract_one = Address::Unix(UnixSocket::Abstract("x".to_owned()));
        let text = reported(&abstract_one, Errno::CONNREFUSED);
        assert!(
            text.starts_with("connect to unix-abstract:x: nothing listens"),
            "{text}"
        );
    }
}
