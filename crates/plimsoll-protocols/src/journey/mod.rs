//! Journeys: users who make several different calls, each of which may use what earlier answers said.
//!
//! A plan's `[[steps]]` (`step_spec`) are resolved to a journey (`plan`), whatever protocol its calls are of
//! ([`StepSection`]). Each user follows it over a connection of its own: `flow` chooses the next step, `take` reads
//! values from answers, and [`JourneyScenario`] ties them to the drivers of the protocol ([`StepProtocol`]).

mod fields;
mod flow;
mod load;
mod plan;
mod resolve;
mod scenario;
mod step_protocol;
mod step_spec;
mod take;

pub(crate) use load::{load_journeys, load_users};
pub use plan::JourneyPlan;
pub(crate) use resolve::{StepScope, StepSection, keys_within, resolve_journey};
pub use scenario::{JourneyProtocol, JourneyScenario};
pub use step_protocol::{AnswerCapture, CapturedResponse, StepProtocol, TakenValues};
pub use step_spec::{PauseSpec, RepeatSpec, StepSpec, TakeSpec, TakeTable};
pub(crate) use step_spec::{change_fields, is_bound};
pub(crate) use take::{Take, TakeSource};
