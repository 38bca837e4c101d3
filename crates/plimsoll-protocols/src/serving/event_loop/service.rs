//! What a server says to the clients of an event loop.

use std::time::Duration;

use plimsoll_engine::Clock;
use plimsoll_engine::network::os::SocketOptions;
use plimsoll_engine::tls::Agreement;
use plimsoll_model::Time;

/// When bytes that were just read reached this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// When the last of them did: the kernel's stamp, or, where there is none, when they were read.
    pub(crate) last: Time,
    /// When the first of them did at the earliest.
    pub(crate) earliest: Time,
}

/// An answer that leaves later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    /// When it leaves.
    pub(crate) due: Time,
    /// The service's own number of it.
    pub(crate) number: u64,
}

/// What becomes of a connection once a held answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// It goes on.
    Open,
    /// Its client was told that it is closed.
    Closing,
}

/// What is served. Cloned for each thread.
pub(crate) trait Service: Clone + Send + 'static {
    /// Of its threads, and of the fault point in each turn of a connection.
    const SERVICE_NAME: &'static str;
    /// Connections rest most of the time: then they give up all memory that can be had again, and a TLS connection
    /// that ends without close_notify is broken.
    const IS_MOSTLY_IDLE: bool;
    /// One connection's state.
    type Connection;

    /// How long an idle thread polls before it sleeps.
    fn busy_poll(&self) -> Duration {
        Duration::ZERO
    }

    /// The clock of its times.
    fn clock(&self) -> Clock {
        Clock::new()
    }

    /// How its sockets are read and waited for.
    fn sockets(&self) -> SocketOptions {
        SocketOptions::default()
    }

    /// A connection was accepted.
    fn connection(&self) -> Self::Connection;

    /// A connection is up: what it begins with.
    fn open(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) {}

    /// Says when the bytes that are received next reached this host.
    fn arrived(&self, _connection: &mut Self::Connection, _at: Arrived) {}

    /// Answers what a client has sent.
    ///
    /// # Errors
    /// Why the connection can't go on.
    fn receive(
        &self,
        connection: &mut Self::Connection,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), String>;

    /// Takes the next answer that leaves later, of those that the last bytes brought about.
    fn held(&self, _connection: &mut Self::Connection) -> Option<Held> {
        None
    }

    /// A held answer is due: makes it. Where nothing is appended to `out`, its client no longer wants it.
    fn release(
        &self,
        _connection: &mut Self::Connection,
        _number: u64,
        _out: &mut Vec<u8>,
    ) -> Afterwards {
        Afterwards::Open
    }

    /// The released answer was given to the kernel as a whole between two moments.
    fn released(&self, _connection: &mut Self::Connection, _between: [Time; 2]) {}

    /// All is written: makes more of the answers that were held back; false where there are none.
    fn go_on(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// The server stops.
    fn finish(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) {}

    /// A TLS handshake was completed.
    fn secured(&self, _agreement: Agreement) {}

    /// The connection is closed, by either end.
    fn closed(&self, _connection: &Self::Connection) {}
}
