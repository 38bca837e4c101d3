//! Wire formats of connections, which proxies must support.

use crate::formats::named_enum::named;

/// The calls that a proxy has to pass on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxiedCalls {
    /// The wire format of their connections.
    pub wire: WireFormat,
    /// Whether they go to the API of a language model, which gateways of models understand.
    pub calls_model: bool,
}

impl From<WireFormat> for ProxiedCalls {
    fn from(wire: WireFormat) -> ProxiedCalls {
        ProxiedCalls {
            wire,
            calls_model: false,
        }
    }
}

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
