//! The flags of a gRPC call, which `plimsoll grpc` and ladders of services have.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::input;
use plimsoll_model::spec::Spec;
use plimsoll_model::units::{Period, Size};

use super::binary::{BinarySource, BinarySpec};
use super::delimited;
#[cfg(all(feature = "schema", feature = "targets"))]
use super::questions::{DescribeFlags, ListFlags};
use super::section::{GrpcSpec, MessageSpec, PaceSpec};
#[cfg(all(feature = "schema", feature = "targets"))]
use crate::asked::Ask;
use crate::flags::{CredentialFlags, RowFlags, fields};
use crate::owned::{Quick, Usage, Variables, text_or_file};

/// One call of a gRPC method, typed as flags.
#[derive(Debug, Args)]
pub struct GrpcFlags {
    /// What to call: package.Service/Method.
    #[arg(short, long, alias = "call", help_heading = "Call")]
    method: Option<String>,

    /// The message as JSON, or a list of them (a stream's; else calls take them in turn); @FILE or @- (stdin) that
    /// holds it, or a message a line [default: the empty message].
    #[arg(
        id = "grpc_message",
        short = 'd',
        long = "data",
        value_name = "JSON",
        help_heading = "Call"
    )]
    message: Option<String>,

    /// A message in the protobuf encoding, @FILE or @- (stdin), in place of --data; may be given
    /// again: a stream sends them all, else calls take them in turn.
    #[arg(long, value_name = "@FILE", help_heading = "Call")]
    data_binary: Vec<String>,

    /// The same, with several messages in a file, each behind its length as a varint (protobuf's
    /// delimited format).
    #[arg(long, value_name = "@FILE", help_heading = "Call")]
    data_delimited: Vec<String>,

    /// A .proto file that describes the method; may be given again.
    #[arg(long, value_name = "FILE", help_heading = "Call")]
    proto: Vec<PathBuf>,

    /// Where imports of --proto are looked for; may be given again.
    #[arg(long, value_name = "DIR", help_heading = "Call")]
    import_path: Vec<PathBuf>,

    /// A descriptor set that describes the method (protoc --descriptor_set_out --include_imports).
    #[arg(long, value_name = "FILE", help_heading = "Call")]
    descriptor_set: Option<PathBuf>,

    /// Ask the server what the method is, even if it is one of the built-in services
    /// [default: ask for methods of other services, where no description is given].
    #[arg(long, help_heading = "Call")]
    reflection: bool,

    /// Metadata, 'name: value'; may be given again. 'name: $VARIABLE' takes it from the environment,
    /// and fields such as {{row.user}} vary from call to call.
    #[arg(long, value_name = "NAME: VALUE", help_heading = "Call")]
    metadata: Vec<String>,

    #[command(flatten)]
    credentials: CredentialFlags,

    /// Streams: messages to send on a call [default: as many as --data has].
    #[arg(long, value_name = "N", help_heading = "Call")]
    messages: Option<u32>,

    /// Streams: time between two messages of a call, or "answers": each after the answer to
    /// the one before [default: all at once].
    #[arg(long, value_name = "TIME", help_heading = "Call")]
    pace: Option<PaceSpec>,

    /// Streams: messages that the server must send on a call; with any other number the call fails.
    #[arg(long, value_name = "N", help_heading = "Call")]
    expect: Option<u32>,

    /// Streams: cancel the call after so many messages from the server; 0: at once.
    #[arg(long, value_name = "N", help_heading = "Call")]
    cancel_after: Option<u32>,

    /// Streams: end the call after this time, as a success: for streams that have no end of their own.
    #[arg(long, value_name = "TIME", help_heading = "Call")]
    stream_duration: Option<Period>,

    /// The :authority to send [default: host:port of the target].
    #[arg(long, help_heading = "Call")]
    authority: Option<String>,

    /// The user-agent to send [default: this program and its version].
    #[arg(long, value_name = "TEXT", help_heading = "Call")]
    user_agent: Option<String>,

    /// Compress requests, and accept compressed answers: gzip or none [default: none].
    #[arg(long, value_name = "HOW", help_heading = "Call")]
    compression: Option<String>,

    /// Larger answers fail with MESSAGE_TOO_LARGE [default: 4MiB].
    #[arg(long, value_name = "SIZE", help_heading = "Call")]
    max_message: Option<Size>,
}

impl GrpcFlags {
    /// # Errors
    /// Where a flag makes no sense, or stdin can't be read.
    pub fn spec(&self) -> Result<GrpcSpec, Usage> {
        let mut call = GrpcSpec {
            method: self.method.clone(),
            proto: Some(self.proto.clone()).filter(|p| !p.is_empty()),
            import_path: Some(self.import_path.clone()).filter(|p| !p.is_empty()),
            descriptor_set: self.descriptor_set.clone(),
            authority: self.authority.clone(),
            user_agent: self.user_agent.clone(),
            compression: self.compression.clone(),
            max_message: self.max_message,
            reflection: self.reflection.then_some(true),
            messages: self.messages,
            pace: self.pace,
            expect: self.expect,
            cancel_after: self.cancel_after,
            stream_duration: self.stream_duration,
            ..GrpcSpec::default()
        };
        let (message, file) = text_or_file(self.message.as_deref())?;
        (call.message, call.message_file) = (message.map(MessageSpec), file);
        let binary = binary(&self.data_binary, &self.data_delimited)?;
        call.message_binary = Some(BinarySpec(binary)).filter(|spec| !spec.0.is_empty());
        call.metadata = fields("--metadata", &self.metadata)?;
        self.credentials.add_to(&mut call.metadata)?;
        Ok(call)
    }
}

/// Put load on a gRPC method: the same as a plan, typed as flags.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: 1000 calls a second over one mutual-TLS connection, for 30 s after a warm-up of 5 s
  plimsoll grpc grpcs://localhost:50051 -m score.ScoreService/GetScore -d '{\"json\": \"[0.1, 0.2]\"}' \\
      --ca certs/ca.crt --cert certs/client.crt --key certs/client.key \\
      --rate 1000/s --warmup 5s --duration 30s
Example: streams of 100 messages, 20 ms apart, each to be answered
  plimsoll grpc grpc://localhost:50054 -m grpc.examples.echo.Echo/BidirectionalStreamingEcho -d '{\"message\": \"hi\"}' --messages 100 --pace 20ms --expect 100 --rate 50/s --duration 30s
Example: orders that differ from call to call, for the users of a file in turn
  plimsoll grpc grpc://localhost:50052 -m orders.OrderService/Submit --rows users.csv \\
      -d '{\"instrumentID\": {{row.instrument}}, \"price\": {{random 100 10000}}}' --rate 1000/s --duration 30s
Example: what a server has to offer (server reflection)
  plimsoll grpc list grpc://localhost:50051
  plimsoll grpc describe grpc://localhost:50051 score.ScoreService/GetScore
Example: 60 calls, each over a new connection; 1,000,000 orders from 10,000 clients
  plimsoll grpc grpc://localhost:50051 -m score.ScoreService/GetScore -d @vector.json --cold --calls 60
  plimsoll grpc grpc://localhost:50052 -m orders.OrderService/Submit -d '{\"price\": 5}' --fleet 10000 --calls 1000000")]
pub struct GrpcCommand {
    #[command(flatten)]
    call: GrpcFlags,

    #[command(flatten)]
    rows: RowFlags,
}

impl Quick for GrpcCommand {
    type Section = GrpcSpec;
    const TARGET: &str = "grpc://HOST:PORT (plaintext), grpcs://HOST:PORT (TLS 1.3), or unix:/PATH";
    #[cfg(all(feature = "schema", feature = "targets"))]
    const QUESTIONS: &[Ask] = &[Ask::of::<ListFlags>(), Ask::of::<DescribeFlags>()];
    const KEYS: &[(&str, &str)] = &[("message_binary", "--data-binary or --data-delimited")];

    fn section(self, spec: &mut Spec, _: Variables<'_>) -> Result<GrpcSpec, Usage> {
        self.rows.apply(spec);
        self.call.spec()
    }
}

/// What `--data-binary` and `--data-delimited` were given: files, or what stdin holds.
///
/// # Errors
/// Where one is not `@FILE`; when stdin can't be read, or holds no such messages.
fn binary(messages: &[String], delimited: &[String]) -> Result<Vec<BinarySource>, Usage> {
    let mut sources = Vec::new();
    let messages = messages.iter().map(|typed| ("--data-binary", typed));
    let delimited = delimited.iter().map(|typed| ("--data-delimited", typed));
    for (flag, typed) in messages.chain(delimited) {
        let is_one = flag == "--data-binary";
        match typed.strip_prefix('@') {
            Some("-") => {
                let bytes = input::stdin().map_err(|e| {
                    Usage::new(
                        format_args!("{flag} @-: can't read stdin: {e}"),
                        &format!(
                            "pipe the messages into this command, or name a file: {flag} @FILE"
                        ),
                    )
                })?;
                match is_one {
                    true => sources.push(BinarySource::of(&bytes)),
                    false => {
                        let found = delimited::delimited("stdin", &bytes);
                        let found = found.map_err(|problem| {
                            Usage::new(
                                format_args!("{flag}: {problem}"),
                                "--data-binary @- takes stdin as one message",
                            )
                        })?;
                        sources.extend(found.iter().map(|m| BinarySource::of(&m.bytes)));
                    }
                }
            }
            Some(path) if !path.is_empty() => sources.push(match is_one {
                true => BinarySource::File(path.into()),
                false => BinarySource::Delimited(path.into()),
            }),
            _ => {
                return Err(Usage::new(
                    format_args!("{flag}: `{typed}` names no file"),
                    &format!("write {flag} @FILE, or {flag} @- for stdin"),
                ));
            }
        }
    }
    Ok(sources)
}
