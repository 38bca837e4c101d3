//! Connections towards a route's upstreams: which one is next, and when it may be tried.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use plimsoll_model::Time;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use super::super::count;
use super::{Role, Worker};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) fn endpoint_failed(&mut self, route: usize, endpoint: usize, now: Time) {
        count(&self.counters(route).upstream_failures, 1);
        let endpoint = &mut self.routes[route].endpoints[endpoint];
        let pause = FIRST_PAUSE * (1 << endpoint.failures.min(6));
        endpoint.failures += 1;
        endpoint.retry_at = now + pause.min(LONGEST_PAUSE);
    }

    /// Begins a connection to one of the route's upstreams, in turn, leaving those out
    /// that failed a moment ago.
    pub(super) fn connect(
        &mut self,
        route: usize,
        role: impl FnOnce(usize) -> Role,
        now: Time,
    ) -> Option<u64> {
        let state = &mut self.routes[route];
        let n = state.endpoints.len();
        let endpoint = (0..n)
            .map(|i| (state.next_endpoint + i) % n)
            .find(|i| state.endpoints[*i].retry_at <= now)?;
        state.next_endpoint = (endpoint + 1) % n;
        let address = state.endpoints[endpoint].address;
        let begun = (|| -> io::Result<(TcpStream, Option<rustls::Connection>)> {
            let tls = match &state.upstream_tls {
                Some(identity) => Some(
                    identity
                        .connection(&address.ip().to_string())
                        .map_err(io::Error::other)?,
                ),
                None => None,
            };
            Ok((begin(address)?, tls))
        })();
        count(&self.counters(route).upstream_connects, 1);
        let adopted = begun
            .and_then(|(socket, tls)| self.adopt(socket, tls, route, role(endpoint), true, now));
        match adopted {
            Ok(token) => Some(token),
            Err(e) => {
                tracing::warn!("connecting to {address}: {e}");
                self.endpoint_failed(route, endpoint, now);
                None
            }
        }
    }
}

/// A connection that is being made.
fn begin(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        None,
    )?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(e) if e.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(e) => return Err(e),
    }
    Ok(socket.into())
}
