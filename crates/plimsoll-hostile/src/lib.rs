//! A reference server that misbehaves on purpose: named behaviours over HTTP/2, HTTP/1.1, server-sent events,
//! WebSocket, Bolt and TLS, each with the outcome that a correct client reports.
//!
//! A behaviour is a script for one connection, whose client makes one call. The script sends raw bytes and controls the
//! socket. It implements no protocol: it reads as much of the request as necessary, and writes bytes that no server
//! should send. The cost of a behaviour is bounded ([`MAX_CONNECTIONS`], [`MAX_WAIT`], [`MAX_FLOOD_BYTES`]). The
//! command `plimsoll serve hostile` uses this module.

mod bolt;
mod events;
mod http1;
mod http2;
mod peer;
mod protocol;
mod script;
mod server;
mod session;
mod tls;
mod websocket;

pub use peer::{MAX_FLOOD_BYTES, MAX_WAIT, ScriptTransport};
pub use protocol::HostileProtocol;
pub use script::HostileBehaviour;
pub use server::{HostileEndpoint, HostileServer, HostileStats, MAX_CONNECTIONS};

/// Returns all behaviours, grouped by protocol.
pub fn behaviours() -> impl Iterator<Item = (HostileProtocol, &'static HostileBehaviour)> {
    HostileProtocol::ALL
        .into_iter()
        .flat_map(|wire| wire.behaviours().map(move |b| (wire, b)))
}

/// Returns the behaviour of this name.
pub fn find_behaviour(name: &str) -> Option<(HostileProtocol, &'static HostileBehaviour)> {
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
