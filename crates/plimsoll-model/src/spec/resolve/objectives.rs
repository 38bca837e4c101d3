//! `[objective]` → plan.

use super::Problems;
use crate::plan::{Load, Metric, Objective};
use crate::spec::{Spec, objective};

impl Problems {
    /// `load`: where it could be resolved, to know its stages.
    pub(super) fn objectives(&mut self, spec: &Spec, load: Option<&Load>) -> Vec<Objective> {
        let mut objectives = Vec::new();
        for (metric, limit) in &spec.objective {
            let key = format!("objective.{metric}");
            let Some(objective) = self.keep(&key, objective::parse(metric, limit)) else {
                continue;
            };
            if let (Some(stage), Some(load)) = (&objective.stage, load)
                && !load.stages.iter().any(|s| !s.warmup && s.name == *stage)
            {
                let names: Vec<String> = load
                    .stages
                    .iter()
                    .filter(|s| !s.warmup)
                    .map(|s| format!("\"{}\"", s.name))
                    .collect();
                self.add(
                    key,
                    format!(
                        "no stage is called \"{stage}\": the stages of this load are {}",
                        names.join(", ")
                    ),
                );
                continue;
            }
            if objective.metric == Metric::Resumed && !spec.resumes() {
                self.add(
                    key,
                    "nothing is to be resumed: ask for it with tls.resume = true (fetch: --mode resumed)",
                );
                continue;
            }
            objectives.push(objective);
        }
        objectives
    }
}
