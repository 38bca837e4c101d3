//! The `[call.bolt]` section and the flags of `plimsoll bolt`: one SOFARPC or SOFABolt call.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::units::ByteSize;
use plimsoll_model::rows::template::{MetadataField, Template};
use plimsoll_model::runs::run::Run;
use plimsoll_model::spec::{
    CallIndependentValue, CallSection, MetadataSpec, OptionalPeriod, Problem, Problems,
    ResolveContext, Spec, UrlSchemes,
};
use plimsoll_model::{formats::input, rows::template};
use serde::{Deserialize, Serialize};

use super::call_encoding;
use super::frame::{DEFAULT_MAX_CONTENT_BYTES, codec};
use super::{BoltCall, BoltProtocol, FrameLayout, report};
use crate::framed;
use crate::interface::flags::{CredentialFlags, parse_map_entries};
use crate::interface::foreign::ForeignTool;
use crate::interface::protocol_module::{
    EnvLookup, PrepareError, PrepareRequest, PreparedLoad, ProtocolCommand, ProtocolModule,
    UsageError, load_with_driver, split_text_or_file,
};
use crate::journey::{
    StepSpec, change_fields, has_secured_target, keys_within, prepare_journey_load,
    resolve_journey, step_files,
};
use crate::shared::alternatives::report_conflict;

/// The default heartbeat interval, the same as in SOFABolt's own clients.
const DEFAULT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// The default call, if neither service nor class is given: an echo of 1,098 characters in a frame of 1.4 kB,
/// which load tools for SOFARPC commonly send.
const DEFAULT_SERVICE: &str = "com.alipay.test.TestService:1.0";
const DEFAULT_METHOD: &str = "echoStr";
const DEFAULT_ECHO_CHARS: usize = 1098;

const LAYOUT_NAMES: [(&str, FrameLayout); 3] = [
    ("v1", FrameLayout::V1),
    ("v2", FrameLayout::V2),
    ("v2-crc", FrameLayout::V2_CRC),
];

/// One kind of call over Bolt: a method of a service, or raw class and content.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[command(next_help_heading = "Call")]
#[serde(deny_unknown_fields, default)]
pub struct BoltOptions {
    /// The service: interface:version [default: com.alipay.test.TestService:1.0].
    #[arg(long)]
    pub service: Option<String>,

    /// The service's method [default: echoStr].
    #[arg(short, long)]
    pub method: Option<String>,

    /// The arguments as the text of a JSON array.
    #[arg(
        help = "The arguments as a JSON array, or @FILE that holds it",
        short = 'd',
        long = "data",
        value_name = "JSON"
    )]
    pub arguments: Option<String>,

    /// Java type of a parameter; repeatable, in order [default: derived from the arguments].
    #[arg(long, value_name = "TYPE")]
    pub signature: Option<Vec<String>>,

    /// Instead of a service: the class of raw content.
    #[arg(long, conflicts_with_all = ["service", "method", "arguments", "signature"])]
    pub class: Option<String>,

    /// The raw content as JSON text, sent in Hessian.
    #[arg(
        help = "The raw content as JSON, sent in Hessian, or @FILE whose bytes are sent as they are",
        long,
        value_name = "JSON",
        requires = "class"
    )]
    pub content: Option<String>,

    /// A file whose bytes are the raw content.
    #[arg(skip)]
    pub content_file: Option<PathBuf>,

    /// The codec byte of raw content [default: 1, Hessian 2].
    #[arg(long, value_name = "N", requires = "class")]
    pub codec: Option<u8>,

    /// Entries of the header map, in addition to those that a service and method need.
    #[arg(skip)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub header: BTreeMap<String, MetadataSpec>,

    /// The layout of frames: v1, v2 or v2-crc [default: v1].
    #[arg(id = "bolt_version", long = "bolt-version", value_name = "VERSION")]
    pub version: Option<String>,

    /// The call's timeout, as sent to the server, or "none" [default: the deadline].
    #[arg(long, value_name = "TIME", value_parser = OptionalPeriod::parse_seconds)]
    pub timeout: Option<OptionalPeriod>,

    /// Expect no answer: a call ends once it is sent.
    #[arg(long)]
    pub oneway: bool,

    /// Maximum calls in flight on one connection [default: no limit].
    #[arg(long, value_name = "N")]
    pub in_flight: Option<u32>,

    /// Idle time after which a heartbeat is sent, or "none" [default: 15s].
    #[arg(long, value_name = "TIME", value_parser = OptionalPeriod::parse_seconds)]
    pub heartbeat: Option<OptionalPeriod>,

    /// Larger answers fail with MESSAGE_TOO_LARGE [default: 16MiB].
    #[arg(long, value_name = "SIZE")]
    pub max_content: Option<ByteSize>,

    /// The call's deadline, or "none". Default 10s.
    #[arg(skip)]
    pub deadline: Option<OptionalPeriod>,

    /// The steps of a journey, which plans write as `[[steps]]`: calls that each user makes one after another, and
    /// whose answers give values to later ones. The other keys here are their defaults.
    #[arg(skip)]
    pub steps: Option<Vec<StepSpec>>,
}

/// Load-test a SOFARPC service, or any SOFABolt server.
#[derive(Args, Debug)]
#[command(before_help = "\
Example: 2000 calls a second over 200 connections for 10 s: the echo of 1,098 characters
  plimsoll bolt sofa://127.0.0.1:12200 -c 200 --rate 2000/s -z 10s
Example: a method with its argument; 200 clients, each waiting for its answer
  plimsoll bolt sofa://127.0.0.1:12200 --service peer.HelloService:1.0 -m sayHello -d '[\"world\"]' \\
      --fleet 200 -z 10s
Example: raw SOFABolt in version 2 with a checksum, over TLS
  plimsoll bolt sofas://127.0.0.1:12200 --ca certs/ca.crt --class java.lang.String --content '\"hello\"' \\
      --bolt-version v2-crc --rate 100/s -z 10s")]
pub struct BoltFlags {
    #[command(flatten)]
    options: BoltOptions,

    /// An entry of the header map, 'name: value'; a value $NAME is taken from the environment; repeatable.
    #[arg(
        id = "header",
        long = "header",
        value_name = "NAME: VALUE",
        help_heading = "Call"
    )]
    header: Vec<String>,

    #[command(flatten)]
    credentials: CredentialFlags,
}

impl CallSection for BoltOptions {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: "bolt",
        plain: "sofa",
        secured: Some("sofas"),
        aliases: None,
        purpose: "for SOFARPC",
        foreign_schemes: &[("sofarpc", "sofa"), ("bolt", "sofa")],
        ports: None,
        with_path: false,
    };
    type Call = BoltCall;

    fn nested_keys(path: &str) -> Option<&'static [&'static str]> {
        if path.split('.').next() == Some("steps") {
            return keys_within::<BoltOptions>(path);
        }
        path.starts_with("header.").then(MetadataSpec::keys)
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

    fn fields(&mut self) -> Option<&mut BTreeMap<String, MetadataSpec>> {
        Some(&mut self.header)
    }

    fn input_files(&self) -> Vec<(&'static str, PathBuf)> {
        let content = self.content_file.iter();
        let content = content.map(|path| ("content_file", path.clone()));
        content
            .chain(step_files(
                BoltOptions::SCHEMES.section,
                self.journey_steps(),
            ))
            .collect()
    }

    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> Option<BoltCall> {
        if !self.journey_steps().is_empty() {
            let steps = self.journey_steps();
            let resolved = resolve_journey(problems, spec, self, steps, surroundings);
            let (journey, first) = resolved?;
            return Some(BoltCall {
                journey: Some(Box::new(journey)),
                ..first
            });
        }
        let before = problems.0.len();
        let form = match self.version.as_deref() {
            None => FrameLayout::V1,
            Some(typed) => {
                let known = LAYOUT_NAMES.iter().find(|(name, _)| *name == typed);
                if known.is_none() {
                    problems.add(
                        "call.bolt.version",
                        format!("`{typed}` is unknown: use \"v1\", \"v2\" or \"v2-crc\""),
                    );
                }
                known.map_or(FrameLayout::V1, |(_, version)| *version)
            }
        };
        let max_content = self
            .max_content
            .map_or(DEFAULT_MAX_CONTENT_BYTES as u64, |most| most.0);
        let most = ("max_content", max_content);
        framed::check_framed_keys(problems, "bolt", self.in_flight, self.heartbeat, most);
        if self.timeout.is_some_and(OptionalPeriod::is_zero) {
            problems.add(
                "call.bolt.timeout",
                "a timeout of 0 disables the timeout on some servers and expires at once on \
                 others: use a duration, or \"none\"",
            );
        }
        self.check_exclusive_keys(problems);
        self.reject_template_fields(problems);
        let (constant, live) = self.resolve_header_entries(problems, surroundings);
        if problems.0.len() > before {
            return None;
        }
        let typed = self.encode_call(&constant, surroundings);
        let typed = typed.map_err(|problem| problems.0.push(problem)).ok()?;
        Some(BoltCall {
            layout: form,
            codec: self.codec.unwrap_or(codec::HESSIAN2),
            constant,
            live,
            timeout: self
                .timeout
                .map_or_else(|| spec.deadline(), OptionalPeriod::limit),
            oneway: self.oneway,
            in_flight: self.in_flight,
            heartbeat: self
                .heartbeat
                .map_or(Some(DEFAULT_HEARTBEAT_INTERVAL), OptionalPeriod::limit),
            max_content: max_content as usize,
            ..typed
        })
    }

    fn with_defaults(self, call: &BoltCall) -> BoltOptions {
        if call.journey.is_some() {
            // The calls of a journey are in its steps.
            return BoltOptions {
                deadline: None,
                ..self
            };
        }
        let version = LAYOUT_NAMES.iter().find(|(_, form)| *form == call.layout);
        BoltOptions {
            version: version.map(|(name, _)| (*name).to_owned()),
            timeout: Some(call.timeout.into()),
            heartbeat: Some(call.heartbeat.into()),
            max_content: Some(ByteSize(call.max_content as u64)),
            deadline: None,
            ..self
        }
    }
}

impl BoltOptions {
    /// Returns the steps of the journey; none if there is no journey.
    fn journey_steps(&self) -> &[StepSpec] {
        self.steps.as_deref().unwrap_or_default()
    }

    /// Returns true if the call is given as raw class and content.
    fn is_raw_call(&self) -> bool {
        self.class.is_some() || self.content.is_some() || self.content_file.is_some()
    }

    /// Returns the entries of the header map: constant entries, and live entries, whose values are printed by
    /// commands during the run.
    fn resolve_header_entries(
        &self,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> (Vec<(String, String)>, Vec<MetadataField>) {
        let (mut constant, mut live) = (Vec::new(), Vec::new());
        for (name, value) in &self.header {
            let key = format!("call.bolt.header.{name}");
            match problems.resolve_call_independent_value(&key, value, surroundings) {
                Some(CallIndependentValue::Constant(value)) => constant.push((name.clone(), value)),
                Some(CallIndependentValue::Live(value)) => live.push(MetadataField {
                    name: name.clone(),
                    typed: String::new(),
                    template: Template::from_command_output(value),
                }),
                None => {}
            }
        }
        (constant, live)
    }

    /// Encodes class, header map and content for a frame.
    fn encode_call(
        &self,
        header: &[(String, String)],
        surroundings: &dyn ResolveContext,
    ) -> Result<BoltCall, Problem> {
        let wrong = |key: &str| {
            let key = format!("call.bolt.{key}");
            move |problem: String| Problem::new(key, problem)
        };
        let extra = header.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let Some(class) = &self.class else {
            return call_encoding::encode_service_call(
                self.service.as_deref().unwrap_or_default(),
                self.method.as_deref().unwrap_or_default(),
                self.arguments.as_deref().unwrap_or("[]"),
                self.signature.as_deref(),
                extra,
            )
            .map_err(|(key, problem)| wrong(key)(problem));
        };
        let content = match (&self.content, &self.content_file) {
            (Some(json), _) => call_encoding::encode_content(json).map_err(wrong("content"))?,
            (None, Some(path)) => surroundings.read_bytes(path).map_err(|e| {
                wrong("content_file")(format!("can't read {}: {e}", path.display()))
            })?,
            (None, None) => Vec::new(),
        };
        Ok(call_encoding::raw_call(class, content, extra))
    }

    /// Rejects template fields such as `{{seq}}`: Bolt calls are constant, and the braces would be sent
    /// literally without an error.
    fn reject_template_fields(&self, problems: &mut Problems) {
        let header = self.header.iter().map(|(name, value)| {
            let typed = match value {
                MetadataSpec::Text(text) => Some(text),
                _ => None,
            };
            (format!("header.{name}"), typed)
        });
        let parts = [
            ("arguments".to_owned(), self.arguments.as_ref()),
            ("content".to_owned(), self.content.as_ref()),
        ];
        for (key, text) in parts.into_iter().chain(header) {
            if let Some(field) = text.and_then(|text| template::first_field(text)) {
                problems.add(
                    format!("call.bolt.{key}"),
                    format!("`{field}`: fields are not supported, as every Bolt call sends the same bytes"),
                );
            }
        }
    }

    /// Checks that the call is given either by service and method or by class and content, not by a mixture.
    fn check_exclusive_keys(&self, problems: &mut Problems) {
        if self.is_raw_call() {
            for (key, given) in [
                ("service", self.service.is_some()),
                ("method", self.method.is_some()),
                ("arguments", self.arguments.is_some()),
                ("signature", self.signature.is_some()),
            ] {
                if given {
                    problems.add(
                        format!("call.bolt.{key}"),
                        "can't be combined with a raw class or content: use either service and method, or class and content",
                    );
                }
            }
            if self.class.is_none() {
                problems.add(
                    "call.bolt.class",
                    "missing: a raw content needs its class, such as java.lang.String",
                );
            }
            let contents = [
                ("content", self.content.is_some()),
                ("content_file", self.content_file.is_some()),
            ];
            if !report_conflict(problems, "call.bolt", &contents)
                && contents.iter().all(|(_, is)| !is)
            {
                problems.add(
                    "call.bolt.content",
                    "missing: a raw call needs content (JSON) or content_file",
                );
            }
            return;
        }
        if self.service.is_none() {
            problems.add(
                "call.bolt.service",
                "missing: write interface:version, such as com.alipay.test.TestService:1.0",
            );
        }
        if self.method.is_none() {
            problems.add(
                "call.bolt.method",
                "missing: write the method's name, such as echoStr",
            );
        }
        if self.codec.is_some() {
            problems.add(
                "call.bolt.codec",
                "only for raw calls: service and method are sent in Hessian 2",
            );
        }
    }
}

impl ProtocolCommand for BoltFlags {
    const TARGET_HELP: &str =
        "sofa://HOST:PORT (plaintext), sofas://HOST:PORT (TLS), or unix:/PATH";
    type Section = BoltOptions;
    const FOREIGN_TOOL: Option<&ForeignTool> = Some(&ForeignTool {
        name: "sofaload",
        protocol: "sofarpc",
        number_flags: &[("-D", "--duration", "s")],
        threads_flag: "-t",
    });

    fn into_section(self, _: &mut Spec, _: EnvLookup<'_>) -> Result<BoltOptions, UsageError> {
        let mut call = self.options;
        (call.content, call.content_file) = split_text_or_file(call.content.as_deref())?;
        call.arguments = match split_text_or_file(call.arguments.as_deref())? {
            (_, Some(path)) => Some(input::read_to_string(&path).map_err(|e| UsageError {
                message: format!("--data: can't read {}: {e}", path.display()),
                help: "give the file that holds the JSON array, or the array itself".to_owned(),
            })?),
            (json, None) => json,
        };
        if call.class.is_none() && call.service.is_none() && call.method.is_none() {
            call.service = Some(DEFAULT_SERVICE.to_owned());
            call.method = Some(DEFAULT_METHOD.to_owned());
            if call.arguments.is_none() {
                let text: String = "1234567890"
                    .chars()
                    .cycle()
                    .take(DEFAULT_ECHO_CHARS)
                    .collect();
                call.arguments = Some(format!("[\"{text}\"]"));
            }
        }
        call.header = parse_map_entries("--header", &self.header)?;
        self.credentials.add_to(&mut call.header)?;
        Ok(call)
    }
}

impl ProtocolModule for BoltOptions {
    fn load<'a>(
        asked: PrepareRequest<'a>,
        call: &BoltCall,
    ) -> Result<PreparedLoad<'a>, PrepareError> {
        if let Some(journey) = &call.journey {
            return prepare_journey_load(asked.plan, journey);
        }
        Ok(load_with_driver(asked, BoltProtocol::new(call)?))
    }

    fn report_footer(run: &Run) -> String {
        report::render(run)
    }
}
