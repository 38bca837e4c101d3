//! Most answers take one time and some another: a cache with hits and misses.

use serde::Deserialize;

use super::draws::Draws;
use super::{Law, LawError, Request, Settings, Within, nanos, number};
use crate::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct Bimodal {
    fast: Period,
    slow: Period,
    slow_share: f64,
}

impl Settings for Bimodal {
    const NAME: &'static str = "bimodal";
    const KEYS: &'static [&'static str] = &["fast", "slow", "slow_share"];

    fn law(self, _: &Within) -> Result<Box<dyn Law>, LawError> {
        Ok(Box::new(Modes {
            fast: nanos("fast", self.fast)?,
            slow: nanos("slow", self.slow)?,
            slow_share: number("slow_share", self.slow_share, 0.0, 1.0)?,
        }))
    }
}

/// Times in nanoseconds.
#[derive(Debug)]
struct Modes {
    fast: f64,
    slow: f64,
    slow_share: f64,
}

impl Law for Modes {
    fn leaves(&mut self, request: Request, draws: &mut Draws) -> u64 {
        let is_slow = draws.fraction() < self.slow_share;
        request.after(if is_slow { self.slow } else { self.fast })
    }
}
