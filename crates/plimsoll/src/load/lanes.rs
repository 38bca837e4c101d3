//! Runs a plan with lanes, which are loads that run side by side. They share one schedule; each lane gets a share of
//! the arrivals, and has its own connections and its own run directory.

use jiff::Timestamp;
use plimsoll_model::Plan;
use plimsoll_model::objective;
use plimsoll_model::plan::BatchSchedule;
use plimsoll_model::runs::lanes::{LaneRecord, LanesRecord};
use plimsoll_model::runs::run::{Run, SCHEMA_VERSION};
use plimsoll_model::spec::{LaneSpec, Spec};
use plimsoll_report::lanes as shown;
use plimsoll_report::{sentences::closing, terminal};

use crate::failure::{Exit, Failure};
use crate::load::execution::{self, OutputFlags};
use crate::load::parallel_loads::{self, ParallelLoad};
use crate::load::planning;
use crate::load::presentation;
use crate::load::process::ProcessContext;
use crate::settings::environment::Environment;
use crate::settings::problems::{self, PlanSource};

/// The resolved lanes of a plan.
pub(crate) struct LaneSet {
    name: String,
    lanes: Vec<(LaneSpec, Plan)>,
}

impl LaneSet {
    /// Resolves the lanes of `spec`; `None` if the plan has no lanes.
    ///
    /// # Errors
    /// When a lane is invalid.
    pub(crate) fn resolve(
        spec: &Spec,
        environment: &Environment,
        source: &PlanSource<'_>,
    ) -> Result<Option<LaneSet>, Failure> {
        let wrong = |problem| problems::failure(vec![problem], source);
        let specs = spec.lane_specs().map_err(wrong)?;
        if specs.is_empty() {
            return Ok(None);
        }
        // No command runs before all lanes are known to be valid.
        for lane in &specs {
            planning::check_before_commands(&lane.spec, environment, source)?;
        }
        let of = specs.iter().map(|lane| lane.weight).sum();
        let mut index = 0;
        let mut lanes = Vec::new();
        for lane in specs {
            let mut plan = planning::resolve_checked_plan(&lane.spec, environment, source)?;
            plan.load.batches = Some(BatchSchedule {
                of,
                index,
                share: lane.weight,
                calls: 1,
                seed: plan.seed,
                read_cpu: false,
                slot: None,
            });
            index += lane.weight;
            lanes.push((lane, plan));
        }
        if let Some(limits) = &environment.limits {
            let plans: Vec<&Plan> = lanes.iter().map(|(_, plan)| plan).collect();
            limits.check_connections(&plans)?;
        }
        let name = spec.name.clone().unwrap_or_else(|| "lanes".to_owned());
        Ok(Some(LaneSet { name, lanes }))
    }

    /// Measures all lanes together and shows the results.
    ///
    /// # Errors
    /// When a lane can't start, or its results can't be saved.
    pub(crate) fn execute(
        &self,
        output: &OutputFlags,
        process: &ProcessContext,
    ) -> Result<Exit, Failure> {
        let dir = execution::dir_or_default(output.out.as_deref(), &self.name);
        let directory = |lane: &LaneSpec| format!("lane-{}", lane.name);
        let record = LanesRecord {
            schema_version: SCHEMA_VERSION,
            name: self.name.clone(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Timestamp::now(),
            lanes: self
                .lanes
                .iter()
                .map(|(lane, _)| LaneRecord {
                    name: lane.name.clone(),
                    weight: lane.weight,
                    run: directory(lane),
                })
                .collect(),
        };
        let parts: Vec<ParallelLoad<'_>> = self
            .lanes
            .iter()
            .map(|(lane, plan)| ParallelLoad {
                name: &lane.name,
                plan,
                spec: &lane.spec,
                dir: dir.join(directory(lane)),
            })
            .collect();
        let runs = parallel_loads::run(&parts, &format!("{} lanes", parts.len()), process)?;
        record
            .write(&dir)
            .map_err(|e| execution::save_failure(&e, &dir))?;
        let tables = |options: &terminal::TerminalOptions| {
            let each = runs
                .iter()
                .map(|run| "\n".to_owned() + &presentation::tables(run, options));
            shown::render(&record, &runs, options) + &each.collect::<String>()
        };
        let answer =
            |options: &terminal::TerminalOptions| closing::lane_lines(&record, &runs, options);
        execution::show_record(
            &dir,
            output.stdout_content(),
            &process.output_dirs,
            tables,
            answer,
        )?;
        let exits = runs.iter().map(|run: &Run| {
            let judged = objective::judge_run(run);
            execution::exit_for_run(run, &judged, process)
        });
        Ok(exits.max().unwrap_or(Exit::Done))
    }
}
