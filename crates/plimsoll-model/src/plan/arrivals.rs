//! The arrival model (open or closed loop), and the limit of calls in flight.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::formats::named_enum::named;

/// The arrival model: calls are started by the schedule (open loop), or by the end of a client's previous call (closed
/// loop).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalModel {
    /// Open loop: the schedule starts calls whatever the target does.
    Open(ArrivalSpacing),
    /// Closed loop: each client starts a call when its previous call has ended and its think time is over.
    Closed {
        /// The number of clients.
        clients: u32,
        /// The pause between a client's calls.
        think: Duration,
    },
}

impl ArrivalModel {
    /// Returns the number of clients; `None`: an open loop, in which no call waits for another.
    pub const fn clients(self) -> Option<u32> {
        match self {
            ArrivalModel::Open(_) => None,
            ArrivalModel::Closed { clients, .. } => Some(clients),
        }
    }
}

/// How open-loop arrivals are spaced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalSpacing {
    /// Equal gaps.
    Constant,
    /// Exponential gaps (a Poisson process), from the plan's seed.
    Poisson,
    /// Arrivals at the times of a [recording](crate::rows::recording::Recording).
    Recorded,
    /// Gaps of a gamma distribution with this shape, from the plan's seed: shape 1 is a Poisson process, a smaller
    /// shape gives bursts.
    Gamma(f64),
}

impl ArrivalSpacing {
    /// The smallest and the largest accepted shape of a gamma distribution.
    pub const GAMMA_SHAPE_RANGE: RangeInclusive<f64> = 0.01..=100.0;

    /// Returns the name in plans and reports.
    pub const fn name(self) -> &'static str {
        match self {
            ArrivalSpacing::Constant => "constant",
            ArrivalSpacing::Poisson => "poisson",
            ArrivalSpacing::Gamma(_) => "gamma",
            ArrivalSpacing::Recorded => "recorded",
        }
    }
}

/// How many calls may be in flight at once, over all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimit {
    /// The limit; at least one.
    pub calls: u32,
    /// The treatment of a call that is due when the limit is reached.
    pub when_full: WhenFull,
}

named! {
    /// The treatment of calls beyond the limit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum WhenFull by name {
        /// These calls wait until another one ends.
        Wait "wait",
        /// These calls fail, and are not sent.
        Shed "shed",
    }
}
