//! A server with two response times, such as a cache with hits and misses.

use serde::Deserialize;

use super::request_rng::RequestRng;
use super::{
    DelayLaw, LawContext, LawError, LawRequest, LawSettings, checked_nanos, checked_number,
};
use crate::formats::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct BimodalSettings {
    fast: Period,
    slow: Period,
    slow_share: f64,
}

impl LawSettings for BimodalSettings {
    const NAME: &'static str = "bimodal";
    const KEYS: &'static [&'static str] = &["fast", "slow", "slow_share"];

    fn build(self, _: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        Ok(Box::new(BimodalLaw {
            fast: checked_nanos("fast", self.fast)?,
            slow: checked_nanos("slow", self.slow)?,
            slow_share: checked_number("slow_share", self.slow_share, 0.0, 1.0)?,
        }))
    }
}

/// A law with two response times, in nanoseconds.
#[derive(Debug)]
struct BimodalLaw {
    fast: f64,
    slow: f64,
    slow_share: f64,
}

impl DelayLaw for BimodalLaw {
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64 {
        let is_slow = draws.fraction() < self.slow_share;
        request.time_after(if is_slow { self.slow } else { self.fast })
    }
}
