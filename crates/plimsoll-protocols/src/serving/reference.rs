//! What a reference server is: its name, its flags, and what it counts. [`crate::registry`] lists them.

use std::fmt::Debug;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{ArgMatches, Args, Command};

use super::{Bound, ConnectionStats, ServeError};

/// A server to try a protocol on: what it is asked for with flags, besides where it listens.
pub trait Reference: Args {
    /// The command's name, which its first line has, too.
    const COMMAND_NAME: &str;

    /// Why several processes can't serve it together; `None`: they can.
    const SINGLE_PROCESS: Option<&str> = None;

    /// Reads and checks its files; what is returned serves until `place.stopped` completes.
    ///
    /// # Errors
    /// When a flag's value makes no sense, or a file can't be used.
    fn serving(self, place: Place) -> Result<Serving, ServeError>;
}

/// A server that runs to its end.
pub type Serving = Pin<Box<dyn Future<Output = Result<Counted, ServeError>> + Send>>;

/// The place where a [`Reference`] server runs.
pub struct Place {
    /// The open port.
    pub bound: Bound,
    /// Threads, where a number was asked for.
    pub workers: Option<usize>,
    /// Completes when the server is to stop.
    pub stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// What a server counted; `counts` in the order in which they are printed.
#[derive(Clone, Debug)]
pub struct Counted {
    /// The connections, which every server counts.
    pub connections: ConnectionStats,
    /// The counts that only this server has, with their names.
    pub counts: Vec<(&'static str, u64)>,
}

impl Counted {
    /// Reads the counters as they are now.
    pub(crate) fn of<const N: usize>(
        connections: ConnectionStats,
        counters: [(&'static str, &AtomicU64); N],
    ) -> Counted {
        let read = |(name, counter): (_, &AtomicU64)| (name, counter.load(Ordering::Relaxed));
        Counted {
            connections,
            counts: counters.map(read).to_vec(),
        }
    }
}

/// As whom a server speaks TLS, and what it lets clients keep.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// A folder of NAME.crt and NAME.key (PEM): a client that asks for NAME (SNI) gets that certificate.
    #[arg(long, value_name = "DIR", help_heading = "TLS")]
    pub tls_certs: Option<PathBuf>,

    /// Send no session tickets: nothing can be resumed.
    #[arg(long, help_heading = "TLS")]
    pub no_tickets: bool,
}

/// What flags are where none was typed.
pub fn untyped<F: Args>() -> F {
    let command = F::augment_args(Command::new("").no_binary_name(true));
    let typed = command.get_matches_from([""; 0]);
    F::from_arg_matches(&typed).unwrap_or_else(|e| e.exit())
}

/// A [`Reference`] server whose type is forgotten.
#[derive(Debug)]
pub struct Server {
    /// The command's name.
    pub name: &'static str,
    /// Why several processes can't serve it together; `None`: they can.
    pub single_process: Option<&'static str>,
    flags: fn(Command) -> Command,
    serving: fn(&ArgMatches, Place) -> Result<Serving, ServeError>,
}

impl Server {
    pub(crate) const fn of<S: Reference>() -> Server {
        Server {
            name: S::COMMAND_NAME,
            single_process: S::SINGLE_PROCESS,
            flags: S::augment_args,
            serving: |typed, place| S::from_arg_matches(typed)?.serving(place),
        }
    }

    /// Adds what its command takes to `command`, and describes it.
    pub fn with_flags(&self, command: Command) -> Command {
        (self.flags)(command)
    }

    /// Does the same as [`Reference::serving`], with the flags that were typed.
    ///
    /// # Errors
    /// They are the same as there.
    pub fn serving(&self, typed: &ArgMatches, place: Place) -> Result<Serving, ServeError> {
        (self.serving)(typed, place)
    }
}
