//! Wire formats of connections, which proxies must support.

use crate::formats::named_enum::named;

named! {
    /// The wire format of a connection, as far as it matters to a proxy.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum WireFormat by name {
        /// A protocol that proxies don't know: each connection is relayed as bytes.
        #[default]
        Bytes "TCP",
        /// HTTP/1.1 (RFC 9112).
        Http1 "HTTP/1.1",
        /// WebSocket: an HTTP/1.1 request that is upgraded (RFC 6455).
        Socket "WebSocket",
        /// HTTP/2 (RFC 9113).
        Http2 "HTTP/2",
        /// HTTP/2 with trailers and bidirectional streaming.
        Http2Trailers "gRPC",
    }
}
