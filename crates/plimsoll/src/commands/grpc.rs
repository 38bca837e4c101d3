//! `plimsoll grpc`: the quick form of a plan, for one gRPC method.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::spec::{CallSpec, GrpcSpec, MessageSpec, MetadataSpec, Spec};
use plimsoll_model::units::Size;

use crate::arguments::Origins;
use crate::environment::Environment;
use crate::execution::{self, OutputFlags, Session};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::planning;
use crate::problems::Source;

/// Put load on a gRPC method: the same as a plan, typed as flags.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: 1000 calls a second over one mutual-TLS connection, for 30 s after a warm-up of 5 s
  plimsoll grpc grpcs://localhost:50051 -m score.ScoreService/GetScore -d '{\"json\": \"[0.1, 0.2]\"}' \\
      --ca certs/ca.crt --cert certs/client.crt --key certs/client.key \\
      --rate 1000/s --warmup 5s --duration 30s
Example: 60 calls, each over a new connection; 1,000,000 orders from 10,000 clients
  plimsoll grpc grpc://localhost:50051 -m score.ScoreService/GetScore -d @vector.json --cold --calls 60
  plimsoll grpc grpc://localhost:50052 -m orders.OrderService/Submit -d '{\"price\": 5}' --fleet 10000 --calls 1000000",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    /// grpc://HOST:PORT (plaintext) or grpcs://HOST:PORT (TLS 1.3).
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    /// What to call: package.Service/Method.
    #[arg(short, long, env = "PLIMSOLL_METHOD", help_heading = "Call")]
    method: Option<String>,

    /// The message as JSON, or @FILE that holds it [default: the empty message].
    #[arg(
        short,
        long,
        env = "PLIMSOLL_DATA",
        value_name = "JSON",
        help_heading = "Call"
    )]
    data: Option<String>,

    /// A .proto file that describes the method; may be given again.
    #[arg(
        long,
        env = "PLIMSOLL_PROTO",
        value_name = "FILE",
        help_heading = "Call"
    )]
    proto: Vec<PathBuf>,

    /// Where imports of --proto are looked for; may be given again.
    #[arg(
        long,
        env = "PLIMSOLL_IMPORT_PATH",
        value_name = "DIR",
        help_heading = "Call"
    )]
    import_path: Vec<PathBuf>,

    /// A descriptor set that describes the method (protoc --descriptor_set_out --include_imports).
    #[arg(
        long,
        env = "PLIMSOLL_DESCRIPTOR_SET",
        value_name = "FILE",
        help_heading = "Call"
    )]
    descriptor_set: Option<PathBuf>,

    /// Metadata, 'name: value'; may be given again. 'name: $VARIABLE' takes it from the environment.
    #[arg(
        long,
        env = "PLIMSOLL_METADATA",
        value_name = "NAME: VALUE",
        help_heading = "Call"
    )]
    metadata: Vec<String>,

    /// The :authority to send [default: host:port of the target].
    #[arg(long, env = "PLIMSOLL_AUTHORITY", help_heading = "Call")]
    authority: Option<String>,

    /// Larger answers fail with MESSAGE_TOO_LARGE [default: 4MiB].
    #[arg(
        long,
        env = "PLIMSOLL_MAX_MESSAGE",
        value_name = "SIZE",
        help_heading = "Call"
    )]
    max_message: Option<Size>,

    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    output: OutputFlags,
}

pub(crate) fn execute(
    arguments: &Arguments,
    origins: &Origins,
    environment: &Environment,
    session: &Session,
) -> Result<Exit, Failure> {
    let mut spec = Spec {
        target: arguments.target.clone(),
        call: CallSpec {
            grpc: Some(arguments.call()?),
            ..CallSpec::default()
        },
        ..Spec::default()
    };
    arguments.load.lay_over(&mut spec, origins)?;
    let plan = planning::plan(&spec, environment, &Source::Flags)?;
    execution::execute(&spec, &plan, &arguments.output, session)
}

impl Arguments {
    fn call(&self) -> Result<GrpcSpec, Failure> {
        let mut call = GrpcSpec {
            method: self.method.clone(),
            proto: Some(self.proto.clone()).filter(|p| !p.is_empty()),
            import_path: Some(self.import_path.clone()).filter(|p| !p.is_empty()),
            descriptor_set: self.descriptor_set.clone(),
            authority: self.authority.clone(),
            max_message: self.max_message,
            ..GrpcSpec::default()
        };
        if let Some(data) = &self.data {
            match data.strip_prefix('@') {
                Some(path) => call.message_file = Some(path.into()),
                None => call.message = Some(MessageSpec(data.clone())),
            }
        }
        for typed in &self.metadata {
            let (name, value) = typed.split_once(':').ok_or_else(|| {
                // What was typed may be a secret: it is not repeated.
                Failure::usage(
                    "--metadata: no colon in the value",
                    "write, for example, --metadata 'x-tenant: 7'",
                )
            })?;
            let value = value.trim();
            let value = match value.strip_prefix('$') {
                Some(variable) => MetadataSpec::Env(variable.into()),
                None => MetadataSpec::Text(value.into()),
            };
            call.metadata.insert(name.trim().into(), value);
        }
        Ok(call)
    }
}
