//! What a server says to the clients of an event loop.

use std::time::Duration;

use plimsoll_engine::tls::Agreement;

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

    /// A connection was accepted.
    fn connection(&self) -> Self::Connection;

    /// A connection is up: what it begins with.
    fn open(&self, _connection: &mut Self::Connection, _out: &mut Vec<u8>) {}

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
