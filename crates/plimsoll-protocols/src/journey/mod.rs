//! Journeys: users who make several different calls, which may use values from earlier responses.
//!
//! A plan's `[[steps]]` (`step_spec`) are resolved to a journey (`plan`); `step_module` erases the types of the
//! protocols of its calls. Each user follows the journey over its own connections: `step_selection` chooses the next
//! step, `capture` reads values from responses, `cookies` stores cookies, and [`JourneyScenario`] connects these
//! modules with the drivers ([`StepProtocol`]).

mod capture;
mod conditions;
mod cookies;
mod failures;
mod fields;
mod forks;
mod keys;
mod literal_texts;
mod load;
mod loops;
mod message_types;
mod plan;
mod resolve;
mod scenario;
mod step_module;
mod step_protocol;
mod step_selection;
mod step_spec;
mod targets;

pub(crate) use capture::{CaptureRule, CaptureSource, parse_json_source, resolve_pointer};
pub use cookies::{ConnectionSecurity, CookieJar};
pub(crate) use fields::change_fields;
pub(crate) use keys::keys_within;
pub(crate) use load::{prepare_journey_load, prepare_user_load};
pub use message_types::{AnswerReader, MessageCheck, MessageTypeSpec, SharedAnswerReader};
pub(crate) use message_types::{describe_messages, register_descriptions};
pub use plan::JourneyPlan;
pub(crate) use resolve::resolve_journey;
pub use scenario::{JourneyProtocol, JourneyScenario};
pub(crate) use step_module::{StepModule, StepScope, StepSection, register};
pub use step_protocol::{
    CaptureLevel, CapturedResponse, CapturedValues, StepCall, StepContext, StepDriver, StepMoment,
    StepProtocol,
};
pub(crate) use step_spec::has_only_template_fields;
pub use step_spec::{
    LoopSpec, LoopTable, PauseSpec, RepeatSpec, StepSpec, TakeSpec, TakeTable, ValueEncoding,
};
pub(crate) use targets::{has_secured_target, step_files};
