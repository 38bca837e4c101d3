//! Builds each commit once, in a separate git work tree, which is removed afterwards.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use plimsoll_engine::worker::StopUrgency;
use plimsoll_report::quantity::planned_time;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::commits::{GIT_VARIABLES, GitCommit, GitRepository};
use crate::failure::{Exit, Failure};
use crate::load::parallel_loads::PROGRESS_INTERVAL;
use crate::load::process::ProcessContext;
use crate::proxies::process::{describe_exit, quote_log, start_watchdog};
use crate::screen::console;
use crate::screen::progress::ProgressStyle;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time that processes of an interrupted build have to exit before they are killed.
const BUILD_GRACE: Duration = Duration::from_millis(500);

/// The work trees of the commits that have been built; dropping it removes them.
pub(crate) struct BuiltTrees<'a> {
    repository: &'a GitRepository,
    process: &'a ProcessContext,
    /// The shell command that builds a tree; `None` if no build is needed.
    build: Option<&'a str>,
    /// The folder for build logs.
    logs: PathBuf,
    /// The temporary folder that contains the work trees.
    folder: TempDir,
    outcomes: BTreeMap<String, BuildResult>,
    /// Work trees that git has created.
    trees: Vec<PathBuf>,
}

/// The result of a build.
#[derive(Clone, Debug)]
pub(crate) enum BuildResult {
    /// The folder to run the server in.
    Built(PathBuf),
    /// Why the build failed, with the end of its log.
    Failed(String),
}

impl<'a> BuiltTrees<'a> {
    /// Creates the temporary folder for work trees.
    ///
    /// # Errors
    /// When the folder can't be created.
    pub(crate) fn new(
        repository: &'a GitRepository,
        build: Option<&'a str>,
        logs: &Path,
        process: &'a ProcessContext,
    ) -> Result<BuiltTrees<'a>, Failure> {
        let folder = tempfile::Builder::new().prefix("plimsoll-track-").tempdir();
        let folder = folder.map_err(|e| {
            Failure::error_with_help(
                format_args!("can't make a temporary folder for work trees: {e}"),
                "name another place: TMPDIR=DIR",
            )
        })?;
        Ok(BuiltTrees {
            repository,
            process,
            build,
            logs: logs.to_owned(),
            folder,
            outcomes: BTreeMap::new(),
            trees: Vec::new(),
        })
    }

    /// Builds a commit, or returns the result of an earlier build.
    ///
    /// # Errors
    /// When the work tree can't be created, the build can't be started, or the user interrupts the build.
    pub(crate) fn build(&mut self, commit: &GitCommit) -> Result<BuildResult, Failure> {
        let id = commit.built_id();
        if let Some(known) = self.outcomes.get(id) {
            return Ok(known.clone());
        }
        let tree = self.folder.path().join(commit.name());
        // Record the tree before creating it, because a failed attempt may leave an incomplete tree to remove.
        self.trees.push(tree.clone());
        self.repository.add_work_tree(id, &tree)?;
        let folder = tree.join(&self.repository.prefix);
        let outcome = match self.build {
            _ if !folder.is_dir() => BuildResult::Failed(format!(
                "it has no folder {}",
                self.repository.prefix.display()
            )),
            None => BuildResult::Built(folder),
            Some(build) => self.run_build(&commit.name(), build, folder)?,
        };
        self.outcomes.insert(id.to_owned(), outcome.clone());
        Ok(outcome)
    }

    fn run_build(&self, name: &str, build: &str, folder: PathBuf) -> Result<BuildResult, Failure> {
        let log = self.logs.join(format!("build-{name}.log"));
        let failed = |e: io::Error| Failure::error(format_args!("can't build {name}: {e}"));
        let out = File::create(&log).map_err(failed)?;
        let mut command = Command::new("sh");
        command
            .args(["-c", build])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out)
            .process_group(0);
        for variable in GIT_VARIABLES {
            command.env_remove(variable);
        }
        if self.process.progress != ProgressStyle::None {
            console::print_notice(format_args!("building {name}"));
        }
        let child = command.spawn().map_err(failed)?;
        let watchdog = start_watchdog(child.id()).map_err(failed)?;
        let mut group = ProcessGroup(child);
        let status = self.wait_for_build(name, &mut group).map_err(failed)?;
        drop(group);
        drop(watchdog);
        match status {
            None => Err(Failure::with_exit_and_help(
                Exit::Interrupted,
                format_args!("interrupted while {name} was built"),
                "nothing is left running",
            )),
            Some(status) if status.success() => Ok(BuildResult::Built(folder)),
            Some(status) => Ok(BuildResult::Failed(format!(
                "--build failed ({}), its log is {}{}",
                describe_exit(status),
                log.display(),
                quote_log(&log, 0)
            ))),
        }
    }

    /// Waits until the build ends; `None` if the user interrupts it.
    fn wait_for_build(
        &self,
        name: &str,
        group: &mut ProcessGroup,
    ) -> io::Result<Option<ExitStatus>> {
        let (mut waited, mut due) = (Duration::ZERO, PROGRESS_INTERVAL);
        loop {
            if let Some(status) = group.0.try_wait()? {
                return Ok(Some(status));
            }
            if self.process.stop.level() != StopUrgency::Run {
                return Ok(None);
            }
            if waited >= due && self.process.progress != ProgressStyle::None {
                due += PROGRESS_INTERVAL;
                let so_far = planned_time(Duration::from_secs(waited.as_secs()));
                console::print_notice(format_args!("building {name}: {so_far} so far"));
            }
            thread::sleep(POLL_INTERVAL);
            waited += POLL_INTERVAL;
        }
    }
}

impl Drop for BuiltTrees<'_> {
    fn drop(&mut self) {
        for tree in &self.trees {
            if let Err(error) = self.repository.remove_work_tree(tree)
                && tree.exists()
            {
                console::print_notice(format_args!("can't remove a work tree: {error}"));
            }
        }
    }
}

/// A process group of a build; dropping it kills all its processes.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) else {
            return;
        };
        // An error means that no process of the group is left.
        if kill_process_group(group, Signal::TERM).is_ok() {
            let mut waited = Duration::ZERO;
            while waited < BUILD_GRACE && matches!(self.0.try_wait(), Ok(None)) {
                thread::sleep(POLL_INTERVAL);
                waited += POLL_INTERVAL;
            }
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}
