//! Journeys: users who make several different calls, which may use values from earlier responses.
//!
//! A plan's `[[steps]]` (`step_spec`) are resolved to a journey (`plan`); `module` erases the types of the protocols of
//! its calls. Each user follows the journey over its own connections: `flow` chooses the next step, `take` reads values
//! from responses, `cookies` stores cookies, and [`JourneyScenario`] connects these modules with the drivers
//! ([`StepProtocol`]).

mod cookies;
mod failures;
mod fields;
mod flow;
mod forks;
mod keys;
mod load;
mod module;
mod plan;
mod resolve;
mod scenario;
mod step_protocol;
mod step_spec;
mod take;
mod targets;

pub use cookies::{CookieJar, LinkSecurity};
pub(crate) use fields::change_fields;
pub(crate) use keys::keys_within;
pub(crate) use load::{prepare_journey_load, prepare_user_load};
pub(crate) use module::{StepModule, StepScope, StepSection, register};
pub use plan::JourneyPlan;
pub(crate) use resolve::resolve_journey;
pub use scenario::{JourneyProtocol, JourneyScenario};
pub use step_protocol::{
    AnswerCapture, CapturedResponse, StepCall, StepContext, StepDriver, StepProtocol, TakenValues,
};
pub(crate) use step_spec::has_only_fields;
pub use step_spec::{PauseSpec, RepeatSpec, StepSpec, TakeSpec, TakeTable};
pub(crate) use take::{TakeRule, TakeSource, parse_json_source, resolve_pointer};
pub(crate) use targets::{has_secured_target, step_files};
