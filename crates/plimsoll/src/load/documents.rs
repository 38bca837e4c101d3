//! Writes the results of a run directory as documents (JSON, JUnit, Markdown, HTML): when a command ends, or later with
//! the command `report`.

mod latest;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::formats::output;
use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::{self, Run, RunError};
use plimsoll_model::search::SearchRecord;
use plimsoll_report::html::{self, RunView};
use plimsoll_report::{comment, json, junit, markdown};
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::screen::console;
use crate::settings::environment::Environment;
use crate::telemetry::spans::{self, SPANS_FLAG, SpanFlags};
pub(crate) use latest::{resolve_latest, write_latest_file};

/// Environment variable with the path of the job summary (Markdown) in GitHub Actions.
const JOB_SUMMARY_VARIABLE: &str = "GITHUB_STEP_SUMMARY";

/// Flags for documents about the results, most of them for other programs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DocumentFlags {
    /// Print the result as JSON.
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,

    /// Write objectives, gates and validity as JUnit XML ("-": stdout).
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    junit: Option<PathBuf>,

    /// Write a summary in Markdown ("-": stdout).
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    markdown: Option<PathBuf>,

    /// Write a comment for a pull request ("-": stdout).
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    comment: Option<PathBuf>,

    /// Write a page in HTML ("-": stdout). It needs no network.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) spans: SpanFlags,
}

/// `--json`, for commands whose output a program may read.
#[derive(Debug, Args)]
pub(crate) struct JsonFlag {
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl JsonFlag {
    /// Prints `document` with `--json`, otherwise `text`.
    ///
    /// # Errors
    /// When stdout can't be written to.
    pub(crate) fn print_result(&self, document: &Value, text: impl Display) -> Result<(), Failure> {
        if self.json {
            console::print_result(format_args!("{document}\n"))
        } else {
            console::print_result(format_args!("{text}\n"))
        }
    }
}

/// What is printed to stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StdoutContent {
    /// Tables for the user.
    Tables,
    /// A document for programs, printed when the command ends.
    Document,
}

/// Directories of runs, lanes, searches and ladders that a command has created. Runs inside a search or ladder are not
/// included.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputDirs(Arc<Mutex<Vec<PathBuf>>>);

impl OutputDirs {
    /// Adds a directory. If it is in `runs/`, `runs/LATEST` names it from now on.
    pub(crate) fn add(&self, dir: &Path) {
        write_latest_file(dir);
        let mut dirs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        dirs.push(dir.to_owned());
    }

    fn dirs(&self) -> Vec<PathBuf> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl DocumentFlags {
    pub(crate) fn stdout_content(&self) -> StdoutContent {
        if self.json || self.requested_files().any(|(_, file)| is_stdout(file)) {
            StdoutContent::Document
        } else {
            StdoutContent::Tables
        }
    }

    /// Returns the flags that request a document file, each with its file.
    fn requested_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [
            ("--junit", self.junit.as_deref()),
            ("--markdown", self.markdown.as_deref()),
            ("--comment", self.comment.as_deref()),
            ("--html", self.html.as_deref()),
            (SPANS_FLAG, self.spans.file()),
        ];
        all.into_iter()
            .filter_map(|(flag, file)| Some((flag, file?)))
    }

    /// Checks the document flags before the load starts.
    ///
    /// # Errors
    /// When two documents would be mixed on stdout, or a file can't be created.
    pub(crate) fn check(&self, environment: &Environment) -> Result<(), Failure> {
        let json = self.json.then(|| "--json".to_owned());
        let files = self.requested_files().filter(|(_, file)| is_stdout(file));
        let files = files.map(|(flag, _)| format!("{flag} -"));
        let to_stdout: Vec<String> = json.into_iter().chain(files).collect();
        if let [first, second, ..] = &to_stdout[..] {
            return Err(Failure::usage(
                format_args!("{first} and {second} both write to stdout"),
                "write one of them to a file, such as --junit junit.xml",
            ));
        }
        self.spans.check(environment)?;
        for (flag, file) in self.requested_files().filter(|(_, file)| !is_stdout(file)) {
            let folder = file.parent().filter(|p| !p.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(Failure::usage(
                    format_args!("{flag}: there is no folder for {}", file.display()),
                    "make the folder first, or give another file",
                ));
            }
            if file.is_dir() {
                return Err(Failure::usage(
                    format_args!("{flag}: {} is a folder", file.display()),
                    "give the file to write",
                ));
            }
        }
        Ok(())
    }

    /// Returns the paths that the pull request comment gives for details: the directories and the other documents.
    fn result_paths(&self, dirs: &[PathBuf]) -> Vec<PathBuf> {
        let others = self
            .requested_files()
            .filter(|(flag, _)| *flag != "--comment");
        let others = others.filter(|(_, file)| !is_stdout(file));
        let others = others.map(|(_, file)| file.to_owned());
        dirs.iter().cloned().chain(others).collect()
    }

    /// Returns whether any document file is requested.
    pub(crate) fn writes_any_file(&self) -> bool {
        self.requested_files().next().is_some()
    }

    /// Returns whether a requested document shows response times.
    pub(crate) fn shows_response_times(&self) -> bool {
        self.json || self.markdown.is_some() || self.html.is_some()
    }

    /// Writes the requested document files, except JSON; returns whether any were requested. `contents` was loaded
    /// from `dirs`; `overhead_over` is as for [`ReportContents::print_json`].
    ///
    /// # Errors
    /// When a directory can't be read, or a file can't be written.
    pub(crate) fn write(
        &self,
        contents: &ReportContents,
        dirs: &[PathBuf],
        overhead_over: Option<Duration>,
    ) -> Result<bool, Failure> {
        for (flag, file) in self.requested_files() {
            let text = match flag {
                "--junit" => contents.junit(),
                "--markdown" => contents.markdown(overhead_over),
                "--comment" => contents.pull_request_comment(&self.result_paths(dirs)),
                SPANS_FLAG => spans::otlp_lines(contents.require_runs(flag)?),
                _ => contents.html_page(overhead_over)?,
            };
            write_text(flag, file, text)?;
        }
        Ok(self.writes_any_file())
    }

    /// Writes the document files of the directories that a command has created, prints the JSON, and appends to the
    /// job summary of GitHub Actions.
    ///
    /// # Errors
    /// Returns the errors of [`DocumentFlags::write`].
    pub(crate) fn write_all_documents(
        &self,
        made: &OutputDirs,
        environment: &Environment,
    ) -> Result<(), Failure> {
        let dirs = made.dirs();
        let summary = environment.value(JOB_SUMMARY_VARIABLE);
        let summary = summary.filter(|file| self.markdown.as_deref() != Some(Path::new(file)));
        let asked = self.json || self.writes_any_file() || self.spans.collector_url().is_some();
        if dirs.is_empty() || summary.is_none() && !asked {
            return Ok(());
        }
        let contents = ReportContents::from_dirs(&dirs)?;
        if self.json {
            contents.print_json(None)?;
        }
        self.write(&contents, &dirs, None)?;
        // A failure to export spans does not change the exit code.
        if self.spans.collector_url().is_some()
            && let Err(refused) = contents
                .require_runs(SPANS_FLAG)
                .and_then(|runs| self.spans.post(runs, environment))
        {
            console::print_notice(refused);
        }
        // The measurement itself succeeded, so failing to write the job summary is not an error.
        if let Some(file) = summary
            && let Err(e) = append(Path::new(&file), &contents.markdown(None))
        {
            console::print_notice(format_args!(
                "{JOB_SUMMARY_VARIABLE}: can't append to {file}: {e}"
            ));
        }
        Ok(())
    }
}

/// Appends to a file that may contain text from other steps of the CI job.
fn append(file: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    // Start with a blank line, which ends a preceding paragraph or table.
    file.write_all(format!("\n{text}\n").as_bytes())?;
    output::sync(&file)
}

pub(crate) fn is_stdout(file: &Path) -> bool {
    file == Path::new("-")
}

/// The loaded contents of run directories.
pub(crate) enum ReportContents {
    Runs(Vec<Run>),
    /// The lanes of a plan, each with its run.
    Lanes(LanesRecord, Vec<Run>),
    /// A search and its directory.
    Search(PathBuf, SearchRecord),
    Ladder(PathBuf, LadderRecord),
}

impl ReportContents {
    /// Loads `dirs`.
    ///
    /// # Errors
    /// When a directory can't be read, or a search or ladder is given together with other directories.
    pub(crate) fn from_dirs(dirs: &[PathBuf]) -> Result<ReportContents, Failure> {
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| resolve_latest(dir)).collect();
        let is_alone = dirs.len() == 1;
        for dir in &dirs {
            match () {
                () if SearchRecord::exists_in(dir) && is_alone => {
                    return Ok(ReportContents::Search(
                        dir.clone(),
                        SearchRecord::load(dir)?,
                    ));
                }
                () if LadderRecord::exists_in(dir) && is_alone => {
                    return Ok(ReportContents::Ladder(
                        dir.clone(),
                        LadderRecord::load(dir)?,
                    ));
                }
                () if SearchRecord::exists_in(dir) || LadderRecord::exists_in(dir) => {
                    return Err(Failure::usage(
                        format_args!("{} is not a single run", dir.display()),
                        "a report shows one search, one ladder, or runs: give one search or ladder alone, or only run directories",
                    ));
                }
                () => {}
            }
        }
        let mut runs = Vec::new();
        for dir in dirs {
            if !LanesRecord::exists_in(&dir) {
                runs.push(load_run(&dir)?);
                continue;
            }
            let record = LanesRecord::load(&dir)?;
            for lane in record.run_dirs(&dir)? {
                runs.push(load_run(&lane)?);
            }
            if is_alone {
                return Ok(ReportContents::Lanes(record, runs));
            }
        }
        Ok(ReportContents::Runs(runs))
    }

    /// Returns the runs; `None` for a search or a ladder.
    pub(crate) fn runs(&self) -> Option<&[Run]> {
        match self {
            ReportContents::Runs(runs) | ReportContents::Lanes(_, runs) => Some(runs),
            ReportContents::Search(..) | ReportContents::Ladder(..) => None,
        }
    }

    /// Returns the runs, for the flag `flag`, which does not apply to searches and ladders.
    ///
    /// # Errors
    /// When the contents are a search or a ladder; the error names `flag`.
    pub(crate) fn require_runs(&self, flag: &str) -> Result<&[Run], Failure> {
        self.runs().ok_or_else(|| {
            Failure::usage(
                format_args!("{flag}: a search or a ladder has several runs"),
                "give one of the run directories in it",
            )
        })
    }

    fn junit(&self) -> String {
        match self {
            ReportContents::Runs(runs) | ReportContents::Lanes(_, runs) => junit::render_runs(runs),
            ReportContents::Search(_, record) => junit::render_search(record),
            ReportContents::Ladder(_, record) => junit::render_ladder(record),
        }
    }

    fn markdown(&self, overhead_over: Option<Duration>) -> String {
        match self {
            ReportContents::Runs(runs) => markdown::render(runs, overhead_over),
            ReportContents::Lanes(record, runs) => {
                markdown::lanes_report(record, runs, overhead_over)
            }
            ReportContents::Search(_, record) => markdown::search_report(record),
            ReportContents::Ladder(_, record) => markdown::ladder_report(record),
        }
    }

    /// Returns the comment for a pull request. `places` are the paths that it refers to for details.
    fn pull_request_comment(&self, places: &[PathBuf]) -> String {
        match self {
            ReportContents::Runs(runs) => comment::runs(runs, places),
            ReportContents::Lanes(record, runs) => comment::lanes(record, runs, places),
            ReportContents::Search(_, record) => comment::search(record, places),
            ReportContents::Ladder(_, record) => comment::ladder(record, places),
        }
    }

    /// Returns the contents as an HTML page. `overhead_over` is the server's own delay, which is subtracted from times.
    ///
    /// # Errors
    /// When the intervals of a run, or the plan of a search or a ladder, can't be read.
    fn html_page(&self, overhead_over: Option<Duration>) -> Result<String, Failure> {
        let plan = |dir: &Path| match run::read_plan(dir) {
            Err(RunError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(String::new())
            }
            read => read,
        };
        let over = |runs: &[Run]| -> Result<Vec<RunView>, Failure> {
            let views = run_views(runs.to_vec())?.into_iter();
            Ok(views
                .map(|view| view.with_server_delay(overhead_over))
                .collect())
        };
        Ok(match self {
            ReportContents::Search(dir, record) => html::search_page(record, &plan(dir)?, dir),
            ReportContents::Ladder(dir, record) => html::ladder_page(record, &plan(dir)?, dir),
            ReportContents::Runs(runs) => html::runs_page(&over(runs)?),
            ReportContents::Lanes(record, runs) => html::lanes_page(record, &over(runs)?),
        })
    }

    /// Prints the contents as JSON. `overhead_over` is the server's own delay, which is subtracted from times.
    ///
    /// # Errors
    /// When stdout can't be written.
    pub(crate) fn print_json(&self, overhead_over: Option<Duration>) -> Result<(), Failure> {
        print_json(&self.json_document(overhead_over)?)
    }

    /// Returns the contents as JSON. `overhead_over` is as for [`ReportContents::print_json`].
    ///
    /// # Errors
    /// When a record can't be serialised.
    pub(crate) fn json_document(&self, overhead_over: Option<Duration>) -> Result<Value, Failure> {
        let document = match self {
            ReportContents::Search(dir, record) => json::search_document(record, dir),
            ReportContents::Ladder(dir, record) => json::ladder_document(record, dir),
            ReportContents::Runs(runs) => Ok(json::runs_document(runs, overhead_over)),
            ReportContents::Lanes(record, runs) => {
                json::lanes_document(record, runs, overhead_over)
            }
        };
        document.map_err(Failure::error)
    }
}

/// Prints a document as JSON.
///
/// # Errors
/// When stdout can't be written.
pub(crate) fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document).map_err(Failure::error)?;
    console::print_result(format_args!("{text}\n"))
}

/// Writes `text` to the file of `flag`, or to stdout for `-`.
///
/// # Errors
/// When the file can't be written.
pub(crate) fn write_text(flag: &str, file: &Path, text: String) -> Result<(), Failure> {
    if file == Path::new("-") {
        return console::print_result(text);
    }
    output::write(file, text)
        .map_err(|e| Failure::error(format_args!("{flag}: can't write {}: {e}", file.display())))?;
    console::print_confirmation(format_args!("wrote {}", file.display()));
    Ok(())
}

/// Returns the HTML report of overlaid runs, one search or one ladder. `overhead_over` is subtracted from times.
///
/// # Errors
/// When a directory can't be read, or runs, searches and ladders are mixed.
pub(crate) fn html_page(
    dirs: &[PathBuf],
    overhead_over: Option<Duration>,
) -> Result<String, Failure> {
    ReportContents::from_dirs(dirs)?.html_page(overhead_over)
}

/// Prepares each run for an HTML page.
///
/// # Errors
/// When a run's files can't be read.
pub(crate) fn run_views(runs: Vec<Run>) -> Result<Vec<RunView>, Failure> {
    let views = runs.into_iter().map(RunView::read);
    Ok(views.collect::<Result<_, RunError>>()?)
}

/// Reads a run directory.
///
/// # Errors
/// When it is not a run directory, or can't be read.
pub(crate) fn load_run(dir: &Path) -> Result<Run, Failure> {
    let dir = &resolve_latest(dir);
    if dir.is_file() {
        return Err(Failure::error_with_help(
            format_args!("{} is a file, and a run is a directory", dir.display()),
            "give the directory that a run printed; results exported or made by other tools are read with `plimsoll import FILE --out DIR`",
        ));
    }
    if dir.extension().is_some() && !dir.exists() {
        return Err(Failure::error_with_help(
            format_args!("{}: there is no such run", dir.display()),
            "a run is a directory, whose name the load printed; LATEST is the newest one",
        ));
    }
    Ok(Run::load(dir)?)
}
