//! Exponentially distributed times: the classic service time of a queue.

use serde::Deserialize;

use super::request_rng::RequestRng;
use super::{DelayLaw, LawContext, LawError, LawRequest, LawSettings, checked_nanos};
use crate::formats::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct ExponentialSettings {
    mean: Period,
}

impl LawSettings for ExponentialSettings {
    const NAME: &'static str = "exponential";
    const KEYS: &'static [&'static str] = &["mean"];

    fn build(self, _: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        let mean = checked_nanos("mean", self.mean)?;
        Ok(Box::new(ExponentialLaw(mean)))
    }
}

/// The mean in nanoseconds.
#[derive(Debug)]
struct ExponentialLaw(f64);

impl DelayLaw for ExponentialLaw {
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64 {
        request.time_after(self.0 * draws.exponential())
    }
}
