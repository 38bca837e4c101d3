//! The interface between the event loop and the servers that run on it.

use std::time::Duration;

use plimsoll_engine::Clock;
use plimsoll_engine::tls::NegotiatedParameters;
use plimsoll_engine::transport::network::os::SocketOptions;
use plimsoll_model::Time;

/// When the bytes that were just read reached this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalTimes {
    /// When the last byte arrived, by the kernel's timestamp; if there is none, when the byte was read.
    pub last: Time,
    /// The earliest time at which the first byte can have arrived.
    pub earliest: Time,
}

/// A response that is sent later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DelayedResponse {
    /// When the response is sent.
    pub due: Time,
    /// The number by which the service identifies the response.
    pub number: u64,
}

/// Whether a connection stays open once a delayed response is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionDisposition {
    /// The connection stays open.
    Open,
    /// The connection is closed, as its last response announced.
    Closing,
}

/// A server that runs on event loops; each thread has a clone.
pub trait LoopService: Clone + Send + 'static {
    /// The name of the server's threads, and of the fault point that each ready connection passes.
    const SERVICE_NAME: &'static str;
    /// Whether connections are idle most of the time. If so, an idle connection releases all memory that can be
    /// allocated again, and a TLS connection that ends without close_notify counts as broken.
    const IS_MOSTLY_IDLE: bool;
    /// The state of one connection.
    type Connection;

    /// Returns how long an idle thread polls before it sleeps.
    fn busy_poll(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the clock that the server's times are read from.
    fn clock(&self) -> Clock {
        Clock::new()
    }

    /// Returns the options of the server's sockets.
    fn socket_options(&self) -> SocketOptions {
        SocketOptions::default()
    }

    /// Makes the state of a connection that was accepted.
    fn new_connection(&self) -> Self::Connection;

    /// Appends the bytes that the server sends first, once a connection is open.
    fn on_open(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) {}

    /// Called before [`LoopService::receive`] with the times at which its bytes reached this host.
    fn on_arrival(&self, _connection: &mut Self::Connection, _at: ArrivalTimes) {}

    /// Answers the bytes that a client has sent.
    ///
    /// # Errors
    /// Returns the reason why the connection must be closed.
    fn receive(
        &self,
        connection: &mut Self::Connection,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), String>;

    /// Returns the next delayed response to the bytes received last; called until it returns `None`.
    fn next_delayed_response(&self, _connection: &mut Self::Connection) -> Option<DelayedResponse> {
        None
    }

    /// Appends a delayed response that is due, or nothing if the client no longer wants it.
    fn write_delayed_response(
        &self,
        _connection: &mut Self::Connection,
        _number: u64,
        _out: &mut Vec<u8>,
    ) -> ConnectionDisposition {
        ConnectionDisposition::Open
    }

    /// Called when a delayed response was completely passed to the kernel, between these two times.
    fn on_delayed_response_written(&self, _connection: &mut Self::Connection, _between: [Time; 2]) {
    }

    /// Appends the next part of a large response; called when all earlier parts are written. Returns false if no part
    /// is left.
    fn append_next_part(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Appends the last bytes for a client; called when the server stops.
    fn finish(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) {}

    /// Called when a TLS handshake is complete.
    fn on_handshake_done(&self, _agreement: NegotiatedParameters) {}

    /// Called when the connection was closed, by either end.
    fn on_closed(&self, _connection: &Self::Connection) {}
}
