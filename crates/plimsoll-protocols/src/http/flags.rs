//! The flags of `plimsoll http`: one request.

use std::collections::BTreeMap;

use clap::Args;
use plimsoll_model::spec::{LoadSpec, Spec};
use plimsoll_model::units::Size;

use super::call::HttpVersion;
use super::section::{HttpSpec, StatusSpec};
use crate::flags::{CredentialFlags, RowFlags, fields, named};
use crate::owned::{Quick, Usage, Variables, text_or_file};

/// Put load on an HTTP service: requests of any method, and answers that stream.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Call",
    before_help = "\
Example: 500 requests a second over 20 connections; an answer is good with 200 and this text
  plimsoll http http://localhost:8080/search?q=a --connections 20 --rate 500/s --duration 10s \\
      --expect 200 --expect-body '\"hits\"'
Example: 50 clients, each waiting for its answer, that post what a file of rows says
  plimsoll http https://localhost:8443/orders --ca certs/ca.crt --rows users.csv \\
      -d '{\"user\": \"{{row.user}}\", \"id\": {{seq}}}' -H 'authorization: $TOKEN' --clients 50 --duration 10s
Example: server-sent events until [DONE]: the time to the first, and the gaps between them
  plimsoll http http://localhost:8080/sse/20 --stream sse --stream-until '[DONE]' --connections 50 --rate 20/s --duration 10s"
)]
pub struct HttpFlags {
    /// The version of HTTP: 1.1; 2, in plaintext by prior knowledge; auto, which the server
    /// chooses by ALPN [default: 1.1].
    #[arg(long, value_name = "VERSION")]
    http_version: Option<HttpVersion>,

    /// The method [default: GET, with a body POST].
    #[arg(short = 'X', long)]
    method: Option<String>,

    /// A header field, 'name: value'; a value $NAME is taken from the environment; may be given again.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// The body, or @FILE or @- (stdin) that holds it.
    #[arg(short = 'd', long = "data", value_name = "BODY")]
    body: Option<String>,

    /// The Host to send [default: host:port of the target].
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Statuses of calls that succeed: 200,204 or 2xx [default: 2xx].
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    expect: Vec<StatusSpec>,

    /// A header field that an answer must have, 'name: value'; may be given again.
    #[arg(long = "expect-header", value_name = "NAME: VALUE")]
    expect_headers: Vec<String>,

    /// Text that the body of an answer must contain.
    #[arg(long, value_name = "TEXT")]
    expect_body: Option<String>,

    /// The exact size of an answer's body, as it is received; another one fails with BODY_LENGTH.
    #[arg(long, value_name = "SIZE")]
    expect_size: Option<Size>,

    /// The answer comes in events: sse (server-sent events), ndjson (a JSON document a line), openai
    /// (server-sent events that hold tokens, as `plimsoll llm` reads them); or in messages: grpc-web or connect,
    /// whose requests carry the body as a message, too.
    #[arg(long, value_name = "FORMAT")]
    stream: Option<String>,

    /// The event that ends a stream successfully: its data, event:NAME or contains:TEXT
    /// [default: the end of the body; with openai `[DONE]`].
    #[arg(long, value_name = "EVENT")]
    stream_until: Option<String>,

    /// The event that reports an error, written in the same way [default: one named error, or an
    /// object that begins with the key error].
    #[arg(long, value_name = "EVENT")]
    stream_error: Option<String>,

    /// Ask for compressed answers (gzip, deflate, br, zstd), and decompress them: bytes are counted as received and
    /// as decompressed.
    #[arg(long)]
    compressed: bool,

    /// Larger answers fail with MESSAGE_TOO_LARGE [default: no limit below 4GiB].
    #[arg(long, value_name = "SIZE")]
    max_body: Option<Size>,

    #[command(flatten)]
    credentials: CredentialFlags,

    #[command(flatten)]
    rows: RowFlags,
}

impl Quick for HttpFlags {
    type Section = HttpSpec;
    /// As curl and others have the versions.
    const SYNONYMS: &[(&str, &str)] = &[
        ("--http1.1", "--http-version=1.1"),
        ("--http2", "--http-version=2"),
        ("--http2-prior-knowledge", "--http-version=2"),
    ];
    const TARGET: &str = "http://HOST:PORT/PATH (plaintext), https://HOST:PORT/PATH (TLS 1.3), or unix:/SOCKET:/PATH";

    fn section(self, spec: &mut Spec, _: Variables<'_>) -> Result<HttpSpec, Usage> {
        self.rows.apply(spec);
        connections_for(&mut spec.load, self.http_version);
        let (body, body_file) = text_or_file(self.body.as_deref())?;
        let mut headers = fields("--header", &self.headers)?;
        self.credentials.add_to(&mut headers)?;
        let mut expect_headers = BTreeMap::new();
        for typed in &self.expect_headers {
            let (name, value) = named("--expect-header", typed, "x-cache: hit")?;
            expect_headers.insert(name.to_owned(), value.to_owned());
        }
        Ok(HttpSpec {
            version: self.http_version,
            method: self.method,
            host: self.host,
            body,
            body_file,
            expect: Some(self.expect).filter(|statuses| !statuses.is_empty()),
            expect_body: self.expect_body,
            expect_size: self.expect_size,
            stream: self.stream,
            stream_until: self.stream_until,
            stream_error: self.stream_error,
            compressed: self.compressed.then_some(true),
            max_body: self.max_body,
            headers,
            expect_headers,
            ..HttpSpec::default()
        })
    }
}

/// A connection that may be one of HTTP/1.1 carries one call at a time: clients that share one would only queue.
pub(super) fn connections_for(load: &mut LoadSpec, version: Option<HttpVersion>) {
    if queues(load, version) {
        load.connections = load.clients;
    }
}

/// Calls would wait for each other on a connection, and it is not said how many there are.
pub(super) fn queues(load: &LoadSpec, version: Option<HttpVersion>) -> bool {
    let kept = load.reuse.as_ref().is_none_or(|reuse| reuse != "never");
    kept && version != Some(HttpVersion::V2) && load.connections.is_none()
}
