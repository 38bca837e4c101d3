//! The interface between the event loop and the servers that run on it.

use std::time::Duration;

use plimsoll_engine::Clock;
use plimsoll_engine::network::os::SocketOptions;
use plimsoll_engine::tls::Agreement;
use plimsoll_model::Time;

/// When the bytes that were just read reached this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrivalTimes {
    /// When the last byte arrived, by the kernel's timestamp; without one, when it was read.
    pub(crate) last: Time,
    /// The earliest time at which the first byte can have arrived.
    pub(crate) earliest: Time,
}

/// A response that leaves later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DelayedResponse {
    /// When the response leaves.
    pub(crate) due: Time,
    /// The service's own number of the response.
    pub(crate) number: u64,
}

/// What to do with a connection once a delayed response is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionDisposition {
    /// Keeps it open.
    Open,
    /// Closes it: the client was told so.
    Closing,
}

/// A server of an event loop. Cloned for each thread.
pub(crate) trait LoopService: Clone + Send + 'static {
    /// The name of its threads, and of the fault point that each ready connection passes.
    const SERVICE_NAME: &'static str;
    /// True if connections are idle most of the time: then they release all memory that can be allocated again, and a
    /// TLS connection that ends without close_notify counts as broken.
    const IS_MOSTLY_IDLE: bool;
    /// The state of one connection.
    type Connection;

    /// How long an idle thread polls before it sleeps.
    fn busy_poll(&self) -> Duration {
        Duration::ZERO
    }

    /// The clock that its times are read from.
    fn clock(&self) -> Clock {
        Clock::new()
    }

    /// Options of its sockets.
    fn sockets(&self) -> SocketOptions {
        SocketOptions::default()
    }

    /// Makes the state of a connection that was accepted.
    fn connection(&self) -> Self::Connection;

    /// Writes what the server sends first on a connection that is up.
    fn open(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) {}

    /// Tells when the bytes that are received next reached this host.
    fn arrived(&self, _connection: &mut Self::Connection, _at: ArrivalTimes) {}

    /// Answers the bytes that a client has sent.
    ///
    /// # Errors
    /// Why the connection can't be used any longer.
    fn receive(
        &self,
        connection: &mut Self::Connection,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), String>;

    /// Takes the next delayed response, of those that the last bytes caused.
    fn held(&self, _connection: &mut Self::Connection) -> Option<DelayedResponse> {
        None
    }

    /// Writes a delayed response that is due. It appends nothing to `out` if the client no longer wants it.
    fn release(
        &self,
        _connection: &mut Self::Connection,
        _number: u64,
        _out: &mut Vec<u8>,
    ) -> ConnectionDisposition {
        ConnectionDisposition::Open
    }

    /// Called when a released response was handed to the kernel as a whole, between these two times.
    fn released(&self, _connection: &mut Self::Connection, _between: [Time; 2]) {}

    /// Called when everything is written: appends more of a large response. Returns false if there is no more.
    fn produce_more(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Appends the last bytes for a client, because the server stops.
    fn finish(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) {}

    /// Called when a TLS handshake is complete.
    fn secured(&self, _agreement: Agreement) {}

    /// Called when the connection was closed, by either end.
    fn closed(&self, _connection: &Self::Connection) {}
}
