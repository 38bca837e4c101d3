//! A journey with all defaults resolved.

use std::time::Duration;

use plimsoll_model::template::MetadataField;

use super::HttpCall;
use crate::http::step_protocol::{AnswerCapture, TakenValues};
use crate::http::step_spec::PauseSpec;
use crate::http::take::Take;

/// The most passes of a step with `repeat = "while NAME"`.
pub(in crate::http) const MAX_PASSES: u32 = 100;

/// The steps that each user makes, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JourneyPlan {
    pub(in crate::http) steps: Vec<JourneyStep>,
    /// The names of the steps, all different.
    pub(in crate::http) names: Vec<String>,
    /// The variables that answers set.
    pub(in crate::http) taken: Vec<String>,
    /// The secrets in the queries of the typed paths, by the variables that a saved plan has for them.
    pub(in crate::http) query_secrets: Vec<(String, String)>,
    /// The most calls of one user.
    pub(in crate::http) max_calls: u32,
    /// The header fields of all steps that do not vary, under names that tell the steps apart.
    pub(in crate::http) constant_fields: Vec<(String, String)>,
    /// The header fields that vary, under such names.
    pub(in crate::http) varying_fields: Vec<MetadataField>,
}

impl Eq for JourneyPlan {}

/// A step of a journey.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) struct JourneyStep {
    pub(in crate::http) call: HttpCall,
    pub(in crate::http) takes: Vec<Take>,
    /// Indices in [`JourneyPlan::taken`] of the variables that the request uses.
    pub(in crate::http) needs: Vec<usize>,
    /// The index of the variable that the path begins with, if any.
    pub(in crate::http) path_name: Option<usize>,
    pub(in crate::http) pause: PauseSpec,
    pub(in crate::http) repeat: Repeat,
    pub(in crate::http) condition: Option<Condition>,
    pub(in crate::http) branch: Option<BranchMembership>,
    pub(in crate::http) on_failure: OnFailure,
    /// Whether the request has a `cookie` field of its own, in place of the user's cookies.
    pub(in crate::http) has_own_cookies: bool,
}

impl JourneyStep {
    /// Returns the path that cookies are matched with, without the query: as typed, or the value that it begins with.
    pub(in crate::http) fn cookie_path<'a>(&'a self, values: &'a TakenValues) -> &'a str {
        let value = self.path_name.and_then(|name| values[name].as_deref());
        let value = value.and_then(|value| std::str::from_utf8(value).ok());
        let path = value.unwrap_or(&self.call.path).split(['?', '#']).next();
        path.unwrap_or_default()
    }
}

/// How often a step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Repeat {
    Times(u32),
    /// The step is repeated as long as the name at this position is bound.
    While(usize),
}

/// When a step is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct Condition {
    /// The index of the variable in [`JourneyPlan::taken`].
    pub(in crate::http) name: usize,
    /// The value to compare with; `None`: any.
    pub(in crate::http) value: Option<String>,
    /// The step is made if the condition does not hold.
    pub(in crate::http) is_negated: bool,
}

/// The branch that a step belongs to: each user takes one of those at a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct BranchMembership {
    /// The number of the fork in the journey.
    pub(in crate::http) fork: u32,
    /// The number of the branch at the fork.
    pub(in crate::http) branch: u32,
    /// The branch's weight, in its first step; 0 in the others.
    pub(in crate::http) weight: u32,
}

/// What a failed step leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum OnFailure {
    /// The journey ends.
    End,
    /// The journey goes on.
    Continue,
    /// The step is tried again; the journey ends once `attempts` have failed.
    Retry { attempts: u32, backoff: Duration },
}

impl JourneyPlan {
    /// Returns the requests of the steps, and what is kept of their answers.
    pub fn requests(&self) -> impl Iterator<Item = (&HttpCall, AnswerCapture)> {
        self.steps.iter().map(|step| {
            let is_in_body = step.takes.iter().any(|take| take.source.is_in_body());
            let capture = if is_in_body {
                AnswerCapture::Whole
            } else {
                AnswerCapture::Head
            };
            (&step.call, capture)
        })
    }

    /// Returns the most calls that a user makes: of each fork all branches are counted, since a user may take any.
    pub(in crate::http) fn most_calls(&self) -> u32 {
        self.max_calls
    }

    /// Returns the names of the steps.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the header fields of all steps, under names that tell the steps apart: constant and varying ones.
    pub(in crate::http) fn fields(&self) -> (&[(String, String)], &[MetadataField]) {
        (&self.constant_fields, &self.varying_fields)
    }

    /// Returns the same journey with its requests changed.
    pub(in crate::http) fn map_calls(&self, change: impl Fn(&HttpCall) -> HttpCall) -> JourneyPlan {
        let mut plan = self.clone();
        for step in &mut plan.steps {
            step.call = change(&step.call);
        }
        plan
    }
}
