//! Every answer takes the same time.

use serde::Deserialize;

use super::draws::Draws;
use super::{Law, LawError, Request, Settings, Within, nanos};
use crate::units::Period;

#[derive(Debug, Deserialize)]
pub(super) struct Constant {
    delay: Period,
}

impl Settings for Constant {
    const NAME: &'static str = "constant";
    const KEYS: &'static [&'static str] = &["delay"];

    fn law(self, _: &Within) -> Result<Box<dyn Law>, LawError> {
        let delay = nanos("delay", self.delay)?;
        Ok(Box::new(Delay(delay)))
    }
}

/// The delay in nanoseconds.
#[derive(Debug)]
struct Delay(f64);

impl Law for Delay {
    fn leaves(&mut self, request: Request, _: &mut Draws) -> u64 {
        request.after(self.0)
    }
}
