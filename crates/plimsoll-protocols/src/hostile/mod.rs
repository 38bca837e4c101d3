//! A reference server that misbehaves on purpose: named behaviours over HTTP/2, HTTP/1.1, server-sent events,
//! WebSocket, Bolt and TLS, each with the outcome that a correct client reports.
//!
//! A behaviour is a script for one connection, whose client makes one call. The script sends raw bytes and controls the
//! socket. It implements no protocol: it reads as much of the request as necessary, and writes bytes that no server
//! should send. The cost of a behaviour is bounded ([`MAX_CONNECTIONS`], [`MAX_WAIT`], [`MAX_FLOOD_BYTES`]). The command
//! `plimsoll serve hostile` uses this module.

use std::io;

mod bolt;
mod events;
mod http1;
mod http2;
mod peer;
mod script;
mod server;
mod session;
mod tls;
mod websocket;

pub use peer::{MAX_FLOOD_BYTES, MAX_WAIT, ScriptPeer};
pub use script::HostileBehaviour;
pub use server::{HostileEndpoint, HostileServer, HostileStats, MAX_CONNECTIONS};

/// The protocol that the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostileProtocol {
    /// gRPC over HTTP/2.
    Http2,
    /// A file over HTTP/1.1.
    Http1,
    /// A language model's answer over HTTP/1.1.
    Events,
    /// A session: its API over HTTP/1.1 and its socket, at one address.
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

    /// Returns the protocol's name in lists.
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

    fn behaviours(self) -> impl Iterator<Item = &'static HostileBehaviour> {
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
    fn request_reader(self) -> fn(&mut ScriptPeer) -> io::Result<u32> {
        match self {
            HostileProtocol::Http2 => http2::read_request,
            HostileProtocol::Http1 | HostileProtocol::WebSocket => http1::read_request,
            HostileProtocol::Events => events::read_request,
            HostileProtocol::Bolt => bolt::read_request,
            HostileProtocol::Tls => tls::read_request,
        }
    }
}

/// Returns all behaviours, grouped by protocol.
pub fn behaviours() -> impl Iterator<Item = (HostileProtocol, &'static HostileBehaviour)> {
    HostileProtocol::ALL
        .into_iter()
        .flat_map(|wire| wire.behaviours().map(move |b| (wire, b)))
}

/// Returns the behaviour of this name.
pub fn find(name: &str) -> Option<(HostileProtocol, &'static HostileBehaviour)> {
    behaviours().find(|(_, behaviour)| behaviour.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn behaviour_names_are_unique() {
        let mut names = BTreeSet::new();
        for (_, behaviour) in behaviours() {
            assert!(
                names.insert(behaviour.name),
                "{} is there twice",
                behaviour.name
            );
        }
        assert!(names.len() >= 120, "{}", names.len());
        for wire in HostileProtocol::ALL {
            assert!(wire.behaviours().count() >= 15, "{wire:?}");
        }
    }
}
