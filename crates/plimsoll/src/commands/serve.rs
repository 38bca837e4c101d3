//! `plimsoll serve`: the reference servers.

mod listen;
mod processes;

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use plimsoll_model::units::Period;
use plimsoll_protocols::bolt::Status;
use plimsoll_protocols::bolt::target as bolt;
use plimsoll_protocols::fetch::target as files;
use plimsoll_protocols::grpc::target::{Delay, Stall, echo, fast, orders, score};

use crate::arguments::boolish;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};

use listen::{ListenFlags, until_stopped};

/// Run a reference server, to try things on.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: a score server that takes 5 ms for an answer\n  \
        plimsoll serve score --listen 127.0.0.1:50051 --delay 5ms",
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Server {
    Score(ScoreArguments),
    Orders(OrdersArguments),
    Echo(EchoArguments),
    Fast(FastArguments),
    Bolt(BoltArguments),
    Files(FilesArguments),
    Llm(super::llm::Arguments),
}

/// score.ScoreService/GetScore: a random score after a delay.
#[derive(Debug, Args)]
#[command(before_help = "Example: with mutual TLS, on any free port\n  \
    plimsoll serve score --listen 127.0.0.1:0 --delay 5ms --tls-cert certs/server.crt \\\n      \
    --tls-key certs/server.key --tls-client-ca certs/ca.crt")]
struct ScoreArguments {
    #[command(flatten)]
    answers: AnswerFlags,

    #[command(flatten)]
    listen: ListenFlags,

    /// How long an answer takes: "5ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(
        long,
        env = "PLIMSOLL_DELAY",
        value_name = "TIME",
        default_value = "5ms"
    )]
    delay: DelayText,
}

/// orders.OrderService/Submit: a pool of workers that take orders from a queue.
#[derive(Debug, Args)]
#[command(before_help = "Example: ten workers, 1 ms for an order\n  \
    plimsoll serve orders --listen 127.0.0.1:50052 --pool 10 --processing 1ms")]
struct OrdersArguments {
    #[command(flatten)]
    answers: AnswerFlags,

    #[command(flatten)]
    listen: ListenFlags,

    /// Orders in progress at once.
    #[arg(long, env = "PLIMSOLL_POOL", value_name = "N", default_value_t = 10)]
    pool: usize,

    /// Orders that may wait; one more is refused as RESOURCE_EXHAUSTED.
    #[arg(
        long,
        env = "PLIMSOLL_QUEUE",
        value_name = "N",
        default_value_t = 100_000
    )]
    queue: usize,

    /// What an order costs its worker: "1ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(
        long,
        env = "PLIMSOLL_PROCESSING",
        value_name = "TIME",
        default_value = "0s"
    )]
    processing: DelayText,
}

/// grpc.examples.echo.Echo: a call of each kind, timestamps in headers and trailers.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: ten messages, 50 ms apart, for a call of ServerStreamingEcho\n  \
    plimsoll serve echo --listen 127.0.0.1:50054 --pace 50ms"
)]
struct EchoArguments {
    #[command(flatten)]
    listen: ListenFlags,

    /// Answers to one message in server streaming.
    #[arg(
        long,
        env = "PLIMSOLL_MESSAGES",
        value_name = "N",
        default_value_t = 10
    )]
    messages: u32,

    /// Time between two of them.
    #[arg(long, env = "PLIMSOLL_PACE", value_name = "TIME", default_value = "0s")]
    pace: Period,

    /// What the headers say under `location`.
    #[arg(
        long,
        env = "PLIMSOLL_LOCATION",
        value_name = "TEXT",
        default_value = "local"
    )]
    location: String,
}

/// Answers every unary call at once, with the same bytes: for measuring clients.
#[derive(Debug, Args)]
#[command(before_help = "Example: on one thread\n  \
    plimsoll serve fast --listen 127.0.0.1:50053 --workers 1")]
struct FastArguments {
    #[command(flatten)]
    listen: ListenFlags,
}

/// SOFARPC over Bolt: HelloService/sayHello, TestService/echoStr, and the echo of strings.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: a thread pool of 200 with no queue, 1 ms a request, 2% of them failing\n  \
    plimsoll serve bolt --listen 127.0.0.1:12200 --pool 200 --delay 1ms --fail SERVER_EXCEPTION=2%"
)]
struct BoltArguments {
    #[command(flatten)]
    answers: AnswerFlags,

    #[command(flatten)]
    listen: ListenFlags,

    /// How long an answer takes: "5ms", "1ms..9ms" (uniform) or "exp:5ms" (exponential).
    #[arg(
        long,
        env = "PLIMSOLL_DELAY",
        value_name = "TIME",
        default_value = "0s"
    )]
    delay: DelayText,

    /// Threads of the pool: requests in progress at once; 0: no limit.
    #[arg(long, env = "PLIMSOLL_POOL", value_name = "N", default_value_t = 0)]
    pool: usize,

    /// Requests that may wait for the pool; one more is answered SERVER_THREADPOOL_BUSY.
    #[arg(long, env = "PLIMSOLL_QUEUE", value_name = "N", default_value_t = 0)]
    queue: usize,

    /// A share of answers that fail with a Bolt status, or with SOFA_ERROR (a success with
    /// an error header): "TIMEOUT=1%"; may be given again.
    #[arg(long, env = "PLIMSOLL_FAIL", value_name = "STATUS=SHARE")]
    fail: Vec<FailText>,
}

/// A [`bolt::Share`] as typed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FailText(bolt::Share);

impl FromStr for FailText {
    type Err = String;

    fn from_str(text: &str) -> Result<FailText, String> {
        let (name, share) = text
            .split_once('=')
            .ok_or_else(|| format!("`{text}` lacks an =: write \"TIMEOUT=1%\""))?;
        let status = if name.eq_ignore_ascii_case("SOFA_ERROR") {
            None
        } else {
            Some(Status::from_name(name).ok_or_else(|| {
                let names: Vec<&str> = Status::ALL.iter().map(|status| status.name()).collect();
                format!(
                    "`{name}` is no status: use {} or SOFA_ERROR",
                    names.join(", ")
                )
            })?)
        };
        let percent = share
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok())
            .filter(|percent| (0.0..=100.0).contains(percent))
            .ok_or_else(|| format!("`{share}` is no share: write a percentage from 0% to 100%"))?;
        Ok(FailText(bolt::Share {
            status,
            share: percent / 100.0,
        }))
    }
}

/// Files of a folder and bodies of any size, over HTTP/1.1.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: TLS 1.3 with session tickets; then fetch /bytes/1KiB, /bytes/512MiB, /index.html\n  \
    plimsoll serve files site --listen 127.0.0.1:4433 --tls-cert certs/server.crt --tls-key certs/server.key"
)]
struct FilesArguments {
    /// The folder to serve; /bytes/SIZE is answered with SIZE bytes in any case.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,

    /// A folder of NAME.crt and NAME.key (PEM): who asks for NAME (SNI) gets that certificate.
    #[arg(
        long,
        env = "PLIMSOLL_TLS_CERTS",
        value_name = "DIR",
        help_heading = "TLS"
    )]
    tls_certs: Option<PathBuf>,

    /// Send no session tickets: nothing can be resumed.
    #[arg(long, env = "PLIMSOLL_NO_TICKETS", value_parser = boolish(), help_heading = "TLS")]
    no_tickets: bool,

    #[command(flatten)]
    listen: ListenFlags,
}

#[derive(Debug, Args)]
struct AnswerFlags {
    /// Freeze every answer once, for so long and so long after the first request: "500ms@5s".
    #[arg(long, env = "PLIMSOLL_STALL", value_name = "FOR@AFTER")]
    stall: Option<StallText>,

    /// Busy-wait as long before an answer is due, for precision; "0s" saves CPU.
    #[arg(
        long,
        env = "PLIMSOLL_SPIN",
        value_name = "TIME",
        default_value = "50us"
    )]
    spin: Period,

    /// Where random choices begin.
    #[arg(long, env = "PLIMSOLL_SEED", value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// A [`Delay`] as typed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DelayText(Delay);

impl FromStr for DelayText {
    type Err = plimsoll_model::units::UnitError;

    fn from_str(text: &str) -> Result<DelayText, Self::Err> {
        let period = |text: &str| text.parse::<Period>().map(|p| p.0);
        Ok(DelayText(if let Some(mean) = text.strip_prefix("exp:") {
            Delay::Exponential {
                mean: period(mean)?,
            }
        } else if let Some((from, to)) = text.split_once("..") {
            Delay::Uniform {
                from: period(from)?,
                to: period(to)?,
            }
        } else {
            Delay::Constant(period(text)?)
        }))
    }
}

/// A [`Stall`] as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StallText(Stall);

impl FromStr for StallText {
    type Err = String;

    fn from_str(text: &str) -> Result<StallText, String> {
        let (length, after) = text.split_once('@').ok_or_else(|| {
            format!(
                "`{text}` lacks an @: write \"500ms@5s\" for 500 ms, 5 s after the first request"
            )
        })?;
        let period = |text: &str| {
            text.parse::<Period>()
                .map(|p| p.0)
                .map_err(|e| e.to_string())
        };
        Ok(StallText(Stall {
            after: period(after)?,
            duration: period(length)?,
        }))
    }
}

impl Server {
    /// Its name, and the flags that it shares with the others.
    fn listen(&self) -> Option<(&'static str, &ListenFlags)> {
        match self {
            Server::Score(arguments) => Some(("score", &arguments.listen)),
            Server::Orders(arguments) => Some(("orders", &arguments.listen)),
            Server::Echo(arguments) => Some(("echo", &arguments.listen)),
            Server::Fast(arguments) => Some(("fast", &arguments.listen)),
            Server::Bolt(arguments) => Some(("bolt", &arguments.listen)),
            Server::Files(arguments) => Some(("files", &arguments.listen)),
            Server::Llm(_) => None,
        }
    }
}

pub(crate) fn execute(arguments: Arguments, environment: &Environment) -> Result<Exit, Failure> {
    if let Some((name, listen)) = arguments.server.listen()
        && listen.processes > 1
    {
        return processes::serve(name, listen);
    }
    match arguments.server {
        Server::Score(arguments) => serve_score(&arguments),
        Server::Orders(arguments) => serve_orders(&arguments),
        Server::Echo(arguments) => serve_echo(&arguments),
        Server::Fast(arguments) => serve_fast(&arguments),
        Server::Bolt(arguments) => serve_bolt(&arguments),
        Server::Files(arguments) => serve_files(&arguments),
        Server::Llm(arguments) => super::llm::execute(&arguments, environment),
    }
}

fn serve_score(arguments: &ScoreArguments) -> Result<Exit, Failure> {
    let listen = &arguments.listen;
    let bound = listen.bind()?;
    let options = score::ScoreOptions {
        delay: arguments.delay.0,
        stall: arguments.answers.stall.map(|s| s.0),
        spin: arguments.answers.spin.0,
        seed: arguments.answers.seed,
    };
    let stats = until_stopped(listen, async move |stopped| {
        listen.announce("score", &bound)?;
        score::serve(bound, options, stopped)
            .await
            .map_err(Failure::error)
    })?;
    listen.conclude(
        &stats.connections,
        &[
            ("scored", stats.scored),
            ("invalid", stats.invalid),
            ("abandoned", stats.abandoned),
        ],
    )?;
    Ok(Exit::Done)
}

fn serve_orders(arguments: &OrdersArguments) -> Result<Exit, Failure> {
    let listen = &arguments.listen;
    let bound = listen.bind()?;
    let options = orders::OrdersOptions {
        workers: arguments.pool,
        queue: arguments.queue,
        processing: arguments.processing.0,
        stall: arguments.answers.stall.map(|s| s.0),
        spin: arguments.answers.spin.0,
        seed: arguments.answers.seed,
    };
    let stats = until_stopped(listen, async move |stopped| {
        listen.announce("orders", &bound)?;
        orders::serve(bound, options, stopped)
            .await
            .map_err(Failure::error)
    })?;
    listen.conclude(
        &stats.connections,
        &[
            ("processed", stats.processed),
            ("received", stats.received),
            ("refused", stats.refused),
            ("abandoned", stats.abandoned),
            ("most in progress", stats.most_in_progress),
            ("most waiting", stats.most_waiting),
        ],
    )?;
    Ok(Exit::Done)
}

fn serve_bolt(arguments: &BoltArguments) -> Result<Exit, Failure> {
    let listen = &arguments.listen;
    let bound = listen.bind()?;
    let options = bolt::BoltOptions {
        delay: arguments.delay.0,
        stall: arguments.answers.stall.map(|s| s.0),
        spin: arguments.answers.spin.0,
        seed: arguments.answers.seed,
        pool: arguments.pool,
        queue: arguments.queue,
        shares: arguments.fail.iter().map(|fail| fail.0).collect(),
    };
    let stats = until_stopped(listen, async move |stopped| {
        listen.announce("bolt", &bound)?;
        bolt::serve(bound, options, stopped)
            .await
            .map_err(Failure::error)
    })?;
    listen.conclude(
        &stats.connections,
        &[
            ("answered", stats.answered),
            ("failed", stats.failed),
            ("busy", stats.busy),
            ("oneway", stats.oneway),
            ("heartbeats", stats.heartbeats),
            ("malformed", stats.malformed),
        ],
    )?;
    Ok(Exit::Done)
}

fn serve_echo(arguments: &EchoArguments) -> Result<Exit, Failure> {
    let listen = &arguments.listen;
    let bound = listen.bind()?;
    let options = echo::EchoOptions {
        messages: arguments.messages,
        pace: arguments.pace.0,
        location: arguments.location.clone(),
    };
    let stats = until_stopped(listen, async move |stopped| {
        listen.announce("echo", &bound)?;
        echo::serve(bound, options, stopped)
            .await
            .map_err(Failure::error)
    })?;
    listen.conclude(
        &stats.connections,
        &[
            ("calls", stats.calls),
            ("messages received", stats.messages_received),
            ("messages sent", stats.messages_sent),
        ],
    )?;
    Ok(Exit::Done)
}

fn serve_fast(arguments: &FastArguments) -> Result<Exit, Failure> {
    let listen = &arguments.listen;
    let bound = listen.bind()?;
    let options = fast::FastOptions {
        workers: listen.workers.unwrap_or(1),
        ..fast::FastOptions::default()
    };
    let stats = until_stopped(listen, async move |stopped| {
        listen.announce("fast", &bound)?;
        fast::serve(bound, options, stopped)
            .await
            .map_err(Failure::error)
    })?;
    listen.conclude(&stats.connections, &[("answered", stats.answered)])?;
    Ok(Exit::Done)
}

fn serve_files(arguments: &FilesArguments) -> Result<Exit, Failure> {
    let listen = &arguments.listen;
    let options = files::FilesOptions {
        root: arguments.dir.clone(),
        certificates: arguments.tls_certs.clone(),
        no_tickets: arguments.no_tickets,
    };
    let server = files::Files::new(listen.bind()?, &options).map_err(Failure::error)?;
    let stats = until_stopped(listen, async move |stopped| {
        listen.announce("files", server.bound())?;
        server.serve(stopped).await.map_err(Failure::error)
    })?;
    listen.conclude(
        &stats.connections,
        &[
            ("served", stats.served),
            ("refused", stats.refused),
            ("bytes", stats.bytes),
            ("full handshakes", stats.full_handshakes),
            ("resumed handshakes", stats.resumed_handshakes),
        ],
    )?;
    Ok(Exit::Done)
}
