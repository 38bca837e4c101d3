//! `plimsoll track`: compares two versions of a service, such as two commits, and says whether the new one is slower.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, Args};
use jiff::Timestamp;
use plimsoll_model::comparisons::track::{
    DEFAULT_GATES, ERROR_PROBABILITY, TrackJudgement, TrackRecord, TrackedVersion,
};
use plimsoll_model::formats::redaction;
use plimsoll_model::formats::units::{Period, Rate, parse_seconds};
use plimsoll_model::metrics::gate::Gate;
use plimsoll_model::runs::run::SCHEMA_VERSION;
use plimsoll_model::spec::{self, CallSpec, RateSpec, Spec, section_for_url};
use plimsoll_protocols::registry::{self, DefaultFlags};
use plimsoll_report::{ladder as ladder_report, sentences::closing, track as shown};

use super::ladder::{find_call_flag, reject_call_flags};
use crate::failure::{Exit, Failure};
use crate::ladder_run::LadderFlags;
use crate::load::documents::{self, DocumentFlags, OutputDirs, ReportContents, StdoutContent};
use crate::load::execution::{self, save_failure};
use crate::load::process::ProcessContext;
use crate::screen::console;
use crate::settings::problems::{self, PlanSource};
use crate::tracking::{
    self, BisectionRequest, BuildResult, BuiltTrees, GitCommit, GitRepository, MergeAncestry,
    PreparedVersion, VersionComparer, bisect, redact_command,
};

/// Default of the total rate to both versions, calls per second.
const DEFAULT_RATE: f64 = 200.0;
/// Default of `--start-timeout`: how long a server may take until it listens.
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Compare two versions of a service, and fail if the new one is slower.
///
/// Both versions are started and called in turns, until the confidence intervals of the changes of p99 and of the
/// server's CPU time lie entirely within what is allowed (exit code 0), or one lies entirely beyond it (99). If time
/// runs out first, the exit code is 90.
#[derive(Debug, Args)]
#[command(mut_args(adapt_help))]
#[command(before_help = "\
Example: this branch, with what is not committed yet, and the commit where it left main
  plimsoll track --build make --serve './svc {port}' --plan score.toml
Example: two commands
  plimsoll track --old './svc-1.4 {port}' --new './svc-1.5 {port}' --plan score.toml
Example: the first slower commit of a range
  plimsoll track --bisect v1.4..main --build make --serve './svc {port}' --plan score.toml")]
pub(crate) struct TrackArguments {
    /// The URL to call, with {address} (or {port}) in place of host and port. Without a placeholder, the address of
    /// each version replaces host and port.
    #[arg(value_name = "URL", required_unless_present = "plan")]
    url: Option<String>,

    /// A plan that defines the calls, instead of the URL.
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    plan: Option<PathBuf>,

    /// A shell command that serves the old version at {address} (or {port}, or $PORT), in the foreground.
    #[arg(long, value_name = "CMD", requires = "new", conflicts_with_all = ["serve", "build", "base", "candidate", "bisect"], help_heading = "Versions")]
    old: Option<String>,

    /// A shell command that serves the new version in the same way.
    #[arg(long, value_name = "CMD", requires = "old", help_heading = "Versions")]
    new: Option<String>,

    /// A shell command that builds a commit, run in a separate git work tree.
    #[arg(
        long,
        value_name = "CMD",
        requires = "serve",
        help_heading = "Versions"
    )]
    build: Option<String>,

    /// A shell command that serves a commit's work tree at {address} (or {port}, or $PORT), in the foreground.
    #[arg(
        long,
        value_name = "CMD",
        required_unless_present = "old",
        help_heading = "Versions"
    )]
    serve: Option<String>,

    /// The commit to compare with [default: the commit where the branch left main; on main, the previous commit].
    #[arg(
        long,
        value_name = "REV",
        requires = "serve",
        help_heading = "Versions"
    )]
    base: Option<String>,

    /// The commit to judge [default: HEAD with uncommitted changes].
    #[arg(
        long,
        value_name = "REV",
        requires = "serve",
        help_heading = "Versions"
    )]
    candidate: Option<String>,

    /// Find the first slower commit of a range: each candidate is compared with GOOD.
    #[arg(long, value_name = "GOOD..BAD", requires = "serve", conflicts_with_all = ["base", "candidate"], help_heading = "Versions")]
    bisect: Option<String>,

    /// Follow only the first parents of merge commits.
    #[arg(long, requires = "bisect", help_heading = "Versions")]
    first_parent: bool,

    /// How long a server may take until it listens [default: 1m].
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, help_heading = "Versions")]
    start_timeout: Option<Period>,

    #[command(flatten)]
    call: DefaultFlags,

    #[command(flatten)]
    ladder: LadderFlags,
}

/// Replaces the help of flags whose defaults differ from a ladder's.
fn adapt_help(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "budget" => arg.help("The longest load of a comparison [default: 3m]"),
        "fail_if" => arg.help(
            "What the new version may exceed the old one by; repeatable [default: 'p99 +2.5%' and 'server_cpu +1.5%']",
        ),
        "rate" => arg.help("Calls a second to both versions together [default: 200/s]"),
        _ => arg,
    }
}

impl TrackArguments {
    pub(crate) fn document_flags(&self) -> &DocumentFlags {
        &self.ladder.documents
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.ladder.dry_run
    }
}

pub(crate) fn execute(
    arguments: &TrackArguments,
    process: &ProcessContext,
) -> Result<Exit, Failure> {
    let flags = &arguments.ladder;
    if flags.shards.are_requested() {
        return Err(Failure::usage(
            "track measures on this machine: --rendezvous can't be given",
            "leave it out; `plimsoll ladder` measures services from several machines",
        ));
    }
    if let Some(limits) = &process.environment.limits {
        limits.check_plan_code("track starts servers")?;
    }
    let text;
    let (mut spec, source) = match (&arguments.plan, &arguments.url) {
        (Some(plan), _) => {
            reject_call_flags(&process.origins)?;
            let read = flags.read_spec(plan, &process.origins)?;
            text = read.1;
            (read.0, PlanSource::from_file(plan, &text))
        }
        (None, url) => (
            arguments.spec_from_url(url.as_deref().unwrap_or_default(), process)?,
            PlanSource::Flags,
        ),
    };
    flags.apply_to_spec(&mut spec)?;
    fill_in_defaults(&mut spec)?;
    let comparer = VersionComparer {
        spec,
        source,
        flags,
        start_timeout: arguments
            .start_timeout
            .map_or(DEFAULT_START_TIMEOUT, |given| given.0),
        process,
    };
    if flags.dry_run {
        return show_outline(&comparer);
    }
    let tracking = VersionTracking {
        arguments,
        comparer: &comparer,
        process,
    };
    match (&arguments.old, &arguments.new) {
        (Some(old), Some(new)) => tracking.compare_commands(old, new),
        _ => tracking.compare_commits(),
    }
}

/// Prints what would be measured, for `--dry-run`, without building a version.
fn show_outline(comparer: &VersionComparer<'_>) -> Result<Exit, Failure> {
    let version = |name: &str| PreparedVersion {
        version: TrackedVersion {
            name: name.to_owned(),
            ..TrackedVersion::default()
        },
        serve: String::new(),
        folder: PathBuf::new(),
    };
    let versions = [&version("old"), &version("new")];
    comparer.print_outline(versions)
}

/// Sets defaults for the rate, the gates and the ladder's `parts`, unless plan or flags set them.
///
/// # Errors
/// When the plan defines rungs.
fn fill_in_defaults(spec: &mut Spec) -> Result<(), Failure> {
    let load = &mut spec.load;
    if load.rate.is_none() && load.steps.is_none() && load.clients.is_none() {
        load.rate = Some(RateSpec::Steady(Rate(DEFAULT_RATE)));
        console::print_notice(format_args!(
            "a rate of {DEFAULT_RATE}/s for both versions together: --rate sets another"
        ));
    }
    let ladder = spec.ladder.get_or_insert_default();
    if ladder.rungs.is_some() || ladder.serve.is_some() || !ladder.axes.is_empty() {
        return Err(Failure::usage(
            "ladder: the plan has rungs of its own, and track compares two versions",
            "leave out the section [ladder], or measure it with `plimsoll ladder`",
        ));
    }
    if ladder.fail_if.as_ref().is_none_or(Vec::is_empty) {
        let gates = DEFAULT_GATES.iter().filter_map(|gate| gate.parse().ok());
        ladder.fail_if = Some(gates.collect());
    }
    if ladder.parts.is_none() {
        let gates = ladder.fail_if.iter().flatten();
        let parts = gates.filter_map(|gate| gate.metric.source_measurement());
        let parts: Vec<String> = parts.map(|part| part.name().to_owned()).collect();
        let none = vec!["none".to_owned()];
        ladder.parts = Some(if parts.is_empty() { none } else { parts });
    }
    Ok(())
}

impl TrackArguments {
    fn spec_from_url(&self, url: &str, process: &ProcessContext) -> Result<Spec, Failure> {
        let mut spec = Spec {
            target: Some(url.to_owned()),
            ..Spec::default()
        };
        let default = registry::default_schemes().section;
        // The URL's port may be a placeholder, so only the scheme is parsed here.
        let wrong = |problems| problems::failure(problems, &PlanSource::Flags);
        match section_for_url(url).filter(|section| *section != default) {
            None => {
                let call = CallSpec::from_section(&self.call.to_plan_section()?);
                spec.call = call.map_err(|problem| wrong(vec![problem]))?;
            }
            Some(section) => {
                if let Some(flag) = find_call_flag(&process.origins) {
                    return Err(Failure::usage(
                        format_args!("--{flag} is not for the scheme of {url}"),
                        "write a plan that says what is called: --plan FILE",
                    ));
                }
                spec.call = spec::read(&format!("[call.{section}]"))
                    .map_err(wrong)?
                    .call;
            }
        }
        self.ladder.load.apply(&mut spec, &process.origins)?;
        Ok(spec)
    }
}

/// A comparison or bisection of versions, as requested on the command line.
struct VersionTracking<'a> {
    arguments: &'a TrackArguments,
    comparer: &'a VersionComparer<'a>,
    process: &'a ProcessContext,
}

impl VersionTracking<'_> {
    fn compare_commands(&self, old: &str, new: &str) -> Result<Exit, Failure> {
        let folder = std::env::current_dir()
            .map_err(|e| Failure::error(format_args!("can't tell the current folder: {e}")))?;
        let version = |name: &str, serve: &str| PreparedVersion {
            version: TrackedVersion {
                name: name.to_owned(),
                serve: redact_command(serve),
                ..TrackedVersion::default()
            },
            serve: serve.to_owned(),
            folder: folder.clone(),
        };
        let dir = self.make_directory()?;
        self.compare_versions([&version("old", old), &version("new", new)], &dir)
    }

    fn compare_commits(&self) -> Result<Exit, Failure> {
        let repository = GitRepository::from_current_folder()?;
        if let Some(range) = &self.arguments.bisect {
            return self.bisect_range(&repository, range);
        }
        let arguments = self.arguments;
        let new = match &arguments.candidate {
            Some(revision) => repository.resolve_commit("--candidate", revision)?,
            None => repository.head_with_changes()?,
        };
        let old = match &arguments.base {
            Some(revision) => repository.resolve_commit("--base", revision)?,
            None => repository.default_base(&new)?,
        };
        if old == new {
            return Err(Failure::usage(
                format_args!("--base and --candidate are both {}", old.name()),
                "name another commit, or change something first",
            ));
        }
        for (word, commit) in [("old", &old), ("new", &new)] {
            let (name, subject) = (commit.name(), &commit.subject);
            console::print_notice(format_args!("{word}: {name} {subject}"));
        }
        let dir = self.make_directory()?;
        let build = arguments.build.as_deref();
        let mut trees = BuiltTrees::new(&repository, build, &dir, self.process)?;
        let old = self.build_version(&mut trees, &old)?;
        let new = self.build_version(&mut trees, &new)?;
        self.compare_versions([&old, &new], &dir)
    }

    fn serve_command(&self) -> &str {
        self.arguments.serve.as_deref().unwrap_or_default()
    }

    fn build_version(
        &self,
        trees: &mut BuiltTrees<'_>,
        commit: &GitCommit,
    ) -> Result<PreparedVersion, Failure> {
        match trees.build(commit)? {
            BuildResult::Built(folder) => {
                let build = self.arguments.build.as_deref();
                let serve = self.serve_command();
                Ok(PreparedVersion::from_commit(commit, build, serve, folder))
            }
            BuildResult::Failed(reason) => {
                Err(Failure::error(format_args!("{}: {reason}", commit.name())))
            }
        }
    }

    /// Creates the directory for the results.
    fn make_directory(&self) -> Result<PathBuf, Failure> {
        let spec = &self.comparer.spec;
        let name = format!("{} track", spec.name.as_deref().unwrap_or_default());
        let dir = execution::dir_or_default(self.arguments.ladder.out.as_deref(), &name);
        let text = spec.without_secrets().to_toml().map_err(Failure::error)?;
        execution::make_directory(&dir, "comparison", text)?;
        Ok(dir)
    }

    fn gates(&self) -> Vec<Gate> {
        let ladder = self.comparer.spec.ladder.as_ref();
        ladder
            .and_then(|ladder| ladder.fail_if.clone())
            .unwrap_or_default()
    }

    fn new_record(&self, old: &TrackedVersion, new: &TrackedVersion) -> TrackRecord {
        TrackRecord {
            schema_version: SCHEMA_VERSION,
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: Timestamp::now(),
            old: old.clone(),
            new: new.clone(),
            gates: self.gates(),
            verdict: None,
            summary: String::new(),
            interrupted: false,
            comparison: None,
            search: None,
        }
    }

    fn compare_versions(
        &self,
        versions: [&PreparedVersion; 2],
        dir: &Path,
    ) -> Result<Exit, Failure> {
        let (old, new) = (&versions[0].version, &versions[1].version);
        let mut record = self.new_record(old, new);
        let at = (dir, ".");
        let (found, ladder) = self.comparer.compare(versions, at, ERROR_PROBABILITY, 1)?;
        record.interrupted = ladder.interrupted;
        record.summary = shown::describe_comparison(old, new, &found);
        record.verdict = (!ladder.interrupted).then_some(found.verdict);
        record.comparison = Some(found);
        record.write(dir).map_err(|e| save_failure(&e, dir))?;
        execution::show_record(
            dir,
            self.stdout_content(),
            &OutputDirs::default(),
            |options| ladder_report::render(&ladder, options),
            |options| closing::ladder_lines(&ladder, options),
        )?;
        self.report_result(&record, dir, dir)
    }

    fn stdout_content(&self) -> StdoutContent {
        self.arguments.ladder.documents.stdout_content()
    }

    fn bisect_range(&self, repository: &GitRepository, range: &str) -> Result<Exit, Failure> {
        let Some((good, bad)) = range.split_once("..").filter(|(good, _)| !good.is_empty()) else {
            return Err(Failure::usage(
                format_args!("--bisect: `{range}` is not a range"),
                "write a good and a bad commit, such as --bisect v1.4..main",
            ));
        };
        let bad = if bad.is_empty() { "HEAD" } else { bad };
        let good = repository.resolve_commit("--bisect", good)?;
        let bad = repository.resolve_commit("--bisect", bad)?;
        let dir = self.make_directory()?;
        let build = self.arguments.build.as_deref();
        let request = BisectionRequest {
            repository,
            comparer: self.comparer,
            good: &good,
            bad: &bad,
            follow: if self.arguments.first_parent {
                MergeAncestry::FirstParents
            } else {
                MergeAncestry::AllParents
            },
            build,
            serve: self.serve_command(),
            dir: &dir,
        };
        let version = |commit: &GitCommit| {
            PreparedVersion::from_commit(commit, build, self.serve_command(), PathBuf::new())
                .version
        };
        let (old, new) = (version(&good), version(&bad));
        let mut record = self.new_record(&old, &new);
        let outcome = bisect(&request, |so_far| {
            record.search = Some(so_far.clone());
            record.write(&dir).map_err(|e| save_failure(&e, &dir))
        });
        if let Err(failure) = &outcome
            && failure.exit() == Exit::Interrupted
        {
            record.interrupted = true;
            record.write(&dir).map_err(|e| save_failure(&e, &dir))?;
        }
        let (found, is_interrupted) = outcome?;
        record.interrupted = is_interrupted;
        record.summary = shown::describe_search(&old, &new, &found);
        record.verdict = (!is_interrupted).then_some(tracking::judgement(&found));
        let deciding = tracking::shown_comparison_dir(&found).map(|name| dir.join(name));
        record.search = Some(found);
        record.write(&dir).map_err(|e| save_failure(&e, &dir))?;
        self.report_result(&record, &dir, &deciding.unwrap_or_else(|| dir.clone()))
    }

    /// Prints the result and writes the documents, which cover the ladder recorded in the directory `shown`.
    fn report_result(
        &self,
        record: &TrackRecord,
        dir: &Path,
        shown: &Path,
    ) -> Result<Exit, Failure> {
        documents::write_latest_file(dir);
        let documents = self.document_flags();
        if documents.json {
            documents::print_json(&record)?;
            let dirs = [shown.to_owned()];
            documents.write(&ReportContents::from_dirs(&dirs)?, &dirs, None)?;
        } else {
            self.process.output_dirs.add(shown);
        }
        if self.stdout_content() == StdoutContent::Tables {
            let summary = redaction::mask_urls(&record.summary);
            let dir = dir.display();
            console::print_result(format_args!(
                "\n{summary}\nThe record is {dir}/track.json\n"
            ))?;
        }
        Ok(match record.verdict {
            None => Exit::Interrupted,
            Some(TrackJudgement::NotSlower) => Exit::Done,
            Some(TrackJudgement::Slower) => Exit::ObjectiveMissed,
            Some(TrackJudgement::Undecided) => Exit::Invalid,
        })
    }

    fn document_flags(&self) -> &DocumentFlags {
        &self.arguments.ladder.documents
    }
}
