//! Queries servers without a load. The queries are defined by their protocols.

use clap::ArgMatches;
use plimsoll_protocols::registry::{Answer, Ask, Asking, Unanswered};

use crate::console;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::planning;
use crate::problems::{self, Source};
use crate::protocols::asked_in_vain;

/// # Errors
/// When the server can't be reached, or refuses an answer.
pub(super) fn ask(
    question: &Ask,
    typed: &ArgMatches,
    environment: &Environment,
) -> Result<Answer, Failure> {
    let answer = planning::with_surroundings(environment, |surroundings| {
        let notice = &|text: &str| console::notice(text);
        question.ask(
            typed,
            Asking {
                surroundings,
                notice,
            },
        )
    });
    answer.map_err(|why| match why {
        Unanswered::Usage(wrong) => wrong.into(),
        Unanswered::Flags(found) => problems::failure(found, &Source::Flags),
        Unanswered::NoWay(why) => asked_in_vain(why),
        Unanswered::Refused(why, Some(help)) => Failure::error_with_help(why, help),
        Unanswered::Refused(why, None) => Failure::error(why),
    })
}
