//! Pareto-distributed times, truncated at a maximum: a tail so heavy that its mean may not exist otherwise.

use serde::Deserialize;

use super::draws::Draws;
use super::{Law, LawError, Request, Settings, Within, nanos, number};
use crate::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct Pareto {
    min: Period,
    alpha: f64,
    max: Period,
}

impl Settings for Pareto {
    const NAME: &'static str = "pareto";
    const KEYS: &'static [&'static str] = &["min", "alpha", "max"];

    fn law(self, _: &Within) -> Result<Box<dyn Law>, LawError> {
        let (min, max) = (nanos("min", self.min)?, nanos("max", self.max)?);
        if min > max {
            let problem = format!("min: {} is above max, which is {}", self.min, self.max);
            return Err(LawError::new(problem));
        }
        let alpha = number("alpha", self.alpha, 0.1, 100.0)?;
        Ok(Box::new(Tail { min, alpha, max }))
    }
}

/// Times in nanoseconds.
#[derive(Debug)]
struct Tail {
    min: f64,
    alpha: f64,
    max: f64,
}

impl Law for Tail {
    fn leaves(&mut self, request: Request, draws: &mut Draws) -> u64 {
        let time = self.min * (draws.exponential() / self.alpha).exp();
        request.after(time.min(self.max))
    }
}
