//! Random gaps between arrivals, in units of their mean.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;
use rand_distr::{Distribution, Gamma};

use crate::plan::Spacing;

/// The gaps of a renewal process whose mean gap is 1.
#[derive(Clone, Debug)]
pub(super) enum Gaps {
    /// Exponential gaps.
    Exponential,
    /// Gaps of a gamma distribution, and the distribution of the gap that the beginning falls into; `None` once that has
    /// passed.
    Gamma(Gamma<f64>, Option<Gamma<f64>>),
}

impl Gaps {
    /// Shapes that no gamma distribution can have give exponential gaps.
    pub(super) fn of(spacing: Spacing) -> Gaps {
        let Spacing::Gamma(shape) = spacing else {
            return Gaps::Exponential;
        };
        let scale = 1.0 / shape;
        match (Gamma::new(shape, scale), Gamma::new(shape + 1.0, scale)) {
            (Ok(gaps), Ok(first)) => Gaps::Gamma(gaps, Some(first)),
            _ => Gaps::Exponential,
        }
    }

    /// Draws the next gap.
    #[inline]
    pub(super) fn next(&mut self, rng: &mut ChaCha8Rng) -> f64 {
        match self {
            Gaps::Exponential => -(1.0 - uniform(rng)).ln(),
            Gaps::Gamma(gaps, first) => match first.take() {
                // A run begins at any moment of the process, and that is in a long gap more often than in a short one:
                // in gaps weighted by their length, which are of the next higher shape. Otherwise a run of bursts would
                // have more arrivals than its rate.
                Some(first) => uniform(rng) * first.sample(rng),
                None => gaps.sample(rng),
            },
        }
    }
}

/// Draws 53 bits in [0, 1), so that 1 less it is in (0, 1].
#[inline]
fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}
