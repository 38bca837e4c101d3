//! The user's own services that a ladder compares. The server of each rung (variant) is a shell command, which the
//! ladder starts, restarts for each replicate, and stops with all its children.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_engine::host::cores;
use plimsoll_engine::worker::StopUrgency;
use plimsoll_report::quantity::planned_time;

use crate::failure::{Exit, Failure};
use crate::load::parallel_loads::PROGRESS_INTERVAL;
use crate::load::process::ProcessContext;
use crate::proxies::process::{ManagedProcess, ProcessKind, wait_until_settled};
use crate::screen::console;
use crate::screen::progress::ProgressStyle;
use crate::system::child::ServerProcess;

/// The services that a ladder compares, and the error probability of the comparison.
pub(crate) struct ServiceComparison {
    /// The ladder's directory, which exists.
    pub(crate) dir: PathBuf,
    /// The services, one per rung.
    pub(crate) services: Vec<ServiceCommand>,
    /// Joint error probability of all confidence intervals.
    pub(crate) error_probability: f64,
}

impl ServiceComparison {
    /// Returns the file that a service's output is appended to.
    pub(crate) fn log_path(&self, service: &ServiceCommand) -> PathBuf {
        let name = service.name.replace(['/', '\\'], "-");
        self.dir.join(format!("serve-{name}.log"))
    }
}

/// A shell command that starts a service at an address.
#[derive(Debug)]
pub(crate) struct ServiceCommand {
    /// The name of the service's rung.
    pub(crate) name: String,
    /// The command, with the placeholders for address and port filled in.
    pub(crate) command: String,
    /// The folder in which the command runs.
    pub(crate) folder: PathBuf,
    pub(crate) address: SocketAddr,
    /// Maximum time from the start until the service listens.
    pub(crate) start_timeout: Duration,
    /// Properties of the service that earlier starts have found.
    pub(crate) known: ServiceProperties,
}

/// Properties of a service found when it was started, so that later starts need not find them again.
#[derive(Debug, Default)]
pub(crate) struct ServiceProperties {
    /// Whether the service uses CPU time even without calls.
    never_rests: AtomicBool,
    /// Whether this user can't see the process that listens.
    is_hidden: AtomicBool,
}

impl ServiceCommand {
    /// Starts the service and waits until it listens.
    ///
    /// # Errors
    /// When the service can't be started, exits, or does not listen in time, or when the user interrupts the start.
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
        let stopped = || process.stop.level() != StopUrgency::Run;
        let (name, port) = (&self.name, self.address.port());
        let limit = planned_time(self.start_timeout);
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
                let so_far = planned_time(Duration::from_secs(waited.as_secs()));
                console::print_notice(format_args!(
                    "waiting for {name} to listen on port {port}: {so_far} of at most {limit}"
                ));
            }
            Ok(())
        };
        let kind = ProcessKind::Service;
        let started = cores::run_on_server_cores(|| {
            ManagedProcess::start_with_wait(&mut command, kind, self.address, log, &mut wait)
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
            Failure::error_with_help(format_args!("{name}: {e}"), &help).caused_by_service(name)
        })?;
        let watched = process.find_serving_process(self.address);
        let known = &self.known;
        match watched {
            Some(pid) if !known.never_rests.load(Ordering::Relaxed) => {
                let rests = wait_until_settled(pid, stopped);
                known.never_rests.store(!rests, Ordering::Relaxed);
            }
            Some(_) => {}
            None if known.is_hidden.swap(true, Ordering::Relaxed) => {}
            None => console::print_notice(format_args!(
                "{name}: the process that serves port {port} can't be seen, and its CPU time is not known; give a container the host's network, and run it as this user or this command as root"
            )),
        }
        Ok(ServiceProcess { process, watched })
    }
}

/// A running service.
pub(super) struct ServiceProcess {
    process: ManagedProcess,
    /// Id of the process whose CPU time and memory are measured, with its children; `None` if this user can't see it.
    watched: Option<u32>,
}

/// A running server of a rung.
pub(super) enum RunningServer {
    /// A server of this program or of OpenSSL.
    Own(ServerProcess),
    /// The user's own service.
    Service(ServiceProcess),
}

impl RunningServer {
    /// Returns the id of the process to watch; `None` if this user can't see it.
    pub(super) fn id(&self) -> Option<u32> {
        match self {
            RunningServer::Own(process) => Some(process.0.id()),
            RunningServer::Service(service) => service.watched,
        }
    }

    /// Stops the server and its children.
    pub(super) fn stop(&mut self) {
        match self {
            RunningServer::Own(process) => process.kill(),
            RunningServer::Service(service) => service.process.stop(),
        }
    }
}
