//! One plan carried out: run directory, engine, progress, report, exit code.

mod output;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_engine::worker::StopLevel;
use plimsoll_engine::{EngineError, Finished, Observation, Place, Stop, defect, fault};
use plimsoll_model::Plan;
use plimsoll_model::objective::{self, Conclusion, Judged};
use plimsoll_model::plan::{Shard, TlsPlan, Trust};
use plimsoll_model::run::{self, Ending, Run, RunHeader, RunWriter, State};
use plimsoll_model::spec::Spec;

use crate::abort::Abort;
use crate::console;
use crate::descriptors;
use crate::documents::{self, Made, Screen};
use crate::failure::{Exit, Failure, chain};
use crate::precision::PrecisionMonitor;
use crate::presentation;
use crate::progress::{Progress, SoFar, Style};
use crate::protocols;
use crate::spread::{self, Spread};
use crate::stopping;
use crate::together::Barrier;
pub(crate) use output::OutputFlags;

/// What holds for the whole process.
pub(crate) struct Process {
    /// How progress is shown.
    pub(crate) progress: Style,
    pub(crate) verbose: bool,
    pub(crate) trace: bool,
    /// Pulled by signals.
    pub(crate) stop: Stop,
    /// What is to be reported when the command ends.
    pub(crate) made: Made,
}

impl Process {
    /// `load`: it makes one, which a signal stops.
    ///
    /// # Errors
    /// When signals can't be listened to.
    pub(crate) fn start(
        progress: Style,
        verbose: bool,
        trace: bool,
        made: Made,
        load: bool,
    ) -> Result<Process, Failure> {
        descriptors::raise_limit()?;
        let stop = Stop::new();
        let pulled = stop.clone();
        match load {
            true => stopping::on_signal(move |_| pulled.request())?,
            // What goes on elsewhere does not stop by itself.
            false => stopping::on_signal_reported("", move |_| pulled.request())?,
        }
        Ok(Process {
            progress,
            verbose,
            trace,
            stop,
            made,
        })
    }
}

/// Carries `plan`, which was resolved from `spec`, out.
///
/// # Errors
/// When the load could not begin, or its results can't be kept.
pub(crate) fn execute(
    spec: &Spec,
    plan: &Plan,
    output: &OutputFlags,
    process: &Process,
) -> Result<Exit, Failure> {
    execute_then(spec, plan, output, process, |_| Ok(()))
}

/// Puts a load on the target, everything observed going to the second argument.
pub(crate) type Carry<'a> =
    dyn FnMut(&Stop, &mut dyn FnMut(Observation<'_>)) -> Result<Finished, EngineError> + 'a;

/// The same with a load that `carry` makes, and spreads over processes and machines as it likes.
///
/// # Errors
/// As [`execute`].
pub(crate) fn execute_led(
    spec: &Spec,
    plan: &Plan,
    output: &OutputFlags,
    process: &Process,
    carry: &mut Carry<'_>,
) -> Result<Exit, Failure> {
    execute_by(spec, plan, output, process, By::Other(carry), |_| Ok(()))
}

/// The same, with something more to do with a run that is there.
///
/// # Errors
/// As [`execute`], and where `then` fails.
pub(crate) fn execute_then(
    spec: &Spec,
    plan: &Plan,
    output: &OutputFlags,
    process: &Process,
    then: impl FnOnce(&Run) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    execute_by(spec, plan, output, process, By::Machine, then)
}

fn execute_by(
    spec: &Spec,
    plan: &Plan,
    output: &OutputFlags,
    process: &Process,
    by: By<'_>,
    then: impl FnOnce(&Run) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    output.save(spec)?;
    let filled_in = spec.filled_in(plan);
    let plan_toml = filled_in.to_toml().map_err(Failure::error)?;
    if output.dry_run {
        if !output.saves_to_stdout() {
            presentation::show_plan(&filled_in, "", output.documents.json())?;
        }
        return Ok(Exit::Done);
    }
    let dir = match &output.out {
        Some(dir) => dir.clone(),
        None => default_dir(&plan.name),
    };
    let progress = Progress::new(plan, process.progress, output.progress_every);
    let abort_after = spec.load.abort_after.map(|p| p.0);
    let run = match carry(plan, &plan_toml, &dir, progress, abort_after, process, by) {
        // What was measured is shown all the same.
        Err(ExecutionError::Unsaved(run, failure)) => {
            presentation::show(&run, output.screen())?;
            return Err(failure);
        }
        Err(ExecutionError::Failed(failure)) => {
            // Who reads reports learns there that the target was down.
            if never_began(&dir) {
                write_page(&dir, &process.made)?;
            }
            return Err(failure);
        }
        carried_out => carried_out?,
    };
    let judged = objective::judge_run(&run);
    let screen = output.screen();
    presentation::show(&run, screen)?;
    let page = write_page(&dir, &process.made)?;
    if screen == Screen::Tables {
        console::result(format_args!("\nThe report is {}\n", page.display()))?;
    }
    then(&run)?;
    Ok(exit(&run, &judged, process))
}

/// Shows and judges a run that others made, and writes its page.
///
/// # Errors
/// When something can't be written.
pub(crate) fn conclude(
    run: &Run,
    dir: &Path,
    screen: Screen,
    made: &Made,
) -> Result<Exit, Failure> {
    let judged = objective::judge_run(run);
    presentation::show(run, screen)?;
    let page = write_page(dir, made)?;
    if screen == Screen::Tables {
        console::result(format_args!("\nThe report is {}\n", page.display()))?;
    }
    let conclusion = Conclusion::of(&judged);
    Ok(exit_of(false, run.summary.total.ok, run.state, conclusion))
}

/// Writes the HTML page of what `dir` holds beside what it is made from: it is there when somebody asks
/// for it, and costs a few hundredths of a second. Other documents are made when the command ends.
///
/// # Errors
/// When the directory can't be read, or the page not be written.
pub(crate) fn write_page(dir: &Path, made: &Made) -> Result<PathBuf, Failure> {
    made.add(dir);
    let page = dir.join(run::file::REPORT);
    std::fs::write(&page, documents::page(&[dir.to_owned()])?)
        .map_err(|e| Failure::error(format_args!("can't write {}: {e}", page.display())))?;
    Ok(page)
}

/// Why a plan was not carried out to its end.
pub(crate) enum ExecutionError {
    Failed(Failure),
    /// It was, and its figures could not be kept.
    Unsaved(Box<Run>, Failure),
}

impl From<Failure> for ExecutionError {
    fn from(failure: Failure) -> ExecutionError {
        ExecutionError::Failed(failure)
    }
}

impl From<ExecutionError> for Failure {
    fn from(error: ExecutionError) -> Failure {
        match error {
            ExecutionError::Failed(failure) | ExecutionError::Unsaved(_, failure) => failure,
        }
    }
}

/// Measures `plan`, whose text without secrets is `plan_toml`, into the run directory `dir`.
/// Where `abort_after` is given, the run ends when after that time an objective can no longer be met.
///
/// # Errors
/// When the load could not begin, or its results can't be kept.
pub(crate) fn carry_out(
    plan: &Plan,
    plan_toml: &str,
    dir: &Path,
    progress: Progress,
    abort_after: Option<Duration>,
    process: &Process,
) -> Result<Run, ExecutionError> {
    carry(
        plan,
        plan_toml,
        dir,
        progress,
        abort_after,
        process,
        By::Machine,
    )
}

/// The same with a load that `carry` makes, as [`execute_led`] has it.
///
/// # Errors
/// As [`carry_out`].
pub(crate) fn carry_out_led(
    plan: &Plan,
    plan_toml: &str,
    dir: &Path,
    progress: Progress,
    abort_after: Option<Duration>,
    process: &Process,
    load: &mut Carry<'_>,
) -> Result<Run, ExecutionError> {
    let by = By::Other(load);
    carry(plan, plan_toml, dir, progress, abort_after, process, by)
}

/// The same for one of several loads of this process, which begin together at `barrier`.
///
/// # Errors
/// As [`carry_out`], and where one process can't make the load.
pub(crate) fn carry_out_together(
    plan: &Plan,
    plan_toml: &str,
    dir: &Path,
    process: &Process,
    (barrier, so_far): (&Barrier, &Arc<SoFar>),
) -> Result<Run, ExecutionError> {
    let progress = Progress::together(plan, so_far);
    carry(
        plan,
        plan_toml,
        dir,
        progress,
        None,
        process,
        By::Beside(barrier),
    )
}

/// Who makes the load.
enum By<'a> {
    /// This process, or several of this machine.
    Machine,
    /// This process, beside other loads of it.
    Beside(&'a Barrier),
    Other(&'a mut Carry<'a>),
}

fn carry(
    plan: &Plan,
    plan_toml: &str,
    dir: &Path,
    progress: Progress,
    abort_after: Option<Duration>,
    process: &Process,
    by: By<'_>,
) -> Result<Run, ExecutionError> {
    let unchecked = |tls: &TlsPlan| tls.trust == Trust::Unchecked;
    if plan.tls.as_ref().is_some_and(unchecked) {
        // Once for all the runs of a search or a ladder.
        static WARNED: Once = Once::new();
        WARNED.call_once(|| console::notice("INSECURE: the server's certificate is not checked"));
    }
    let barrier = match by {
        By::Machine => None,
        By::Beside(barrier) => Some(barrier),
        By::Other(carry) => {
            let spread = Spread::elsewhere();
            let kept = Kept {
                plan_toml,
                dir,
                spread: &spread,
            };
            let abort = abort_after.map(|after| Abort::new(plan, after));
            return record(plan, &kept, progress, abort, process, carry);
        }
    };
    let spread = Spread::of(plan, Shard::WHOLE)?;
    let plan = &spread.laid_over(plan);
    let kept = Kept {
        plan_toml,
        dir,
        spread: &spread,
    };
    let abort = abort_after.map(|after| Abort::new(plan, after));
    let load = protocols::prepare(plan, process.trace)?;
    if spread.processes == 1 {
        return record(
            plan,
            &kept,
            progress,
            abort,
            process,
            |stop, observe| match barrier {
                None => load(Place::Alone, stop, observe),
                Some(barrier) => barrier.load(plan, load, stop, observe),
            },
        );
    }
    if barrier.is_some() {
        return Err(Failure::usage(
            format_args!(
                "load.processes (--processes): rungs that take turns are loaded by one process, and {} are asked for or needed",
                spread.processes
            ),
            "use fewer connections and one process, or let rungs have slices of their own: --slice 2s",
        )
        .into());
    }
    // Each process prepares its own part; here it was only checked.
    drop(load);
    record(plan, &kept, progress, abort, process, |stop, observe| {
        let plan_file = dir.join(run::file::PLAN);
        spread::run(
            plan,
            &spread,
            &plan_file,
            Place::Alone,
            process,
            stop,
            observe,
        )
    })
}

/// What the run's result means to a script.
pub(crate) fn exit(run: &Run, judged: &[Judged], process: &Process) -> Exit {
    let interrupted = process.stop.level() != StopLevel::Run;
    let ok = run.summary.total.ok;
    if ok == 0 && !interrupted {
        console::notice("not one call succeeded");
    }
    exit_of(interrupted, ok, run.state, Conclusion::of(judged))
}

/// The exit code of a run that was interrupted or not, had so many calls that succeeded, and came to this.
fn exit_of(interrupted: bool, ok: u64, state: State, conclusion: Option<Conclusion>) -> Exit {
    match conclusion {
        _ if interrupted => Exit::Interrupted,
        _ if ok == 0 => Exit::Error,
        // The report says it.
        None if state == State::Partial => Exit::Error,
        conclusion => Exit::of(conclusion),
    }
}

/// Where a run is kept, and what is known of it beforehand.
struct Kept<'a> {
    /// Without secrets.
    plan_toml: &'a str,
    dir: &'a Path,
    spread: &'a Spread,
}

/// Carries the plan out with `carry`, everything observed going to the run directory.
fn record(
    plan: &Plan,
    kept: &Kept<'_>,
    mut progress: Progress,
    mut abort: Option<Abort<'_>>,
    process: &Process,
    carry: impl FnOnce(&Stop, &mut dyn FnMut(Observation<'_>)) -> Result<Finished, EngineError>,
) -> Result<Run, ExecutionError> {
    let &Kept {
        plan_toml,
        dir,
        spread,
    } = kept;
    let mut header = RunHeader::of(plan, plan_toml, env!("CARGO_PKG_VERSION"), Timestamp::now());
    header.processes = Some(spread.processes).filter(|&n| n > 1);
    header.notes.clone_from(&spread.notes);
    if never_began(dir) {
        // So that the same command can be given again.
        discard(dir, true);
    }
    let existed = dir.exists();
    let mut writer = RunWriter::create(dir, header, plan_toml)
        .and_then(|writer| writer.keeping_requests(plan.keep_requests))
        .map_err(|e| cannot_keep(&e, dir))?;
    let mut intervals = 0u64;
    let stop = process.stop.for_one();
    crate::telemetry::begin(plan);
    let mut lost = None;
    let mut precision = PrecisionMonitor::new(plan);
    let mut known = None;
    let mut observe = |seen: Observation<'_>| match seen {
        Observation::Connecting { open, wanted } => progress.connecting(open, wanted),
        Observation::Started {
            workers,
            connections,
        } => {
            progress.started();
            writer.log(&format!(
                "started: {workers} workers, {connections} connections"
            ));
            tracing::debug!(workers, connections, "the load begins");
        }
        Observation::Shards(shards) => writer.shards(shards.to_vec()),
        Observation::Interval(interval, requests) => {
            intervals += 1;
            crate::telemetry::interval(plan, interval);
            fault::point("interval");
            if let Err(e) = writer.interval(interval, requests) {
                let text = format!(
                    "from here on the run directory is not written, and the totals are in memory: {}",
                    chain(&e)
                );
                writer.log(&text);
                console::notice(&text);
            }
            progress.interval(interval);
            if known.is_none()
                && let Some(text) = precision.as_mut().and_then(|p| p.interval(interval))
            {
                progress.lost(&text);
                known = Some(text);
                stop.request();
            }
            if lost.is_none()
                && let Some(reason) = abort.as_mut().and_then(|a| a.interval(interval))
            {
                progress.lost(&reason);
                lost = Some(reason);
                stop.request();
            }
        }
    };
    let carried = defect::caught(|| carry(&stop, &mut observe));
    let result = carried.unwrap_or_else(|defect| Err(EngineError::Defect(defect)));
    if let Some(cpu) = progress.finish() {
        writer.live_view(cpu);
    }
    let ending = match result {
        Ok(finished) => {
            note(&finished, &mut writer);
            let signalled = process.stop.level() != StopLevel::Run;
            match (signalled, lost, known) {
                (true, ..) => Ending::aborted("interrupted by a signal"),
                (false, Some(reason), _) => Ending::aborted(reason),
                (false, None, Some(text)) => {
                    writer.log(&text);
                    Ending::complete()
                }
                (false, None, None) => {
                    if let Some(precision) = &precision {
                        let text = precision.not_reached();
                        writer.log(&text);
                        console::notice(&text);
                    }
                    Ending::complete()
                }
            }
        }
        Err(error) if intervals == 0 && is_the_targets(&error) => {
            let failure = protocols::could_not_begin(error, protocols::versions(plan));
            let reason = format!("{NOT_BEGUN}{failure}");
            writer.log(&reason);
            // What can't be kept either is the lesser problem.
            let _ = writer.finish(Ending::partial(reason));
            return Err(failure.into());
        }
        Err(error) if intervals == 0 => {
            // Nothing was measured, so nothing is kept, and the same command can be given again.
            drop(writer);
            discard(dir, existed);
            return Err(protocols::could_not_begin(error, protocols::versions(plan)).into());
        }
        Err(error) => Ending::partial(error.to_string()),
    };
    if let Some(reason) = &ending.reason {
        writer.log(reason);
    }
    writer
        .finish(ending)
        .map_err(|unsaved| ExecutionError::Unsaved(unsaved.run, cannot_keep(&unsaved.error, dir)))
}

/// How the reason begins of a run without a load.
const NOT_BEGUN: &str = "the load did not begin: ";

/// The target was not to be reached: a result, though there is nothing to measure.
fn is_the_targets(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::NoConnection { .. } | EngineError::Resolve { .. }
    )
}

/// The directory is that of a run whose target was not to be reached.
fn never_began(dir: &Path) -> bool {
    Run::load(dir).is_ok_and(|run| run.reason.is_some_and(|r| r.starts_with(NOT_BEGUN)))
}

/// Keeps what was learned on the way.
fn note(finished: &Finished, writer: &mut RunWriter) {
    let established = &finished.established;
    if let Some(tls) = finished.negotiated.clone() {
        writer.negotiated(tls);
    }
    writer.connecting_took(established.open, established.heap_bytes);
    if established.failed > 0 {
        let why = established
            .failure
            .as_ref()
            .map_or_else(String::new, |(outcome, detail)| {
                format!(": {} ({detail})", outcome.code())
            });
        let text = format!(
            "{} of {} connections did not come up{why}",
            established.failed,
            established.failed + established.open,
        );
        writer.log(&text);
        console::notice(&text);
    }
    writer.server_processes(&finished.watched_pids);
}

/// Takes away the files of a run that never began.
fn discard(dir: &Path, existed: bool) {
    for name in [
        run::file::PLAN,
        run::file::RUN,
        run::file::INTERVALS,
        run::file::REQUESTS,
        run::file::LOG,
        run::file::REPORT,
    ] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    if !existed {
        let _ = std::fs::remove_dir(dir);
    }
}

/// The run directory can't be written.
pub(crate) fn cannot_keep(error: &run::RunError, dir: &Path) -> Failure {
    let text = format!("can't keep the run in {}: {}", dir.display(), chain(error));
    match error {
        run::RunError::Io { .. } => Failure::error_with_help(
            text,
            "give a directory on a disk with room, which this user may write to, with --out",
        ),
        _ => Failure::error(text),
    }
}

/// The letters and digits of a name, in lower case, with `-` between its words.
pub(crate) fn slug(name: &str) -> String {
    let words: Vec<String> = name
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}

/// `runs/20261121T064200Z-getscore-steady`, with a number behind it where that is taken.
pub(crate) fn default_dir(name: &str) -> PathBuf {
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let base = format!("{stamp}-{}", slug(name));
    let base = base.trim_end_matches('-');
    let runs = Path::new("runs");
    let mut dir = runs.join(base);
    for n in 2..1000 {
        if !dir.exists() {
            break;
        }
        dir = runs.join(format!("{base}-{n}"));
    }
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_its_exit_code() {
        use Conclusion::{Fail, Invalid, Pass};
        use State::{Aborted, Complete, Partial};
        for (interrupted, ok, state, conclusion, code) in [
            (false, 1, Complete, None, 0),
            (false, 1, State::Invalid, None, 0),
            (false, 1, Complete, Some(Pass), 0),
            (false, 1, Complete, Some(Fail), 99),
            (false, 1, Complete, Some(Invalid), 90),
            // Generator-limited, and something was missed all the same.
            (false, 1, State::Invalid, Some(Fail), 99),
            (false, 1, State::Invalid, Some(Invalid), 90),
            // Ended early, because an objective could no longer be met.
            (false, 1, Aborted, Some(Fail), 99),
            (false, 1, Partial, None, 1),
            (false, 1, Partial, Some(Invalid), 90),
            (false, 0, Complete, Some(Invalid), 1),
            (false, 0, Complete, None, 1),
            (true, 1, Aborted, Some(Fail), 130),
            (true, 0, Aborted, None, 130),
        ] {
            let exit = exit_of(interrupted, ok, state, conclusion);
            assert_eq!(
                exit.code(),
                code,
                "{interrupted} {ok} {state:?} {conclusion:?}"
            );
        }
    }

    #[test]
    fn a_default_directory_is_named_after_time_and_run() {
        let dir = default_dir("GetScore, cold / äö").display().to_string();
        assert!(
            dir.starts_with("runs/2") && dir.ends_with("Z-getscore-cold"),
            "{dir}"
        );
    }
}
