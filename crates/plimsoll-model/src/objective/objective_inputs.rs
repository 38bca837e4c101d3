//! The input of judging objectives: records of all calls that count, of each stage, and of each step.

use std::borrow::Cow;

use super::{RunCircumstances, has_problem};
use crate::plan::Objective;
use crate::records::record::StageRecord;
use crate::runs::run::health::ProblemKind;
use crate::runs::run::{DeliverySummary, MemorySummary, Run, StageSummary};

/// The calls of a run, or of one of its stages, by which objectives are judged.
#[derive(Clone, Debug, Default)]
pub struct MeasuredCalls {
    /// The merged records of these calls.
    pub record: StageRecord,
    /// Calls that ended per second; `None`: not known.
    pub achieved_per_s: Option<f64>,
    /// Memory of connections in the whole run, where it was measured.
    pub memory: Option<MemorySummary>,
    /// How much of the load was sent, and with what delay; `None`: not known, or not an open loop.
    pub delivery: Option<DeliverySummary>,
}

impl MeasuredCalls {
    /// Returns the calls of the step with this name, and the lateness of all calls of the run, since it is not recorded
    /// by step. `None`: there is no such step.
    fn for_step(&self, name: &str) -> Option<MeasuredCalls> {
        let step = self.record.steps.iter().find(|step| step.name == name)?;
        let record = StageRecord {
            due: step.due,
            outcomes: step.outcomes.clone(),
            response: step.response.clone(),
            service: step.service.clone(),
            pacing: self.record.pacing.clone(),
            delayed: self.record.delayed.clone(),
            ..StageRecord::default()
        };
        Some(MeasuredCalls {
            record,
            ..MeasuredCalls::default()
        })
    }
}

/// The measured calls of a run, all together and of each stage, without the warm-up's.
#[derive(Clone, Debug, Default)]
pub struct ObjectiveInputs {
    /// All calls that are not warm-up.
    pub all: MeasuredCalls,
    /// The stages that are not warm-up, by name.
    pub stages: Vec<(String, MeasuredCalls)>,
    /// Conditions of the whole run that affect the judgement.
    pub circumstances: RunCircumstances,
}

impl ObjectiveInputs {
    /// Collects the inputs from `run`. `deadline`: the plan's deadline of a call.
    pub fn from_run(run: &Run, deadline: Option<std::time::Duration>) -> ObjectiveInputs {
        let part = |record: StageRecord, summary: &StageSummary| MeasuredCalls {
            record,
            achieved_per_s: summary.achieved_per_s,
            memory: run.summary.memory,
            delivery: summary.delivery,
        };
        ObjectiveInputs {
            all: part(run.measured_record(), &run.summary.total),
            stages: run
                .stages()
                .filter(|(stage, _)| !stage.warmup)
                .map(|(stage, record)| {
                    let record = record.clone();
                    (stage.name.clone(), part(record, stage))
                })
                .collect(),
            circumstances: RunCircumstances {
                deadline,
                is_short_of_resources: [
                    ProblemKind::NoDescriptors,
                    ProblemKind::NoPorts,
                    ProblemKind::NoSocket,
                ]
                .iter()
                .any(|kind| has_problem(run, *kind)),
                too_few_connections: has_problem(run, ProblemKind::TooFewConnections),
                has_busy_worker: has_problem(run, ProblemKind::WorkerBusy),
                not_resumed: run
                    .summary
                    .health
                    .problems
                    .iter()
                    .any(|p| p.kind == ProblemKind::NotResumed && p.invalidates),
            },
        }
    }

    /// Returns the calls by which `objective` is judged; `None`: nothing was measured of its stage or step.
    pub(super) fn for_objective(&self, objective: &Objective) -> Option<Cow<'_, MeasuredCalls>> {
        let part = self.for_stage(objective.stage.as_deref())?;
        Some(match &objective.step {
            None => Cow::Borrowed(part),
            Some(step) => Cow::Owned(part.for_step(step)?),
        })
    }

    /// Returns the calls of `stage`; `None`: nothing was measured of it.
    pub(super) fn for_stage(&self, stage: Option<&str>) -> Option<&MeasuredCalls> {
        match stage {
            None => Some(&self.all),
            Some(name) => self
                .stages
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, part)| part),
        }
    }
}
