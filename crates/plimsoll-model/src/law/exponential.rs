//! Exponentially distributed times: the classic service time of a queue.

use serde::Deserialize;

use super::draws::Draws;
use super::{Law, LawError, Request, Settings, Within, nanos};
use crate::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct Exponential {
    mean: Period,
}

impl Settings for Exponential {
    const NAME: &'static str = "exponential";
    const KEYS: &'static [&'static str] = &["mean"];

    fn law(self, _: &Within) -> Result<Box<dyn Law>, LawError> {
        let mean = nanos("mean", self.mean)?;
        Ok(Box::new(Mean(mean)))
    }
}

/// The mean in nanoseconds.
#[derive(Debug)]
struct Mean(f64);

impl Law for Mean {
    fn leaves(&mut self, request: Request, draws: &mut Draws) -> u64 {
        request.after(self.0 * draws.exponential())
    }
}
