//! The forks of a journey, at which each user takes one of several branches.

use super::plan::BranchMembership;
use super::step_spec::StepControlSpec;

/// The forks found so far, while the steps are resolved in order.
#[derive(Default)]
pub(super) struct JourneyForks {
    count: u32,
    /// The names of the branches found so far at the current fork; empty between forks.
    branches: Vec<String>,
}

impl JourneyForks {
    /// Returns the fork and branch that a step belongs to. A step outside any branch ends the current fork.
    pub(super) fn assign_branch(
        &mut self,
        index: usize,
        flow: &StepControlSpec,
    ) -> Result<Option<BranchMembership>, String> {
        let name = match (&flow.branch, flow.weight) {
            (Some(name), _) => name.clone(),
            (None, Some(_)) => format!("step {index}"),
            (None, None) => {
                self.branches.clear();
                return Ok(None);
            }
        };
        if flow.weight == Some(0) {
            return Err("0: a branch that is never taken; leave the step out".to_owned());
        }
        if self.branches.is_empty() {
            self.count += 1;
        }
        let known = self.branches.iter().position(|branch| *branch == name);
        let is_last = known.is_some_and(|branch| branch + 1 == self.branches.len());
        if known.is_some() && !is_last {
            return Err(format!("`{name}`: the steps of a branch follow each other"));
        }
        if known.is_some() && flow.weight.is_some() {
            return Err(format!(
                "`{name}`: the weight belongs to the first step of a branch"
            ));
        }
        let branch = known.unwrap_or_else(|| {
            self.branches.push(name);
            self.branches.len() - 1
        });
        Ok(Some(BranchMembership {
            fork: self.count,
            branch: branch as u32,
            weight: if known.is_some() {
                0
            } else {
                flow.weight.unwrap_or(1)
            },
        }))
    }
}
