//! `plimsoll plugin`: the quick form of a plan, for a protocol that a codec plugin brings.

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::spec::{CallSpec, Limit, PluginSpec};
use plimsoll_model::units::Size;

use crate::arguments::Origins;
use crate::environment::Environment;
use crate::execution::{OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::quick;

/// Put load on a service whose protocol comes with a codec plugin.
#[derive(Debug, Args)]
#[command(
    before_help = "\
Example: a plugin in C, an echo server of its protocol, 2000 calls a second over 8 connections
  cc -O2 -fPIC -shared -I crates/plimsoll-plugin/include -o x_example.so \\
      crates/plimsoll-plugin/examples/x_example.c
  plimsoll serve plugin x_example.so --listen 127.0.0.1:7000 &
  plimsoll plugin plugin://127.0.0.1:7000 --codec x_example.so -d hello -c 8 --rate 2000/s -z 10s
Example: a whole request from a file; 50 clients, each waiting for its answer
  plimsoll plugin plugin://127.0.0.1:7000 --codec x_example.so --frame @request.bin --fleet 50 -z 10s",
    after_help = crate::environment::HELP
)]
pub(crate) struct Arguments {
    /// plugin://HOST:PORT (plaintext), plugins://HOST:PORT (TLS 1.3), or unix:/PATH.
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    /// The shared object that brings the protocol (docs/plugin.md).
    #[arg(
        long,
        env = "PLIMSOLL_CODEC",
        value_name = "FILE",
        help_heading = "Call"
    )]
    codec: Option<PathBuf>,

    /// The request's payload, or @FILE that holds it [default: none].
    #[arg(
        short,
        long,
        env = "PLIMSOLL_DATA",
        value_name = "TEXT",
        help_heading = "Call"
    )]
    data: Option<String>,

    /// Instead: a whole request in hexadecimal digits, or @FILE that holds its bytes.
    #[arg(
        long,
        env = "PLIMSOLL_FRAME",
        value_name = "HEX",
        conflicts_with = "data",
        help_heading = "Call"
    )]
    frame: Option<String>,

    /// Calls at once on one connection [default: no limit].
    #[arg(
        long,
        env = "PLIMSOLL_IN_FLIGHT",
        value_name = "N",
        help_heading = "Call"
    )]
    in_flight: Option<u32>,

    /// Silence after which a heartbeat is sent, or "none" [default: 15s, where the protocol has them].
    #[arg(
        long,
        env = "PLIMSOLL_HEARTBEAT",
        value_name = "TIME",
        help_heading = "Call"
    )]
    heartbeat: Option<Limit>,

    /// Larger frames fail with MESSAGE_TOO_LARGE [default: 16MiB].
    #[arg(
        long,
        env = "PLIMSOLL_MAX_FRAME",
        value_name = "SIZE",
        help_heading = "Call"
    )]
    max_frame: Option<Size>,

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
    let call = CallSpec {
        plugin: Some(arguments.call()?),
        ..CallSpec::default()
    };
    let spec = quick::spec(arguments.target.as_deref(), call, &arguments.load, origins)?;
    quick::run(&spec, &arguments.output, environment, process)
}

impl Arguments {
    fn call(&self) -> Result<PluginSpec, Failure> {
        let (payload, payload_file) = quick::text_or_file(self.data.as_deref())?;
        let (frame, frame_file) = quick::text_or_file(self.frame.as_deref())?;
        Ok(PluginSpec {
            codec: self.codec.clone(),
            payload,
            payload_file,
            frame,
            frame_file,
            in_flight: self.in_flight,
            heartbeat: self.heartbeat,
            max_frame: self.max_frame,
            deadline: None,
        })
    }
}
