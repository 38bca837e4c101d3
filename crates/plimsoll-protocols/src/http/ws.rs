//! The flags of `plimsoll ws`: a short form of `http` for a request that opens a WebSocket
//! (`[call.http.websocket]`).

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_model::formats::units::{ByteSize, Period, parse_seconds};
use plimsoll_model::spec::{MetadataSpec, RowsSpec, Spec, apply_flags_to_optional};

use super::section::{FrameSpec, HttpSpec, WebSocketSpec};
use crate::interface::flags::{BasicAuthFlags, CredentialFlags, parse_fields};
use crate::interface::protocol_module::{
    EnvLookup, ProtocolCommand, UsageError, split_text_or_file,
};

/// Load-test a WebSocket service: send frames, and measure the time until the messages that answer them.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Call",
    before_help = "\
Example: 100 users, a socket each, that ask again as soon as they are answered
  plimsoll ws ws://localhost:9001/chat -d '{\"id\": {{seq}}}' --expect-body '\"id\"' --clients 100 --duration 10s
Example: 500 frames a second over 50 sockets; an answer is all messages up to one that says done
  plimsoll ws wss://localhost:9443/feed --ca certs/ca.crt --subprotocol feed.v1 -d '{\"get\": \"{{row.key}}\"}' \\
      --rows keys.csv --until 'contains:\"done\":true' --connections 50 --rate 500/s --duration 10s
Example: 10 users a second, each with the frames of a file over a socket of its own, half a second apart
  plimsoll ws ws://localhost:9001/chat --script frames.toml --think 500ms --rate 10/s --duration 30s"
)]
pub struct WsFlags {
    /// The frame that a call sends, or @FILE or @- (stdin) to read it from.
    #[arg(short = 'd', long = "data", value_name = "FRAME")]
    body: Option<String>,

    /// A TOML file of `[[frames]]` that each user sends in place of --data, over its own socket, each frame once the
    /// previous one is answered. Keys: body or body_file, binary, answer, until, expect and pace; --think is the
    /// default of pace.
    #[arg(
        id = "websocket.script",
        long = "script",
        value_name = "FILE",
        conflicts_with = "body"
    )]
    script: Option<PathBuf>,

    /// Send binary frames [default: text].
    #[arg(id = "websocket.binary", long = "binary")]
    binary: bool,

    /// A frame that is sent once on each socket, before its first call; it may contain template fields, which are
    /// filled in with the socket's number.
    #[arg(long, value_name = "FRAME")]
    greeting: Option<String>,

    /// A message that the server sends on its own on each socket, and that is awaited before the first call: any, its
    /// whole text, or contains:TEXT [default: if sockets that were opened before the load received one, later sockets
    /// also await one, for at most 1s].
    #[arg(id = "websocket.welcome", long = "welcome", value_name = "MESSAGE")]
    welcome: Option<String>,

    /// A header field of the upgrade, 'name: value'; a value $NAME is taken from the environment; repeatable.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// The Host to send [default: host:port of the target].
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Offer this subprotocol; $NAME is taken from the environment; repeatable. The server must accept one.
    #[arg(
        id = "websocket.subprotocol",
        long = "subprotocol",
        value_name = "NAME"
    )]
    subprotocols: Vec<String>,

    /// Offer to compress messages (permessage-deflate).
    #[arg(long)]
    compressed: bool,

    /// Text that the answer must contain.
    #[arg(long, value_name = "TEXT")]
    expect_body: Option<String>,

    /// The message that ends an answer: its whole text, or contains:TEXT [default: the first message].
    #[arg(long = "until", value_name = "MESSAGE")]
    stream_until: Option<String>,

    /// End an answer after this time, as a success: for a series of messages that has no end.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    stream_duration: Option<Period>,

    /// A message that reports an error: its whole text, or contains:TEXT [default: none].
    #[arg(long = "error", value_name = "MESSAGE")]
    stream_error: Option<String>,

    /// Larger messages fail with MESSAGE_TOO_LARGE [default: 16MiB].
    #[arg(long = "max-message", value_name = "SIZE")]
    max_body: Option<ByteSize>,

    #[command(flatten)]
    credentials: CredentialFlags,

    #[command(flatten)]
    basic: BasicAuthFlags,

    #[command(flatten)]
    rows: RowsSpec,
}

impl ProtocolCommand for WsFlags {
    type Section = HttpSpec;
    const COMMAND_NAME: &str = "ws";
    const TARGET_HELP: &str =
        "ws://HOST:PORT/PATH (plaintext), wss://HOST:PORT/PATH (TLS), or unix:/SOCKET:/PATH";

    fn into_section(self, spec: &mut Spec, _: EnvLookup<'_>) -> Result<HttpSpec, UsageError> {
        apply_flags_to_optional("rows", &self.rows, &mut spec.rows)?;
        let (body, body_file) = split_text_or_file(self.body.as_deref())?;
        let mut headers = parse_fields("--header", &self.headers)?;
        self.credentials.add_to(&mut headers)?;
        self.basic.add_to(&mut headers)?;
        Ok(HttpSpec {
            host: self.host,
            body,
            body_file,
            expect_body: self.expect_body,
            stream_until: self.stream_until,
            stream_error: self.stream_error,
            stream_duration: self.stream_duration,
            max_body: self.max_body,
            compressed: self.compressed.then_some(true),
            headers,
            websocket: Some(WebSocketSpec {
                subprotocol: subprotocol_spec(&self.subprotocols),
                welcome: self.welcome,
                binary: self.binary.then_some(true),
                greeting: self.greeting,
                script: self.script.as_deref().map(read_script).transpose()?,
            }),
            ..HttpSpec::default()
        })
    }
}

/// Converts the subprotocols in flags. A subprotocol that is secret is written as `$NAME` and read from the
/// environment.
fn subprotocol_spec(typed: &[String]) -> Option<MetadataSpec> {
    let one = |typed: &String| MetadataSpec::from_flag(typed);
    match typed {
        [] => None,
        [only] => Some(one(only)),
        several => Some(MetadataSpec::Several(several.iter().map(one).collect())),
    }
}

/// Reads a script of frames from a file.
fn read_script(path: &Path) -> Result<Vec<FrameSpec>, UsageError> {
    let read = std::fs::read_to_string(path).map_err(|e| e.to_string());
    read.and_then(|text| FrameSpec::parse_script(&text))
        .map_err(|why| {
            UsageError::new(
                format_args!("--script: {}: {why}", path.display()),
                "write a table [[frames]] for each, such as body = '{\"get\": {{seq}}}'",
            )
        })
}
