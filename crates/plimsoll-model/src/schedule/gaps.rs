//! Random gaps between arrivals, in units of their mean.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;
use rand_distr::{Distribution, Gamma};

use crate::plan::ArrivalSpacing;

/// The gap distribution of a renewal process with a mean gap of 1.
#[derive(Clone, Debug)]
pub(super) enum RenewalGaps {
    /// Exponential gaps.
    Exponential,
    /// Gaps of a gamma distribution. The second distribution is for the gap in which the run starts, and `None`
    /// afterwards.
    Gamma(Gamma<f64>, Option<Gamma<f64>>),
}

impl RenewalGaps {
    /// Returns the gaps for `spacing`. A shape that is invalid for a gamma distribution gives exponential gaps.
    pub(super) fn from_spacing(spacing: ArrivalSpacing) -> RenewalGaps {
        let ArrivalSpacing::Gamma(shape) = spacing else {
            return RenewalGaps::Exponential;
        };
        let scale = 1.0 / shape;
        match (Gamma::new(shape, scale), Gamma::new(shape + 1.0, scale)) {
            (Ok(gaps), Ok(first)) => RenewalGaps::Gamma(gaps, Some(first)),
            _ => RenewalGaps::Exponential,
        }
    }

    /// Draws the next gap.
    #[inline]
    pub(super) fn next(&mut self, rng: &mut ChaCha8Rng) -> f64 {
        match self {
            RenewalGaps::Exponential => -(1.0 - uniform(rng)).ln(),
            RenewalGaps::Gamma(gaps, first) => match first.take() {
                // A run starts at an arbitrary moment of the process, which is more likely to lie in a long gap. Gaps
                // weighted by their length follow a gamma distribution whose shape is higher by one. Without this, a
                // bursty run would have more arrivals than its rate says.
                Some(first) => uniform(rng) * first.sample(rng),
                None => gaps.sample(rng),
            },
        }
    }
}

/// Draws 53 random bits as a number in [0, 1), so that 1 minus it is in (0, 1].
#[inline]
fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}
