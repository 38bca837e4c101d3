//! One file a command.

pub(crate) mod certs;
pub(crate) mod serve;

use crate::arguments::{Chosen, Cli, Origins};
use crate::environment::Environment;
use crate::failure::{Exit, Failure};

/// Does what was chosen.
///
/// # Errors
/// When the command could not do its work.
pub(crate) fn execute(
    cli: Cli,
    origins: &Origins,
    environment: &Environment,
) -> Result<Exit, Failure> {
    match cli.command {
        Chosen::Serve(arguments) => serve::execute(arguments),
        Chosen::Certs(arguments) => certs::execute(&arguments),
    }
}
