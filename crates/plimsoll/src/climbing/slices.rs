//! Rungs that have rounds of short slices, every rung once a round in random order; each slice is a run of
//! its own. On several machines shard 0 decides the order, and each slice is a run of all shards.

use plimsoll_engine::worker::StopLevel;
use plimsoll_model::Plan;
use plimsoll_model::ladder::{self, Part, Slice};
use plimsoll_model::run::Run;
use plimsoll_model::spec::Spec;
use serde::{Deserialize, Serialize};

use super::{Climb, Outline};
use crate::environment::Environment;
use crate::execution::{self, Process};
use crate::failure::{Exit, Failure};
use crate::planning;
use crate::problems::Source;
use crate::progress::Series;
use crate::shards::Team;

/// What distinguishes a slice: of this all shards make the same plan.
#[derive(Debug, Serialize, Deserialize)]
struct Step {
    /// From 0.
    rung: usize,
}

/// Slices of all rungs, round by round.
pub(super) struct Rounds {
    /// `None`: the rungs' own load.
    pub(super) part: Option<Part>,
    /// One a rung.
    pub(super) loads: Vec<(Spec, Plan)>,
    pub(super) rounds: usize,
}

impl Rounds {
    /// Its loads make a connection for every call.
    pub(super) fn makes_connections(&self) -> bool {
        matches!(self.part, Some(Part::Connections | Part::Resumed))
    }
}

impl Outline {
    /// Makes this shard's part of each slice that shard 0 announces.
    ///
    /// # Errors
    /// Where the plan is wrong, or a run is over for this shard.
    pub(crate) fn follow(
        &self,
        team: &Team<'_>,
        environment: &Environment,
        source: &Source<'_>,
    ) -> Result<Exit, Failure> {
        team.follow(|step: Step| {
            let rung = self.rungs.get(step.rung).ok_or_else(|| {
                Failure::error(format_args!(
                    "shard 0 has a rung {}, and this shard has {}: give all shards the same plan and flags",
                    step.rung + 1,
                    self.rungs.len()
                ))
            })?;
            Ok((rung.spec.clone(), planning::plan(&rung.spec, environment, source)?))
        })
    }
}

impl Climb {
    pub(super) fn climb(
        &mut self,
        all: &Rounds,
        process: &Process,
        team: Option<&Team<'_>>,
        slice: &impl Fn(&Plan, &Run, String) -> Slice,
    ) -> Result<(), Failure> {
        let orders = ladder::order(self.rungs.len(), all.rounds, self.record.seed);
        // Dropped at the end, it gives the terminal back before anything else is shown.
        let series = Series::new(process.progress);
        if let Some(part) = all.part {
            series.notice(format_args!("{}: {} rounds", part.words(), all.rounds));
        }
        for (round, order) in orders.into_iter().enumerate() {
            for (nth, rung) in order.into_iter().enumerate() {
                let (spec, mut plan) = all.loads[rung].clone();
                let alone = matches!(all.part, None | Some(Part::Memory));
                let before = self.testbed.before(rung, &mut plan, alone)?;
                let plan = &plan;
                let name = format!("rung-{}/slice-{:02}", rung + 1, round + 1);
                let name = match all.part {
                    None => name,
                    Some(part) => format!("{}/{name}", part.name()),
                };
                let context = format!(
                    "{}round {} of {}, slice {} of {}: {}",
                    all.part
                        .map_or_else(String::new, |part| format!("{}, ", part.name())),
                    round + 1,
                    all.rounds,
                    nth + 1,
                    self.rungs.len(),
                    self.rungs[rung].name
                );
                let progress = series.one(plan, vec![context]);
                let dir = self.dir.join(&name);
                let job = execution::Job {
                    spec: &spec,
                    plan,
                    dir: &dir,
                    progress,
                    abort_after: None,
                };
                let run = match team {
                    None => execution::carry_out(job, process).map_err(Failure::from),
                    Some(team) => team.lead(Step { rung }, job),
                };
                if process.stop.level() != StopLevel::Run {
                    self.record.interrupted = true;
                    return Ok(());
                }
                let run = run?;
                // The k-th slices of two rungs are of the same round: each has one a round.
                let mut slice = slice(plan, &run, name);
                self.testbed.after(rung, &before, &run, &mut slice);
                self.note_connections(rung, plan, &run);
                let measured = &mut self.record.rungs[rung];
                match all.part {
                    None => measured.slices.push(slice),
                    Some(part) => measured.parts.entry(part).or_default().push(slice),
                }
                self.keep()?;
            }
            if all.part.is_none() {
                let (n, so_far) = (round + 1, (self.so_far)(&self.record));
                series.notice(format_args!("round {n} of {}{so_far}", all.rounds));
            }
        }
        Ok(())
    }
}
