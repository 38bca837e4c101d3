//! `plimsoll check`: functional tests of a link, a pass or a failure each.

use std::fmt::Write as _;
use std::io;
use std::net::ToSocketAddrs;
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand};
use plimsoll_engine::clock::Clock;
use plimsoll_model::units::Period;
use plimsoll_protocols::grpc::check::{self, CaseResult, EchoCheck};
use plimsoll_stack::sessions::ask_health;

use crate::console;
use crate::documents::Json;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::link_flags::LinkFlags;

/// Check that every kind of call works over this link.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: the four echoes, over mutual TLS\n  \
        plimsoll check echo grpcs://localhost:50054 --ca certs/ca.crt \\\n      \
        --cert certs/client.crt --key certs/client.key",
    arg_required_else_help = true,
    subcommand_required = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Echo(Box<EchoArguments>),
    Ready(ReadyArguments),
}

/// grpc.examples.echo.Echo: one call of each kind, messages, headers and trailers checked.
#[derive(Debug, Args)]
#[command(before_help = "Example: against `plimsoll serve echo`\n  \
    plimsoll check echo grpc://127.0.0.1:50054")]
struct EchoArguments {
    #[command(flatten)]
    link: LinkFlags,

    /// The message.
    #[arg(
        short,
        long,
        value_name = "TEXT",
        default_value = "this is examples/metadata"
    )]
    message: String,

    /// Messages that ServerStreamingEcho must return, and that the client streams send.
    #[arg(long, value_name = "N", default_value_t = 10)]
    messages: usize,

    /// For each of the four calls.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    deadline: Period,

    #[command(flatten)]
    json: Json,
}

/// Exit 0 if a server is there: for health checks of containers, and for scripts that wait.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: the health check of a container that holds nothing but plimsoll\n  \
        plimsoll check ready http://127.0.0.1:4040/health\n\
        Example: wait for a server that has just been started\n  \
        plimsoll check ready tcp://127.0.0.1:50051 --within 30s"
)]
struct ReadyArguments {
    /// http://HOST:PORT/PATH, which must answer 200, or tcp://HOST:PORT, which must accept a connection.
    #[arg(value_name = "URL", value_parser = Asked::parse)]
    url: Asked,

    /// Retry for this long.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    within: Period,
}

/// What is asked whether it is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    /// `HOST:PORT`.
    host: String,
    path: Option<String>,
}

impl Asked {
    fn parse(url: &str) -> Result<Asked, String> {
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
            Some(Ok(_)) => Ok(Asked {
                host: host.to_owned(),
                path,
            }),
            _ => Err(format!("expected HOST:PORT, not `{host}`")),
        }
    }

    fn ask(&self) -> io::Result<()> {
        let mut last = io::Error::other("the name has no address");
        for address in self.host.to_socket_addrs()? {
            match ask_health(address, &self.host, self.path.as_deref()) {
                Ok(()) => return Ok(()),
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

fn ready(arguments: &ReadyArguments) -> Result<Exit, Failure> {
    let clock = Clock::new();
    let end = clock.now() + arguments.within.0;
    loop {
        let Err(e) = arguments.url.ask() else {
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

/// # Errors
/// When there is no way to the server.
pub(crate) fn execute(arguments: &Arguments, environment: &Environment) -> Result<Exit, Failure> {
    match &arguments.what {
        What::Echo(arguments) => echo(arguments, environment),
        What::Ready(arguments) => ready(arguments),
    }
}

fn echo(arguments: &EchoArguments, environment: &Environment) -> Result<Exit, Failure> {
    let check = EchoCheck {
        message: arguments.message.clone(),
        messages: arguments.messages,
        sent: arguments.messages,
        deadline: arguments.deadline.0,
    };
    let results = arguments
        .link
        .with_connection(environment, async |connection| {
            let mut results = Vec::new();
            for case in check::CASES {
                results.push(check::run(&connection, case, &check).await);
            }
            Ok(results)
        })?;
    let failed = results.iter().filter(|r| !r.problems.is_empty()).count();
    if arguments.json.json {
        let document = serde_json::json!({ "passed": failed == 0, "cases": results });
        let text = serde_json::to_string_pretty(&document).map_err(Failure::error)?;
        console::result(format_args!("{text}\n"))?;
    } else {
        console::result(shown(&results))?;
    }
    if failed > 0 {
        console::notice(format_args!("{failed} of {} cases failed", results.len()));
        return Ok(Exit::Error);
    }
    Ok(Exit::Done)
}

fn shown(results: &[CaseResult]) -> String {
    let mut out = String::new();
    for result in results {
        let _ = writeln!(out, "--- {} ---", result.case);
        for (what, value) in [
            ("timestamp from header", &result.header_timestamp),
            ("location from header", &result.header_location),
        ] {
            if let Some(value) = value {
                let _ = writeln!(out, "{what}:\n 0. {value}");
            }
        }
        if !result.messages.is_empty() {
            out.push_str("response:\n");
            for message in &result.messages {
                let _ = writeln!(out, " - {message}");
            }
        }
        if let Some(timestamp) = &result.trailer_timestamp {
            let _ = writeln!(out, "timestamp from trailer:\n 0. {timestamp}");
        }
        for problem in &result.problems {
            let _ = writeln!(out, "wrong: {problem}");
        }
        let verdict = match result.problems.is_empty() {
            true => "passed",
            false => "FAILED",
        };
        let _ = writeln!(out, "finish case {}: {verdict}\n", result.case);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_has_a_scheme_a_host_and_a_port() {
        let asked = |url: &str| Asked::parse(url).map(|asked| (asked.host, asked.path));
        let with = |host: &str, path: Option<&str>| Ok((host.to_owned(), path.map(str::to_owned)));
        assert_eq!(asked("http://[::1]:80"), with("[::1]:80", Some("/")));
        assert_eq!(asked("http://a:8/b?c"), with("a:8", Some("/b?c")));
        assert_eq!(asked("tcp://a:8/"), with("a:8", None));
        for wrong in ["a:8", "https://a:8", "http://a/b", "tcp://a:x"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }
}
