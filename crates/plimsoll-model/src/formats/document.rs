//! Reads and writes the JSON documents of the run format. Documents are written atomically, in the current version of
//! the format; versions from `OLDEST_SCHEMA_VERSION` on can be read.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{formats::input, formats::output};

mod error;

pub use error::RunError;

/// The version of the run format that this code writes.
pub const SCHEMA_VERSION: u32 = 2;

/// The oldest version of the run format that this code reads. Version 1 had other names for batches and replicates.
const OLDEST_SCHEMA_VERSION: u64 = 1;

/// Maximum size of a document, or of a plan in the same directory, in bytes.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// Writes `document` to a temporary file, which then replaces `path`.
///
/// # Errors
/// When the file can't be written; an existing one is left unchanged.
pub(crate) fn write(path: &Path, document: &impl Serialize) -> Result<(), RunError> {
    let temp_path = path.with_extension("json.new");
    let mut text = serde_json::to_string_pretty(document)
        .expect("the document's keys are strings and its numbers finite");
    text.push('\n');
    let written = output::write(&temp_path, text).and_then(|()| fs::rename(&temp_path, path));
    if written.is_err() {
        let _left_over = fs::remove_file(&temp_path);
    }
    written.map_err(RunError::io(path, "writing it"))
}

/// Reads the document at `path`.
///
/// # Errors
/// When there is no document, or it was written in another version of the format.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, RunError> {
    let text = input::untrusted_file_to_string(path, MAX_DOCUMENT_BYTES)
        .map_err(RunError::io(path, "reading it"))?;
    parse(&text, path)
}

/// Like [`read`], with a check of the document's numbers.
///
/// # Errors
/// Returns the errors of [`read`], and those of `check`.
pub(crate) fn read_checked<T: DeserializeOwned>(
    path: &Path,
    check: impl FnOnce(&T) -> Result<(), String>,
) -> Result<T, RunError> {
    let document = read(path)?;
    match check(&document) {
        Ok(()) => Ok(document),
        Err(problem) => Err(RunError::InvalidDocument {
            path: path.to_owned(),
            problem,
        }),
    }
}

/// Parses a document's `text`, read from `path`.
///
/// # Errors
/// When the document is not valid, or of another version of the format.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, RunError> {
    #[derive(Deserialize)]
    struct SchemaVersionOnly {
        schema_version: u64,
    }
    let garbage = |e: serde_json::Error| RunError::InvalidDocument {
        path: path.to_owned(),
        problem: e.to_string(),
    };
    let version: SchemaVersionOnly = serde_json::from_str(text).map_err(garbage)?;
    if !(OLDEST_SCHEMA_VERSION..=u64::from(SCHEMA_VERSION)).contains(&version.schema_version) {
        return Err(RunError::Version {
            path: path.to_owned(),
            found: version.schema_version,
            expected: SCHEMA_VERSION,
        });
    }
    serde_json::from_str(text).map_err(garbage)
}
