//! `plimsoll bolt`: the quick form of a plan, for one SOFARPC or SOFABolt call.

use clap::Args;
use plimsoll_model::input;
use plimsoll_model::spec::{BoltSpec, CallSpec, Limit};
use plimsoll_model::units::Size;

use crate::arguments::{Origins, boolish};
use crate::environment::Environment;
use crate::execution::{OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::quick;

/// Without a service or a class, what load tools for SOFARPC are commonly tried with: the
/// echo of 1,098 characters, in a frame of 1.4 kB.
const SERVICE: &str = "com.alipay.test.TestService:1.0";
const METHOD: &str = "echoStr";
const ECHOED: usize = 1098;

/// Put load on a SOFARPC service, or on any SOFABolt server.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: 2000 calls a second over 200 connections for 10 s: the echo of 1,098 characters
  plimsoll bolt sofa://127.0.0.1:12200 -c 200 --rate 2000/s -z 10s
Example: a method with its argument; 200 clients, each waiting for its answer
  plimsoll bolt sofa://127.0.0.1:12200 --service peer.HelloService:1.0 -m sayHello -d '[\"world\"]' \\
      --fleet 200 -z 10s
Example: raw SOFABolt in version 2 with a checksum, over TLS
  plimsoll bolt sofas://127.0.0.1:12200 --ca certs/ca.crt --class java.lang.String --content '\"hello\"' \\
      --bolt-version v2-crc --rate 100/s -z 10s",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    /// sofa://HOST:PORT (plaintext), sofas://HOST:PORT (TLS 1.3), or unix:/PATH.
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    /// The service: interface:version [default: com.alipay.test.TestService:1.0].
    #[arg(long, env = "PLIMSOLL_SERVICE", help_heading = "Call")]
    service: Option<String>,

    /// Its method [default: echoStr].
    #[arg(short, long, env = "PLIMSOLL_METHOD", help_heading = "Call")]
    method: Option<String>,

    /// The arguments as a JSON array, or @FILE that holds it.
    #[arg(
        short,
        long,
        env = "PLIMSOLL_DATA",
        value_name = "JSON",
        help_heading = "Call"
    )]
    data: Option<String>,

    /// Java type of a parameter, one after another [default: as the arguments show].
    #[arg(
        long,
        env = "PLIMSOLL_SIGNATURE",
        value_name = "TYPE",
        help_heading = "Call"
    )]
    signature: Vec<String>,

    /// Instead of a service: the class of a raw content.
    #[arg(long, env = "PLIMSOLL_CLASS", help_heading = "Call", conflicts_with_all = ["service", "method", "data", "signature"])]
    class: Option<String>,

    /// The raw content as JSON, sent in Hessian, or @FILE whose bytes are sent as they are.
    #[arg(
        long,
        env = "PLIMSOLL_CONTENT",
        value_name = "JSON",
        requires = "class",
        help_heading = "Call"
    )]
    content: Option<String>,

    /// The codec byte of a raw content [default: 1, Hessian 2].
    #[arg(
        long,
        env = "PLIMSOLL_CODEC",
        value_name = "N",
        requires = "class",
        help_heading = "Call"
    )]
    codec: Option<u8>,

    /// An entry of the header map, 'name: value'; may be given again.
    #[arg(
        long,
        env = "PLIMSOLL_HEADER",
        value_name = "NAME: VALUE",
        help_heading = "Call"
    )]
    header: Vec<String>,

    /// The layout of frames: v1, v2 or v2-crc [default: v1].
    #[arg(
        long,
        env = "PLIMSOLL_BOLT_VERSION",
        value_name = "VERSION",
        help_heading = "Call"
    )]
    bolt_version: Option<String>,

    /// The call's timeout that is sent to the server, or "none" [default: the deadline].
    #[arg(
        long,
        env = "PLIMSOLL_TIMEOUT",
        value_name = "TIME",
        help_heading = "Call"
    )]
    timeout: Option<Limit>,

    /// Expect no answer: a call ends when it is sent.
    #[arg(long, env = "PLIMSOLL_ONEWAY", value_parser = boolish(), help_heading = "Call")]
    oneway: bool,

    /// Calls at once on one connection [default: no limit].
    #[arg(
        long,
        env = "PLIMSOLL_IN_FLIGHT",
        value_name = "N",
        help_heading = "Call"
    )]
    in_flight: Option<u32>,

    /// Silence after which a heartbeat is sent, or "none" [default: 15s].
    #[arg(
        long,
        env = "PLIMSOLL_HEARTBEAT",
        value_name = "TIME",
        help_heading = "Call"
    )]
    heartbeat: Option<Limit>,

    /// Larger answers fail with MESSAGE_TOO_LARGE [default: 16MiB].
    #[arg(
        long,
        env = "PLIMSOLL_MAX_CONTENT",
        value_name = "SIZE",
        help_heading = "Call"
    )]
    max_content: Option<Size>,

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
        bolt: Some(arguments.call()?),
        ..CallSpec::default()
    };
    let spec = quick::spec(arguments.target.as_deref(), call, &arguments.load, origins)?;
    quick::run(&spec, &arguments.output, environment, process)
}

impl Arguments {
    fn call(&self) -> Result<BoltSpec, Failure> {
        let mut call = BoltSpec {
            service: self.service.clone(),
            method: self.method.clone(),
            signature: Some(self.signature.clone()).filter(|types| !types.is_empty()),
            class: self.class.clone(),
            codec: self.codec,
            version: self.bolt_version.clone(),
            timeout: self.timeout,
            oneway: self.oneway.then_some(true),
            in_flight: self.in_flight,
            heartbeat: self.heartbeat,
            max_content: self.max_content,
            ..BoltSpec::default()
        };
        (call.content, call.content_file) = quick::text_or_file(self.content.as_deref())?;
        call.arguments = match quick::text_or_file(self.data.as_deref())? {
            (_, Some(path)) => Some(input::read_to_string(&path).map_err(|e| {
                Failure::usage(
                    format_args!("--data: can't read {}: {e}", path.display()),
                    "give the file that holds the JSON array, or the array itself",
                )
            })?),
            (json, None) => json,
        };
        if self.class.is_none() && self.service.is_none() && self.method.is_none() {
            call.service = Some(SERVICE.to_owned());
            call.method = Some(METHOD.to_owned());
            if call.arguments.is_none() {
                let text: String = "1234567890".chars().cycle().take(ECHOED).collect();
                call.arguments = Some(format!("[\"{text}\"]"));
            }
        }
        for typed in &self.header {
            let (name, value) = quick::named("--header", typed, "app: shop")?;
            call.header.insert(name.into(), value.into());
        }
        Ok(call)
    }
}
