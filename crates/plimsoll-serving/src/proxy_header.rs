//! Connections of trusted proxies, which begin with the client's address (PROXY protocol).
//!
//! A trusted address has to send the header, because the client's address can't be known otherwise. A header from any
//! other address is never believed, and its connection is refused. Exactly the header is read from the socket: the
//! bytes after it, such as a TLS handshake, stay in the socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_wire::proxy_protocol::{self, MAX_HEADER_BYTES, ProxyError};
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::peer::PeerAddress;

/// The time limit from accept to the end of the header.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of trusted proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Arc<[IpAddr]>);

impl TrustedProxies {
    /// Makes the list. An empty list trusts no proxy, and then no connection begins with a header.
    pub fn new(addresses: &[IpAddr]) -> TrustedProxies {
        TrustedProxies(addresses.iter().map(IpAddr::to_canonical).collect())
    }

    /// Returns whether the address is trusted; `::ffff:127.0.0.1` is the same as 127.0.0.1.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns whether the peer is trusted. Clients of a Unix socket are trusted if any proxy is: the file's
    /// permissions admitted them.
    pub fn trusts(&self, peer: PeerAddress) -> bool {
        match peer.0 {
            Some(address) => self.contains(address.ip()),
            None => !self.0.is_empty(),
        }
    }

    /// Returns the reader that must run before any other bytes are read from `peer`; `None` if no proxy is trusted.
    pub fn header_reader(&self, peer: PeerAddress) -> Option<ProxyHeaderReader> {
        (!self.0.is_empty()).then(|| ProxyHeaderReader {
            peer,
            is_trusted: self.trusts(peer),
            header: Vec::new(),
        })
    }

    /// Returns the client whose connection `peer` forwards.
    ///
    /// # Errors
    /// When the header is missing or malformed, or `peer` sends one without being trusted.
    pub async fn read_client(
        &self,
        stream: &TcpStream,
        peer: PeerAddress,
    ) -> Result<PeerAddress, ProxyHeaderError> {
        let Some(mut opening) = self.header_reader(peer) else {
            return Ok(peer);
        };
        let reading = async {
            loop {
                stream.readable().await?;
                let read = stream.try_io(Interest::READABLE, || match opening.read(stream) {
                    Err(ProxyHeaderError::Socket(e)) => Err(e),
                    other => Ok(other),
                });
                match read {
                    Ok(read) => return read,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e.into()),
                }
            }
        };
        let read = tokio::time::timeout(HEADER_TIMEOUT, reading).await;
        read.unwrap_or(Err(ProxyHeaderError::Late))
    }
}

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub enum ProxyHeaderError {
    /// A header from an address that is not trusted.
    #[error("a PROXY header from an address that is not trusted")]
    Untrusted,
    /// The header did not arrive in time.
    #[error("no PROXY header within {HEADER_TIMEOUT:?}")]
    Late,
    /// The header is malformed or missing.
    #[error(transparent)]
    Header(#[from] ProxyError),
    /// The socket failed or was closed, so there is no peer to send a refusal to.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

impl ProxyHeaderError {
    /// Returns the error's class for logs and metrics; `None` if the socket failed or was closed.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            ProxyHeaderError::Untrusted => Some("proxy_not_trusted"),
            ProxyHeaderError::Late => Some("proxy_header_late"),
            ProxyHeaderError::Header(ProxyError::Missing) => Some("proxy_header_missing"),
            ProxyHeaderError::Header(_) => Some("proxy_header"),
            ProxyHeaderError::Socket(_) => None,
        }
    }
}

/// The reader of one connection's PROXY header.
#[derive(Debug)]
pub struct ProxyHeaderReader {
    peer: PeerAddress,
    is_trusted: bool,
    /// The part of the header that has arrived.
    header: Vec<u8>,
}

impl ProxyHeaderReader {
    /// Returns whether the peer must send a header, so the connection has to wait until it is complete. For untrusted
    /// peers the first bytes are enough, because they must not be the start of a header.
    pub fn requires_header(&self) -> bool {
        self.is_trusted
    }

    /// Reads the available bytes of the header from a non-blocking socket, and returns the client once it is known.
    ///
    /// # Errors
    /// `WouldBlock` if more bytes are needed; after any other error the connection must not be served.
    pub fn read(&mut self, socket: impl AsFd) -> Result<PeerAddress, ProxyHeaderError> {
        let mut buffer = [0; MAX_HEADER_BYTES];
        loop {
            let room = &mut buffer[..MAX_HEADER_BYTES.saturating_sub(self.header.len())];
            let (came, _) = recv(&socket, &mut *room, RecvFlags::PEEK).map_err(io::Error::from)?;
            if came == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let came = &room[..came];
            if !self.is_trusted {
                // Does not wait for the rest of a partial signature: this peer's header would be rejected anyway.
                return if proxy_protocol::has_signature(came) {
                    Err(ProxyHeaderError::Untrusted)
                } else {
                    Ok(self.peer)
                };
            }
            let known = self.header.len();
            self.header.extend_from_slice(came);
            let header = proxy_protocol::parse(&self.header)?;
            let end = header.map_or(self.header.len(), |header| header.size);
            recv(&socket, &mut room[..end - known], RecvFlags::empty()).map_err(io::Error::from)?;
            if let Some(header) = header {
                return Ok(match header.client {
                    Some(client) => PeerAddress(Some(client)),
                    None => self.peer,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        (client, server)
    }

    /// Reads until the header is complete.
    fn read(
        opening: &mut ProxyHeaderReader,
        server: &TcpStream,
    ) -> Result<PeerAddress, ProxyHeaderError> {
        loop {
            match opening.read(server) {
                Err(ProxyHeaderError::Socket(e)) if e.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::yield_now();
                }
                read => return read,
            }
        }
    }

    #[test]
    fn proxy_header_read_leaves_payload() {
        let (mut client, mut server) = pair();
        let peer = PeerAddress(client.local_addr().ok());
        let proxies = TrustedProxies::new(&[[127, 0, 0, 1].into()]);
        let mut opening = proxies.header_reader(peer).unwrap();
        let wire = b"PROXY TCP4 203.0.113.7 10.0.0.1 5555 80\r\n";
        for byte in &wire[..wire.len() - 1] {
            client.write_all(&[*byte]).unwrap();
            let waits = opening.read(&server);
            assert!(
                matches!(waits, Err(ProxyHeaderError::Socket(_))),
                "{waits:?}"
            );
        }
        client.write_all(b"\nPROXY, and what follows").unwrap();
        let known = read(&mut opening, &server).unwrap();
        assert_eq!(known.to_string(), "203.0.113.7:5555");
        drop(client);
        server.set_nonblocking(false).unwrap();
        let mut rest = String::new();
        server.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "PROXY, and what follows");
    }

    #[test]
    fn untrusted_proxy_header_is_rejected() {
        let proxies = TrustedProxies::new(&[[192, 0, 2, 1].into()]);
        for (sent, refused) in [("PROXY TCP4 ", true), ("GET / HTTP/1.1\r\n", false)] {
            let (mut client, server) = pair();
            let peer = PeerAddress(client.local_addr().ok());
            let mut opening = proxies.header_reader(peer).unwrap();
            assert!(!opening.requires_header());
            client.write_all(sent.as_bytes()).unwrap();
            let read = read(&mut opening, &server);
            assert_eq!(matches!(read, Err(ProxyHeaderError::Untrusted)), refused);
        }
        assert!(
            TrustedProxies::default()
                .header_reader(PeerAddress(None))
                .is_none()
        );
    }
}
