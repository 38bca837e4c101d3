//! Every answer takes the same time.

use serde::Deserialize;

use super::request_rng::RequestRng;
use super::{DelayLaw, LawContext, LawError, LawRequest, LawSettings, checked_nanos};
use crate::formats::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct ConstantSettings {
    delay: Period,
}

impl LawSettings for ConstantSettings {
    const NAME: &'static str = "constant";
    const KEYS: &'static [&'static str] = &["delay"];

    fn build(self, _: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        let delay = checked_nanos("delay", self.delay)?;
        Ok(Box::new(ConstantLaw(delay)))
    }
}

/// The delay in nanoseconds.
#[derive(Debug)]
struct ConstantLaw(f64);

impl DelayLaw for ConstantLaw {
    fn answer_time(&mut self, request: LawRequest, _: &mut RequestRng) -> u64 {
        request.time_after(self.0)
    }
}
