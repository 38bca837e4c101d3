//! What a proxy has to understand of the connections of a call.

use crate::named::named;

named! {
    /// The form of what connections carry, as far as it matters to a proxy.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Wire by name {
        /// Bytes of a protocol that proxies do not know: they are passed on, a connection for a connection.
        #[default]
        Bytes "TCP",
        /// Requests of RFC 9112.
        Http1 "HTTP/1.1",
        /// A request that becomes a socket of messages (RFC 6455).
        Socket "WebSocket",
        /// Requests of RFC 9113.
        Http2 "HTTP/2",
        /// Requests of RFC 9113 whose answers end with trailers, and whose bodies go both ways at once.
        Http2Trailers "gRPC",
    }
}
