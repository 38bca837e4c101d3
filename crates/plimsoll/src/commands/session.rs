//! `plimsoll session`: the quick form of a plan, for sessions whose tokens stream.

use clap::Args;
use plimsoll_protocols::flags::{Bound, CredentialFlags, fields, goodput};
use plimsoll_protocols::session::SessionSection;

use crate::arguments::Origins;
use crate::environment::Environment;
use crate::execution::{self, OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::planning;
use crate::problems::Source;
use crate::quick;
use crate::session_flags::SessionFlags;

/// Put sessions on a token-streaming stack: HTTP API and WebSocket, every token accounted for.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: 1000 clients, ten queries each, against a stack on this machine
  plimsoll serve llm --listen 127.0.0.1:8000 --with-gateway 127.0.0.1:4040 &
  plimsoll session session://127.0.0.1:8000 --socket ws://127.0.0.1:4040 --clients 1000 --queries 10
Example: 50 new sessions a second for a minute, whatever the stack does
  plimsoll session session://127.0.0.1:8080 --socket ws://127.0.0.1:8081 --rate 50/s --duration 60s
Example: over TLS; only queries whose first token is there in half a second count as good
  plimsoll session sessions://llm.example:443 --socket wss://llm.example:443 --ca ca.crt \\
      --clients 100 --queries 3 --goodput first_token=500ms --goodput query=3s
Example: questions of a file, to a service that sends 200 tokens for each and does not say so
  plimsoll session session://127.0.0.1:8080 --socket ws://127.0.0.1:8081 --clients 10 \\
      --rows questions.csv --query '{{row.question}}' --expect-tokens 200",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    /// The HTTP API: session://HOST:PORT, sessions://HOST:PORT over TLS 1.3, or unix:/PATH.
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    /// Where the WebSockets are: ws://HOST:PORT, wss://HOST:PORT over TLS 1.3, or unix:/PATH
    /// [default: host and port of the API].
    #[arg(long, value_name = "URL", help_heading = "Session")]
    socket: Option<String>,

    #[command(flatten)]
    session: SessionFlags,

    /// The first part of the socket's path [default: agent].
    #[arg(long, value_name = "NAME", help_heading = "Session")]
    agent: Option<String>,

    /// A query counts as good when it succeeds within this, from when it was due: KEY is
    /// first_token (ttft), time_per_token (tpot) or query (e2e). May be given for each of them.
    #[arg(
        long,
        value_name = "KEY=TIME",
        value_delimiter = ',',
        help_heading = "Session"
    )]
    goodput: Vec<Bound>,

    /// A header field of the API's requests and of the sockets' upgrades, 'name: value'; a value $NAME is taken from
    /// the environment; may be given again. An authorization is not sent with upgrades: they have the session's token.
    #[arg(short = 'H', long, value_name = "NAME: VALUE", help_heading = "Call")]
    header: Vec<String>,

    #[command(flatten)]
    credentials: CredentialFlags,

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
    let mut call = SessionSection {
        socket: arguments.socket.clone(),
        agent: arguments.agent.clone(),
        goodput: goodput(&arguments.goodput),
        ..SessionSection::default()
    };
    call.headers = fields("--header", &arguments.header)?;
    arguments.credentials.add_to(&mut call.headers)?;
    arguments.session.apply(&mut call);
    let call = quick::call(&call)?;
    let mut spec = quick::spec(arguments.target.as_deref(), call, &arguments.load, origins)?;
    arguments.session.apply_to_plan(&mut spec);
    let plan = planning::plan(&spec, environment, &Source::Flags)?;
    execution::execute_then(&spec, &plan, &arguments.output, process, |run| {
        arguments.session.write_files(run)
    })
}
