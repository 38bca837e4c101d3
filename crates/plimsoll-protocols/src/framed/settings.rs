//! Settings of connections whose frames carry request ids.

use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::spec::{OptionalPeriod, Problems};

/// Settings that all connections of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramedSettings {
    /// The maximum number of calls in flight on a connection.
    pub(crate) in_flight: u32,
    /// Silence after which a heartbeat is due, in nanoseconds; 0 means never.
    pub(crate) heartbeat_ns: u64,
    /// Length of a request, in bytes.
    pub(crate) request_bytes: u32,
}

impl FramedSettings {
    /// Makes settings for requests as long as `frame`. `in_flight`: `None` means no limit. `heartbeat`: `None` means
    /// never.
    pub(crate) fn new(
        in_flight: Option<u32>,
        heartbeat: Option<Duration>,
        frame: &[u8],
    ) -> FramedSettings {
        FramedSettings {
            in_flight: in_flight.unwrap_or(u32::MAX),
            heartbeat_ns: heartbeat.map_or(0, |every| (Time::ZERO + every).0),
            request_bytes: u32::try_from(frame.len()).unwrap_or(u32::MAX),
        }
    }
}

/// Checks the keys of `[call.SECTION]` for connections whose frames carry request ids. The last argument is the key
/// that limits the size of frames or contents, and its value in bytes.
pub(crate) fn check_framed_keys(
    problems: &mut Problems,
    section: &str,
    in_flight: Option<u32>,
    heartbeat: Option<OptionalPeriod>,
    (key, most): (&str, u64),
) {
    let is_none = heartbeat.is_some_and(OptionalPeriod::is_zero);
    for (key, wrong, why) in [
        (
            "in_flight",
            in_flight == Some(0),
            "0 calls in flight send nothing: use 1 or more, or leave it out",
        ),
        (
            key,
            !(1..1 << 31).contains(&most),
            "out of range: use 1B to 2047MiB",
        ),
        (
            "heartbeat",
            is_none,
            "0 would send nothing but heartbeats: use a duration, or \"none\"",
        ),
    ] {
        if wrong {
            problems.add(format!("call.{section}.{key}"), why);
        }
    }
}
