//! The error type of reference servers, their connection counts, and functions that build their runtime and join their
//! threads.

use plimsoll_engine::Address;
use plimsoll_engine::tls::files::FileError;
use std::io;
use std::thread::JoinHandle;

/// Why a reference server can't be started or can't continue.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can't be listened on.
    #[error("address {address}: {problem}")]
    Address {
        /// The address as the user gave it.
        address: Address,
        /// What is wrong, and how to correct it.
        problem: String,
        /// The system's error.
        source: io::Error,
    },
    /// A certificate, key or revocation list can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The TLS library rejects the settings.
    #[error("tls settings: {0}")]
    Tls(String),
    /// The value of an option is not valid.
    #[error("option {option}: {problem}")]
    Option {
        /// The name of its flag, without the dashes.
        option: &'static str,
        /// What is wrong, and how to correct it.
        problem: String,
    },
    /// A system call that the server needs failed.
    #[error("{doing}: {source}")]
    Io {
        /// What failed, as a present participle: "creating a timer".
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A codec plugin can't be used.
    #[error("{problem}")]
    Codec {
        /// What is wrong.
        problem: String,
        /// How to solve the problem.
        help: &'static str,
    },
    /// The flags are not valid.
    #[error(transparent)]
    Flags(#[from] clap::Error),
}

impl ServeError {
    /// Returns the error of an option, named without its dashes, whose value is not valid.
    pub fn invalid_option(option: &'static str, problem: impl Into<String>) -> ServeError {
        ServeError::Option {
            option,
            problem: problem.into(),
        }
    }

    /// Returns a function that converts system errors. `doing` names the failed operation: "creating a timer".
    pub fn io(doing: &'static str) -> impl Fn(io::Error) -> ServeError {
        move |source| ServeError::Io { doing, source }
    }
}

/// Waits until a server's own threads have ended.
///
/// # Errors
/// Returns the error of the first thread that failed.
pub async fn join_threads(threads: Vec<JoinHandle<io::Result<()>>>) -> Result<(), ServeError> {
    let ended = tokio::task::spawn_blocking(move || {
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err(io::Error::other("panicked")))
        })
    });
    let ended = ended.await.unwrap_or_else(|e| Err(io::Error::other(e)));
    ended.map_err(ServeError::io("running a worker thread"))
}

/// Counts of a server's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Connections that were accepted.
    pub accepted: u64,
    /// The maximum number of connections that were open at once.
    pub peak_open: u64,
    /// Connections dropped before or during the TLS handshake: refused certificates, plaintext on a TLS port,
    /// handshakes that took longer than ten seconds.
    pub handshakes_failed: u64,
    /// Connections that ended with an error after the handshake.
    pub broken: u64,
    /// Connections cut off because their calls outlasted the drain time.
    pub cut_off: u64,
}

/// Makes a tokio runtime with this many worker threads; `None` means one per core. A single worker is the calling
/// thread.
///
/// # Errors
/// When `workers` is 0, or the threads can't be started.
pub fn build_runtime(workers: Option<usize>) -> Result<tokio::runtime::Runtime, ServeError> {
    let mut builder = match workers {
        Some(0) => {
            return Err(ServeError::invalid_option("workers", "must be at least 1"));
        }
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        Some(n) => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(n);
            builder
        }
        None => tokio::runtime::Builder::new_multi_thread(),
    };
    builder
        .enable_all()
        .build()
        .map_err(ServeError::io("starting worker threads"))
}
