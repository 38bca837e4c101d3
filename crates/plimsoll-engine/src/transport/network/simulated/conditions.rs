//! The properties of a simulated network: latency, segmentation and faults.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use plimsoll_model::Time;

/// The latency, segmentation and faults of a simulated network. Probabilities are in parts per million.
#[derive(Clone, Debug)]
pub struct NetworkConditions {
    /// Seed of the random numbers; the same seed produces the same run.
    pub seed: u64,
    /// One-way latency of each segment in microseconds.
    pub latency_us: RangeInclusive<u64>,
    /// Size of a segment in bytes; longer writes arrive as several segments.
    pub piece: RangeInclusive<usize>,
    /// Probability of a connection reset, per segment.
    pub reset_ppm: u32,
    /// Probability, per segment, that its direction stalls for [`NetworkConditions::stall_ms`].
    pub stall_ppm: u32,
    /// Length of a stall in milliseconds.
    pub stall_ms: RangeInclusive<u64>,
    /// Probability that a connect is refused at once.
    pub refuse_ppm: u32,
    /// Probability that a connect is never answered.
    pub ignore_ppm: u32,
    /// Maximum number of bytes in transit to the server before writes block.
    pub send_buffer: usize,
    /// The addresses that every lookup returns; all lead to the same simulated server.
    pub addresses: Vec<SocketAddr>,
    /// Addresses that never answer a connect.
    pub silent_addresses: Vec<SocketAddr>,
    /// Addresses that refuse every connect.
    pub refusing_addresses: Vec<SocketAddr>,
    /// Times and lengths of pauses of the worker, like those caused by a signal or a busy machine; network and server
    /// continue meanwhile.
    pub pauses: Vec<(Time, Duration)>,
    /// Probability that the worker is preempted before it passes written bytes to the kernel.
    pub slow_write_ppm: u32,
    /// Length of such a delay in microseconds.
    pub slow_write_us: RangeInclusive<u64>,
    /// Time from which name lookups fail.
    pub lookups_fail_from: Time,
}

impl NetworkConditions {
    /// Returns conditions without faults: 50 µs one-way latency, no segmentation, no loss.
    pub fn faultless(seed: u64) -> NetworkConditions {
        NetworkConditions {
            seed,
            latency_us: 50..=50,
            piece: 1 << 20..=1 << 20,
            reset_ppm: 0,
            stall_ppm: 0,
            stall_ms: 0..=0,
            refuse_ppm: 0,
            ignore_ppm: 0,
            send_buffer: 1 << 20,
            addresses: vec![SocketAddr::from(([127, 0, 0, 1], 1))],
            silent_addresses: Vec::new(),
            refusing_addresses: Vec::new(),
            pauses: Vec::new(),
            slow_write_ppm: 0,
            slow_write_us: 0..=0,
            lookups_fail_from: Time::NEVER,
        }
    }
}
