//! `plimsoll find`: searches for the highest rate that meets the plan's objectives.
//!
//! `plimsoll_model::search` decides which trial comes next; this module runs each trial in the search's directory,
//! judges it, and then writes `search.json`. If the load is split over several machines (shards), shard 0 directs the
//! search, and every shard runs its share of each trial.

mod judging;
mod outline;
mod users;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use plimsoll_engine::Clock;
use plimsoll_engine::worker::StopUrgency;
use plimsoll_model::formats::units::{Period, Rate};
use plimsoll_model::plan::{ArrivalModel, Metric, Objective, Plan};
use plimsoll_model::runs::run::{CommonConditions, SCHEMA_VERSION};
use plimsoll_model::search::{
    self, LimitingFactor, SearchRecord, SearchStep, SearchVariable, Trial, TrialPurpose,
};
use plimsoll_model::spec::{
    FindSpec, RateSpec, RowsSpec, Spec, apply_flags, apply_flags_to_optional,
};
use plimsoll_report::quantity::{plural, rate, time};
use plimsoll_report::search as shown;
use plimsoll_report::sentences::closing;
use serde::{Deserialize, Serialize};

use crate::failure::{Exit, Failure};
use crate::load::documents::{DocumentFlags, StdoutContent};
use crate::load::execution::{self, LoadRunner, save_failure};
use crate::load::planning;
use crate::load::planning::read_plan_file;
use crate::load::presentation;
use crate::load::process::ProcessContext;
use crate::screen::progress::{Progress, ProgressSeries};
use crate::settings::load_flags::LoadFlags;
use crate::settings::origins::FlagOrigins;
use crate::settings::problems::{self, PlanSource};
use crate::shards::identity::ShardFlags;
use crate::shards::{ShardContext, ShardGroup};
use judging::{backlog_growth, drain_time, error_share, judge, plotted_time_us, warmup_time};
use outline::describe_search;
use users::{normalise_users, users_of};

/// Find the load line: the highest rate that meets the objectives.
///
/// The rate rises until an objective is missed or calls pile up. Each further trial is made at the rate that narrows
/// the bounds most, and a longer trial confirms the result. The search begins at the plan's rate (or --rate); the
/// plan's duration is not used. With --users, it looks for the greatest
/// number of users instead.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: how much it carries with 99 % of its answers within 10 ms
  plimsoll find plans/score-steady.toml --objective 'p99 < 10ms'
  plimsoll find plans/score-steady.toml --objective 'p99 < 10ms' --precision 5% --budget 1m
  plimsoll find plans/score-steady.toml --objective 'p99 < 10ms' --users 1..500",
    after_help = crate::settings::environment::VARIABLES_HELP)]
pub(crate) struct FindArguments {
    /// A plan file; - is stdin.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,

    /// The target, instead of the plan's.
    #[arg(long, value_name = "URL")]
    target: Option<String>,

    #[command(flatten)]
    find: FindSpec,

    /// The search's directory [default: runs/<UTC time>-<name>-search].
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) documents: DocumentFlags,

    /// Show the search with every default filled in, and don't run it.
    #[arg(long, help_heading = "Output")]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    rows: RowsSpec,

    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    pub(crate) shards: ShardFlags,
}

/// Rate at which the search starts when neither plan nor flag sets one.
const DEFAULT_START_RATE: Rate = Rate(100.0);
/// Maximum share of failed calls in a trial that meets its objectives, if the plan has no objective on errors.
const MAX_IMPLIED_ERROR_SHARE: f64 = 0.01;
/// Pause between trials, in which the target can recover from the last trial.
const SETTLE_TIME: Duration = Duration::from_millis(300);
/// Minimum measured time of a trial whose objectives can no longer be met; a shorter trial would give no meaningful
/// point on the curve.
const MIN_FAILED_TRIAL_TIME: Duration = Duration::from_secs(1);

pub(crate) fn execute(
    arguments: &FindArguments,
    process: &ProcessContext,
    meeting: Option<&ShardContext>,
) -> Result<Exit, Failure> {
    let (mut spec, text) = read_plan_file(&arguments.plan)?;
    let source = PlanSource::from_file(&arguments.plan, &text);
    arguments.apply_search_flags(&mut spec, &process.origins)?;
    let start_per_s = match users_of(&spec, &source)? {
        Some(users) => normalise_users(&mut spec, users),
        None => normalise_load(&mut spec),
    };
    if let Some(limits) = &process.environment.limits {
        limits.fill_in_search_limits(spec.find.get_or_insert_default());
    }
    let plan = planning::resolve_plan(&spec, &process.environment, &source)?;
    let goal = spec
        .search_goal(&plan, start_per_s)
        .map_err(|problem| problems::failure(vec![problem], &source))?;
    check_plan(&plan, goal.variable)?;
    if let Some(limits) = &process.environment.limits {
        limits.check_search(&goal)?;
    }
    let setting = TrialTemplate {
        variable: goal.variable,
        name: &plan.name,
        spec,
        drain: drain_time(&plan),
        process,
        source,
    };
    users::check_greatest_number(&goal, |users| {
        setting.plan_trial(TrialParams {
            rate_per_s: users,
            length: Duration::from_secs(1),
        })
    })?;
    if arguments.dry_run {
        let filled_in = setting.spec.with_defaults(&plan);
        presentation::show_plan(
            &filled_in,
            &describe_search(&plan, &goal),
            &arguments.documents,
        )?;
        return Ok(Exit::Done);
    }
    let of_attempt = |attempt: TrialParams| setting.plan_trial(attempt);
    ShardGroup::run(meeting, process, of_attempt, |team| {
        let is_of_all = |o: &Objective| o.metric == Metric::Errors && o.step.is_none();
        let implied = !plan.objectives.iter().any(is_of_all);
        let mut hunt = SearchRun {
            record: SearchRecord {
                schema_version: SCHEMA_VERSION,
                name: plan.name.clone(),
                target: plan.target.url.clone(),
                tool_version: env!("CARGO_PKG_VERSION").to_owned(),
                started_at: Timestamp::now(),
                conditions: Some(CommonConditions::from_plans(std::slice::from_ref(&plan))),
                objectives: plan.objectives.iter().map(|o| o.text.clone()).collect(),
                implied_errors_share: implied.then_some(MAX_IMPLIED_ERROR_SHARE),
                goal,
                trials: Vec::new(),
                finding: None,
                interrupted: false,
            },
            dir: execution::dir_or_default(
                arguments.out.as_deref(),
                &format!("{} search", plan.name),
            ),
            template: &setting,
            process,
            shards: team,
        };
        hunt.run(&plan, arguments.documents.stdout_content())
    })
}

impl FindArguments {
    fn apply_search_flags(&self, spec: &mut Spec, origins: &FlagOrigins) -> Result<(), Failure> {
        for (flag, given) in [
            ("--duration", self.load.keys.duration.is_some()),
            ("--calls", self.load.keys.calls.is_some()),
        ] {
            if given {
                return Err(Failure::usage(
                    format_args!("{flag}: a search sets the duration of its trials"),
                    "leave it out, or use --trial, --confirm and --budget",
                ));
            }
        }
        spec.target = self.target.clone().or(spec.target.take());
        apply_flags_to_optional("rows", &self.rows, &mut spec.rows)
            .map_err(problems::flag_failure)?;
        self.load.apply(spec, origins)?;
        apply_flags("find", &self.find, spec.find.get_or_insert_default())
            .map_err(problems::flag_failure)
    }
}

/// Replaces the load's rate or steps by one steady rate, which the search varies; returns the start rate per second.
fn normalise_load(spec: &mut Spec) -> f64 {
    let load = &mut spec.load;
    let start = match &load.rate {
        Some(RateSpec::Steady(rate)) => *rate,
        Some(RateSpec::Ramp(ramp)) if ramp.from.0 > 0.0 => ramp.from,
        _ => load
            .steps
            .iter()
            .flatten()
            .find_map(|s| s.rate.or(s.from))
            .filter(|r| r.0 > 0.0)
            .unwrap_or(DEFAULT_START_RATE),
    };
    if load.clients.is_none() {
        (load.rate, load.steps) = (Some(RateSpec::Steady(start)), None);
    }
    (load.duration, load.calls) = (Some(Period(Duration::from_secs(1))), None);
    start.0
}

fn check_plan(plan: &Plan, variable: SearchVariable) -> Result<(), Failure> {
    let is_closed = matches!(plan.load.arrivals, ArrivalModel::Closed { .. });
    if is_closed && variable == SearchVariable::Rate {
        return Err(Failure::usage(
            "load.clients: a search varies the rate, and a closed loop has none",
            "give load.rate (open loop) instead of load.clients, or search the number of users: --users 1..500 (find.users)",
        ));
    }
    if !is_closed && variable == SearchVariable::Users {
        return Err(Failure::usage(
            "find.users: this plan's load has no clients, of which a search could vary the number",
            "leave it out: the search varies the rate then",
        ));
    }
    if plan.objectives.is_empty() {
        return Err(Failure::usage(
            "the plan has no objective, so every rate would pass",
            "add a section [objective] with \"p99\" = \"< 10ms\", or give --objective 'p99 < 10ms'",
        ));
    }
    if let Some(objective) = plan.objectives.iter().find(|o| o.stage.is_some()) {
        return Err(Failure::usage(
            format_args!(
                "objective \"{}\": the trials of a search have one stage",
                objective.text
            ),
            "leave out the stage: write \"p99\", not \"p99 at step 2\"",
        ));
    }
    Ok(())
}

/// The settings that all trials of a search share.
struct TrialTemplate<'a> {
    variable: SearchVariable,
    name: &'a str,
    spec: Spec,
    /// Drain time of trials if the plan sets none, computed once from the original plan.
    drain: Duration,
    process: &'a ProcessContext,
    source: PlanSource<'a>,
}

/// Parameters of a trial, from which all shards derive the same plan.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct TrialParams {
    /// Arrivals per second; in a search over users, their number.
    rate_per_s: f64,
    length: Duration,
}

impl TrialTemplate<'_> {
    fn plan_trial(&self, attempt: TrialParams) -> Result<(Spec, Plan), Failure> {
        let rate = Rate(attempt.rate_per_s);
        let mut spec = self.spec.clone();
        spec.find = None;
        let load = &mut spec.load;
        let amount = match self.variable {
            SearchVariable::Rate => {
                load.rate = Some(RateSpec::Steady(rate));
                rate.to_string()
            }
            SearchVariable::Users => {
                load.clients = Some(attempt.rate_per_s as u32);
                plural(attempt.rate_per_s as u64, "user")
            }
        };
        spec.name = Some(format!("{}, {amount}", self.name));
        load.duration = Some(Period(attempt.length));
        load.warmup
            .get_or_insert(Period(warmup_time(attempt.length)));
        load.drain.get_or_insert(Period(self.drain));
        let plan = planning::resolve_plan(&spec, &self.process.environment, &self.source)?;
        Ok((spec, plan))
    }
}

/// A search in progress.
struct SearchRun<'a> {
    record: SearchRecord,
    template: &'a TrialTemplate<'a>,
    dir: PathBuf,
    process: &'a ProcessContext,
    /// The shards that run the trials; `None` if this process runs them alone.
    shards: Option<&'a ShardGroup<'a>>,
}

impl SearchRun<'_> {
    fn run(&mut self, plan: &Plan, screen: StdoutContent) -> Result<Exit, Failure> {
        let text = self.template.spec.with_defaults(plan).to_toml();
        execution::make_directory(&self.dir, "search", text.map_err(Failure::error)?)?;
        self.save_record()?;
        let series = ProgressSeries::new(self.process.progress);
        let outcome = self.run_trials(&series);
        // Restore the terminal before anything else is printed.
        drop(series);
        // Save the trials made so far, even if the search has failed.
        self.save_record()?;
        outcome?;
        execution::show_record(
            &self.dir,
            screen,
            &self.process.output_dirs,
            |options| shown::render(&self.record, options),
            |options| closing::search_lines(&self.record, options),
        )?;
        Ok(self.exit_code())
    }

    fn save_record(&self) -> Result<(), Failure> {
        self.record
            .write(&self.dir)
            .map_err(|e| save_failure(&e, &self.dir))
    }

    fn is_stopped(&self) -> bool {
        self.process.stop.level() != StopUrgency::Run
    }

    /// Runs trials until the model ends the search.
    fn run_trials(&mut self, series: &ProgressSeries) -> Result<(), Failure> {
        let clock = Clock::new();
        let began = clock.now();
        loop {
            match search::next_step(&self.record.goal, &self.record.trials) {
                SearchStep::Done(finding) => {
                    self.record.finding = Some(*finding);
                    return Ok(());
                }
                SearchStep::Try {
                    purpose,
                    rate_per_s,
                    length,
                } => {
                    let spent = clock.now().duration_since(began);
                    let context = self.progress_line(rate_per_s, spent);
                    let attempt = TrialParams { rate_per_s, length };
                    let trial = self
                        .run_trial(purpose, attempt, |plan| series.for_run(plan, vec![context]))?;
                    if self.is_stopped() {
                        self.record.interrupted = true;
                        self.record.finding = Some(search::SearchResult {
                            budget_spent: true,
                            ..search::search_result(&self.record.goal, &self.record.trials)
                        });
                        return Ok(());
                    }
                    series.print_notice(self.trial_line(&trial));
                    self.record.trials.push(trial);
                    self.save_record()?;
                }
            }
        }
    }

    /// Runs one trial and judges it.
    fn run_trial(
        &self,
        purpose: TrialPurpose,
        attempt: TrialParams,
        progress: impl FnOnce(&Plan) -> Progress,
    ) -> Result<Trial, Failure> {
        let clock = Clock::new();
        let began = clock.now();
        let number = self.record.trials.len() + 1;
        let rate_per_s = attempt.rate_per_s;
        let (spec, plan) = self.template.plan_trial(attempt)?;
        let name = format!("{number:03}-{}-{rate_per_s}", purpose.name());
        let job = execution::PlannedRun {
            spec: &spec,
            plan: &plan,
            dir: &self.dir.join(&name),
            progress: progress(&plan),
            abort_after: Some(plan.load.warmup() + MIN_FAILED_TRIAL_TIME),
        };
        let run = match self.shards {
            None => execution::measure(job, self.process, LoadRunner::Local)?,
            Some(team) => team.run_load(attempt, job)?,
        };
        if !self.is_stopped() {
            thread::sleep(SETTLE_TIME);
        }
        let took = clock.now().duration_since(began);
        // No backlog grows in a closed loop.
        let growth = match self.record.goal.variable {
            SearchVariable::Rate => backlog_growth(&plan, &run)?,
            SearchVariable::Users => None,
        };
        let growing = growth.filter(|g| g.is_significant(rate_per_s, self.record.goal.precision));
        let (total, response) = (&run.summary.total, run.summary.total.response);
        Ok(Trial {
            purpose,
            rate_per_s,
            length_s: attempt.length.as_secs_f64(),
            took_s: took.as_secs_f64(),
            verdict: judge(&plan, &self.record, growing, &run),
            achieved_per_s: total.achieved_per_s,
            p50_us: response.and_then(|r| r.p50_us),
            p99_us: response.and_then(|r| r.p99_us),
            p99_9_us: response.and_then(|r| r.p99_9_us),
            mean_us: response.map(|r| r.mean_us),
            limited_us: plotted_time_us(&plan, &run),
            errors_share: error_share(&run),
            growth,
            run: Some(name),
        })
    }

    /// Returns the line about the state of the search before its next trial.
    fn progress_line(&self, rate_per_s: f64, spent: Duration) -> String {
        let goal = &self.record.goal;
        let amount = |value: f64| match goal.variable {
            SearchVariable::Rate => rate(value),
            SearchVariable::Users => shown::amount(goal, value),
        };
        let known = search::search_result(&self.record.goal, &self.record.trials);
        let bounds = match (known.low_per_s, known.high_per_s) {
            (Some(low), Some(high)) => {
                format!(
                    "the load line is between {} and {}",
                    amount(low),
                    amount(high)
                )
            }
            (Some(low), None) => format!("the load line is at {} or above", amount(low)),
            (None, Some(high)) => format!("the load line is below {}", amount(high)),
            (None, None) => "the load line is not known yet".to_owned(),
        };
        format!(
            "step {} at {} · {bounds} · {:.0} of at most {} s",
            self.record.trials.len() + 1,
            amount(rate_per_s),
            spent.as_secs_f64(),
            self.record.goal.budget_s
        )
    }

    /// Returns the line about a finished trial.
    fn trial_line(&self, trial: &Trial) -> String {
        let p99 = trial
            .p99_us
            .map_or_else(String::new, |us| format!("  p99 {}", time(us)));
        format!(
            "step {:>2} {:>12}{p99:<16}  {}",
            self.record.trials.len() + 1,
            shown::amount(&self.record.goal, trial.rate_per_s),
            shown::verdict(&trial.verdict),
        )
    }

    fn exit_code(&self) -> Exit {
        let Some(finding) = &self.record.finding else {
            return Exit::Error;
        };
        if self.record.interrupted {
            return Exit::Interrupted;
        }
        match &finding.limit {
            LimitingFactor::LeastRate => Exit::ObjectiveMissed,
            // The generator was the limit, so the target's load line was not found.
            LimitingFactor::Generator { .. } => Exit::Invalid,
            _ if finding.line_per_s.is_none() || !finding.confirmed => Exit::Invalid,
            _ => Exit::Done,
        }
    }
}
