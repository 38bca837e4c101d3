//! The `[call.plugin]` section and the flags of `plimsoll plugin`: a call in a protocol that a codec
//! plugin implements.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::units::ByteSize;
use plimsoll_model::spec::{
    CallSection, MetadataSpec, OptionalPeriod, Problem, Problems, ResolveContext, Spec, UrlSchemes,
};
use plimsoll_plugin::Codec;
use serde::{Deserialize, Serialize};

use super::{PluginCall, PluginProtocol, RequestContent, build_frame};
use crate::framed;
use crate::interface::protocol_module::{
    EnvLookup, PrepareError, PrepareRequest, PreparedLoad, ProtocolCommand, ProtocolModule,
    UsageError, load_with_driver, split_text_or_file,
};
use crate::journey::{
    StepSpec, change_fields, has_secured_target, keys_within, prepare_journey_load,
    resolve_journey, step_files,
};
use crate::shared::alternatives::report_conflict;

const DEFAULT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
const DEFAULT_MAX_FRAME_SIZE: ByteSize = ByteSize(16 << 20);

/// One kind of call: a frame, or a payload that the plugin wraps in a frame.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[command(next_help_heading = "Call")]
#[serde(deny_unknown_fields, default)]
pub struct PluginOptions {
    /// The shared object that implements the protocol (docs/plugin.md).
    #[arg(long, value_name = "FILE")]
    pub codec: Option<PathBuf>,

    /// The request's payload. Default: none.
    #[arg(
        help = "The request's payload, or @FILE that holds it [default: none]",
        short = 'd',
        long = "data",
        value_name = "TEXT"
    )]
    pub payload: Option<String>,

    /// A file whose bytes are the payload.
    #[arg(skip)]
    pub payload_file: Option<PathBuf>,

    /// Instead of a payload: a whole request in hexadecimal digits.
    #[arg(
        help = "Instead: a whole request in hexadecimal digits, or @FILE that holds its bytes",
        long,
        value_name = "HEX",
        conflicts_with = "payload"
    )]
    pub frame: Option<String>,

    /// A file whose bytes are a whole request.
    #[arg(skip)]
    pub frame_file: Option<PathBuf>,

    /// Maximum calls in flight on one connection [default: no limit].
    #[arg(long, value_name = "N")]
    pub in_flight: Option<u32>,

    /// Idle time after which a heartbeat is sent, or "none" [default: 15s, if the protocol has heartbeats].
    #[arg(long, value_name = "TIME", value_parser = OptionalPeriod::parse_seconds)]
    pub heartbeat: Option<OptionalPeriod>,

    /// Larger frames fail with MESSAGE_TOO_LARGE [default: 16MiB].
    #[arg(long, value_name = "SIZE")]
    pub max_frame: Option<ByteSize>,

    /// The call's deadline, or "none". Default 10s.
    #[arg(skip)]
    pub deadline: Option<OptionalPeriod>,

    /// The steps of a journey, which plans write as `[[steps]]`: calls that each user makes one after another, and
    /// whose answers give values to later ones. The other keys here are their defaults.
    #[arg(skip)]
    pub steps: Option<Vec<StepSpec>>,
}

/// Load-test a service whose protocol comes with a codec plugin.
#[derive(Args, Debug)]
#[command(before_help = "\
Example: a plugin in C, an echo server of its protocol, 2000 calls a second over 8 connections
  cc -O2 -fPIC -shared -I crates/plimsoll-plugin/include -o x_example.so \\
      crates/plimsoll-plugin/examples/x_example.c
  plimsoll serve plugin x_example.so --listen 127.0.0.1:7000 &
  plimsoll plugin plugin://127.0.0.1:7000 --codec x_example.so -d hello -c 8 --rate 2000/s -z 10s
Example: a whole request from a file; 50 clients, each waiting for its answer
  plimsoll plugin plugin://127.0.0.1:7000 --codec x_example.so --frame @request.bin --fleet 50 -z 10s")]
pub struct PluginFlags {
    #[command(flatten)]
    options: PluginOptions,
}

impl CallSection for PluginOptions {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: "plugin",
        plain: "plugin",
        secured: Some("plugins"),
        aliases: None,
        purpose: "for a codec plugin's protocol",
        foreign_schemes: &[],
        ports: None,
        with_path: false,
    };
    type Call = PluginCall;

    fn nested_keys(path: &str) -> Option<&'static [&'static str]> {
        (path.split('.').next() == Some("steps"))
            .then(|| keys_within::<PluginOptions>(path))
            .flatten()
    }

    fn change_nested_fields(&mut self, change: &dyn Fn(&str, &mut MetadataSpec)) {
        change_fields(self.steps.as_deref_mut().unwrap_or_default(), change);
    }

    fn uses_tls(&self, spec: &Spec) -> bool {
        has_secured_target(self.journey_steps(), spec)
    }

    fn calls_per_user(&self) -> Option<u32> {
        (!self.journey_steps().is_empty()).then_some(1)
    }

    fn input_files(&self) -> Vec<(&'static str, PathBuf)> {
        let named = [
            ("codec", &self.codec),
            ("payload_file", &self.payload_file),
            ("frame_file", &self.frame_file),
        ];
        let given = named.into_iter();
        given
            .filter_map(|(key, path)| Some((key, path.clone()?)))
            .chain(step_files(
                PluginOptions::SCHEMES.section,
                self.journey_steps(),
            ))
            .collect()
    }

    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> Option<PluginCall> {
        if !self.journey_steps().is_empty() {
            let steps = self.journey_steps();
            let resolved = resolve_journey(problems, spec, self, steps, surroundings);
            let (journey, first) = resolved?;
            return Some(PluginCall {
                journey: Some(Box::new(journey)),
                ..first
            });
        }
        let before = problems.0.len();
        let codec = match &self.codec {
            Some(path) => path.clone(),
            None => {
                problems.add(
                    "call.plugin.codec",
                    "missing: name the shared object that implements the protocol, such as x_example.so",
                );
                return None;
            }
        };
        let given = [
            ("payload", self.payload.is_some()),
            ("payload_file", self.payload_file.is_some()),
            ("frame", self.frame.is_some()),
            ("frame_file", self.frame_file.is_some()),
        ];
        report_conflict(problems, "call.plugin", &given);
        problems.reject_template_fields("call.plugin.payload", self.payload.as_deref());
        let max_frame = self.max_frame.unwrap_or(DEFAULT_MAX_FRAME_SIZE).0;
        let most = ("max_frame", max_frame);
        framed::check_framed_keys(problems, "plugin", self.in_flight, self.heartbeat, most);
        if problems.0.len() > before {
            return None;
        }
        let found = if surroundings.may_run_code() {
            self.load_request(&codec, surroundings)
        } else {
            let name = codec.file_stem().unwrap_or_default();
            Ok((name.to_string_lossy().into_owned(), Vec::new()))
        };
        let (protocol, frame) = found.map_err(|problem| problems.0.push(problem)).ok()?;
        Some(PluginCall {
            codec,
            protocol,
            frame,
            in_flight: self.in_flight,
            heartbeat: self
                .heartbeat
                .map_or(Some(DEFAULT_HEARTBEAT_INTERVAL), OptionalPeriod::limit),
            max_frame: max_frame as usize,
            varying: None,
            journey: None,
        })
    }

    fn with_defaults(self, call: &PluginCall) -> PluginOptions {
        if call.journey.is_some() {
            // The calls of a journey are in its steps.
            return PluginOptions {
                deadline: None,
                ..self
            };
        }
        PluginOptions {
            heartbeat: Some(call.heartbeat.into()),
            max_frame: Some(ByteSize(call.max_frame as u64)),
            deadline: None,
            ..self
        }
    }
}

impl PluginOptions {
    /// Returns the steps of the journey; none if there is no journey.
    fn journey_steps(&self) -> &[StepSpec] {
        self.steps.as_deref().unwrap_or_default()
    }

    /// Loads the plugin. Returns the protocol's name, and a request that the plugin built or checked.
    fn load_request(
        &self,
        codec: &Path,
        surroundings: &dyn ResolveContext,
    ) -> Result<(String, Vec<u8>), Problem> {
        let wrong =
            |key: &str, problem: String| Problem::new(format!("call.plugin.{key}"), problem);
        let codec = Codec::load(codec).map_err(|e| {
            wrong("codec", e.to_string()).help("docs/plugin.md explains how to build a plugin")
        })?;
        let read = |key: &str, path: &Path| {
            let found = surroundings.read_bytes(path);
            found.map_err(|e| wrong(key, format!("can't read {}: {e}", path.display())))
        };
        let bytes;
        let (key, content) = if let Some(digits) = &self.frame {
            ("frame", RequestContent::Hex(digits))
        } else if let Some(path) = &self.frame_file {
            bytes = read("frame_file", path)?;
            ("frame_file", RequestContent::Frame(&bytes))
        } else if let Some(path) = &self.payload_file {
            bytes = read("payload_file", path)?;
            ("payload_file", RequestContent::Payload(&bytes))
        } else {
            let text = self.payload.as_deref().unwrap_or_default();
            ("payload", RequestContent::Payload(text.as_bytes()))
        };
        let frame = build_frame(&codec, content).map_err(|e| wrong(key, e.to_string()))?;
        Ok((codec.name().to_owned(), frame))
    }
}

impl ProtocolCommand for PluginFlags {
    const TARGET_HELP: &str =
        "plugin://HOST:PORT (plaintext), plugins://HOST:PORT (TLS), or unix:/PATH";
    type Section = PluginOptions;

    fn into_section(self, _: &mut Spec, _: EnvLookup<'_>) -> Result<PluginOptions, UsageError> {
        let mut options = self.options;
        (options.payload, options.payload_file) = split_text_or_file(options.payload.as_deref())?;
        (options.frame, options.frame_file) = split_text_or_file(options.frame.as_deref())?;
        Ok(options)
    }
}

impl ProtocolModule for PluginOptions {
    fn load<'a>(
        asked: PrepareRequest<'a>,
        call: &PluginCall,
    ) -> Result<PreparedLoad<'a>, PrepareError> {
        if let Some(journey) = &call.journey {
            return prepare_journey_load(asked.plan, journey);
        }
        let codec = Codec::load(&call.codec).map_err(|e| e.to_string())?;
        Ok(load_with_driver(asked, PluginProtocol::new(&codec, call)?))
    }
}
