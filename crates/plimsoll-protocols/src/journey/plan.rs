//! A journey with all defaults resolved.

use std::time::Duration;

use plimsoll_engine::script::MAX_LINKS;
use plimsoll_model::plan::{CallPlan, ConnectionReuse, LoadPlan, Target};
use plimsoll_model::template::{MetadataField, TraceIds};

use super::cookies::LinkSecurity;
use super::module::StepModule;
use super::step_protocol::{AnswerCapture, StepCall, StepContext};
use super::step_spec::PauseSpec;
use super::take::Take;
use crate::prepare_error::PrepareError;

/// The most passes of a step with `repeat = "while NAME"`.
pub(crate) const MAX_PASSES: u32 = 100;

/// The steps that each user makes, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct JourneyPlan {
    pub(crate) steps: Vec<JourneyStep>,
    /// Whether the plan's own target is reached over TLS.
    pub(crate) is_secured: bool,
    /// The target of the steps that have one of their own.
    pub(crate) second: Option<SecondTarget>,
    /// The names of the steps, all different.
    pub(crate) names: Vec<String>,
    /// The variables that answers set.
    pub(crate) taken: Vec<String>,
    /// The secrets in the queries of the typed paths, by the variables that a saved plan has for them.
    pub(crate) query_secrets: Vec<(String, String)>,
    /// The most calls of one user.
    pub(crate) max_calls: u32,
    /// The header fields of all steps that do not vary, under names that tell the steps apart.
    pub(crate) constant_fields: Vec<(String, String)>,
    /// The header fields that vary, under such names.
    pub(crate) varying_fields: Vec<MetadataField>,
}

impl Eq for JourneyPlan {}

/// A target besides the plan's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecondTarget {
    pub(crate) target: Target,
    /// Whether it is reached over TLS.
    pub(crate) is_secured: bool,
}

/// A step of a journey.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JourneyStep {
    pub(crate) module: &'static StepModule,
    pub(crate) call: CallPlan,
    /// The connection that it needs: 0 to the plan's own target, 1 to the second one.
    pub(crate) link: u8,
    pub(crate) takes: Vec<Take>,
    /// Indices in [`JourneyPlan::taken`] of the variables that the request uses.
    pub(crate) needs: Vec<usize>,
    pub(crate) pause: PauseSpec,
    pub(crate) repeat: Repeat,
    pub(crate) condition: Option<Condition>,
    pub(crate) branch: Option<BranchMembership>,
    pub(crate) on_failure: OnFailure,
}

/// How often a step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    Times(u32),
    /// The step is repeated as long as the name at this position is bound.
    While(usize),
}

/// When a step is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The index of the variable in [`JourneyPlan::taken`].
    pub(crate) name: usize,
    /// The value to compare with; `None`: any.
    pub(crate) value: Option<String>,
    /// The step is made if the condition does not hold.
    pub(crate) is_negated: bool,
}

/// The branch that a step belongs to: each user takes one of those at a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BranchMembership {
    /// The number of the fork in the journey.
    pub(crate) fork: u32,
    /// The number of the branch at the fork.
    pub(crate) branch: u32,
    /// The branch's weight, in its first step; 0 in the others.
    pub(crate) weight: u32,
}

/// What a failed step leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// The journey ends.
    End,
    /// The journey goes on.
    Continue,
    /// The step is tried again; the journey ends once `attempts` have failed.
    Retry { attempts: u32, backoff: Duration },
}

impl JourneyPlan {
    /// Prepares the requests of the steps. `targets`: the authorities of the plan's own target and of the second one.
    ///
    /// # Errors
    /// What part of a request can't be sent.
    pub fn prepare(
        &self,
        targets: [&str; MAX_LINKS],
        load: &LoadPlan,
    ) -> Result<Vec<Box<dyn StepCall>>, PrepareError> {
        let prepared = self.steps.iter().map(|step| {
            let is_in_body = step.takes.iter().any(|take| take.source.is_in_body());
            let of_second = self.second.as_ref().is_some_and(|second| second.is_secured);
            let is_secured = if step.link > 0 {
                of_second
            } else {
                self.is_secured
            };
            let context = StepContext {
                authority: targets[usize::from(step.link)],
                security: if is_secured {
                    LinkSecurity::Tls
                } else {
                    LinkSecurity::Plain
                },
                deadline: load.deadline,
                closes: load.reuse == ConnectionReuse::Never,
                capture: if is_in_body {
                    AnswerCapture::Whole
                } else {
                    AnswerCapture::Head
                },
                taken: &self.taken,
            };
            (step.module.prepare)(&step.call, &context)
        });
        prepared.collect()
    }

    /// Returns the calls of the steps.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &CallPlan> {
        self.steps.iter().map(|step| &step.call)
    }

    /// Returns the second target, and whether it is reached over TLS.
    pub(crate) fn second_target(&self) -> Option<(&Target, bool)> {
        let second = self.second.as_ref()?;
        Some((&second.target, second.is_secured))
    }

    /// Returns the second target, so that resolving can give it addresses and a proxy.
    pub(crate) fn second_target_mut(&mut self) -> Option<&mut Target> {
        Some(&mut self.second.as_mut()?.target)
    }

    /// Returns the most calls that a user makes: of each fork all branches are counted, since a user may take any.
    pub(crate) fn most_calls(&self) -> u32 {
        self.max_calls
    }

    /// Returns the journey's name: its number of steps, and their names as far as they fit.
    pub(crate) fn name(&self) -> String {
        let shown: Vec<&str> = self.names.iter().take(5).map(String::as_str).collect();
        let more = if self.names.len() > shown.len() {
            ", …"
        } else {
            ""
        };
        format!(
            "journey of {} steps: {}{more}",
            self.names.len(),
            shown.join(", ")
        )
    }

    /// Returns the names of the steps.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the header fields of all steps, under names that tell the steps apart: constant and varying ones.
    pub(crate) fn fields(&self) -> (&[(String, String)], &[MetadataField]) {
        (&self.constant_fields, &self.varying_fields)
    }

    /// Returns the same journey with these trace ids in its requests.
    pub(crate) fn traced(&self, ids: TraceIds) -> JourneyPlan {
        let mut plan = self.clone();
        for step in &mut plan.steps {
            if let Some(traced) = (step.module.traced)(&step.call, ids) {
                step.call = traced;
            }
        }
        plan
    }
}
