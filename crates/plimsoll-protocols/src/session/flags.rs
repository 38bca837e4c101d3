//! The flags of `plimsoll session`, and of other commands that run sessions against a stack: an LLM service with an
//! HTTP API and a WebSocket gateway.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use plimsoll_model::spec::{CallSpec, RowsSpec, Spec, apply_flags_to_optional};

use super::SessionSection;
use crate::interface::flags::{
    CredentialFlags, GoodputBound, combine_goodput_bounds, parse_fields,
};
use crate::interface::foreign::{AliasConversion, VariableAlias};
use crate::interface::protocol_module::{EnvLookup, ExportTarget, ProtocolCommand, UsageError};

/// The commands that run sessions against a stack.
const STACK_COMMANDS: &[&str] = &["session", "stack run"];

/// Variables of older load scripts. Other commands ignore them, because their names are too common.
const LEGACY_VARIABLES: [VariableAlias; 8] = [
    stack_command_alias("CLIENTS", "PLIMSOLL_CLIENTS", ""),
    stack_command_alias("QUERIES_PER_CLIENT", "PLIMSOLL_QUERIES", ""),
    stack_command_alias("OUTPUT_DIR", "PLIMSOLL_OUTPUT_DIR", ""),
    stack_command_alias("WS_MAX_RECONNECT_ATTEMPTS", "PLIMSOLL_RECONNECTS", ""),
    stack_command_alias(
        "WS_INITIAL_BACKOFF_SECONDS",
        "PLIMSOLL_RECONNECT_PAUSE",
        "s",
    ),
    stack_command_alias(
        "WS_MAX_BACKOFF_SECONDS",
        "PLIMSOLL_RECONNECT_PAUSE_MOST",
        "s",
    ),
    VariableAlias::for_commands(
        &["session"],
        "FASTAPI_URL",
        "PLIMSOLL_TARGET",
        AliasConversion::Url([
            ("http://", "session://", 80),
            ("https://", "sessions://", 443),
        ]),
    ),
    VariableAlias::for_commands(
        &["session"],
        "WSPROXY_URL",
        "PLIMSOLL_SOCKET",
        AliasConversion::Url([("http://", "ws://", 80), ("https://", "wss://", 443)]),
    ),
];

const fn stack_command_alias(
    name: &'static str,
    variable: &'static str,
    unit: &'static str,
) -> VariableAlias {
    VariableAlias::for_commands(
        STACK_COMMANDS,
        name,
        variable,
        AliasConversion::Plain { unit },
    )
}

/// Flags for the text of queries, for reconnects, and for exporting results in an additional format.
#[derive(Args, Debug)]
pub struct QueryFlags {
    #[command(flatten)]
    section: SessionSection,

    #[command(flatten)]
    rows: RowsSpec,

    /// Also write loadtest_TIME.csv, with a row per query, and loadtest_TIME_summary.json to this folder.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    output_dir: Option<PathBuf>,
}

impl QueryFlags {
    /// Sets the calls of `spec` to the queries that the flags describe, and its target to a stack with these addresses.
    ///
    /// # Errors
    /// When a flag's value is not valid in a plan.
    pub fn apply(
        &self,
        spec: &mut Spec,
        api: SocketAddr,
        sockets: SocketAddr,
    ) -> Result<(), UsageError> {
        spec.target = Some(QueryFlags::api_url(api));
        spec.call = CallSpec::from_section(&SessionSection {
            socket: Some(format!("ws://{sockets}")),
            ..self.build_section(spec)?
        })?;
        Ok(())
    }

    /// Returns the URL of the API at this address.
    pub fn api_url(api: SocketAddr) -> String {
        format!("session://{api}")
    }

    /// Returns the section that the flags describe, and sets the keys of other sections in `spec`.
    ///
    /// # Errors
    /// When a flag's value is not valid in a plan.
    fn build_section(&self, spec: &mut Spec) -> Result<SessionSection, UsageError> {
        apply_flags_to_optional("rows", &self.rows, &mut spec.rows)?;
        if self.output_dir.is_some() {
            // The rows of the CSV file come from the log of requests.
            spec.requests = Some(true);
        }
        let typed = self.section.clone();
        Ok(SessionSection {
            compression: typed.compression.filter(|asked| *asked),
            ..typed
        })
    }

    /// Returns the additional format that the run is exported to.
    pub fn export_target(&self) -> Option<ExportTarget> {
        Some(("sessions", self.output_dir.clone()?))
    }
}

/// Load-test a token-streaming stack with sessions: HTTP API and WebSocket, every token accounted for.
#[derive(Args, Debug)]
#[command(before_help = "\
Example: 1000 clients, ten queries each, against a stack on this machine
  plimsoll serve llm --listen 127.0.0.1:8000 --with-gateway 127.0.0.1:4040 &
  plimsoll session session://127.0.0.1:8000 --socket ws://127.0.0.1:4040 --clients 1000 --queries 10
Example: 50 new sessions a second for a minute, whatever the stack does
  plimsoll session session://127.0.0.1:8080 --socket ws://127.0.0.1:8081 --rate 50/s --duration 60s
Example: over TLS; only queries whose first token arrives within half a second count as good
  plimsoll session sessions://llm.example:443 --socket wss://llm.example:443 --ca ca.crt \\
      --clients 100 --queries 3 --goodput first_token=500ms --goodput query=3s
Example: questions of a file, to a service that sends 200 tokens for each without announcing it
  plimsoll session session://127.0.0.1:8080 --socket ws://127.0.0.1:8081 --clients 10 \\
      --rows questions.csv --query '{{row.question}}' --expect-tokens 200")]
pub struct SessionFlags {
    /// Address of the WebSockets: ws://HOST:PORT, wss://HOST:PORT over TLS, or unix:/PATH [default: host and port of
    /// the API].
    #[arg(long, value_name = "URL", help_heading = "Session")]
    socket: Option<String>,

    #[command(flatten)]
    queries: QueryFlags,

    /// The first segment of the socket's path [default: agent].
    #[arg(long, value_name = "NAME", help_heading = "Session")]
    agent: Option<String>,

    /// A query counts as good if it succeeds within this time after it was due: KEY is first_token (ttft),
    /// time_per_token (tpot) or query (e2e); repeatable with different keys.
    #[arg(
        long,
        value_name = "KEY=TIME",
        value_delimiter = ',',
        help_heading = "Session"
    )]
    goodput: Vec<GoodputBound>,

    /// A header field of the API's requests and of the sockets' upgrades, 'name: value'; a value $NAME is taken from
    /// the environment; repeatable. An authorization is not sent with upgrades, which carry the session's token.
    #[arg(
        short = 'H',
        long = "header",
        value_name = "NAME: VALUE",
        help_heading = "Call"
    )]
    headers: Vec<String>,

    #[command(flatten)]
    credentials: CredentialFlags,
}

impl ProtocolCommand for SessionFlags {
    const TARGET_HELP: &str =
        "The HTTP API: session://HOST:PORT, sessions://HOST:PORT over TLS, or unix:/PATH";
    type Section = SessionSection;
    const VARIABLE_ALIASES: &[VariableAlias] = &LEGACY_VARIABLES;

    fn into_section(self, spec: &mut Spec, _: EnvLookup<'_>) -> Result<SessionSection, UsageError> {
        let mut headers = parse_fields("--header", &self.headers)?;
        self.credentials.add_to(&mut headers)?;
        Ok(SessionSection {
            socket: self.socket,
            agent: self.agent,
            goodput: combine_goodput_bounds(&self.goodput),
            headers,
            ..self.queries.build_section(spec)?
        })
    }

    fn export_target(&self) -> Option<ExportTarget> {
        self.queries.export_target()
    }
}
