//! `plimsoll serve`: the reference servers.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;

use clap::{Args, Subcommand};
use plimsoll_model::plan::{Group, Suite};
use plimsoll_model::spec::{group_named, suite_named};
use plimsoll_model::units::Period;
use plimsoll_protocols::bolt::Status;
use plimsoll_protocols::bolt::target as bolt;
use plimsoll_protocols::fetch::target as files;
use plimsoll_protocols::grpc::target::{Delay, Stall, echo, fast, orders, score};
use plimsoll_protocols::serving::{Bound, ConnectionStats, Listen, Tls, runtime};

use crate::arguments::{Json, boolish};
use crate::console;
use crate::descriptors;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::stopping::{self, Wish};

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

#[derive(Debug, Args)]
struct ListenFlags {
    /// Where to listen; port 0 for any free one.
    #[arg(
        long,
        env = "PLIMSOLL_LISTEN",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:50051"
    )]
    listen: String,

    /// The server's certificate chain (PEM): speak TLS 1.3.
    #[arg(
        long,
        env = "PLIMSOLL_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key",
        help_heading = "TLS"
    )]
    tls_cert: Option<PathBuf>,

    /// Its private key (PEM).
    #[arg(
        long,
        env = "PLIMSOLL_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "TLS"
    )]
    tls_key: Option<PathBuf>,

    /// Demand client certificates of this CA (PEM): mutual TLS.
    #[arg(
        long,
        env = "PLIMSOLL_TLS_CLIENT_CA",
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "TLS"
    )]
    tls_client_ca: Option<PathBuf>,

    /// A cipher suite to offer, such as TLS_AES_128_GCM_SHA256; may be given again.
    #[arg(long, env = "PLIMSOLL_SUITE", value_name = "SUITE", value_parser = suite_named, help_heading = "TLS")]
    suite: Vec<Suite>,

    /// A key-exchange group to offer, such as X25519; may be given again.
    #[arg(long, env = "PLIMSOLL_GROUP", value_name = "GROUP", value_parser = group_named, help_heading = "TLS")]
    group: Vec<Group>,

    /// Threads [default: one a core; fast: one].
    #[arg(long, env = "PLIMSOLL_WORKERS", value_name = "N")]
    workers: Option<usize>,

    /// Calls a connection may have in flight; 0: no limit.
    #[arg(
        long,
        env = "PLIMSOLL_MAX_STREAMS",
        value_name = "N",
        default_value_t = 1000
    )]
    max_streams: u32,

    /// Share the port with other processes (SO_REUSEPORT).
    #[arg(long, env = "PLIMSOLL_REUSE_PORT", value_parser = boolish())]
    reuse_port: bool,

    /// How long calls in flight may take at the end.
    #[arg(
        long,
        env = "PLIMSOLL_DRAIN",
        value_name = "TIME",
        default_value = "10s"
    )]
    drain: Period,

    #[command(flatten)]
    json: Json,
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

impl ListenFlags {
    fn bind(&self) -> Result<Bound, Failure> {
        descriptors::raise_limit();
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some(Tls {
                cert: cert.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
                suites: self.suite.clone(),
                groups: self.group.clone(),
            }),
            _ => None,
        };
        let listen = Listen {
            address: self.address()?,
            reuse_port: self.reuse_port,
            tls,
            max_concurrent_streams: Some(self.max_streams).filter(|&n| n > 0),
            drain: self.drain.0,
            ..Listen::default()
        };
        listen.bind().map_err(Failure::error)
    }

    fn address(&self) -> Result<SocketAddr, Failure> {
        let wrong = |problem: String| {
            Failure::usage(
                format_args!("--listen: {problem}"),
                "write HOST:PORT, such as 127.0.0.1:50051 or [::]:50051; port 0 takes any free one",
            )
        };
        let addresses = self
            .listen
            .to_socket_addrs()
            .map_err(|e| wrong(format!("`{}`: {e}", self.listen)))?;
        // Where a name has both kinds of address, the older one is what others expect.
        let mut addresses: Vec<SocketAddr> = addresses.collect();
        addresses.sort_by_key(SocketAddr::is_ipv6);
        addresses
            .into_iter()
            .next()
            .ok_or_else(|| wrong(format!("`{}` has no address", self.listen)))
    }

    /// Tells, on stdout and before the first connection, where the server can be reached.
    fn announce(&self, name: &str, bound: &Bound) -> Result<(), Failure> {
        let address = bound.address();
        if self.json.json {
            return console::result(format_args!(
                "{}\n",
                serde_json::json!({ "server": name, "address": address.to_string(), "tls": bound.is_tls() })
            ));
        }
        let link = match (bound.is_tls(), &self.tls_client_ca) {
            (false, _) => "plaintext",
            (true, None) => "TLS 1.3",
            (true, Some(_)) => "mutual TLS 1.3",
        };
        console::result(format_args!("{name}: listening on {address} ({link})\n"))
    }

    /// Tells what the server counted.
    fn conclude(
        &self,
        connections: &ConnectionStats,
        counts: &[(&str, u64)],
    ) -> Result<(), Failure> {
        let all = [
            ("connections", connections.accepted),
            ("connections at once", connections.most_at_once),
            ("handshakes failed", connections.handshakes_failed),
            ("connections broken", connections.broken),
            ("connections cut off", connections.cut_off),
        ];
        let all = counts.iter().copied().chain(all);
        if self.json.json {
            let object: serde_json::Map<_, _> = all
                .map(|(name, n)| (name.replace(' ', "_"), n.into()))
                .collect();
            return console::result(format_args!("{}\n", serde_json::Value::Object(object)));
        }
        // What did not happen is not worth a word, but for the calls themselves.
        let words: Vec<String> = all
            .enumerate()
            .filter(|(i, (_, n))| *i == 0 || *n > 0)
            .map(|(_, (name, n))| format!("{name} {n}"))
            .collect();
        console::result(format_args!("{}\n", words.join(", ")))
    }
}

pub(crate) fn execute(arguments: Arguments, environment: &Environment) -> Result<Exit, Failure> {
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

/// Completes when the server is to stop.
type Stopped = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs `serve` until a signal; a second one ends the process.
fn until_stopped<T>(
    listen: &ListenFlags,
    serve: impl AsyncFnOnce(Stopped) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut sender = Some(sender);
    stopping::on_signal(move |wish| match (wish, sender.take()) {
        (Wish::Gracefully, Some(sender)) => {
            let _ = sender.send(());
        }
        _ => std::process::exit(i32::from(Exit::Interrupted.code())),
    })?;
    let stopped = Box::pin(async {
        let _ = receiver.await;
    });
    runtime(listen.workers)
        .map_err(Failure::error)?
        .block_on(serve(stopped))
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
