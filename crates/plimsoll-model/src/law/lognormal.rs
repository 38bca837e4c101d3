//! Log-normally distributed times: a heavy tail with finite moments.

use serde::Deserialize;

use super::draws::Draws;
use super::{Law, LawError, Request, Settings, Within, nanos, number};
use crate::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct Lognormal {
    median: Period,
    sigma: f64,
}

impl Settings for Lognormal {
    const NAME: &'static str = "lognormal";
    const KEYS: &'static [&'static str] = &["median", "sigma"];

    fn law(self, _: &Within) -> Result<Box<dyn Law>, LawError> {
        Ok(Box::new(Shape {
            median: nanos("median", self.median)?,
            sigma: number("sigma", self.sigma, 0.0, 5.0)?,
        }))
    }
}

/// The median in nanoseconds, and the standard deviation of the logarithm.
#[derive(Debug)]
struct Shape {
    median: f64,
    sigma: f64,
}

impl Law for Shape {
    fn leaves(&mut self, request: Request, draws: &mut Draws) -> u64 {
        request.after(self.median * (self.sigma * draws.normal()).exp())
    }
}
