//! The errors of a run as a whole; failures of calls and connections are outcomes and not errors.

use std::io;

use plimsoll_model::Outcome;

use crate::defect::PanicDescription;
use crate::tls::TlsSetupError;

/// Why a connection could not be established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectFailure {
    /// The outcome that a call on the connection would have had.
    pub outcome: Outcome,
    /// The failure, in words.
    pub detail: String,
    /// Whether the TLS handshake was complete, so that the server speaks TLS.
    pub is_after_tls: bool,
    /// Whether the proxy is at fault, which had not yet connected to the target.
    pub is_at_proxy: bool,
}

impl ConnectFailure {
    /// Creates a failure of a direct connection, before TLS is established.
    pub fn new(outcome: Outcome, detail: impl Into<String>) -> ConnectFailure {
        ConnectFailure {
            outcome,
            detail: detail.into(),
            is_after_tls: false,
            is_at_proxy: false,
        }
    }
}

/// The reason why a run could not begin, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    /// The name of the target, or of the proxy in front of it, did not resolve.
    #[error("{url}: host name {host:?}{} not resolved: {source}", name_owner(*is_proxy))]
    Resolve {
        /// The target's URL as in the plan.
        url: String,
        /// The name that was looked up.
        host: String,
        /// Whether the name is the proxy's.
        is_proxy: bool,
        /// The resolver's error.
        source: io::Error,
    },
    /// No connection could be established.
    #[error("{url}: {} [{}]{}", failure.detail, failure.outcome.code(), explain_tls_outcome(failure.outcome))]
    NoConnection {
        /// The target's URL as in the plan.
        url: String,
        /// The first failure.
        failure: ConnectFailure,
    },
    #[error(
        "{needed} connections need {needed_descriptors} descriptors, and this process may have {limit} (ulimit -n): raise the limit, use more processes (--processes), or ask for at most {most} connections a process"
    )]
    /// The limit of open files is below what the connections need.
    Descriptors {
        /// Number of connections.
        needed: u64,
        /// Descriptors that the connections and the process itself need.
        needed_descriptors: u64,
        /// Descriptors that a process may have.
        limit: u64,
        /// Connections that this limit allows.
        most: u64,
    },
    /// A system call that the event loop depends on failed; targets cannot cause this error.
    #[error("the event loop failed: {0}")]
    Loop(io::Error),
    /// The run was interrupted while connections were being established.
    #[error("interrupted before the load began")]
    Interrupted,
    /// A thread of the load, or its observer, panicked.
    #[error("a bug in plimsoll: {0}; please report it with the run directory")]
    Defect(PanicDescription),
    /// Shards on several machines could not start together, or one of them failed.
    #[error("{0}")]
    Shards(String),
    /// One of the processes that share a load failed.
    #[error("process {} of {of}: {problem}", index + 1)]
    Shard {
        /// The index of the process, from 0.
        index: u32,
        /// Number of processes.
        of: u32,
        /// The error message of the process.
        problem: String,
    },
}

/// Returns whose host name it is, for a message; empty for the target's.
fn name_owner(is_proxy: bool) -> &'static str {
    if is_proxy {
        " of the proxy (load.proxy)"
    } else {
        ""
    }
}

/// Returns an explanation for TLS outcomes, whose messages presuppose knowledge of TLS.
fn explain_tls_outcome(outcome: Outcome) -> String {
    if outcome.code().starts_with("TLS_") {
        format!(": {}", outcome.explanation())
    } else {
        String::new()
    }
}
