//! `plimsoll check`: checks that a server is ready, or that every kind of call to it works.

use std::io;
use std::thread;
use std::time::Duration;

use clap::{Args, Command, Subcommand};
use plimsoll_engine::clock::Clock;
use plimsoll_engine::transport::address::look_up;
use plimsoll_model::formats::units::{Period, parse_seconds};
use plimsoll_protocols::registry::{QueryCommand, SERVER_CHECKS};
use plimsoll_stack::sessions::check_health;

use super::registry_commands::{EntryInvocation, RegistryEntry};
use crate::commands::query;
use crate::failure::{Exit, Failure};
use crate::load::documents::{JsonFlag, print_json};
use crate::screen::console;
use crate::settings::environment::Environment;

/// Check that every kind of call to a server works.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: the four echoes, over mutual TLS\n  \
        plimsoll check echo grpcs://localhost:50054 --ca certs/ca.crt \\\n      \
        --cert certs/client.crt --key certs/client.key",
    arg_required_else_help = true,
    subcommand_required = true
)]
pub(crate) struct CheckArguments {
    #[command(subcommand)]
    check: CheckCommand,
}

#[derive(Debug, Subcommand)]
enum CheckCommand {
    #[command(flatten)]
    Query(Box<EntryInvocation<QueryCommand>>),
    Ready(ReadyArguments),
}

impl RegistryEntry for QueryCommand {
    type SharedFlags = JsonFlag;

    fn all() -> &'static [QueryCommand] {
        &SERVER_CHECKS
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn command(&self) -> Command {
        QueryCommand::command(self)
    }
}

/// Exit with 0 if a server is ready: for health checks of containers, and for scripts that wait.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: the health check of a container that holds nothing but plimsoll\n  \
        plimsoll check ready http://127.0.0.1:4040/health\n\
        Example: wait for a server that has just been started\n  \
        plimsoll check ready tcp://127.0.0.1:50051 --within 30s"
)]
struct ReadyArguments {
    /// http://HOST:PORT/PATH, which must answer 200, or tcp://HOST:PORT, which must accept a connection.
    #[arg(value_name = "URL", value_parser = ReadyCheck::parse)]
    url: ReadyCheck,

    /// Retry for this long.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "0s")]
    within: Period,
}

/// A server to check for readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReadyCheck {
    /// The server as `HOST:PORT`.
    host: String,
    path: Option<String>,
}

impl ReadyCheck {
    fn parse(url: &str) -> Result<ReadyCheck, String> {
        let (host, path) = if let Some(rest) = url.strip_prefix("http://") {
            let at = rest.find('/').unwrap_or(rest.len());
            let path = if at == rest.len() { "/" } else { &rest[at..] };
            (&rest[..at], Some(path.to_owned()))
        } else if let Some(rest) = url.strip_prefix("tcp://") {
            (rest.trim_end_matches('/'), None)
        } else {
            return Err("expected http://HOST:PORT/PATH or tcp://HOST:PORT".to_owned());
        };
        let port = host.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(_)) => Ok(ReadyCheck {
                host: host.to_owned(),
                path,
            }),
            _ => Err(format!("expected HOST:PORT, not `{host}`")),
        }
    }

    fn probe(&self) -> io::Result<()> {
        let mut last = io::Error::other("the name has no address");
        for address in look_up(&self.host)? {
            match check_health(address, &self.host, self.path.as_deref()) {
                Ok(()) => return Ok(()),
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

fn wait_until_ready(arguments: &ReadyArguments) -> Result<Exit, Failure> {
    let clock = Clock::new();
    let end = clock.now() + arguments.within.0;
    loop {
        let Err(e) = arguments.url.probe() else {
            return Ok(Exit::Done);
        };
        if clock.now() >= end {
            return Err(Failure::error(format_args!(
                "{} is not ready: {e}",
                arguments.url.host
            )));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Runs the check.
///
/// # Errors
/// When the server can't be reached.
pub(crate) fn execute(
    arguments: &CheckArguments,
    environment: &Environment,
) -> Result<Exit, Failure> {
    match &arguments.check {
        CheckCommand::Query(picked) => run_query(picked, environment),
        CheckCommand::Ready(arguments) => wait_until_ready(arguments),
    }
}

fn run_query(
    picked: &EntryInvocation<QueryCommand>,
    environment: &Environment,
) -> Result<Exit, Failure> {
    let answer = query::send_query(picked.entry, &picked.matches, environment)?;
    if picked.shared.json {
        print_json(&answer.json)?
    } else {
        console::print_result(answer.text)?
    }
    Ok(match answer.failed {
        None => Exit::Done,
        Some(why) => {
            console::print_notice(why);
            Exit::Error
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_url_requires_scheme_host_and_port() {
        let asked = |url: &str| ReadyCheck::parse(url).map(|asked| (asked.host, asked.path));
        let with = |host: &str, path: Option<&str>| Ok((host.to_owned(), path.map(str::to_owned)));
        assert_eq!(asked("http://[::1]:80"), with("[::1]:80", Some("/")));
        assert_eq!(asked("http://a:8/b?c"), with("a:8", Some("/b?c")));
        assert_eq!(asked("tcp://a:8/"), with("a:8", None));
        for wrong in ["a:8", "https://a:8", "http://a/b", "tcp://a:x"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }
}
