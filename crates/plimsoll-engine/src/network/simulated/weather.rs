//! What a simulated network is like, and does to traffic.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use plimsoll_model::Time;

/// What the network does to traffic. Chances are out of a million.
#[derive(Clone, Debug)]
pub struct Weather {
    /// The seed of all chances: the same seed gives the same run.
    pub seed: u64,
    /// Latency of every piece in one direction, in microseconds.
    pub latency_us: RangeInclusive<u64>,
    /// Bytes of a piece; a write longer than that arrives as several.
    pub piece: RangeInclusive<usize>,
    /// Chance for each piece that the connection is reset.
    pub reset: u32,
    /// Chance for each piece that the direction stands still for [`Weather::stall_ms`].
    pub stall: u32,
    /// How long the direction stands still, in milliseconds.
    pub stall_ms: RangeInclusive<u64>,
    /// Chance for each connect that it is refused at once.
    pub refuse: u32,
    /// Chance for each connect that it is never answered.
    pub ignore: u32,
    /// Bytes that may be on the way to the server before writes block.
    pub send_buffer: usize,
    /// Addresses of the only name. Connections to all of them reach the one server.
    pub addresses: Vec<SocketAddr>,
    /// Addresses that answer no connect.
    pub silent: Vec<SocketAddr>,
    /// Addresses that refuse every connect.
    pub refusing: Vec<SocketAddr>,
    /// When the worker is stopped, and for how long, as a signal or a busy machine does: the network and the
    /// server go on.
    pub pauses: Vec<(Time, Duration)>,
    /// The time from which no name is resolved.
    pub nameless_from: Time,
}

impl Weather {
    /// A quiet network: 50 µs one way, nothing split, nothing lost.
    pub fn calm(seed: u64) -> Weather {
        Weather {
            seed,
            latency_us: 50..=50,
            piece: 1 << 20..=1 << 20,
            reset: 0,
            stall: 0,
            stall_ms: 0..=0,
            refuse: 0,
            ignore: 0,
            send_buffer: 1 << 20,
            addresses: vec![SocketAddr::from(([127, 0, 0, 1], 1))],
            silent: Vec::new(),
            refusing: Vec::new(),
            pauses: Vec::new(),
            nameless_from: Time::NEVER,
        }
    }
}
