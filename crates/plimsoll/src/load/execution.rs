//! Runs one plan: creates the run directory, runs the load, shows progress and report, and returns the exit code.

mod directory_names;
mod output;
mod recording;

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use plimsoll_engine::worker::StopUrgency;
use plimsoll_engine::{EngineError, Observation, RunCompletion, RunRole, StopFlag, defect};
use plimsoll_model::objective::{self, ObjectiveResult, RunVerdict};
use plimsoll_model::plan::{ServerTrust, Shard, TlsPlan};
use plimsoll_model::runs::run::{self, Run, RunEnding, RunState};
use plimsoll_model::spec::Spec;
use plimsoll_model::{Outcome, Plan, formats::output as files};
use plimsoll_report::{json, sentences::closing, terminal};

use crate::failure::{Exit, Failure};
use crate::load::abort::AbortMonitor;
use crate::load::barrier::StartBarrier;
use crate::load::documents::{self, OutputDirs, StdoutContent};
use crate::load::multiprocess::{self, MultiprocessLoad, ProcessLayout};
use crate::load::precision::PrecisionMonitor;
use crate::load::presentation;
use crate::load::process::ProcessContext;
use crate::load::profiler::{self, Profiler};
use crate::load::server_metrics::MetricsSampler;
use crate::reporter::{self, Reporter};
use crate::screen::console;
use crate::screen::progress::Progress;
use crate::telemetry;
pub(crate) use directory_names::{default_dir, dir_or_default, slug, unused_dir};
pub(crate) use output::OutputFlags;
pub(crate) use recording::save_failure;
use recording::{OUT_DIR_HELP, RunRecorder, has_never_begun};

/// A function that runs a load on the target and passes every observation to its second argument.
pub(crate) type LoadFunction<'a> = dyn FnMut(&StopFlag, &mut dyn FnMut(Observation<'_>)) -> Result<RunCompletion, EngineError>
    + 'a;

/// Runs `plan`, which was resolved from `spec`, and then calls `then` with the finished run.
///
/// # Errors
/// When the load can't start or its results can't be saved, or when `then` fails.
pub(crate) fn execute(
    spec: &Spec,
    plan: &Plan,
    output: &OutputFlags,
    process: &ProcessContext,
    by: LoadRunner<'_>,
    then: impl FnOnce(&Run) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    output.documents.spans.check_plan(spec)?;
    output.save_plan_file(spec)?;
    if output.dry_run {
        if !output.saves_plan_to_stdout() {
            presentation::show_plan(&spec.with_defaults(plan), "", &output.documents)?;
        }
        return Ok(Exit::Done);
    }
    let dir = dir_or_default(output.out.as_deref(), &plan.name);
    let progress = Progress::new(plan, process.progress, output.progress_every);
    let job = PlannedRun {
        spec,
        plan,
        dir: &dir,
        progress,
        abort_after: spec.load.abort_after.map(|p| p.0),
    };
    let run = match measure(job, process, by) {
        Ok(run) => run,
        Err(ExecutionError { failure, unsaved }) => {
            match unsaved {
                // Only saving failed, so show the measurements.
                Some(run) if output.documents.json => {
                    documents::print_json(&json::runs_document([&*run], None))?;
                }
                Some(run) => presentation::print_tables(&run, output.stdout_content())?,
                // The target was unreachable: write a report page that says so.
                None if has_never_begun(&dir) => drop(write_page(&dir, &process.output_dirs)?),
                None => {}
            }
            return Err(failure);
        }
    };
    show_run(&run, &dir, output.stdout_content(), &process.output_dirs)?;
    then(&run)?;
    Ok(exit_for_run(&run, &objective::judge_run(&run), process))
}

/// Shows a run that was merged from shards, writes its HTML page, and returns the exit code of its verdict.
///
/// # Errors
/// When the page or stdout can't be written.
pub(crate) fn report_merged_run(
    run: &Run,
    dir: &Path,
    screen: StdoutContent,
    made: &OutputDirs,
) -> Result<Exit, Failure> {
    show_run(run, dir, screen, made)?;
    let conclusion = RunVerdict::from_results(&objective::judge_run(run));
    Ok(exit_for_result(
        false,
        run.summary.total.ok,
        run.state != RunState::Partial,
        conclusion,
    ))
}

/// Prints a run's report, and writes its HTML page.
fn show_run(
    run: &Run,
    dir: &Path,
    screen: StdoutContent,
    made: &OutputDirs,
) -> Result<(), Failure> {
    let options = presentation::terminal_options();
    let tables = (screen == StdoutContent::Tables).then(|| presentation::tables(run, &options));
    if let Some(tables) = &tables {
        console::print_result(tables)?;
    }
    let page = write_page(dir, made)?;
    if let Some(tables) = &tables {
        let end = closing::closing_lines(tables, closing::run_lines(run, &options), &options);
        console::print_result(format_args!("\nThe report is {}\n{end}", page.display()))?;
    }
    Ok(())
}

/// Creates a directory for several runs and writes the plan into it. `what` is the directory's name in errors, such as
/// "search".
///
/// # Errors
/// When the directory can't be written, or is not empty.
pub(crate) fn make_directory(dir: &Path, what: &str, plan_toml: String) -> Result<(), Failure> {
    if std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::usage(
            format_args!("--out: {} is not empty", dir.display()),
            "give another directory, or remove this one first",
        ));
    }
    save_plan(dir, what, plan_toml)
}

/// Writes the plan into a directory for several runs, which is created if it does not exist. `what` is the directory's
/// name in errors.
///
/// # Errors
/// When the directory can't be written.
pub(crate) fn save_plan(dir: &Path, what: &str, plan_toml: String) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)
        .and_then(|()| files::write(&dir.join(run::file_name::PLAN), plan_toml))
        .map_err(|e| {
            let text = format!("can't save the {what} in {}: {e}", dir.display());
            Failure::error_with_help(text, OUT_DIR_HELP)
        })
}

/// Writes the HTML page of a search, ladder or lanes, and prints `tables`, followed by `answer` if the tables exceed
/// the terminal's height.
///
/// # Errors
/// When the page or stdout can't be written.
pub(crate) fn show_record(
    dir: &Path,
    screen: StdoutContent,
    made: &OutputDirs,
    tables: impl FnOnce(&terminal::TerminalOptions) -> String,
    answer: impl FnOnce(&terminal::TerminalOptions) -> Vec<String>,
) -> Result<(), Failure> {
    let page = write_page(dir, made)?;
    match screen {
        StdoutContent::Tables => {
            let options = presentation::terminal_options();
            let text = tables(&options);
            let end = closing::closing_lines(&text, answer(&options), &options);
            let page = page.display();
            console::print_result(format_args!("{text}\nThe report is {page}\n{end}"))
        }
        StdoutContent::Document => Ok(()),
    }
}

/// Writes the HTML page of `dir` into `dir`. Every run gets a page, because that takes only a few hundredths of a
/// second. Other documents are written when the command ends.
///
/// # Errors
/// When the directory can't be read, or the page can't be written.
pub(crate) fn write_page(dir: &Path, made: &OutputDirs) -> Result<PathBuf, Failure> {
    made.add(dir);
    let page = dir.join(run::file_name::REPORT);
    files::write(&page, documents::html_page(&[dir.to_owned()], None)?)
        .map_err(|e| Failure::error(format_args!("can't write {}: {e}", page.display())))?;
    Ok(page)
}

/// Why a run has failed.
pub(crate) struct ExecutionError {
    failure: Failure,
    /// The finished run, if only saving it failed.
    unsaved: Option<Box<Run>>,
}

impl From<Failure> for ExecutionError {
    fn from(failure: Failure) -> ExecutionError {
        let unsaved = None;
        ExecutionError { failure, unsaved }
    }
}

impl From<ExecutionError> for Failure {
    fn from(error: ExecutionError) -> Failure {
        error.failure
    }
}

/// A plan that is to be run, with its directory and its progress display.
pub(crate) struct PlannedRun<'a> {
    /// The specification that the plan was resolved from.
    pub(crate) spec: &'a Spec,
    pub(crate) plan: &'a Plan,
    /// The run directory.
    pub(crate) dir: &'a Path,
    pub(crate) progress: Progress,
    /// Time after which the run ends early if an objective can no longer be met.
    pub(crate) abort_after: Option<Duration>,
}

/// The runner of a load.
pub(crate) enum LoadRunner<'a> {
    /// This process, or several processes on this machine.
    Local,
    /// This process, started together with other loads.
    Synchronised(&'a StartBarrier),
    /// A function, for example one that coordinates shards.
    External(&'a mut LoadFunction<'a>),
}

/// Runs the load and writes the run directory.
///
/// # Errors
/// When the load can't start, when its results can't be saved, or when a synchronised load needs several processes.
pub(crate) fn measure(
    job: PlannedRun<'_>,
    process: &ProcessContext,
    by: LoadRunner<'_>,
) -> Result<Run, ExecutionError> {
    let plan_toml = job.spec.with_defaults(job.plan).to_toml();
    let plan_toml = &plan_toml.map_err(Failure::error)?;
    let unchecked = |tls: &TlsPlan| tls.trust == ServerTrust::Unchecked;
    if job.plan.tls.as_ref().is_some_and(unchecked) {
        // Print the warning only once, not for every run of a search or ladder.
        static WARNING_PRINTED: Once = Once::new();
        WARNING_PRINTED.call_once(|| {
            console::print_notice("INSECURE: the server's certificate is not checked")
        });
    }
    if let (Some(_), LoadRunner::External(_)) = (&job.plan.profile, &by) {
        return Err(profiler::multi_machine_profile_failure().into());
    }
    let barrier = match by {
        LoadRunner::Local => None,
        LoadRunner::Synchronised(barrier) => Some(barrier),
        LoadRunner::External(carry) => {
            return measure_and_record(job, plan_toml, &ProcessLayout::external(), process, carry);
        }
    };
    let spread = ProcessLayout::choose(job.plan, Shard::WHOLE_RUN)?;
    let plan = &spread.apply_to(job.plan);
    let job = PlannedRun { plan, ..job };
    let load = process.prepare(plan)?;
    if spread.processes == 1 {
        return measure_and_record(
            job,
            plan_toml,
            &spread,
            process,
            |stop, observe| match barrier {
                None => load(RunRole::Standalone, stop, observe),
                Some(barrier) => barrier.run_load(plan, load, stop, observe),
            },
        );
    }
    if barrier.is_some() {
        return Err(Failure::usage(
            format_args!(
                "load.processes (--processes): rungs that are up together are loaded by one process, and {} are requested or needed",
                spread.processes
            ),
            "use fewer connections and one process, or measure the rungs in slices: --slice 2s",
        )
        .into());
    }
    // Each process prepares its own share of the load. The load was prepared here only to check the plan.
    drop(load);
    let plan_file = job.dir.join(run::file_name::PLAN);
    measure_and_record(job, plan_toml, &spread, process, |stop, observe| {
        let load = MultiprocessLoad {
            plan,
            layout: &spread,
            plan_file: &plan_file,
        };
        multiprocess::run(load, RunRole::Standalone, process, stop, observe)
    })
}

/// Returns the exit code of a run, and prints a notice if no call succeeded or calls were cut off.
pub(crate) fn exit_for_run(
    run: &Run,
    judged: &[ObjectiveResult],
    process: &ProcessContext,
) -> Exit {
    let interrupted = process.stop.level() != StopUrgency::Run;
    let ok = run.summary.total.ok;
    if ok == 0 && !interrupted {
        console::print_notice("not one call succeeded");
    }
    let cut_off = cut_off_call_count(run);
    if cut_off > 0 && !interrupted {
        console::print_notice(format_args!(
            "{cut_off} of {} calls were cut off by the drain time: give a longer --drain, or leave it out",
            run.summary.total.due
        ));
    }
    let is_whole = cut_off == 0 && run.state != RunState::Partial;
    exit_for_result(interrupted, ok, is_whole, RunVerdict::from_results(judged))
}

/// Returns how many calls were cut off at the end; 0 unless the load is a closed loop with a fixed number of calls.
fn cut_off_call_count(run: &Run) -> u64 {
    if run.header.clients.is_none() || run.header.calls.is_none() {
        return 0;
    }
    let by_code = run.summary.total.cut_off_by_code.iter();
    let cut_off = by_code.filter(|error| error.code == Outcome::CutOff.code());
    cut_off.map(|error| error.count).sum()
}

/// Returns the exit code of a run with `ok` successful calls. `is_whole`: whether the run made all calls that the plan
/// requires.
fn exit_for_result(
    interrupted: bool,
    ok: u64,
    is_whole: bool,
    conclusion: Option<RunVerdict>,
) -> Exit {
    match conclusion {
        _ if interrupted => Exit::Interrupted,
        _ if ok == 0 => Exit::Error,
        // Print no reason here: the report says why the run is incomplete.
        None | Some(RunVerdict::Pass) if !is_whole => Exit::Error,
        conclusion => Exit::from_verdict(conclusion),
    }
}

/// Runs the load by calling `carry`, and passes every observation to the run's reporters, which record, show or export
/// it.
fn measure_and_record(
    job: PlannedRun<'_>,
    plan_toml: &str,
    spread: &ProcessLayout,
    process: &ProcessContext,
    carry: impl FnOnce(&StopFlag, &mut dyn FnMut(Observation<'_>)) -> Result<RunCompletion, EngineError>,
) -> Result<Run, ExecutionError> {
    let plan = job.plan;
    let mut profiler = Profiler::start(plan)?;
    let mut server_metrics = MetricsSampler::start(plan)?;
    let mut recording = RunRecorder::begin(plan, plan_toml, job.dir, spread)?;
    let stop = process.stop.child();
    let mut telemetry = telemetry::RunTelemetry::register(plan);
    let mut progress = job.progress;
    let mut precision = PrecisionMonitor::new(plan);
    let mut abort = job.abort_after.map(|after| AbortMonitor::new(plan, after));
    let mut reporters: [&mut dyn Reporter; 7] = [
        &mut profiler,
        &mut server_metrics,
        &mut telemetry,
        &mut recording,
        &mut progress,
        &mut precision,
        &mut abort,
    ];
    let mut observe = |event: Observation<'_>| {
        reporter::report(&event, &mut reporters, &stop);
        if let Observation::Started {
            workers,
            connections,
            ..
        } = event
        {
            tracing::debug!(workers, connections, "the load begins");
        }
    };
    let carried = defect::catch_panic(|| carry(&stop, &mut observe));
    if let Some(server_metrics) = server_metrics {
        server_metrics.finish(job.dir);
    }
    if let Some(profiler) = profiler {
        profiler.finish(job.dir);
    }
    if let Some(cpu) = progress.finish() {
        recording.record_live_view_cpu(cpu);
    }
    let finished = match carried.unwrap_or_else(|defect| Err(EngineError::Defect(defect))) {
        Ok(finished) => finished,
        Err(error) => return recording.finish_failed_run(error, plan),
    };
    recording.record_completion(&finished);
    let arrivals = plan.load.recording.as_ref();
    let lost = arrivals
        .and_then(|arrivals| arrivals.missing_data_reason())
        .map(RunEnding::partial);
    let ending = match abort.and_then(|abort| abort.reason) {
        _ if process.stop.level() != StopUrgency::Run => {
            RunEnding::aborted("interrupted by a signal")
        }
        Some(reason) => RunEnding::aborted(reason),
        None => {
            match precision.map(|precision| precision.end_note()) {
                Some(Ok(reached)) => recording.log(&reached),
                Some(Err(missed)) => recording.log_and_show(&missed),
                None => {}
            }
            lost.unwrap_or_else(RunEnding::complete)
        }
    };
    recording.finish(ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_follows_outcome_and_verdict() {
        use RunVerdict::{Fail, Invalid, Pass};
        for (interrupted, ok, is_whole, conclusion, code) in [
            (false, 1, true, None, 0),
            (false, 1, true, Some(Pass), 0),
            (false, 1, true, Some(Fail), 99),
            (false, 1, true, Some(Invalid), 90),
            // A process died, or not all of a fixed number of calls were answered.
            (false, 1, false, None, 1),
            (false, 1, false, Some(Pass), 1),
            (false, 1, false, Some(Invalid), 90),
            (false, 1, false, Some(Fail), 99),
            (false, 0, true, Some(Invalid), 1),
            (false, 0, true, None, 1),
            (true, 1, false, Some(Fail), 130),
            (true, 0, false, None, 130),
        ] {
            let exit = exit_for_result(interrupted, ok, is_whole, conclusion);
            assert_eq!(
                exit.code(),
                code,
                "{interrupted} {ok} {is_whole} {conclusion:?}"
            );
        }
    }
}
