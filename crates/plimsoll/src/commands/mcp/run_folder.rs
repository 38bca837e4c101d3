//! The MCP server's folder of runs: the only place that it reads runs from and writes runs to.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_report::terminal::TerminalOptions;
use serde_json::{Map, Value, json};

use crate::commands::{compare, report};
use crate::failure::Failure;
use crate::load::documents::ReportContents;
use crate::load::execution;
use crate::load::run_folders;

/// Width of text output, in columns. It is so large that lines are not wrapped, because clients wrap them.
const TEXT_WIDTH: usize = 10_000;

/// Width of tables, in characters.
const TABLE_WIDTH: usize = 100;

/// Number of runs to list if the client does not set one.
const DEFAULT_LISTED_RUNS: usize = 20;

/// The argument that selects the newest run.
const LATEST: &str = "LATEST";

/// Keys of a run's JSON that short answers include.
const SHORT_RUN_KEYS: [&str; 5] = ["name", "directory", "state", "verdict", "objectives"];

/// A folder of runs.
#[derive(Clone, Debug)]
pub(super) struct RunFolder {
    /// The folder as an absolute path without symbolic links.
    dir: PathBuf,
}

impl RunFolder {
    /// Opens the folder, creating it if it does not exist.
    ///
    /// # Errors
    /// When `dir` can't be created, or is not a folder.
    pub(super) fn open(dir: &Path) -> Result<RunFolder, Failure> {
        let opened = fs::create_dir_all(dir).and_then(|()| dir.canonicalize());
        let dir = opened.map_err(|e| {
            Failure::error_with_help(
                format_args!("--runs: can't use {}: {e}", dir.display()),
                "give a folder that this user may write to",
            )
        })?;
        Ok(RunFolder { dir })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of a new run directory.
    pub(super) fn new_run_dir(&self, name: &str) -> PathBuf {
        execution::unused_dir(&self.dir, name)
    }

    /// Returns the run directory that a client's argument names: an absolute path, or a path relative to the folder.
    ///
    /// # Errors
    /// When the directory is not in the folder. The error does not reveal whether the path exists elsewhere.
    fn resolve(&self, typed: &str) -> Result<PathBuf, Failure> {
        let wrong = || {
            Failure::usage(
                format_args!("there is no run `{typed}` in {}", self.dir.display()),
                "list_runs lists the runs that can be read; --runs of the server names their folder",
            )
        };
        let within = self.dir.join(typed);
        if typed == LATEST {
            return find_newest_first(&self.dir)
                .into_iter()
                .next()
                .ok_or_else(wrong);
        }
        // Also accept a path relative to the server's working directory, because commands print paths in that form.
        let candidates = [within, PathBuf::from(typed)];
        let found = candidates.iter().find_map(|path| {
            let path = path.canonicalize().ok()?;
            path.starts_with(&self.dir).then_some(path)
        });
        found.ok_or_else(wrong)
    }

    /// Returns the document that `plimsoll report --json` prints.
    ///
    /// # Errors
    /// When the run can't be read.
    pub(super) fn document(&self, run: &str) -> Result<Value, Failure> {
        ReportContents::from_dirs(&[self.resolve(run)?])?.json_document(None)
    }

    /// Returns the short answer about a run directory: the report's first sentences, the verdict and the objectives.
    ///
    /// # Errors
    /// When the run can't be read.
    pub(super) fn summary(dir: &Path) -> Result<Value, Failure> {
        let contents = ReportContents::from_dirs(&[dir.to_owned()])?;
        let (_, answer) = report::render(&contents, &text_options(TEXT_WIDTH));
        let mut document = contents.json_document(None)?;
        let mut short = Map::new();
        short.insert("directory".to_owned(), json!(dir));
        short.insert("answer".to_owned(), json!(answer));
        let runs = document["runs"].as_array().map(Vec::as_slice);
        let runs: Vec<Value> = runs.unwrap_or_default().iter().map(shorten_run).collect();
        if let [run] = &runs[..] {
            for key in ["verdict", "objectives", "state", "name", "total"] {
                short.insert(key.to_owned(), run[key].clone());
            }
        } else if !runs.is_empty() {
            short.insert("runs".to_owned(), Value::Array(runs));
        }
        for key in ["search", "ladder", "sweep", "lanes"] {
            if let Some(record) = document.get_mut(key) {
                short.insert(key.to_owned(), shorten_record(record.take()));
            }
        }
        Ok(Value::Object(short))
    }

    /// Returns the report's sentences about a run: the verdict, whether the figures are reliable and why, and advice.
    ///
    /// # Errors
    /// When the run can't be read.
    pub(super) fn explanation(&self, run: &str) -> Result<Value, Failure> {
        let dir = self.resolve(run)?;
        let mut explained = RunFolder::summary(&dir)?;
        let (tables, _) = report::render(
            &ReportContents::from_dirs(&[dir])?,
            &text_options(TABLE_WIDTH),
        );
        let meaning = match explained["verdict"].as_str() {
            Some("pass") => "every objective was met",
            Some("fail") => "at least one objective was missed, and the generator is not the cause",
            Some(_) => "no objective was missed for certain, and at least one can't be judged",
            None => {
                "there is no verdict on a single run: the answer and the report say what was found"
            }
        };
        explained["meaning"] = json!(meaning);
        explained["report"] = json!(tables);
        Ok(explained)
    }

    /// Returns the newest runs in the folder or in one of its subfolders.
    ///
    /// # Errors
    /// When the subfolder does not exist.
    pub(super) fn list(
        &self,
        folder: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Value, Failure> {
        let folder = match folder {
            None => self.dir.clone(),
            Some(typed) => self.resolve(typed)?,
        };
        let mut found = find_newest_first(&folder);
        let all = found.len();
        found.truncate(limit.unwrap_or(DEFAULT_LISTED_RUNS));
        let runs: Vec<Value> = found
            .iter()
            .map(|dir| match RunFolder::summary(dir) {
                Ok(summary) => summary,
                Err(failure) => json!({ "directory": dir, "unreadable": failure.to_string() }),
            })
            .collect();
        Ok(json!({ "folder": folder, "found": all, "runs": runs }))
    }

    /// Returns the JSON that `plimsoll compare --json` prints, together with the comparison's tables as text.
    ///
    /// # Errors
    /// When a run can't be read or is given twice.
    pub(super) fn comparison(&self, a: &[String], b: &[String]) -> Result<Value, Failure> {
        let resolve = |runs: &[String]| {
            let runs = runs.iter().map(|run| self.resolve(run));
            runs.collect::<Result<Vec<PathBuf>, Failure>>()
        };
        let (comparison, _) = compare::load_and_compare(&resolve(a)?, &resolve(b)?)?;
        let mut document = compare::comparison_json(&comparison);
        let tables =
            plimsoll_report::terminal::render_comparison(&comparison, &text_options(TABLE_WIDTH));
        document["report"] = json!(tables);
        Ok(document)
    }
}

/// Returns the run directories in `folder`, newest first: their names start with the time of the run.
fn find_newest_first(folder: &Path) -> Vec<PathBuf> {
    let mut found = run_folders::find_measurements(folder);
    found.sort_by(|a, b| b.file_name().cmp(&a.file_name()));
    found
}

fn text_options(width: usize) -> TerminalOptions {
    TerminalOptions {
        width,
        ..TerminalOptions::default()
    }
}

/// Reduces a run's JSON to [`SHORT_RUN_KEYS`] and the totals with their intervals.
fn shorten_run(run: &Value) -> Value {
    let keys = SHORT_RUN_KEYS.into_iter();
    let mut short: Map<String, Value> =
        keys.map(|key| (key.to_owned(), run[key].clone())).collect();
    short.insert("total".to_owned(), run["total"].clone());
    Value::Object(short)
}

/// Removes the individual trials of a search and the individual slices of a ladder's rungs. The tool `read_run` still
/// returns them.
fn shorten_record(mut record: Value) -> Value {
    if let Some(record) = record.as_object_mut() {
        record.remove("trials");
        for rung in record
            .get_mut("rungs")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(rung) = rung.as_object_mut() {
                rung.retain(|key, _| {
                    ["name", "settings", "server_tls", "proxy"].contains(&key.as_str())
                });
            }
        }
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_outside_folder_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (inside, outside) = (place.path().join("runs"), place.path().join("secret"));
        fs::create_dir_all(inside.join("one")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        let folder = RunFolder::open(&inside).unwrap();
        assert_eq!(folder.resolve("one").unwrap(), folder.dir().join("one"));
        let absolute = inside.join("one").display().to_string();
        assert_eq!(folder.resolve(&absolute).unwrap(), folder.dir().join("one"));
        for typed in [
            "../secret",
            "link",
            "none",
            "/etc",
            &outside.display().to_string(),
        ] {
            let failure = folder.resolve(typed).unwrap_err().to_string();
            assert!(failure.contains("there is no run"), "{failure}");
        }
    }
}
