//! Journeys: users who make several different requests, each of which may use what earlier answers said.
//!
//! A plan's `[[steps]]` (`step_spec`) are resolved to a journey (`call::journey`). Each user follows it over a connection
//! of its own: `flow` chooses the next step, `take` reads values from answers, `cookies` keeps what servers set, and
//! [`JourneyScenario`] ties them to the driver of either version of HTTP (`step_protocol`).

mod cookies;
mod flow;
mod scenario;

pub use scenario::{JourneyProtocol, JourneyScenario};
