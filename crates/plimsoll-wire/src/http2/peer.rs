//! The two ends of a connection, in the type of [`super::Connection`].

/// Which end of a connection this is.
pub trait Peer: Copy {
    /// It connected, and opens streams.
    fn is_client(self) -> bool;
}

/// The end that connected, and opens streams.
#[derive(Clone, Copy, Debug)]
pub struct Client;

/// The end that answers.
#[derive(Clone, Copy, Debug)]
pub struct Server;

/// Either end, where one type stands for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It connected.
    Client,
    /// It accepted.
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
