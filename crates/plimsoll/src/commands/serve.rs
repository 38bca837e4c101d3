//! `plimsoll serve`: the reference servers, each in a file of its own.

use clap::{Args, Subcommand};
use plimsoll_engine::tls::validity::{now, utc};
use plimsoll_protocols::serving::{Bound, ConnectionStats, Renewal};

use crate::console;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::stopping::{self, Stopped};
use listen::ListenFlags;

mod answers;
mod bolt;
mod echo;
mod fast;
mod files;
mod hold;
mod hostile;
mod http;
mod listen;
mod llm;
mod names;
mod orders;
mod plugin;
mod processes;
mod score;

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
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Server {
    Score(score::Arguments),
    Orders(orders::Arguments),
    Echo(echo::Arguments),
    Fast(fast::Arguments),
    Bolt(bolt::Arguments),
    Http(http::Arguments),
    Files(files::Arguments),
    Hold(hold::Arguments),
    Hostile(hostile::Arguments),
    Plugin(plugin::Arguments),
    Llm(llm::Arguments),
}

pub(crate) fn execute(arguments: Arguments, environment: &Environment) -> Result<Exit, Failure> {
    match arguments.server {
        Server::Score(arguments) => run(&arguments, &arguments.listen),
        Server::Orders(arguments) => run(&arguments, &arguments.listen),
        Server::Echo(arguments) => run(&arguments, &arguments.listen),
        Server::Fast(arguments) => run(&arguments, &arguments.listen),
        Server::Bolt(arguments) => run(&arguments, &arguments.listen),
        Server::Http(arguments) => run(&arguments, &arguments.listen),
        Server::Files(arguments) => run(&arguments, &arguments.listen),
        Server::Hold(arguments) => run(&arguments, &arguments.listen),
        Server::Hostile(arguments) => hostile::execute(&arguments),
        Server::Plugin(arguments) => run(&arguments, &arguments.listen),
        Server::Llm(arguments) => llm::execute(&arguments, environment),
    }
}

/// A server that listens on one address until it is told to stop. A new one is a file in
/// this folder that implements it, and a line in [`Server`].
trait ReferenceServer {
    /// What it calls itself in its first line.
    const NAME: &str;

    /// Announces itself, serves until `serving.stopped` completes, and returns what it counted.
    async fn serve(&self, serving: Serving<'_>) -> Result<Counted, Failure>;
}

/// What a [`ReferenceServer`] is given.
struct Serving<'a> {
    name: &'static str,
    listen: &'a ListenFlags,
    bound: Bound,
    stopped: Stopped,
}

impl Serving<'_> {
    /// To be called once nothing can go wrong any more, and before the first connection.
    fn announce(&self) -> Result<(), Failure> {
        self.listen.announce(self.name, &self.bound)
    }
}

/// What a server says at its end; `counts` in the order they are printed.
struct Counted {
    connections: ConnectionStats,
    counts: Vec<(&'static str, u64)>,
}

/// Serves until a signal, in this process or in several.
fn run<S: ReferenceServer>(server: &S, listen: &ListenFlags) -> Result<Exit, Failure> {
    if listen.processes > 1 {
        return processes::serve(S::NAME, listen);
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
            let serving = Serving {
                name: S::NAME,
                listen,
                bound,
                stopped,
            };
            server.serve(serving).await
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
