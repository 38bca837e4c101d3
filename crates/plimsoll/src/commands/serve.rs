//! `plimsoll serve`: runs the reference servers. The protocols' servers come from the registry.

use clap::{Args, Command, Subcommand};
use plimsoll_engine::tls::certificate_expiry::{format_utc, unix_now};
use plimsoll_protocols::registry::REFERENCE_SERVERS;
use plimsoll_serving::CertificateRenewal;
use plimsoll_serving::reference::{ServeContext, ServerEntry};

use super::registry_commands::{EntryInvocation, RegistryEntry};
use crate::failure::{Exit, Failure};
use crate::screen::console;
use crate::settings::environment::Environment;
use crate::system::stopping;
use listen::ListenFlags;

mod hostile;
mod listen;
mod llm;
mod processes;

/// Run a reference server to try loads on.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: a score server that takes 5 ms for an answer\n  \
        plimsoll serve score --listen 127.0.0.1:50051 --delay 5ms",
    arg_required_else_help = true,
    subcommand_required = true
)]
pub(crate) struct ServeArguments {
    #[command(subcommand)]
    server: ServeCommand,
}

#[derive(Debug, Subcommand)]
enum ServeCommand {
    #[command(flatten)]
    Reference(Box<EntryInvocation<ServerEntry>>),
    Hostile(Box<hostile::HostileArguments>),
    Llm(Box<llm::LlmArguments>),
}

impl RegistryEntry for ServerEntry {
    type SharedFlags = ListenFlags;

    fn all() -> &'static [ServerEntry] {
        &REFERENCE_SERVERS
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn command(&self) -> Command {
        self.with_flags(Command::new(self.name))
    }
}

pub(crate) fn execute(
    arguments: ServeArguments,
    environment: &Environment,
) -> Result<Exit, Failure> {
    match arguments.server {
        ServeCommand::Reference(reference) => reference.run(),
        ServeCommand::Hostile(arguments) => hostile::execute(&arguments),
        ServeCommand::Llm(arguments) => llm::execute(&arguments, environment),
    }
}

impl EntryInvocation<ServerEntry> {
    /// Serves until a signal arrives, in this process or in several processes.
    fn run(&self) -> Result<Exit, Failure> {
        let (name, listen) = (self.entry.name, &self.shared);
        if listen.processes > 1 {
            if let Some(reason) = self.entry.single_process_reason {
                return Err(Failure::usage(
                    format_args!("--processes {}: serve {name}: {reason}", listen.processes),
                    "leave --processes out; --workers N serves from N threads",
                ));
            }
            return processes::serve(name, listen);
        }
        let bound = listen.bind()?;
        let (handshakes, renewal) = (bound.handshakes.clone(), bound.renewal.clone());
        let announced = bound.startup_facts.clone();
        if let Some(ended) = renewal
            .as_ref()
            .and_then(CertificateRenewal::chain_expiry)
            .filter(|end| *end < unix_now())
        {
            console::print_notice(format_args!(
                "the server's certificate expired at {}: clients that check it will refuse it",
                format_utc(ended)
            ));
        }
        let counted = stopping::run_until_stopped(
            listen.workers,
            stopping::STOPPING_NOTICE,
            async |stopped| {
                let address = bound.address().clone();
                let place = ServeContext {
                    bound,
                    workers: listen.workers,
                    stopped,
                };
                // Read the server's files before its address is printed, so that errors are reported first.
                let serving = self.entry.start(&self.matches, place)?;
                listen.announce(name, &address, &announced.facts())?;
                Ok(serving.await?)
            },
        )?;
        for alike in handshakes.take() {
            console::print_notice(format_args!(
                "handshakes {}: {}",
                alike.count,
                alike.describe()
            ));
        }
        if let Some(renewed) = renewal
            .map(|renewal| renewal.reload_count())
            .filter(|n| *n > 0)
        {
            console::print_notice(format_args!("certificate reloaded {renewed}"));
        }
        listen.print_final_counts(&counted)?;
        Ok(Exit::Done)
    }
}
