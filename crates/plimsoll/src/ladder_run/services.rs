//! Services of the user's own that a ladder compares: each rung's server is a shell command, which the ladder starts,
//! restarts for each replicate, and stops with all its children.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_engine::cores;
use plimsoll_engine::worker::StopLevel;
use plimsoll_report::quantity::planned;

use crate::child::ServerProcess;
use crate::console;
use crate::failure::{Exit, Failure};
use crate::parallel_loads::PROGRESS_INTERVAL;
use crate::process::ProcessContext;
use crate::progress::ProgressStyle;
use crate::proxies::process::{ProcessKind, ProxyProcess, settle};

/// Services to compare, and how sure the comparison has to be.
pub(crate) struct ServiceComparison {
    /// The ladder's directory, which exists.
    pub(crate) dir: PathBuf,
    /// A service for each rung.
    pub(crate) services: Vec<ServiceCommand>,
    /// Error probability of all intervals together.
    pub(crate) error_probability: f64,
}

impl ServiceComparison {
    /// Returns the file that a service's output is appended to.
    pub(crate) fn log(&self, service: &ServiceCommand) -> PathBuf {
        let name = service.name.replace(['/', '\\'], "-");
        self.dir.join(format!("serve-{name}.log"))
    }
}

/// A shell command that serves at an address.
#[derive(Debug)]
pub(crate) struct ServiceCommand {
    /// The name of its rung.
    pub(crate) name: String,
    /// The command, with its address filled in.
    pub(crate) command: String,
    /// The folder in which it runs.
    pub(crate) folder: PathBuf,
    pub(crate) address: SocketAddr,
    /// How long it may take until it listens.
    pub(crate) start_timeout: Duration,
    /// What earlier starts showed.
    pub(crate) known: ServiceTraits,
}

/// What the starts of a service showed, which later ones need not find out again.
#[derive(Debug, Default)]
pub(crate) struct ServiceTraits {
    /// It uses CPU time even if nobody calls it.
    never_rests: AtomicBool,
    /// The process that serves can't be seen.
    is_hidden: AtomicBool,
}

impl ServiceCommand {
    /// Starts the service and waits until it listens.
    ///
    /// # Errors
    /// When it can't be started, exits, does not listen in time, or the user interrupts the start.
    pub(super) fn start(
        &self,
        log: &Path,
        process: &ProcessContext,
    ) -> Result<ServiceProcess, Failure> {
        let mut command = Command::new("sh");
        command
            .args(["-c", &self.command])
            .current_dir(&self.folder)
            .env("PORT", self.address.port().to_string())
            .env("ADDRESS", self.address.to_string());
        let stopped = || process.stop.level() != StopLevel::Run;
        let (name, port) = (&self.name, self.address.port());
        let limit = planned(self.start_timeout);
        let mut due = PROGRESS_INTERVAL;
        let mut wait = |waited: Duration| {
            if stopped() {
                return Err("was interrupted before it listened".to_owned());
            }
            if waited >= self.start_timeout {
                return Err(format!("does not listen on port {port} after {limit}"));
            }
            if waited >= due && process.progress != ProgressStyle::None {
                due += PROGRESS_INTERVAL;
                let so_far = planned(Duration::from_secs(waited.as_secs()));
                console::notice(format_args!(
                    "waiting for {name} to listen on port {port}: {so_far} of at most {limit}"
                ));
            }
            Ok(())
        };
        let kind = ProcessKind::Service;
        let started = cores::on_server_cores(|| {
            ProxyProcess::start_while(&mut command, kind, self.address, log, &mut wait)
        });
        let process = started.map_err(|e| {
            let help = format!(
                "its log is {}; the command is to serve at {{address}}, or at 127.0.0.1 on {{port}} or the variable PORT, in the foreground; --start-timeout is how long it may take",
                log.display()
            );
            if stopped() {
                return Failure::with_exit_and_help(
                    Exit::Interrupted,
                    format_args!("{name}: {e}"),
                    "nothing is left running",
                );
            }
            Failure::error_with_help(format_args!("{name}: {e}"), &help).of_service(name)
        })?;
        let watched = process.serving(self.address);
        let known = &self.known;
        match watched {
            Some(pid) if !known.never_rests.load(Ordering::Relaxed) => {
                let rests = settle(pid, stopped);
                known.never_rests.store(!rests, Ordering::Relaxed);
            }
            Some(_) => {}
            None if known.is_hidden.swap(true, Ordering::Relaxed) => {}
            None => console::notice(format_args!(
                "{name}: the process that serves port {port} can't be seen, and its CPU time is not known; give a container the host's network, and run it as this user or this command as root"
            )),
        }
        Ok(ServiceProcess { process, watched })
    }
}

/// A running service.
pub(super) struct ServiceProcess {
    process: ProxyProcess,
    /// The process whose CPU time and memory count, with its children; `None`: it can't be seen.
    watched: Option<u32>,
}

/// A running server of a rung.
pub(super) enum RunningServer {
    /// One of this program or of OpenSSL.
    Own(ServerProcess),
    /// One of the user's own.
    Service(ServiceProcess),
}

impl RunningServer {
    /// Returns the id of the process to watch; `None`: it can't be seen.
    pub(super) fn id(&self) -> Option<u32> {
        match self {
            RunningServer::Own(process) => Some(process.0.id()),
            RunningServer::Service(service) => service.watched,
        }
    }

    /// Stops the server and its children.
    pub(super) fn end(&mut self) {
        match self {
            RunningServer::Own(process) => process.end(),
            RunningServer::Service(service) => service.process.end(),
        }
    }
}
