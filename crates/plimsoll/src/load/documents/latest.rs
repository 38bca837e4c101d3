//! The file that names the newest run.

use std::path::{Path, PathBuf};

use plimsoll_model::formats::{input, output};

use crate::load::json_reports;
use crate::screen::console;

/// File in `runs/` with the name of the newest directory. It is not a symbolic link, because some tools that copy,
/// archive or upload files do not preserve links.
const LATEST_FILE: &str = "LATEST";

/// Maximum size of `LATEST`, bytes: longer than any file name.
const MAX_LATEST_BYTES: u64 = 4 << 10;

/// Writes the name of `dir` into `runs/LATEST` if `dir` is in `runs/`. A failure to write is ignored: `LATEST` then
/// still names an earlier run.
pub(crate) fn write_latest_file(dir: &Path) {
    let (Some(folder), Some(name)) = (dir.parent(), dir.file_name()) else {
        return;
    };
    if folder.file_name().is_some_and(|name| name == "runs") {
        let mut line = name.to_owned();
        line.push("\n");
        let latest = folder.join(LATEST_FILE);
        if let Err(e) = output::write(&latest, line.as_encoded_bytes()) {
            console::print_notice(format_args!(
                "can't write {}: {e}: this run is {}",
                latest.display(),
                dir.display()
            ));
        }
    }
}

/// Returns the directory that an argument names: the newest for `LATEST` and `runs/LATEST`, a JSON report's directory.
pub(crate) fn resolve_latest(typed: &Path) -> PathBuf {
    if typed.file_name().is_none_or(|name| name != LATEST_FILE) {
        return json_reports::run_dir_of_report(typed).unwrap_or_else(|| typed.to_owned());
    }
    let short = (typed == Path::new(LATEST_FILE)).then(|| Path::new("runs").join(LATEST_FILE));
    let files = std::iter::once(typed.to_owned()).chain(short);
    let mut names = files.filter_map(|file| {
        let name = input::untrusted_file_to_string(&file, MAX_LATEST_BYTES).ok()?;
        // Use only the last component of the name, so that the result is always in the same folder.
        let name = Path::new(name.trim()).file_name()?;
        Some(file.with_file_name(name))
    });
    names.next().unwrap_or_else(|| typed.to_owned())
}
