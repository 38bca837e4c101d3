//! Defines how a command ends: its exit code, and the error it prints.

use std::path::Path;
use std::process::ExitCode;

use miette::{Report, ReportHandler};
use plimsoll_model::formats::input;
use plimsoll_model::formats::redaction;
use plimsoll_model::objective::RunVerdict;
use plimsoll_model::runs::run::RunError;
use plimsoll_protocols::registry::UsageError;
use plimsoll_serving::ServeError;

/// The exit codes of all commands. If several apply, the code declared last here takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    Done,
    /// An objective was missed.
    ObjectiveMissed,
    /// Objectives could not be judged, for example because the generator was too slow.
    Invalid,
    /// The command failed, or no call succeeded.
    Error,
    /// The command line or the plan is invalid.
    Usage,
    /// The command was stopped by a signal; its measurements were written.
    Interrupted,
    /// A thread of this process or of a child process panicked (EX_SOFTWARE in sysexits.h).
    Defect,
}

impl Exit {
    /// Returns the exit code of a verdict on objectives; `None` means that there were none.
    pub(crate) fn from_verdict(conclusion: Option<RunVerdict>) -> Exit {
        match conclusion {
            None | Some(RunVerdict::Pass) => Exit::Done,
            Some(RunVerdict::Fail) => Exit::ObjectiveMissed,
            Some(RunVerdict::Invalid) => Exit::Invalid,
        }
    }

    /// Returns the exit with this code, as reported by another process of the same run.
    pub(crate) fn from_code(code: u8) -> Exit {
        use Exit::{Defect, Done, Error, Interrupted, Invalid, ObjectiveMissed, Usage};
        let known = [Done, ObjectiveMissed, Invalid, Usage, Interrupted, Defect];
        let found = known.into_iter().find(|exit| exit.code() == code);
        found.unwrap_or(Error)
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Error => 1,
            Exit::Usage => 2,
            Exit::Defect => 70,
            Exit::Invalid => 90,
            Exit::ObjectiveMissed => 99,
            Exit::Interrupted => 130,
        }
    }
}

impl From<UsageError> for Failure {
    fn from(wrong: UsageError) -> Failure {
        Failure::usage(wrong.message, &wrong.help)
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Failure {
        match error {
            ServeError::Codec { problem, help } => Failure::error_with_help(problem, help),
            error => Failure::error(error),
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        Failure::error(message_with_causes(&error))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// Reads the file that the plan key or flag `key` names.
///
/// # Errors
/// Returns an error if the file can't be read; the error names `key`.
pub(crate) fn read_named_file(key: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    let shown = path.display();
    input::read(path).map_err(|e| Failure::error(format_args!("{key}: can't read {shown}: {e}")))
}

/// Why a command failed.
pub(crate) struct Failure {
    exit: Exit,
    report: Report,
    /// Name of the user's service that did not start; `None` if the command failed for another reason.
    service: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, report: Report) -> Failure {
        Failure {
            exit,
            report,
            service: None,
        }
    }

    /// Returns an error with exit code 1.
    pub(crate) fn error(message: impl std::fmt::Display) -> Failure {
        let message = message.to_string();
        let message = redaction::mask_urls(&message);
        Failure::new(Exit::Error, miette::miette!("{message}"))
    }

    /// Returns an error with exit code 1, and a help text that says what to do.
    pub(crate) fn error_with_help(message: impl std::fmt::Display, help: &str) -> Failure {
        Failure::with_exit_and_help(Exit::Error, message, help)
    }

    /// Returns a usage error, with exit code 2.
    pub(crate) fn usage(message: impl std::fmt::Display, help: &str) -> Failure {
        Failure::with_exit_and_help(Exit::Usage, message, help)
    }

    /// Returns an error with the given exit code and help text.
    pub(crate) fn with_exit_and_help(
        exit: Exit,
        message: impl std::fmt::Display,
        help: &str,
    ) -> Failure {
        // Mask secrets before the text is wrapped: a secret split over two lines would not be recognised.
        let message = message.to_string();
        let message = redaction::mask_urls(&message);
        let help = redaction::mask_urls(help).into_owned();
        Failure::new(exit, miette::miette!(help = help, "{message}"))
    }

    /// Appends `more` to the help text.
    pub(crate) fn with_help(self, more: &str) -> Failure {
        let help = match self.report.help() {
            Some(help) => format!("{help}; {more}"),
            None => more.to_owned(),
        };
        Failure {
            service: self.service,
            ..Failure::with_exit_and_help(self.exit, self.report, &help)
        }
    }

    /// Marks this failure as caused by the user's service `name`, which did not start.
    pub(crate) fn caused_by_service(self, name: &str) -> Failure {
        Failure {
            service: Some(name.to_owned()),
            ..self
        }
    }

    /// Returns whether the command failed because the service `name` did not start.
    pub(crate) fn is_caused_by_service(&self, name: &str) -> bool {
        self.service.as_deref() == Some(name)
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }
}

impl std::fmt::Debug for Failure {
    /// Writes the graphical report that is printed to the user. Help with a command line is not wrapped: a terminal
    /// would run each part of a line that is pasted with line breaks.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let help = self.report.help().map(|help| help.to_string());
        if !help.is_some_and(|help| has_command_line(&help)) {
            return self.report.fmt(f);
        }
        let handler = miette::MietteHandlerOpts::new().wrap_lines(false).build();
        handler.debug(self.report.as_ref(), f)
    }
}

impl std::fmt::Display for Failure {
    /// Writes the message and its help on one line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.report)?;
        match self.report.help() {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}

/// Returns whether a help text ends with a command line that is ready to paste.
fn has_command_line(help: &str) -> bool {
    help.starts_with("plimsoll ") || help.contains(": plimsoll ")
}

/// Returns an error's message followed by the messages of its causes.
pub(crate) fn message_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
