//! Finds measurements (runs, lanes, searches and ladders) in a folder and its subfolders.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_model::runs::run::file_name;
use plimsoll_model::{comparisons::ladder, formats::input, runs::lanes, search};

/// Maximum depth of nested folders.
const MAX_DEPTH: usize = 4;

/// Returns the record file that marks a directory as a search, ladder, lanes or run; `None` if there is none.
pub(crate) fn record_file(dir: &Path) -> Option<PathBuf> {
    [
        search::FILE_NAME,
        ladder::FILE_NAME,
        lanes::FILE_NAME,
        file_name::RUN,
    ]
    .into_iter()
    .map(|name| dir.join(name))
    .find(|file| input::is_plain_file(file))
}

/// Returns `dir` if it contains a measurement, otherwise all subfolders that do. Subfolders of a measurement, such as
/// the runs of a search, are left out.
pub(crate) fn find_measurements(dir: &Path) -> Vec<PathBuf> {
    fn collect_measurements(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) {
        if record_file(dir).is_some() {
            found.push(dir.to_owned());
            return;
        }
        let Some(depth) = depth.checked_sub(1) else {
            return;
        };
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        // Don't follow links, which may form cycles.
        let dirs = entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
        dirs.for_each(|entry| collect_measurements(&entry.path(), depth, found));
    }
    let mut all = Vec::new();
    collect_measurements(dir, MAX_DEPTH, &mut all);
    all.sort();
    all
}
