//! Journeys: users who make several different requests, each of which may use what earlier answers said.
//!
//! A plan's `[[steps]]` ([`StepSpec`]) are resolved to a [`JourneyPlan`]. Each user follows it over a connection of its
//! own: `flow` chooses the next step, `take` reads values from answers, `cookies` keeps what servers set, and
//! [`JourneyScenario`] ties them to the driver of either version of HTTP ([`StepProtocol`]).

mod cookies;
mod flow;
mod plan;
mod resolve;
mod scenario;
mod spec;
mod take;

pub use plan::JourneyPlan;
pub(super) use resolve::journey;
pub use scenario::{CapturedResponse, JourneyProtocol, JourneyScenario, StepProtocol, StepValues};
pub use spec::{PauseSpec, RepeatSpec, StepSpec, TakeSpec};
pub(super) use spec::{change_fields, keys_within};

/// The values that a user has taken from answers, by the positions of their names; `None`: not bound.
pub(super) type TakenValues = Vec<Option<Box<[u8]>>>;
