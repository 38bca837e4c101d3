//! The names of run directories that the user has not named.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// Returns the letters and digits of a name in lower case, with `-` between words.
pub(crate) fn slug(name: &str) -> String {
    let words: Vec<String> = name
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}

/// Returns `out` if given, otherwise a default directory named after the time and `name`.
pub(crate) fn dir_or_default(out: Option<&Path>, name: &str) -> PathBuf {
    out.map_or_else(|| default_dir(name), PathBuf::from)
}

/// Returns a path such as `runs/20261121T064200Z-getscore-open-loop`. If that path exists, a number is appended.
pub(crate) fn default_dir(name: &str) -> PathBuf {
    unused_dir(Path::new("runs"), name)
}

/// Returns an unused path for a new directory in `runs`, the folder of all runs.
pub(crate) fn unused_dir(runs: &Path, name: &str) -> PathBuf {
    let stamp = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let base = format!("{stamp}-{}", slug(name));
    let base = base.trim_end_matches('-');
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
    fn default_dir_contains_timestamp_and_run_name() {
        let dir = default_dir("Get, open loop / äö").display().to_string();
        assert!(
            dir.starts_with("runs/2") && dir.ends_with("Z-get-open-loop"),
            "{dir}"
        );
    }
}
