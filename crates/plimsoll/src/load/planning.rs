//! Reads plan files, and resolves specs into plans with environment variables, files and the servers' message schemas.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use plimsoll_engine::host::cgroup::Cgroup;
use plimsoll_engine::host::resources::WatchedProcesses;
use plimsoll_model::Plan;
use plimsoll_model::formats::{checksum, input};
use plimsoll_model::plan::WatchedProcess;
use plimsoll_model::rows::recording::{Recording, RecordingOptions};
use plimsoll_model::spec::{self, Problem, ResolveContext, Spec};
use plimsoll_protocols::registry;

use crate::failure::Failure;
use crate::load::protocols::query_failure;
use crate::screen::console;
use crate::settings::credentials::PlanCodePolicy;
use crate::settings::environment::Environment;
use crate::settings::metrics_url::metrics_url;
use crate::settings::problems::{self, PlanSource};

/// Reads a plan file (`-` is stdin); returns its spec and its text.
///
/// # Errors
/// When the file can't be read or is not a plan; the error shows every problem at its place in the file.
pub(crate) fn read_plan_file(path: &Path) -> Result<(Spec, String), Failure> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    };
    let text = if is_stdin {
        input::read_stdin_to_string()
    } else {
        input::read_to_string(path)
    };
    let text = text.map_err(|e| {
        let help = match e.kind() {
            std::io::ErrorKind::NotFound if name.contains("://") => {
                "this is a URL: the commands of calls (plimsoll --help) take one, and with --save-plan FILE they write a plan for it"
            }
            std::io::ErrorKind::NotFound => {
                "give the path of a plan file; ready ones are in plans/"
            }
            _ => "a plan is a TOML file in UTF-8",
        };
        Failure::error_with_help(format_args!("can't read plan {name}: {e}"), help)
    })?;
    match spec::read(&text) {
        Ok(spec) => {
            for (old, new) in spec::renamed_keys(&text) {
                console::print_notice(format_args!("note: {name}: `{old}` is called `{new}` now"));
            }
            Ok((spec, text))
        }
        Err(found) => Err(problems::failure(
            found,
            &PlanSource::File { name, text: &text },
        )),
    }
}

/// Resolves `spec` into a plan.
///
/// # Errors
/// When the plan is invalid; the error shows every problem at its place in `source`.
pub(crate) fn resolve_plan(
    spec: &Spec,
    environment: &Environment,
    source: &PlanSource<'_>,
) -> Result<Plan, Failure> {
    check_before_commands(spec, environment, source)?;
    resolve_checked_plan(spec, environment, source)
}

/// Resolves `spec` into a plan after [`check_before_commands`], which is not repeated.
///
/// # Errors
/// The same as those of [`resolve_plan`].
pub(crate) fn resolve_checked_plan(
    spec: &Spec,
    environment: &Environment,
    source: &PlanSource<'_>,
) -> Result<Plan, Failure> {
    let plan = resolve_in_context(&SystemContext::new(environment, spec), source)?;
    if let Some(limits) = &environment.limits {
        limits.check(&plan)?;
        if environment.plan_code != PlanCodePolicy::Skipped {
            limits.check_load_allowed()?;
        }
    }
    Ok(plan)
}

/// Checks that a plan reads only files that it may, and without running its commands, if it has any, that it is valid,
/// so that they run only for a valid plan. A plan whose server has to be asked can't be checked before: the question may
/// need a command's output.
///
/// # Errors
/// When the plan is invalid; the error shows every problem at its place in `source`.
pub(crate) fn check_before_commands(
    spec: &Spec,
    environment: &Environment,
    source: &PlanSource<'_>,
) -> Result<(), Failure> {
    if let Some(limits) = &environment.limits {
        // Also check the files here, because some are not read through `SystemContext`.
        for (key, path) in spec.data_files().into_iter().chain(spec.tls_files()) {
            limits.check_file(&key, &path)?;
        }
    }
    if environment.plan_code == PlanCodePolicy::Skipped || !spec.call.runs_commands() {
        return Ok(());
    }
    let mut shown = environment.clone();
    shown.plan_code = PlanCodePolicy::Skipped;
    let mut world = SystemContext::new(&shown, spec);
    world.asks_servers = false;
    let checked = resolve_in_context(&world, source);
    if world.has_unasked_query.get() {
        return Ok(());
    }
    let plan = checked?;
    let limits = environment.limits.as_ref();
    limits.map_or(Ok(()), |limits| limits.check(&plan))
}

/// Resolves the spec of `world`.
///
/// # Errors
/// The same as those of [`resolve_plan`].
fn resolve_in_context(world: &SystemContext<'_>, source: &PlanSource<'_>) -> Result<Plan, Failure> {
    let resolved = spec::resolve(world.spec, world).and_then(check_watched_process);
    if let Some(refusal) = world.refusal.take() {
        return Err(refusal);
    }
    let plan = resolved.map_err(|mut found| {
        // If a server did not answer, report only that: other problems may be consequences of the missing answer.
        if let Some(lost) = world.query_failure.take() {
            return lost;
        }
        if let PlanSource::File { text, .. } = source {
            spec::set_spans(text, &mut found);
        }
        problems::failure(found, source)
    })?;
    metrics_url(&plan)?;
    Ok(plan)
}

/// Checks that the process or control group that the plan watches exists; returns the plan if so.
fn check_watched_process(plan: Plan) -> Result<Plan, Vec<Problem>> {
    let problem = match &plan.watch {
        WatchedProcess::Pid(pid) if WatchedProcesses::process_tree(*pid).usage().is_none() => {
            let problem = format!("there is no process {pid}, or this user may not inspect it");
            Problem::new("watch.pid", problem).help(
                "give the id of a running process of your own (pgrep NAME finds it), or leave it out",
            )
        }
        WatchedProcess::Group(name) => match Cgroup::find(name) {
            Ok(_) => return Ok(plan),
            Err(error) => Problem::new("watch.cgroup", error.to_string()).help(
                "give its path (systemd-cgls prints them), the name of a unit, or the id of a container",
            ),
        },
        _ => return Ok(plan),
    };
    Err(vec![problem])
}

/// Calls `work` with the context in which values of flags are resolved (environment variables and files).
pub(crate) fn with_resolve_context<T>(
    environment: &Environment,
    work: impl FnOnce(&dyn ResolveContext) -> T,
) -> T {
    work(&SystemContext::new(environment, &Spec::default()))
}

/// A [`ResolveContext`] with the environment variables, files and servers of this machine.
struct SystemContext<'a> {
    environment: &'a Environment,
    /// The spec that is being resolved; its target and proxy are needed to query servers.
    spec: &'a Spec,
    /// Whether servers are asked for what the plan leaves to them.
    asks_servers: bool,
    /// Whether a server would have been asked, but was not.
    has_unasked_query: Cell<bool>,
    /// The error of a query to a server; `None` if all queries succeeded.
    query_failure: RefCell<Option<Failure>>,
    /// The error about a load limit of this process that the plan exceeds; `None` if it exceeds none.
    refusal: RefCell<Option<Failure>>,
}

impl<'a> SystemContext<'a> {
    fn new(environment: &'a Environment, spec: &'a Spec) -> SystemContext<'a> {
        SystemContext {
            environment,
            spec,
            asks_servers: true,
            has_unasked_query: Cell::new(false),
            query_failure: RefCell::new(None),
            refusal: RefCell::new(None),
        }
    }

    /// Returns whether the plan's commands and plugins may run. If the limits of this process forbid it, records the
    /// refusal.
    fn permits_code(&self, what: &str) -> bool {
        let limits = self.environment.limits.as_ref();
        self.record_refusal(limits.map_or(Ok(()), |limits| limits.check_plan_code(what)))
    }

    /// Returns whether the plan's server may be queried. If the limits of this process forbid it, records the refusal:
    /// a process with limits sends nothing for a plan that is only shown.
    fn permits_query(&self) -> bool {
        let Some(limits) = &self.environment.limits else {
            return true;
        };
        let is_shown = self.environment.plan_code == PlanCodePolicy::Skipped;
        if is_shown || limits.is_read_only {
            return self.record_refusal(Err(Failure::usage(
                "the plan asks its server for the description of the service, and nothing is sent here",
                "name the files that describe it in the plan: proto or descriptor_set",
            )));
        }
        let url = self.spec.target.as_deref().unwrap_or_default();
        let Ok((mut target, _)) = spec::parse_target(url) else {
            return true;
        };
        let entries = self.spec.load.resolve.as_deref().unwrap_or_default();
        // Ignore invalid values of `resolve` and `proxy` here: resolving the plan reports them.
        let has_addresses = spec::set_target_addresses(entries, &mut [&mut target]).is_ok();
        let proxy = self.spec.load.proxy.as_deref();
        target.proxy = proxy.and_then(|typed| spec::parse_proxy(typed, self).ok());
        has_addresses && self.record_refusal(limits.check_target(&target))
    }

    /// Checks whether the plan may read a file. If the limits of this process forbid it, records the refusal.
    ///
    /// # Errors
    /// When the limits forbid reading the file.
    fn check_file(&self, path: &Path) -> io::Result<()> {
        let limits = self.environment.limits.as_ref();
        let checked = limits.map_or(Ok(()), |limits| {
            limits.check_file("a file of the plan", path)
        });
        if self.record_refusal(checked) {
            return Ok(());
        }
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn record_refusal(&self, checked: Result<(), Failure>) -> bool {
        let is_ok = checked.is_ok();
        if let Err(refusal) = checked {
            *self.refusal.borrow_mut() = Some(refusal);
        }
        is_ok
    }
}

impl ResolveContext for SystemContext<'_> {
    fn env_variable(&self, name: &str) -> Option<String> {
        let limits = self.environment.limits.as_ref();
        if !self.record_refusal(limits.map_or(Ok(()), |limits| limits.check_variable(name))) {
            return None;
        }
        self.environment.value(name)
    }

    fn run_command(&self, command: &str) -> Result<String, String> {
        if !self.permits_code("the plan runs a command") {
            return Err("the command is not run".to_owned());
        }
        self.environment.plan_code.run_command(command)
    }

    fn may_run_code(&self) -> bool {
        self.permits_code("the plan loads a plugin")
            && self.environment.plan_code != PlanCodePolicy::Skipped
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        self.check_file(path)?;
        if path == Path::new("-") {
            // Cache the text, because a plan may be resolved several times, but stdin can be read only once.
            static STDIN_TEXT: OnceLock<Result<String, String>> = OnceLock::new();
            let text =
                STDIN_TEXT.get_or_init(|| input::read_stdin_to_string().map_err(|e| e.to_string()));
            return text.clone().map_err(io::Error::other);
        }
        if path.metadata().is_ok_and(|facts| facts.is_file()) {
            return input::read_to_string(path);
        }
        let content = input::strip_byte_order_mark(read_once(path)?);
        String::from_utf8(content).map_err(io::Error::other)
    }

    fn read_bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.check_file(path)?;
        read_once(path)
    }

    fn file_checksum(&self, path: &Path) -> Option<String> {
        self.check_file(path).ok()?;
        // A pipe can be read only once.
        let is_file = path.metadata().is_ok_and(|facts| facts.is_file());
        let content = is_file.then(|| input::read(path).ok()).flatten()?;
        Some(checksum::file_checksum(&content))
    }

    fn read_recording(&self, request: &RecordingOptions) -> Result<Recording, String> {
        (self.check_file(&request.file)).map_err(|e| format!("{}: {e}", request.file.display()))?;
        // Cache recordings: a plan may be resolved several times, and must get the same recording each time, even if
        // the file grows.
        static CACHED_RECORDINGS: Mutex<Vec<(RecordingOptions, Recording)>> =
            Mutex::new(Vec::new());
        let mut known = CACHED_RECORDINGS
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((_, recording)) = known.iter().find(|(other, _)| other == request) {
            return Ok(recording.clone());
        }
        let file = input::open_file(&request.file)
            .map_err(|e| format!("can't read {}: {e}", request.file.display()))?;
        let from = BufReader::with_capacity(1 << 18, file);
        let recording = Recording::read(request, Box::new(from))?;
        known.push((request.clone(), recording.clone()));
        Ok(recording)
    }

    fn answer_protocol_query(&self, question: &mut dyn Any) {
        if !self.asks_servers {
            self.has_unasked_query.set(true);
            return;
        }
        if !self.permits_query() {
            return;
        }
        // Ignore an invalid `proxy` here: resolving the plan reports it.
        let typed = self.spec.load.proxy.as_deref();
        let proxy = typed.and_then(|typed| spec::parse_proxy(typed, self).ok());
        if let Some(lost) = registry::query_server(question, self.spec, proxy.as_ref()) {
            let failure = query_failure(lost.why);
            *self.query_failure.borrow_mut() = Some(match lost.help {
                None => failure,
                Some(help) => failure.with_help(&help),
            });
        }
    }
}

/// Reads a file. A pipe is read only once for each path and cached, because a plan may be resolved several times.
///
/// # Errors
/// Returns the errors of [`input::read`].
fn read_once(path: &Path) -> io::Result<Vec<u8>> {
    static CACHED_PIPES: Mutex<Vec<(PathBuf, Vec<u8>)>> = Mutex::new(Vec::new());
    if path.metadata().is_ok_and(|facts| facts.is_file()) {
        return input::read(path);
    }
    let mut known = CACHED_PIPES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, content)) = known.iter().find(|(other, _)| other == path) {
        return Ok(content.clone());
    }
    let content = input::read(path)?;
    known.push((path.to_owned(), content.clone()));
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn pipes_are_read_once() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        writer.write_all(b"body").expect("room in the pipe");
        drop(writer);
        let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        for _ in 0..2 {
            assert_eq!(read_once(&path).expect("readable"), b"body");
        }
    }
}
