//! The interface of reference servers: name, flags and counters. The registry of `plimsoll-protocols` lists them.

use std::fmt::Debug;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{ArgMatches, Args, Command};

use super::{BoundServer, ConnectionStats, ServeError};

/// A server for testing a protocol. The type contains the flags of this server only, without those that all servers
/// share.
pub trait ReferenceServer: Args {
    /// The name of the server's command, which its first line of output also contains.
    const COMMAND_NAME: &str;

    /// The reason why the server can't run in several processes; `None`: it can.
    const SINGLE_PROCESS_REASON: Option<&str> = None;

    /// Reads and checks the server's files; the returned future serves until [`ServeContext::stopped`]
    /// completes.
    ///
    /// # Errors
    /// When a flag's value is not valid, or a file can't be used.
    fn start(self, context: ServeContext) -> Result<ServerFuture, ServeError>;
}

/// The future of a running server, which completes with its counts.
pub type ServerFuture = Pin<Box<dyn Future<Output = Result<ServerCounts, ServeError>> + Send>>;

/// The context in which a [`ReferenceServer`] runs.
pub struct ServeContext {
    /// The open port.
    pub bound: BoundServer,
    /// The number of threads, if the user set it.
    pub workers: Option<usize>,
    /// A future that completes when the server should stop.
    pub stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The counts of a server; `counts` are in the order in which they are printed.
#[derive(Clone, Debug)]
pub struct ServerCounts {
    /// Counts of connections, which every server has.
    pub connections: ConnectionStats,
    /// Named counts that only this server has.
    pub counts: Vec<(&'static str, u64)>,
}

impl ServerCounts {
    /// Reads the counters.
    pub fn from_counters<const N: usize>(
        connections: ConnectionStats,
        counters: [(&'static str, &AtomicU64); N],
    ) -> ServerCounts {
        let read = |(name, counter): (_, &AtomicU64)| (name, counter.load(Ordering::Relaxed));
        ServerCounts {
            connections,
            counts: counters.map(read).to_vec(),
        }
    }
}

/// Certificates that a server selects by name, and whether it sends session tickets.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// A folder of NAME.crt and NAME.key (PEM): a client that asks for NAME (SNI) gets that certificate.
    #[arg(long, value_name = "DIR", help_heading = "TLS")]
    pub tls_certs: Option<PathBuf>,

    /// Send no session tickets, so no session can be resumed.
    #[arg(long, help_heading = "TLS")]
    pub no_tickets: bool,
}

/// Parses an empty command line: returns flags with their default values.
pub fn default_flags<F: Args>() -> F {
    let command = F::augment_args(Command::new("").no_binary_name(true));
    let typed = command.get_matches_from([""; 0]);
    F::from_arg_matches(&typed).unwrap_or_else(|e| e.exit())
}

/// A [`ReferenceServer`] with its type erased.
#[derive(Debug)]
pub struct ServerEntry {
    /// The command's name.
    pub name: &'static str,
    /// The reason why the server can't run in several processes; `None`: it can.
    pub single_process_reason: Option<&'static str>,
    flags: fn(Command) -> Command,
    start: fn(&ArgMatches, ServeContext) -> Result<ServerFuture, ServeError>,
}

impl ServerEntry {
    /// Returns the entry of a reference server.
    pub const fn new<S: ReferenceServer>() -> ServerEntry {
        ServerEntry {
            name: S::COMMAND_NAME,
            single_process_reason: S::SINGLE_PROCESS_REASON,
            flags: S::augment_args,
            start: |typed, place| S::from_arg_matches(typed)?.start(place),
        }
    }

    /// Adds the server's flags and description to `command`.
    pub fn with_flags(&self, command: Command) -> Command {
        (self.flags)(command)
    }

    /// Starts the server with the parsed flags, as [`ReferenceServer::start`] does.
    ///
    /// # Errors
    /// Returns the errors of [`ReferenceServer::start`].
    pub fn start(
        &self,
        typed: &ArgMatches,
        place: ServeContext,
    ) -> Result<ServerFuture, ServeError> {
        (self.start)(typed, place)
    }
}
