//! Pareto-distributed times, truncated at a maximum: a tail so heavy that its mean may not exist otherwise.

use serde::Deserialize;

use super::request_rng::RequestRng;
use super::{
    DelayLaw, LawContext, LawError, LawRequest, LawSettings, checked_nanos, checked_number,
};
use crate::formats::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct ParetoSettings {
    min: Period,
    alpha: f64,
    max: Period,
}

impl LawSettings for ParetoSettings {
    const NAME: &'static str = "pareto";
    const KEYS: &'static [&'static str] = &["min", "alpha", "max"];

    fn build(self, _: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        let (min, max) = (
            checked_nanos("min", self.min)?,
            checked_nanos("max", self.max)?,
        );
        if min > max {
            let problem = format!("min: {} is above max, which is {}", self.min, self.max);
            return Err(LawError::new(problem));
        }
        let alpha = checked_number("alpha", self.alpha, 0.1, 100.0)?;
        Ok(Box::new(ParetoLaw { min, alpha, max }))
    }
}

/// A truncated Pareto distribution of times, in nanoseconds.
#[derive(Debug)]
struct ParetoLaw {
    min: f64,
    alpha: f64,
    max: f64,
}

impl DelayLaw for ParetoLaw {
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64 {
        let time = self.min * (draws.exponential() / self.alpha).exp();
        request.time_after(time.min(self.max))
    }
}
