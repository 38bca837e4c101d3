//! The access log's lines: what became of a call, or of a connection.

use std::net::SocketAddr;

use jiff::Timestamp;
use plimsoll_model::Time;

use super::super::access_log::Line;
use super::super::count;
use super::Worker;

/// A call, or a connection, that has ended: what of its line the protocol knows.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) client: Option<SocketAddr>,
    /// The upstream that the call went to, by its place.
    pub(super) endpoint: Option<usize>,
    pub(super) call: Option<String>,
    pub(super) status: Option<String>,
    pub(super) by_sidecar: bool,
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
}

impl Worker {
    /// Whether lines are wanted: where they are not, nothing is gathered for them.
    pub(super) fn logs(&self) -> bool {
        self.access_log.is_some()
    }

    pub(super) fn log(&self, route: usize, began: Time, ended: Ended) {
        let Some(log) = &self.access_log else {
            return;
        };
        let state = &self.routes[route];
        let upstream = ended.endpoint.and_then(|place| state.endpoints.get(place));
        let took = self.shared.clock.now().duration_since(began);
        let line = Line {
            time: Timestamp::now(),
            route: state.route.name.clone(),
            client: ended.client,
            upstream: upstream.map(|endpoint| endpoint.address().to_string()),
            call: ended.call,
            status: ended.status,
            by_sidecar: ended.by_sidecar,
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            bytes_up: ended.bytes_up,
            bytes_down: ended.bytes_down,
        };
        if !log.write(line) {
            count(&self.counters(route).lines_lost, 1);
        }
    }
}
