//! Who decides when a call starts, and how many may be in flight.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::named::named;

/// Who decides when a call starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Open loop: the schedule decides, whatever the target does.
    Open(Spacing),
    /// Closed loop: each client starts a call when its last one ended and it has thought.
    Closed {
        /// How many.
        clients: u32,
        /// The pause between a client's calls.
        think: Duration,
    },
}

impl Arrivals {
    /// `None`: nobody waits for a call's end before the next one.
    pub const fn clients(self) -> Option<u32> {
        match self {
            Arrivals::Open(_) => None,
            Arrivals::Closed { clients, .. } => Some(clients),
        }
    }
}

/// How open-loop arrivals are spaced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spacing {
    /// Evenly.
    Constant,
    /// Exponential gaps (a Poisson process), from the plan's seed.
    Poisson,
    /// Arrivals at the times of a [recording](crate::recording::Recording).
    Recorded,
    /// Gaps of a gamma distribution with this shape, from the plan's seed: 1 is a Poisson process, less comes in bursts.
    Gamma(f64),
}

impl Spacing {
    /// The lowest and the highest shape of a gamma distribution that is of use.
    pub const GAMMA_SHAPES: RangeInclusive<f64> = 0.01..=100.0;

    /// Returns the name that plans and reports have for it.
    pub const fn name(self) -> &'static str {
        match self {
            Spacing::Constant => "constant",
            Spacing::Poisson => "poisson",
            Spacing::Gamma(_) => "gamma",
            Spacing::Recorded => "recorded",
        }
    }
}

/// How many calls may be in flight at once, over all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimit {
    /// The limit; at least one.
    pub calls: u32,
    /// What becomes of a call that is due when so many are in flight.
    pub when_full: WhenFull,
}

named! {
    /// What becomes of calls beyond a limit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum WhenFull by name {
        /// They wait for a call to end.
        Wait "wait",
        /// They fail, and are not sent.
        Shed "shed",
    }
}
