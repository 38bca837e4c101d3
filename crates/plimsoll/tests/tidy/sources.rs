//! The Rust sources of all crates.

use std::sync::OnceLock;

/// One source file.
pub(crate) struct Source {
    /// Relative to the root of the repository.
    pub(crate) file: String,
    pub(crate) text: String,
    /// It is only compiled for tests.
    pub(crate) is_test: bool,
}

/// Every file below `crates/`, read once.
pub(crate) fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let files = crate::files().into_iter();
        files
            .filter(|file| file.starts_with("crates/") && file.ends_with(".rs"))
            .map(|file| Source {
                text: crate::read(&file),
                is_test: is_test(&file),
                file,
            })
            .collect()
    })
}

fn is_test(file: &str) -> bool {
    let mut parts = file.split('/').skip(2);
    parts.next() != Some("src") || parts.any(|part| part == "tests" || part == "tests.rs")
}

/// `plimsoll-model` of `crates/plimsoll-model/src/plan.rs`.
pub(crate) fn crate_of(file: &str) -> &str {
    file.split('/').nth(1).unwrap_or_default()
}
