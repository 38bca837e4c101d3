//! One file a command.

mod asking;
pub(crate) mod calling;
pub(crate) mod certs;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod completions;
mod conclusion;
pub(crate) mod find;
pub(crate) mod import;
pub(crate) mod kubernetes;
pub(crate) mod ladder;
pub(crate) mod man;
pub(crate) mod merge;
pub(crate) mod payload;
pub(crate) mod relay;
mod renewing;
pub(crate) mod report;
pub(crate) mod run;
mod secret;
pub(crate) mod serve;
pub(crate) mod shard;
pub(crate) mod slurm;
pub(crate) mod stack;
pub(crate) mod sweep;
mod tls_flags;
pub(crate) mod view;
pub(crate) mod watch;

use crate::arguments::{Chosen, Cli, Origins};
use crate::documents::Made;
use crate::environment::Environment;
use crate::execution::{Process, stopped_by_signals};
use crate::failure::{Exit, Failure};
use crate::progress::Style;
use crate::telemetry;

/// Does what was chosen, and writes the documents that were asked for, also of what was measured
/// before an error.
///
/// # Errors
/// When the command could not do its work.
pub(crate) fn execute(
    cli: Cli,
    origins: &Origins,
    environment: &Environment,
) -> Result<Exit, Failure> {
    let documents = cli.command.documents().cloned();
    let made = Made::default();
    let Some(documents) = documents else {
        let ended = carry_out(cli, origins, environment, &made);
        telemetry::end();
        return ended;
    };
    documents.check()?;
    let ended = carry_out(cli, origins, environment, &made);
    telemetry::end();
    let delivered = documents.deliver(&made, environment);
    match (ended, delivered) {
        (Ok(exit), delivered) => delivered.map(|()| exit),
        (Err(failure), Ok(())) => Err(failure),
        (Err(failure), Err(other)) => {
            other.show();
            Err(failure)
        }
    }
}

fn carry_out(
    cli: Cli,
    origins: &Origins,
    environment: &Environment,
    made: &Made,
) -> Result<Exit, Failure> {
    let loads = !matches!(cli.command, Chosen::Watch(_) | Chosen::Kubernetes(_));
    let leads = loads && !matches!(cli.command, Chosen::Shard(_));
    let process = || -> Result<Process, Failure> {
        let variables: Vec<&str> = origins.variables().collect();
        if !variables.is_empty() && !cli.quiet {
            crate::console::notice(format_args!(
                "from the environment: {}",
                variables.join(", ")
            ));
        }
        let logging = cli.verbose || cli.trace;
        // The process that started a load reports for those that share it.
        if let Some(wanted) = cli.telemetry.as_deref().filter(|_| leads) {
            telemetry::start(wanted)?;
        }
        Ok(Process {
            progress: match cli.quiet {
                true => Style::None,
                false => cli.progress.style(logging)?,
            },
            verbose: cli.verbose,
            trace: cli.trace,
            stop: stopped_by_signals(loads)?,
            made: made.clone(),
        })
    };
    match cli.command {
        Chosen::Run(arguments) => run::execute(&arguments, origins, environment, &process()?),
        Chosen::Find(arguments) => find::execute(&arguments, origins, environment, &process()?),
        Chosen::Ladder(arguments) => ladder::execute(&arguments, origins, environment, &process()?),
        Chosen::Sweep(arguments) => sweep::execute(&arguments, origins, environment, &process()?),
        Chosen::Shard(arguments) => shard::execute(&arguments, environment, &process()?),
        Chosen::Stack(arguments) => stack::execute(&arguments, origins, environment, process),
        Chosen::Call(arguments) => calling::execute(&arguments, origins, environment, &process()?),
        Chosen::Report(arguments) => report::execute(&arguments),
        Chosen::Compare(arguments) => compare::execute(&arguments),
        Chosen::Import(arguments) => import::execute(&arguments),
        Chosen::Merge(arguments) => merge::execute(&arguments, made),
        Chosen::View(arguments) => view::execute(&arguments),
        Chosen::Watch(arguments) => watch::execute(&arguments, &process()?),
        Chosen::Serve(arguments) => serve::execute(arguments, environment),
        Chosen::Relay(arguments) => relay::execute(&arguments, environment),
        Chosen::Slurm(arguments) => slurm::execute(&arguments),
        Chosen::Kubernetes(arguments) => kubernetes::execute(&arguments, made, process),
        Chosen::Check(arguments) => check::execute(&arguments, environment),
        Chosen::Certs(arguments) => certs::execute(&arguments),
        Chosen::Payload(arguments) => payload::execute(&arguments),
        Chosen::Completions(arguments) => completions::execute(&arguments),
        Chosen::Man(arguments) => man::execute(&arguments),
    }
}
