//! Conversion of the flags of a gRPC call, for `plimsoll grpc` and for ladders.

use clap::Args;
use plimsoll_model::formats::input;
use plimsoll_model::spec::{RowsSpec, Spec, apply_flags_to_optional};

use super::binary::{BinarySource, BinarySpec};
use super::binary_messages;
use super::foreign_lines;
#[cfg(all(feature = "schema", feature = "targets"))]
use super::probe;
#[cfg(all(feature = "schema", feature = "targets"))]
use super::query_commands::{DescribeFlags, ListFlags};
use super::section::{GrpcSpec, MessageSpec};
use crate::interface::flags::parse_fields;
use crate::interface::foreign::command_lines::LineTool;
use crate::interface::protocol_module::{
    EnvLookup, ProtocolCommand, UsageError, split_text_or_file,
};
#[cfg(all(feature = "schema", feature = "targets"))]
use crate::interface::server_query::{QueryCommand, QueryContext};
#[cfg(all(feature = "schema", feature = "targets"))]
use crate::interface::service_offer::ServiceOffer;

impl GrpcSpec {
    /// Converts the flags to a plan section.
    ///
    /// # Errors
    /// Returns an error if a flag is invalid, or if stdin can't be read.
    pub fn to_plan_section(&self) -> Result<GrpcSpec, UsageError> {
        let typed = self.clone();
        let message = typed.message.as_ref().map(|message| message.0.as_str());
        let (message, message_file) = split_text_or_file(message)?;
        let binary = binary_sources(&typed.data_binary, &typed.data_delimited)?;
        let mut metadata = parse_fields("--metadata", &typed.typed_metadata)?;
        typed.credentials.add_to(&mut metadata)?;
        Ok(GrpcSpec {
            message: message.map(MessageSpec),
            message_file,
            message_binary: Some(BinarySpec(binary)).filter(|spec| !spec.0.is_empty()),
            reflection: typed.reflection.filter(|asked| *asked),
            metadata,
            ..typed
        })
    }
}

/// Load-test a gRPC method that flags describe instead of a plan.
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
Example: the services and methods of a server (server reflection)
  plimsoll grpc list grpc://localhost:50051
  plimsoll grpc describe grpc://localhost:50051 score.ScoreService/GetScore
Example: 60 calls, each over a new connection; 1,000,000 orders from 10,000 clients
  plimsoll grpc grpc://localhost:50051 -m score.ScoreService/GetScore -d @vector.json --cold --calls 60
  plimsoll grpc grpc://localhost:50052 -m orders.OrderService/Submit -d '{\"price\": 5}' --fleet 10000 --calls 1000000")]
pub struct GrpcCommand {
    #[command(flatten)]
    call: GrpcSpec,

    #[command(flatten)]
    rows: RowsSpec,
}

impl ProtocolCommand for GrpcCommand {
    type Section = GrpcSpec;
    const TARGET_HELP: &str =
        "grpc://HOST:PORT (plaintext), grpcs://HOST:PORT (TLS), or unix:/PATH";
    #[cfg(all(feature = "schema", feature = "targets"))]
    const SERVER_QUERIES: &[QueryCommand] = &[
        QueryCommand::new::<ListFlags>(),
        QueryCommand::new::<DescribeFlags>(),
    ];
    const LINE_TOOLS: &'static [&'static LineTool] = &foreign_lines::LINE_TOOLS;
    const RENAMED_KEY_FLAGS: &[(&str, &str)] =
        &[("message_binary", "--data-binary or --data-delimited")];

    #[cfg(all(feature = "schema", feature = "targets"))]
    fn probe(address: &str, asking: QueryContext<'_>) -> Option<ServiceOffer> {
        probe::probe(address, asking)
    }

    fn into_section(self, spec: &mut Spec, _: EnvLookup<'_>) -> Result<GrpcSpec, UsageError> {
        apply_flags_to_optional("rows", &self.rows, &mut spec.rows)?;
        self.call.to_plan_section()
    }
}

/// Returns the sources given with `--data-binary` and `--data-delimited`: files, or the contents of stdin.
///
/// # Errors
/// Returns an error if a value is not `@FILE`, or if stdin can't be read or does not contain messages in the
/// flag's format.
fn binary_sources(
    messages: &[String],
    delimited: &[String],
) -> Result<Vec<BinarySource>, UsageError> {
    let mut sources = Vec::new();
    let messages = messages.iter().map(|typed| ("--data-binary", typed));
    let delimited = delimited.iter().map(|typed| ("--data-delimited", typed));
    for (flag, typed) in messages.chain(delimited) {
        let is_one = flag == "--data-binary";
        match typed.strip_prefix('@') {
            Some("-") => {
                let bytes = input::read_stdin().map_err(|e| {
                    UsageError::new(
                        format_args!("{flag} @-: can't read stdin: {e}"),
                        &format!(
                            "pipe the messages into this command, or name a file: {flag} @FILE"
                        ),
                    )
                })?;
                if is_one {
                    sources.push(BinarySource::from_message(&bytes))
                } else {
                    let found = binary_messages::split_delimited("stdin", &bytes);
                    let found = found.map_err(|problem| {
                        UsageError::new(
                            format_args!("{flag}: {problem}"),
                            "--data-binary @- reads stdin as one message",
                        )
                    })?;
                    sources.extend(found.iter().map(|m| BinarySource::from_message(&m.bytes)));
                }
            }
            Some(path) if !path.is_empty() => sources.push(if is_one {
                BinarySource::File(path.into())
            } else {
                BinarySource::Delimited(path.into())
            }),
            _ => {
                return Err(UsageError::new(
                    format_args!("{flag}: `{typed}` is not a file name after @"),
                    &format!("write {flag} @FILE, or {flag} @- for stdin"),
                ));
            }
        }
    }
    Ok(sources)
}
