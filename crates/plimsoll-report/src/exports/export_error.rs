//! Errors of exports.

use std::io;

use plimsoll_model::runs::run::RunError;

/// Why a run could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The run's files can't be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run is not one of a language model.
    #[error("the run has no tokens: only answers read with stream = \"openai\" have")]
    NoTokens,
    /// The file of this name can't be written.
    #[error("writing {0} failed")]
    Write(String, #[source] io::Error),
}

impl ExportError {
    /// Returns a function that wraps an error of writing `what`.
    pub(crate) fn write_error(what: &str) -> impl Fn(io::Error) -> ExportError {
        move |source| ExportError::Write(what.to_owned(), source)
    }
}
