//! The two ends of a connection, as type parameters of [`super::Connection`].

/// Tells which end of a connection this is.
pub trait Peer: Copy {
    /// Returns whether this is the end that connected and opens streams.
    fn is_client(self) -> bool;
}

/// The client: it connected and opens streams.
#[derive(Clone, Copy, Debug)]
pub struct Client;

/// The server: it accepted the connection.
#[derive(Clone, Copy, Debug)]
pub struct Server;

/// Either end, where one type must represent both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

impl Peer for Client {
    #[inline(always)]
    fn is_client(self) -> bool {
        true
    }
}

impl Peer for Server {
    #[inline(always)]
    fn is_client(self) -> bool {
        false
    }
}

impl Peer for Side {
    #[inline(always)]
    fn is_client(self) -> bool {
        self == Side::Client
    }
}
