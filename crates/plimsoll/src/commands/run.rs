//! `plimsoll run`: runs plan files, one after another.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::Plan;
use plimsoll_model::spec::{RowsSpec, Spec, apply_flags_to_optional};

use crate::failure::{Exit, Failure};
use crate::load::documents::print_json;
use crate::load::execution::{self, LoadRunner, OutputFlags};
use crate::load::lanes::LaneSet;
use crate::load::planning;
use crate::load::process::ProcessContext;
use crate::settings::load_flags::LoadFlags;
use crate::settings::problems::{self, PlanSource};
use crate::shards::identity::ShardFlags;
use crate::shards::{self, ShardContext};

/// Run plan files. Flags override what the files set.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: a plan as it is, and with another rate and no load yet
  plimsoll run plans/score-steady.toml
  plimsoll run plans/score-steady.toml --rate 500/s --dry-run
Example: a plan with other data than its own
  plimsoll run plans/orders-varied.toml --rows plans/instruments.csv --rows-order unique --calls 5",
    after_help = crate::settings::environment::VARIABLES_HELP)]
pub(crate) struct RunArguments {
    /// Plan files; - is stdin.
    #[arg(value_name = "PLAN", required = true)]
    plans: Vec<PathBuf>,

    /// The target, instead of the plan's: grpc://HOST:PORT, grpcs://HOST:PORT or unix:/PATH.
    #[arg(long, value_name = "URL")]
    target: Option<String>,

    #[command(flatten)]
    rows: RowsSpec,

    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    pub(crate) shards: ShardFlags,

    #[command(flatten)]
    pub(crate) output: OutputFlags,
}

pub(crate) fn execute(
    arguments: &RunArguments,
    process: &ProcessContext,
    meeting: Option<&ShardContext>,
) -> Result<Exit, Failure> {
    let environment = &process.environment;
    if arguments.plans.len() > 1 {
        arguments.output.reject_for_several_plans()?;
    }
    // Check all plans before the first one runs.
    let mut ready = Vec::new();
    for path in &arguments.plans {
        let (mut spec, text) = planning::read_plan_file(path)?;
        spec.target = arguments.target.clone().or(spec.target);
        apply_flags_to_optional("rows", &arguments.rows, &mut spec.rows)
            .map_err(problems::flag_failure)?;
        arguments.load.apply(&mut spec, &process.origins)?;
        let source = PlanSource::from_file(path, &text);
        let asked = match LaneSet::resolve(&spec, environment, &source)? {
            Some(lanes) => PlannedLoad::Lanes(lanes),
            None => PlannedLoad::One(Box::new(planning::resolve_plan(
                &spec,
                environment,
                &source,
            )?)),
        };
        ready.push((spec, asked));
    }
    if let Some(meeting) = meeting {
        let [(spec, asked)] = &ready[..] else {
            return Err(Failure::usage(
                format_args!("--rendezvous can't be used with {} plans", ready.len()),
                "shards run one plan: give one, and use another --run-id for the next",
            ));
        };
        let PlannedLoad::One(plan) = asked else {
            return Err(Failure::usage(
                "--rendezvous can't be used with a plan of several lanes",
                "lanes run on one machine: give each kind of call a plan, or leave --rendezvous out",
            ));
        };
        return shards::execute(spec, plan, &arguments.output, process, meeting);
    }
    if arguments.output.dry_run && arguments.output.documents.json && ready.len() > 1 {
        // Several plans are printed as one JSON document.
        let shown: Vec<Spec> = ready
            .iter()
            .map(|(spec, asked)| asked.dry_run_spec(spec))
            .collect();
        return print_json(&shown).map(|()| Exit::Done);
    }
    let mut worst = Exit::Done;
    for (spec, plan) in &ready {
        let exit = match plan {
            PlannedLoad::One(plan) => execution::execute(
                spec,
                plan,
                &arguments.output,
                process,
                LoadRunner::Local,
                |_| Ok(()),
            )?,
            // Show lanes as written, because lanes inherit keys from the plan.
            PlannedLoad::Lanes(_) if arguments.output.save_or_show_plan(spec)? => Exit::Done,
            PlannedLoad::Lanes(lanes) => lanes.execute(&arguments.output, process)?,
        };
        worst = worst.max(exit);
        if exit == Exit::Interrupted {
            break;
        }
    }
    Ok(worst)
}

/// The load of a plan file: one load, or several lanes (loads that run side by side).
enum PlannedLoad {
    One(Box<Plan>),
    Lanes(LaneSet),
}

impl PlannedLoad {
    /// Returns the specification that a dry run shows.
    fn dry_run_spec(&self, spec: &Spec) -> Spec {
        match self {
            PlannedLoad::One(plan) => spec.with_defaults(plan),
            // Show the spec as written, because lanes inherit keys from the plan.
            PlannedLoad::Lanes(_) => spec.without_secrets(),
        }
    }
}
