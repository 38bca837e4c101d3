//! Why a run could not begin, or had to end.

use std::io;

use plimsoll_model::Outcome;

use crate::defect::Defect;
use crate::tls::TlsSetupError;

/// Why a run could not begin, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    #[error("{url}: host name {host:?} not resolved: {source}")]
    Resolve {
        url: String,
        host: String,
        source: io::Error,
    },
    /// Not one connection came up.
    #[error("{url}: {detail} [{}]{}", outcome.code(), explained(*outcome))]
    NoConnection {
        url: String,
        outcome: Outcome,
        detail: String,
    },
    #[error(
        "{needed} connections need {needed_descriptors} descriptors, and this process may have {limit} (ulimit -n): raise the limit, use more processes (--processes), or ask for at most {most} connections a process"
    )]
    Descriptors {
        needed: u64,
        needed_descriptors: u64,
        limit: u64,
        most: u64,
    },
    #[error("the event loop failed: {0}")]
    Loop(io::Error),
    #[error("interrupted before the load began")]
    Interrupted,
    /// A thread of the load, or its observer, panicked.
    #[error("an error in plimsoll: {0}; please report it with the run directory")]
    Defect(Defect),
    /// Shards of several machines did not come together, or one of them failed.
    #[error("{0}")]
    Shards(String),
    /// One of the processes that share a load failed.
    #[error("process {} of {of}: {problem}", index + 1)]
    Shard {
        index: u32,
        of: u32,
        problem: String,
    },
}

/// The TLS library's messages are for those who know TLS; all others need no explanation.
fn explained(outcome: Outcome) -> String {
    match outcome.code().starts_with("TLS_") {
        true => format!(": {}", outcome.explanation()),
        false => String::new(),
    }
}
