//! Log-normally distributed times: a heavy tail with finite moments.

use serde::Deserialize;

use super::request_rng::RequestRng;
use super::{
    DelayLaw, LawContext, LawError, LawRequest, LawSettings, checked_nanos, checked_number,
};
use crate::formats::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct LognormalSettings {
    median: Period,
    sigma: f64,
}

impl LawSettings for LognormalSettings {
    const NAME: &'static str = "lognormal";
    const KEYS: &'static [&'static str] = &["median", "sigma"];

    fn build(self, _: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        Ok(Box::new(LognormalLaw {
            median: checked_nanos("median", self.median)?,
            sigma: checked_number("sigma", self.sigma, 0.0, 5.0)?,
        }))
    }
}

/// The median in nanoseconds, and the standard deviation of the logarithm.
#[derive(Debug)]
struct LognormalLaw {
    median: f64,
    sigma: f64,
}

impl DelayLaw for LognormalLaw {
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64 {
        request.time_after(self.median * (self.sigma * draws.normal()).exp())
    }
}
