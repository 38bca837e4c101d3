//! `plimsoll serve`: the reference servers. Those of protocols are listed by their registry.

use clap::error::{Error, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use plimsoll_engine::tls::validity::{now, utc};
use plimsoll_protocols::registry::SERVERS;
use plimsoll_protocols::serving::Renewal;
use plimsoll_protocols::serving::reference::{Place, Server};

use crate::console;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::stopping;
use listen::ListenFlags;

mod hostile;
mod listen;
mod llm;
mod processes;

/// Run a reference server, to try things on.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: a score server that takes 5 ms for an answer\n  \
        plimsoll serve score --listen 127.0.0.1:50051 --delay 5ms",
    arg_required_else_help = true,
    subcommand_required = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    server: Chosen,
}

#[derive(Debug, Subcommand)]
enum Chosen {
    #[command(flatten)]
    Reference(Box<Reference>),
    Hostile(Box<hostile::Arguments>),
    Llm(Box<llm::Arguments>),
}

/// A server of a protocol.
#[derive(Debug)]
struct Reference {
    server: &'static Server,
    /// Its own flags.
    typed: ArgMatches,
    listen: ListenFlags,
}

fn command(server: &Server) -> Command {
    let command = server.with_flags(Command::new(server.name));
    let about = command.get_about().cloned().unwrap_or_default();
    ListenFlags::augment_args(command).about(about)
}

impl Subcommand for Reference {
    fn augment_subcommands(outer: Command) -> Command {
        outer.subcommands(SERVERS.iter().map(command))
    }

    fn augment_subcommands_for_update(outer: Command) -> Command {
        Self::augment_subcommands(outer)
    }

    fn has_subcommand(name: &str) -> bool {
        SERVERS.iter().any(|server| server.name == name)
    }
}

impl FromArgMatches for Reference {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Reference, Error> {
        let chosen = matches.subcommand().and_then(|(name, typed)| {
            let server = SERVERS.iter().find(|server| server.name == name)?;
            Some((server, typed))
        });
        let (server, typed) = chosen.ok_or_else(|| Error::new(ErrorKind::MissingSubcommand))?;
        Ok(Reference {
            server,
            typed: typed.clone(),
            listen: ListenFlags::from_arg_matches(typed)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Reference::from_arg_matches(matches)?;
        Ok(())
    }
}

pub(crate) fn execute(arguments: Arguments, environment: &Environment) -> Result<Exit, Failure> {
    match arguments.server {
        Chosen::Reference(reference) => reference.run(),
        Chosen::Hostile(arguments) => hostile::execute(&arguments),
        Chosen::Llm(arguments) => llm::execute(&arguments, environment),
    }
}

impl Reference {
    /// Serves until a signal, in this process or in several.
    fn run(&self) -> Result<Exit, Failure> {
        let (name, listen) = (self.server.name, &self.listen);
        if listen.processes > 1 {
            return processes::serve(name, listen);
        }
        let bound = listen.bind()?;
        let (handshakes, renewal) = (bound.handshakes(), bound.renewal());
        if let Some(ended) = renewal
            .as_ref()
            .and_then(Renewal::ends)
            .filter(|end| *end < now())
        {
            console::notice(format_args!(
                "the server's certificate expired at {}: clients that check it will refuse it",
                utc(ended)
            ));
        }
        let counted =
            stopping::until_stopped(listen.workers, stopping::CALLS_MAY_END, async |stopped| {
                let address = bound.address().clone();
                let place = Place {
                    bound,
                    workers: listen.workers,
                    offers_1_2: listen.tls.offers_1_2(),
                    stopped,
                };
                // A broken file is reported before the server announces itself.
                let serving = self.server.serving(&self.typed, place)?;
                listen.announce(name, &address)?;
                Ok(serving.await?)
            })?;
        for alike in handshakes.take() {
            console::notice(format_args!(
                "handshakes {}: {}",
                alike.count,
                alike.sentence()
            ));
        }
        if let Some(renewed) = renewal.map(|renewal| renewal.renewed()).filter(|n| *n > 0) {
            console::notice(format_args!("certificate read again {renewed}"));
        }
        listen.conclude(&counted)?;
        Ok(Exit::Done)
    }
}
