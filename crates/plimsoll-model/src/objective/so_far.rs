//! What objectives stand on while a run goes on, and the figure of one objective.

use super::{Circumstances, Measured, Part, measure};
use crate::plan::{Metric, Objective, Plan, Stage};
use crate::run::IntervalRecord;

/// What was measured so far of a run that goes on.
#[derive(Clone, Debug, Default)]
pub struct SoFar {
    /// What the intervals added so far come to.
    pub measured: Measured,
    /// The plan's stages by number; `None`: warm-up.
    stages: Vec<Option<String>>,
}

impl SoFar {
    /// Begins before the first interval of a run of `plan`.
    pub fn begun(plan: &Plan) -> SoFar {
        let name = |s: &Stage| (!s.warmup).then(|| s.name.clone());
        let stages: Vec<Option<String>> = plan.load.stages.iter().map(name).collect();
        SoFar {
            measured: Measured {
                all: Part::default(),
                stages: stages
                    .iter()
                    .flatten()
                    .map(|name| (name.clone(), Part::default()))
                    .collect(),
                circumstances: Circumstances {
                    deadline: plan.load.deadline,
                    ..Circumstances::default()
                },
            },
            stages,
        }
    }

    /// Adds one more interval.
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

/// The figure that `objective` limits, as far as it was measured: times in ns, infinite where calls that
/// failed decide; shares from 0 to 1.
pub fn value(objective: &Objective, measured: &Measured) -> Option<f64> {
    let part = measured.part(objective.stage.as_deref())?;
    measure(objective, part).0
}

/// Of several objectives the one that a picture over rates shows: the first upper limit on a time.
pub fn plotted(objectives: &[Objective]) -> Option<&Objective> {
    let is_time = |o: &&Objective| o.below && matches!(o.metric, Metric::Time(..));
    objectives.iter().find(is_time)
}
