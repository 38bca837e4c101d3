//! Queries servers without a load. The queries are defined by their protocols.

use clap::ArgMatches;
use plimsoll_protocols::registry::{QueryCommand, QueryContext, QueryError, QueryOutput};

use crate::failure::Failure;
use crate::load::planning;
use crate::load::protocols::query_failure;
use crate::screen::console;
use crate::settings::environment::Environment;
use crate::settings::problems::{self, PlanSource};

/// Sends the query to the server that `typed` names, and returns the answer.
///
/// # Errors
/// When the server can't be reached or refuses to answer, or a flag is invalid.
pub(super) fn send_query(
    question: &QueryCommand,
    typed: &ArgMatches,
    environment: &Environment,
) -> Result<QueryOutput, Failure> {
    let answer = planning::with_resolve_context(environment, |surroundings| {
        let notice = &|text: &str| console::print_notice(text);
        question.run(
            typed,
            QueryContext {
                surroundings,
                notice,
            },
        )
    });
    answer.map_err(|why| match why {
        QueryError::Usage(wrong) => wrong.into(),
        QueryError::Flags(found) => problems::failure(found, &PlanSource::Flags),
        QueryError::Unreachable(why) => query_failure(why),
        QueryError::Refused(why, Some(help)) => Failure::error_with_help(why, help),
        QueryError::Refused(why, None) => Failure::error(why),
    })
}
