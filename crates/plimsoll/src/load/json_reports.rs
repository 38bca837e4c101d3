//! Finds the run directory that a JSON report names, so that commands for runs accept the report in its place.

use std::path::{Path, PathBuf};

use plimsoll_model::formats::input;

/// Maximum size of a JSON report that is read.
const MAX_REPORT_BYTES: u64 = 64 << 20;

/// Returns the run directory that a JSON report names, as `--json` prints it; `None` if the file is not a report of one
/// run, or the directory is not there.
pub(super) fn run_dir_of_report(file: &Path) -> Option<PathBuf> {
    if file.extension()? != "json" || !file.is_file() {
        return None;
    }
    let text = input::untrusted_file_to_string(file, MAX_REPORT_BYTES).ok()?;
    let report: serde_json::Value = serde_json::from_str(&text).ok()?;
    let [run] = report["runs"].as_array()?.as_slice() else {
        return None;
    };
    let dir = Path::new(run["directory"].as_str()?);
    // The report may have been written where its run is, and read elsewhere.
    let beside = file.with_file_name(dir);
    [dir.to_owned(), beside]
        .into_iter()
        .find(|dir| dir.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_report_names_its_directory() {
        let dir = tempfile::tempdir().expect("a folder");
        let run = dir.path().join("run");
        std::fs::create_dir(&run).expect("a folder");
        let file = dir.path().join("before.json");
        let found = |text: &str| {
            std::fs::write(&file, text).expect("written");
            run_dir_of_report(&file)
        };
        let named = serde_json::json!({"runs": [{"directory": run}]}).to_string();
        assert_eq!(found(&named), Some(run.clone()));
        let relative = serde_json::json!({"runs": [{"directory": "run"}]}).to_string();
        assert_eq!(found(&relative), Some(run.clone()));
        for other in ["{}", "no JSON", r#"{"runs": [{"directory": "gone"}]}"#] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
