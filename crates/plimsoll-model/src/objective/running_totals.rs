//! Running totals, from which objectives are judged during a run, and the current value of one objective.

use super::{MeasuredCalls, ObjectiveInputs, RunCircumstances, measured_value};
use crate::plan::{LoadStage, Metric, Objective, Plan};
use crate::runs::run::IntervalRecord;

/// The measurements of an unfinished run so far.
#[derive(Clone, Debug, Default)]
pub struct LiveObjectiveInputs {
    /// The totals of the intervals added so far.
    pub measured: ObjectiveInputs,
    /// The names of the plan's stages by number; `None`: warm-up.
    stages: Vec<Option<String>>,
}

impl LiveObjectiveInputs {
    /// Creates the totals before the first interval of a run of `plan`.
    pub fn new(plan: &Plan) -> LiveObjectiveInputs {
        let name = |s: &LoadStage| (!s.warmup).then(|| s.name.clone());
        let stages: Vec<Option<String>> = plan.load.stages.iter().map(name).collect();
        LiveObjectiveInputs {
            measured: ObjectiveInputs {
                all: MeasuredCalls::default(),
                stages: stages
                    .iter()
                    .flatten()
                    .map(|name| (name.clone(), MeasuredCalls::default()))
                    .collect(),
                circumstances: RunCircumstances {
                    deadline: plan.load.deadline,
                    ..RunCircumstances::default()
                },
            },
            stages,
        }
    }

    /// Adds one interval.
    pub fn add(&mut self, interval: &IntervalRecord) {
        let measured = &mut self.measured;
        for (stage, record) in &interval.stages {
            let Some(Some(name)) = self.stages.get(usize::from(*stage)) else {
                continue;
            };
            measured.all.record.merge(record);
            if let Some((_, part)) = measured.stages.iter_mut().find(|(n, _)| n == name) {
                part.record.merge(record);
            }
        }
    }
}

/// Returns the value that `objective` limits, as far as it was measured: times in ns, infinite where failed calls
/// decide; shares from 0 to 1.
pub fn objective_value(objective: &Objective, measured: &ObjectiveInputs) -> Option<f64> {
    let part = measured.for_objective(objective)?;
    measured_value(objective, &part).0
}

/// Returns the objective that a chart over rates shows: the first upper limit on a time.
pub fn plotted_objective(objectives: &[Objective]) -> Option<&Objective> {
    let is_time =
        |o: &&Objective| o.is_upper && o.step.is_none() && matches!(o.metric, Metric::Time(..));
    objectives.iter().find(is_time)
}
