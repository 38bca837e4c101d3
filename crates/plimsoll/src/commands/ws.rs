//! `plimsoll ws`: the quick form of a plan, for a service behind WebSockets.
//!
//! A short form of `http`: what is typed here becomes a request that opens a WebSocket
//! (`[call.http.websocket]`), and the run's plan has that.

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_model::units::Size;
use plimsoll_protocols::http::{FrameSpec, HttpSpec, WebSocketSpec};

use super::http;
use crate::arguments::Origins;
use crate::credentials::CredentialFlags;
use crate::environment::Environment;
use crate::execution::{OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::quick;
use crate::row_flags::RowFlags;

/// Put load on a WebSocket service: frames that are sent, and the time to the messages that answer them.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: 100 users, a socket each, that ask again as soon as they are answered
  plimsoll ws ws://localhost:9001/chat -d '{\"id\": {{seq}}}' --expect-body '\"id\"' --clients 100 --duration 10s
Example: 500 frames a second over 50 sockets; an answer is all messages up to one that says done
  plimsoll ws wss://localhost:9443/feed --ca certs/ca.crt --subprotocol feed.v1 -d '{\"get\": \"{{row.key}}\"}' \\
      --rows keys.csv --until 'contains:\"done\":true' --connections 50 --rate 500/s --duration 10s
Example: 10 users a second, each with the frames of a file over a socket of its own, half a second apart
  plimsoll ws ws://localhost:9001/chat --script frames.toml --think 500ms --rate 10/s --duration 30s",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    /// ws://HOST:PORT/PATH (plaintext), wss://HOST:PORT/PATH (TLS 1.3), or unix:/SOCKET:/PATH.
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    /// The frame that a call sends, or @FILE or @- (stdin) that holds it.
    #[arg(short, long, value_name = "FRAME", help_heading = "Call")]
    data: Option<String>,

    /// A TOML file of [[frames]] that each user sends in place of --data, over a socket of its own, one answer after
    /// another: body or body_file, with binary, answer, until, expect and pace; --think is the pace of the others.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "data",
        help_heading = "Call"
    )]
    script: Option<PathBuf>,

    /// Send binary frames [default: text].
    #[arg(long, help_heading = "Call")]
    binary: bool,

    /// A frame that is sent once on each socket, before its first call.
    #[arg(long, value_name = "FRAME", help_heading = "Call")]
    greeting: Option<String>,

    /// A header field of the upgrade, 'name: value'; a value $NAME is taken from the environment; may be given again.
    #[arg(short = 'H', long, value_name = "NAME: VALUE", help_heading = "Call")]
    header: Vec<String>,

    /// The Host to send [default: host:port of the target].
    #[arg(long, value_name = "HOST", help_heading = "Call")]
    host: Option<String>,

    /// Offer this subprotocol, which the server has to take.
    #[arg(long, value_name = "NAME", help_heading = "Call")]
    subprotocol: Option<String>,

    /// Offer to have messages compressed (permessage-deflate).
    #[arg(long, help_heading = "Call")]
    compressed: bool,

    /// Text that the answer has to hold.
    #[arg(long, value_name = "TEXT", help_heading = "Call")]
    expect_body: Option<String>,

    /// The message that ends an answer: the whole of it, or contains:TEXT [default: the first message].
    #[arg(long, value_name = "MESSAGE", help_heading = "Call")]
    until: Option<String>,

    /// A message that reports an error, written in the same way [default: none].
    #[arg(long, value_name = "MESSAGE", help_heading = "Call")]
    error: Option<String>,

    /// Larger messages fail with MESSAGE_TOO_LARGE [default: 16MiB].
    #[arg(long, value_name = "SIZE", help_heading = "Call")]
    max_message: Option<Size>,

    #[command(flatten)]
    credentials: CredentialFlags,

    #[command(flatten)]
    rows: RowFlags,

    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    pub(crate) output: OutputFlags,
}

pub(crate) fn execute(
    arguments: &Arguments,
    origins: &Origins,
    environment: &Environment,
    process: &Process,
) -> Result<Exit, Failure> {
    let call = quick::call(&arguments.call()?)?;
    let target = arguments.target.as_deref().map(http_url);
    let mut spec = quick::spec(target.as_deref(), call, &arguments.load, origins)?;
    arguments.rows.apply(&mut spec);
    if spec.call.calls_in_a_row().is_none() {
        http::connections_for(&mut spec, None);
    }
    quick::run(&spec, &arguments.output, environment, process)
}

/// A socket is opened with a request.
fn http_url(url: &str) -> String {
    match (url.strip_prefix("ws://"), url.strip_prefix("wss://")) {
        (Some(rest), _) => format!("http://{rest}"),
        (_, Some(rest)) => format!("https://{rest}"),
        _ => url.to_owned(),
    }
}

/// The frames of a file.
fn script(path: &Path) -> Result<Vec<FrameSpec>, Failure> {
    let read = std::fs::read_to_string(path).map_err(|e| e.to_string());
    read.and_then(|text| FrameSpec::script(&text))
        .map_err(|why| {
            Failure::usage(
                format_args!("--script: {}: {why}", path.display()),
                "write a table [[frames]] for each, such as body = '{\"get\": {{seq}}}'",
            )
        })
}

impl Arguments {
    fn call(&self) -> Result<HttpSpec, Failure> {
        let (body, body_file) = quick::text_or_file(self.data.as_deref())?;
        let mut headers = quick::fields("--header", &self.header)?;
        self.credentials.add_to(&mut headers)?;
        Ok(HttpSpec {
            host: self.host.clone(),
            body,
            body_file,
            expect_body: self.expect_body.clone(),
            stream_until: self.until.clone(),
            stream_error: self.error.clone(),
            max_body: self.max_message,
            compressed: self.compressed.then_some(true),
            headers,
            websocket: Some(WebSocketSpec {
                subprotocol: self.subprotocol.clone(),
                binary: self.binary.then_some(true),
                greeting: self.greeting.clone(),
                script: self.script.as_deref().map(script).transpose()?,
            }),
            ..HttpSpec::default()
        })
    }
}
