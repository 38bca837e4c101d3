//! `plimsoll http`: the quick form of a plan, for one request over HTTP.

use std::collections::BTreeMap;

use clap::Args;
use plimsoll_model::spec::Spec;
use plimsoll_model::units::Size;
use plimsoll_protocols::http::{HttpSpec, HttpVersion, StatusSpec};

use crate::arguments::Origins;
use crate::credentials::CredentialFlags;
use crate::environment::Environment;
use crate::execution::{OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::quick;
use crate::row_flags::RowFlags;

/// Put load on an HTTP service: requests of any method, and answers that stream.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: 500 requests a second over 20 connections; an answer is good with 200 and this text
  plimsoll http http://localhost:8080/search?q=a --connections 20 --rate 500/s --duration 10s \\
      --expect 200 --expect-body '\"hits\"'
Example: 50 clients, each waiting for its answer, that post what a file of rows says
  plimsoll http https://localhost:8443/orders --ca certs/ca.crt --rows users.csv \\
      -d '{\"user\": \"{{row.user}}\", \"id\": {{seq}}}' -H 'authorization: $TOKEN' --clients 50 --duration 10s
Example: server-sent events until [DONE]: the time to the first, and the gaps between them
  plimsoll http http://localhost:8080/sse/20 --stream sse --stream-until '[DONE]' --connections 50 --rate 20/s --duration 10s",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    /// http://HOST:PORT/PATH (plaintext), https://HOST:PORT/PATH (TLS 1.3), or unix:/SOCKET:/PATH.
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    /// The version of HTTP: 1.1; 2, in plaintext by prior knowledge; auto, which the server
    /// chooses by ALPN [default: 1.1].
    #[arg(
        long,
        env = "PLIMSOLL_HTTP_VERSION",
        value_name = "VERSION",
        help_heading = "Call"
    )]
    http_version: Option<HttpVersion>,

    /// The method [default: GET, with a body POST].
    #[arg(short = 'X', long, env = "PLIMSOLL_METHOD", help_heading = "Call")]
    method: Option<String>,

    /// A header field, 'name: value'; a value $NAME is taken from the environment; may be given again.
    #[arg(
        short = 'H',
        long,
        env = "PLIMSOLL_HEADER",
        value_name = "NAME: VALUE",
        help_heading = "Call"
    )]
    header: Vec<String>,

    /// The body, or @FILE or @- (stdin) that holds it.
    #[arg(
        short,
        long,
        env = "PLIMSOLL_DATA",
        value_name = "BODY",
        help_heading = "Call"
    )]
    data: Option<String>,

    /// The Host to send [default: host:port of the target].
    #[arg(
        long,
        env = "PLIMSOLL_HOST",
        value_name = "HOST",
        help_heading = "Call"
    )]
    host: Option<String>,

    /// Statuses of calls that succeed: 200,204 or 2xx [default: 2xx].
    #[arg(
        long,
        env = "PLIMSOLL_EXPECT",
        value_name = "STATUS",
        value_delimiter = ',',
        help_heading = "Call"
    )]
    expect: Vec<StatusSpec>,

    /// A header field that an answer has to have, 'name: value'; may be given again.
    #[arg(
        long,
        env = "PLIMSOLL_EXPECT_HEADER",
        value_name = "NAME: VALUE",
        help_heading = "Call"
    )]
    expect_header: Vec<String>,

    /// Text that the body of an answer has to hold.
    #[arg(
        long,
        env = "PLIMSOLL_EXPECT_BODY",
        value_name = "TEXT",
        help_heading = "Call"
    )]
    expect_body: Option<String>,

    /// The answer comes in events: sse (server-sent events), ndjson (a JSON document a line), or openai
    /// (server-sent events that hold tokens, as `plimsoll llm` reads them).
    #[arg(
        long,
        env = "PLIMSOLL_STREAM",
        value_name = "FORMAT",
        help_heading = "Call"
    )]
    stream: Option<String>,

    /// The event that ends a stream well: its data, event:NAME or contains:TEXT
    /// [default: the end of the body; with openai [DONE]].
    #[arg(
        long,
        env = "PLIMSOLL_STREAM_UNTIL",
        value_name = "EVENT",
        help_heading = "Call"
    )]
    stream_until: Option<String>,

    /// The event that reports an error, written in the same way [default: one named error, or an
    /// object that begins with the key error].
    #[arg(
        long,
        env = "PLIMSOLL_STREAM_ERROR",
        value_name = "EVENT",
        help_heading = "Call"
    )]
    stream_error: Option<String>,

    /// Ask for packed answers (gzip, deflate, br, zstd) and unpack them: bytes are counted as received and as unpacked.
    #[arg(long, env = "PLIMSOLL_COMPRESSED", help_heading = "Call")]
    compressed: bool,

    /// Larger answers fail with MESSAGE_TOO_LARGE [default: no limit below 4GiB].
    #[arg(
        long,
        env = "PLIMSOLL_MAX_BODY",
        value_name = "SIZE",
        help_heading = "Call"
    )]
    max_body: Option<Size>,

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
    let mut spec = quick::spec(arguments.target.as_deref(), call, &arguments.load, origins)?;
    arguments.rows.apply(&mut spec);
    connections_for(&mut spec, arguments.http_version);
    quick::run(&spec, &arguments.output, environment, process)
}

/// A connection that may be one of HTTP/1.1 carries one call at a time: clients that share one would only queue.
pub(super) fn connections_for(spec: &mut Spec, version: Option<HttpVersion>) {
    let load = &mut spec.load;
    let kept = load.reuse.as_ref().is_none_or(|reuse| reuse != "never");
    let queues = version != Some(HttpVersion::V2);
    if kept && queues && load.connections.is_none() {
        load.connections = load.clients;
    }
}

impl Arguments {
    fn call(&self) -> Result<HttpSpec, Failure> {
        let (body, body_file) = quick::text_or_file(self.data.as_deref())?;
        let mut headers = quick::fields("--header", &self.header)?;
        self.credentials.add_to(&mut headers)?;
        let mut expect_headers = BTreeMap::new();
        for typed in &self.expect_header {
            let (name, value) = quick::named("--expect-header", typed, "x-cache: hit")?;
            expect_headers.insert(name.to_owned(), value.to_owned());
        }
        Ok(HttpSpec {
            version: self.http_version,
            method: self.method.clone(),
            host: self.host.clone(),
            body,
            body_file,
            expect: Some(self.expect.clone()).filter(|statuses| !statuses.is_empty()),
            expect_body: self.expect_body.clone(),
            stream: self.stream.clone(),
            stream_until: self.stream_until.clone(),
            stream_error: self.stream_error.clone(),
            compressed: self.compressed.then_some(true),
            max_body: self.max_body,
            headers,
            expect_headers,
            ..HttpSpec::default()
        })
    }
}
