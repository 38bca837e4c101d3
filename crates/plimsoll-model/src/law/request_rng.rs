//! The random numbers of a request, which depend only on the seed and the request's number.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The generator's stream for events that do not belong to a request.
const SHARED_STREAM: u64 = u64::MAX;

/// The random numbers of one request.
#[derive(Debug)]
pub(super) struct RequestRng(ChaCha8Rng);

impl RequestRng {
    /// Returns the random numbers of request `number`.
    pub(super) fn for_request(seed: u64, number: u64) -> RequestRng {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(number);
        RequestRng(random)
    }

    /// Returns the random numbers of events that affect the whole server.
    pub(super) fn for_server(seed: u64) -> RequestRng {
        RequestRng::for_request(seed, SHARED_STREAM)
    }

    /// Draws uniformly from [0, 1).
    pub(super) fn fraction(&mut self) -> f64 {
        // An `f64` represents 53 bits exactly.
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws from an exponential distribution of mean 1.
    pub(super) fn exponential(&mut self) -> f64 {
        -(1.0 - self.fraction()).ln()
    }

    /// Draws from the standard normal distribution (Box–Muller).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * (std::f64::consts::TAU * self.fraction()).cos()
    }
}
