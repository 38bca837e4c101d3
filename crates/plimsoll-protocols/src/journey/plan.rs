//! A journey with all defaults resolved.

use std::time::Duration;

use plimsoll_model::formats::quantity::plural;
use plimsoll_model::plan::{CallPlan, ConnectionReuse, LoadPlan, Target};
use plimsoll_model::rows::template::{MetadataField, RowOrder, TraceIds, VariationSettings};

use super::capture::CaptureRule;
use super::cookies::ConnectionSecurity;
use super::step_module::StepModule;
use super::step_protocol::{CaptureLevel, StepCall, StepContext};
use super::step_spec::PauseSpec;
use super::targets::JourneyTargets;
use crate::interface::prepare_error::PrepareError;

/// The maximum number of runs of a step or a loop with `repeat = "while NAME"`.
pub(crate) const MAX_WHILE_REPEATS: u32 = 100;

/// The steps that each user runs, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct JourneyPlan {
    pub(crate) steps: Vec<JourneyStep>,
    /// The targets of the steps: the plan's own, and those of steps with a `target` key.
    pub(crate) targets: JourneyTargets,
    /// The names of the steps, all different.
    pub(crate) names: Vec<String>,
    /// The names to which values of responses are bound.
    pub(crate) taken: Vec<String>,
    /// The loops over several steps, in order.
    pub(crate) loops: Vec<StepLoop>,
    /// The secrets in the query strings of the paths in the spec, with the variables that replace them in a saved plan.
    pub(crate) query_secrets: Vec<(String, String)>,
    /// The maximum number of calls that one user can make.
    pub(crate) max_calls: u32,
    /// The settings from which the values of all steps are computed.
    pub(crate) variation: VariationSettings,
    /// The constant header fields of all steps. If only one step has a field, its name here includes the step's number.
    pub(crate) constant_fields: Vec<(String, String)>,
    /// The header fields with templates, named in the same way.
    pub(crate) varying_fields: Vec<MetadataField>,
}

impl Eq for JourneyPlan {}

/// A step of a journey.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JourneyStep {
    pub(crate) module: &'static StepModule,
    pub(crate) call: CallPlan,
    /// The connection that carries the call: 0 to the plan's own target, others by [`JourneyTargets::others`].
    pub(crate) link: u8,
    pub(crate) takes: Vec<CaptureRule>,
    /// Indices in [`JourneyPlan::taken`] of the variables that the request uses.
    pub(crate) used_names: Vec<usize>,
    pub(crate) pause: PauseSpec,
    pub(crate) repeat: RepeatRule,
    pub(crate) condition: Option<StepCondition>,
    pub(crate) branch: Option<BranchMembership>,
    /// The index in [`JourneyPlan::loops`] of the loop that the step belongs to.
    pub(crate) in_loop: Option<usize>,
    pub(crate) on_failure: OnFailure,
}

/// How often a step or a loop is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepeatRule {
    Times(u32),
    /// It is repeated as long as the name at this position is bound.
    While(usize),
}

/// A loop over several steps, none of which belongs to another loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLoop {
    /// The index of its first step.
    pub(crate) first: usize,
    /// The index after its last step.
    pub(crate) end: usize,
    /// How often its steps are made.
    pub(crate) repeat: RepeatRule,
    /// Whether a fork begins in the loop, at which each iteration draws a branch anew.
    pub(crate) has_forks: bool,
}

/// The condition of a step: it is skipped unless the condition is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepCondition {
    /// The index of the variable in [`JourneyPlan::taken`].
    pub(crate) name: usize,
    /// The value to compare with. `None`: the condition is met by any value.
    pub(crate) value: Option<String>,
    /// Whether the step runs only if the comparison fails.
    pub(crate) is_negated: bool,
}

/// The branch that a step belongs to: at a fork, each user takes one of the branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BranchMembership {
    /// The number of the fork in the journey.
    pub(crate) fork: u32,
    /// The number of the branch at the fork.
    pub(crate) branch: u32,
    /// The weight of the branch if this is its first step, otherwise 0.
    pub(crate) weight: u32,
}

/// What happens after a failed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// The journey ends.
    End,
    /// The journey continues.
    Continue,
    /// The step is tried again; the journey ends once `attempts` have failed.
    Retry { attempts: u32, backoff: Duration },
}

impl JourneyPlan {
    /// Prepares the requests of the steps. `targets`: the authorities of the plan's own target and of the others.
    ///
    /// # Errors
    /// Returns an error if some part of a request can't be sent.
    pub fn prepare(
        &self,
        targets: &[&str],
        load: &LoadPlan,
    ) -> Result<Vec<Box<dyn StepCall>>, PrepareError> {
        let prepared = self.steps.iter().map(|step| {
            let is_in_body = step.takes.iter().any(|take| take.source.is_in_body());
            let is_secured = self.targets.is_secured(step.link);
            let context = StepContext {
                authority: targets[usize::from(step.link)],
                security: if is_secured {
                    ConnectionSecurity::Tls
                } else {
                    ConnectionSecurity::Plain
                },
                deadline: load.deadline,
                closes: load.reuse == ConnectionReuse::Never,
                capture: if is_in_body {
                    CaptureLevel::Whole
                } else {
                    CaptureLevel::Head
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

    /// Returns the targets besides the plan's own, and whether they are reached over TLS.
    pub(crate) fn other_targets(&self) -> impl Iterator<Item = (&Target, bool)> {
        let others = self.targets.others.iter();
        others.map(|other| (&other.target, other.is_secured))
    }

    /// Returns the targets besides the plan's own mutably, so that their addresses and proxies can be filled in.
    pub(crate) fn other_targets_mut(&mut self) -> Vec<&mut Target> {
        let others = self.targets.others.iter_mut();
        others.map(|other| &mut other.target).collect()
    }

    /// Returns whether users may pause for `length` before some step.
    pub(crate) fn has_pause_of(&self, length: Duration) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| step.pause.upper_bound() >= length)
    }

    /// Returns the maximum number of calls that a user can make, counting all branches of each fork.
    pub(crate) fn max_calls(&self) -> u32 {
        self.max_calls
    }

    /// Returns whether each client uses the same row in all its journeys.
    pub(super) fn has_rows_by_client(&self) -> bool {
        self.variation.row_order() == RowOrder::Client
    }

    /// Returns the journey's name: its number of steps and the names of the first five.
    pub(crate) fn name(&self) -> String {
        let shown: Vec<&str> = self.names.iter().take(5).map(String::as_str).collect();
        let more = if self.names.len() > shown.len() {
            ", …"
        } else {
            ""
        };
        format!(
            "journey of {}: {}{more}",
            plural(self.names.len() as u64, "step"),
            shown.join(", ")
        )
    }

    /// Returns the names of the steps.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the constant and the varying header fields of all steps.
    pub(crate) fn fields(&self) -> (&[(String, String)], &[MetadataField]) {
        (&self.constant_fields, &self.varying_fields)
    }

    /// Returns a copy of the journey whose requests carry these trace ids.
    pub(crate) fn with_trace_ids(&self, ids: TraceIds) -> JourneyPlan {
        let mut plan = self.clone();
        plan.variation = plan.variation.with_trace_ids(ids);
        for step in &mut plan.steps {
            if let Some(traced) = (step.module.with_trace_ids)(&step.call, ids) {
                step.call = traced;
            }
        }
        plan
    }
}
