//! A server that becomes slower or faster linearly over time and then stays so.

use serde::Deserialize;
use toml::Table;

use super::request_rng::RequestRng;
use super::{
    DelayLaw, FIRST_ARRIVAL_NS, LawContext, LawError, LawRequest, LawSettings, checked_number,
};
use crate::formats::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct DriftSettings {
    of: Table,
    to: f64,
    over: Period,
}

impl LawSettings for DriftSettings {
    const NAME: &'static str = "drift";
    const KEYS: &'static [&'static str] = &["of", "to", "over"];

    fn build(self, within: &LawContext) -> Result<Box<dyn DelayLaw>, LawError> {
        if self.over.0.is_zero() {
            return Err(LawError::new("over: must be above zero"));
        }
        Ok(Box::new(DriftLaw {
            of: within.build_nested("of", self.of)?,
            to: checked_number("to", self.to, 0.001, 1000.0)?,
            over: self.over.0.as_nanos() as f64,
        }))
    }
}

#[derive(Debug)]
struct DriftLaw {
    of: Box<dyn DelayLaw>,
    /// The factor that response times reach at the end.
    to: f64,
    /// Time until that factor is reached, in nanoseconds.
    over: f64,
}

impl DelayLaw for DriftLaw {
    fn answer_time(&mut self, request: LawRequest, draws: &mut RequestRng) -> u64 {
        let time = self
            .of
            .answer_time(request, draws)
            .saturating_sub(request.at);
        let since_first = request.at.saturating_sub(FIRST_ARRIVAL_NS);
        let progress = (since_first as f64 / self.over).min(1.0);
        request.time_after(time as f64 * (1.0 + (self.to - 1.0) * progress))
    }
}
