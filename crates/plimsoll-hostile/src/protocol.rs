//! The protocols that the hostile server speaks, with the behaviours of each.

use std::io;

use super::peer::ScriptTransport;
use super::script::HostileBehaviour;
use super::{bolt, events, http1, http2, tls, websocket};

/// The protocol that the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostileProtocol {
    /// gRPC over HTTP/2.
    Http2,
    /// A file over HTTP/1.1.
    Http1,
    /// A language model's answer over HTTP/1.1.
    Events,
    /// A chat session: its API over HTTP/1.1 and its WebSocket, at one address.
    WebSocket,
    /// SOFABolt.
    Bolt,
    /// A file over HTTP/1.1 and TLS.
    Tls,
}

impl HostileProtocol {
    /// All protocols, in the order in which they are listed.
    pub const ALL: [HostileProtocol; 6] = [
        HostileProtocol::Http2,
        HostileProtocol::Http1,
        HostileProtocol::Events,
        HostileProtocol::WebSocket,
        HostileProtocol::Bolt,
        HostileProtocol::Tls,
    ];

    /// Returns the protocol's name, as lists show it.
    pub fn name(self) -> &'static str {
        match self {
            HostileProtocol::Http2 => "HTTP/2",
            HostileProtocol::Http1 => "HTTP/1.1",
            HostileProtocol::Events => "Server-sent events",
            HostileProtocol::WebSocket => "WebSocket",
            HostileProtocol::Bolt => "Bolt",
            HostileProtocol::Tls => "TLS",
        }
    }

    /// Returns the URL scheme for loads.
    pub fn scheme(self) -> &'static str {
        match self {
            HostileProtocol::Http2 => "grpc",
            HostileProtocol::Http1 | HostileProtocol::Events => "http",
            HostileProtocol::WebSocket => "session",
            HostileProtocol::Bolt => "sofa",
            HostileProtocol::Tls => "https",
        }
    }

    pub(crate) fn behaviours(self) -> impl Iterator<Item = &'static HostileBehaviour> {
        let (some, more): (&[HostileBehaviour], &[HostileBehaviour]) = match self {
            HostileProtocol::Http2 => (http2::BEHAVIOURS, http2::FIELD_BEHAVIOURS),
            HostileProtocol::Http1 => (http1::BEHAVIOURS, &[]),
            HostileProtocol::Events => (events::BEHAVIOURS, &[]),
            HostileProtocol::WebSocket => (websocket::BEHAVIOURS, &[]),
            HostileProtocol::Bolt => (bolt::BEHAVIOURS, &[]),
            HostileProtocol::Tls => (tls::BEHAVIOURS, &[]),
        };
        some.iter().chain(more)
    }

    /// Returns the function that reads a request. The function returns the request's id (a Bolt request id or an HTTP/2
    /// stream id), or 0.
    pub(crate) fn request_reader(self) -> fn(&mut ScriptTransport) -> io::Result<u32> {
        match self {
            HostileProtocol::Http2 => http2::read_request,
            HostileProtocol::Http1 | HostileProtocol::WebSocket => http1::read_request,
            HostileProtocol::Events => events::read_request,
            HostileProtocol::Bolt => bolt::read_request,
            HostileProtocol::Tls => tls::read_request,
        }
    }
}
