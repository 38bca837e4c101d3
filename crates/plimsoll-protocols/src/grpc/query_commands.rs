//! Queries of a server without a load: `plimsoll grpc list` and `describe` show a server's services, as its
//! reflection or files describe them; `plimsoll check echo` tests every kind of call.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use plimsoll_model::formats::units::{Period, parse_seconds};

use super::connection_flags::ConnectionFlags;
use super::echo_check::{CaseResult, ECHO_METHODS, EchoCheck, run};
use super::reflection::{self, SchemaQuery};
use super::schema::Schema;
use crate::interface::server_query::{QueryContext, QueryError, QueryOutput, ServerQuery};

/// List a server's services and methods, one per line, by server reflection.
#[derive(Debug, Args)]
#[command(before_help = "Example: over TLS\n  \
    plimsoll grpc list grpcs://localhost:50051 --ca certs/ca.crt --metadata 'authorization: $TOKEN'")]
pub(crate) struct ListFlags {
    #[command(flatten)]
    link: ConnectionFlags,

    #[command(flatten)]
    files: SchemaFileFlags,
}

/// Files that describe services instead of the server.
#[derive(Debug, Args)]
struct SchemaFileFlags {
    /// A .proto file to read instead of querying the server; repeatable.
    #[arg(long, value_name = "FILE", conflicts_with = "descriptor_set")]
    proto: Vec<PathBuf>,

    /// Directory to search for imports of --proto; repeatable.
    #[arg(long, value_name = "DIR", requires = "proto")]
    import_path: Vec<PathBuf>,

    /// A descriptor set to read instead of querying the server (protoc --descriptor_set_out --include_imports).
    #[arg(long, value_name = "FILE")]
    descriptor_set: Option<PathBuf>,

    /// Also query the server; the files supplement its description.
    #[arg(long)]
    reflection: bool,
}

impl SchemaFileFlags {
    /// Returns the schema of the files; `None`: no file is given.
    fn read_schema(&self) -> Result<Option<Schema>, QueryError> {
        let read = match (&self.proto[..], &self.descriptor_set) {
            ([], None) => return Ok(None),
            ([], Some(path)) => Schema::from_descriptor_set(path),
            (files, _) => Schema::from_protos(files, &self.import_path),
        };
        read.map(Some)
            .map_err(|e| QueryError::Refused(e.to_string(), None))
    }
}

/// Describe a service, method, message or enum of a server, with all types it uses.
#[derive(Debug, Args)]
#[command(before_help = "Example: the fields of a call's message\n  \
    plimsoll grpc describe grpc://localhost:50051 score.ScoreService/GetScore")]
pub(crate) struct DescribeFlags {
    #[command(flatten)]
    link: ConnectionFlags,

    #[command(flatten)]
    files: SchemaFileFlags,

    /// package.Service, package.Service/Method or package.Message.
    #[arg(value_name = "NAME")]
    what: String,
}

/// Make a call of each kind to grpc.examples.echo.Echo, and check messages, headers and trailers.
#[derive(Debug, Args)]
#[command(before_help = "Example: against `plimsoll serve echo`\n  \
    plimsoll check echo grpc://127.0.0.1:50054")]
pub(crate) struct EchoFlags {
    #[command(flatten)]
    link: ConnectionFlags,

    /// The text to send, which the server must return.
    #[arg(
        short,
        long,
        value_name = "TEXT",
        default_value = "this is examples/metadata"
    )]
    message: String,

    /// Number of messages that ServerStreamingEcho must return, and that client streams send.
    #[arg(long, value_name = "N", default_value_t = 10)]
    messages: usize,

    /// Deadline of each of the four calls.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "10s")]
    deadline: Period,
}

impl ListFlags {
    /// Returns the services of the server, or of the files.
    pub(super) fn schema(&self, asking: QueryContext<'_>) -> Result<Schema, QueryError> {
        load_schema(&self.link, &self.files, SchemaQuery::Services, asking)
    }
}

impl ServerQuery for ListFlags {
    const COMMAND_NAME: &str = "list";

    fn run(self, asking: QueryContext<'_>) -> Result<QueryOutput, QueryError> {
        Ok(QueryOutput {
            text: self.schema(asking)?.list_methods(),
            ..QueryOutput::default()
        })
    }
}

impl ServerQuery for DescribeFlags {
    const COMMAND_NAME: &str = "describe";

    fn run(self, asking: QueryContext<'_>) -> Result<QueryOutput, QueryError> {
        let symbol = symbol_to_query(&self.what);
        let schema = load_schema(&self.link, &self.files, SchemaQuery::Symbol(symbol), asking)?;
        let described = schema.describe(&self.what).map_err(|e| {
            let help = "`plimsoll grpc list` prints the services and their methods";
            QueryError::Refused(e.to_string(), Some(help))
        })?;
        Ok(QueryOutput {
            text: described,
            ..QueryOutput::default()
        })
    }
}

/// Returns the symbol to query for `what`: for a method with a slash, its service.
fn symbol_to_query(what: &str) -> &str {
    let bare = what.strip_prefix('/').unwrap_or(what);
    bare.split_once('/').map_or(bare, |(service, _)| service)
}

/// Returns the schema of the files, of the server, or of both.
fn load_schema(
    link: &ConnectionFlags,
    files: &SchemaFileFlags,
    inquiry: SchemaQuery<'_>,
    asking: QueryContext<'_>,
) -> Result<Schema, QueryError> {
    let given = files.read_schema()?;
    if let Some(schema) = given.as_ref().filter(|_| !files.reflection) {
        return Ok(schema.clone());
    }
    let schema = link.with_connection(asking, async |connection| {
        reflection::request_schema(&connection, inquiry, &[]).await
    })?;
    let mut schema = schema.map_err(|e| QueryError::Refused(e.to_string(), e.advice()))?;
    if let Some(given) = &given {
        let supplemented = schema.supplement_with(given);
        schema = supplemented.map_err(|e| QueryError::Refused(e.to_string(), None))?;
    }
    for broken in schema.broken_services() {
        (asking.notice)(&format!("warning: {broken}"));
    }
    Ok(schema)
}

impl ServerQuery for EchoFlags {
    const COMMAND_NAME: &str = "echo";

    fn run(self, asking: QueryContext<'_>) -> Result<QueryOutput, QueryError> {
        let check = EchoCheck {
            message: self.message,
            messages: self.messages,
            sent: self.messages,
            deadline: self.deadline.0,
        };
        let results = self.link.with_connection(asking, async |connection| {
            let mut results = Vec::new();
            for case in ECHO_METHODS {
                results.push(run(&connection, case, &check).await);
            }
            results
        })?;
        let failed = results.iter().filter(|r| !r.problems.is_empty()).count();
        Ok(QueryOutput {
            text: render_results(&results),
            json: serde_json::json!({ "passed": failed == 0, "cases": results }),
            failed: (failed > 0).then(|| format!("{failed} of {} cases failed", results.len())),
        })
    }
}

fn render_results(results: &[CaseResult]) -> String {
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
        let verdict = if result.problems.is_empty() {
            "passed"
        } else {
            "FAILED"
        };
        let _ = writeln!(out, "finish case {}: {verdict}\n", result.case);
    }
    out
}
