//! Resolves the section of a step over a WebSocket to a call.

mod values;

use std::path::PathBuf;

use plimsoll_model::formats::units::ByteSize;
use plimsoll_model::plan::CallPlan;
use plimsoll_model::rows::template::{self, Template};
use plimsoll_model::spec::{
    CallIndependentValue, CallSection, MetadataSpec, Problem, Problems, ResolveContext, Spec,
    UrlSchemes, call_path,
};

use super::call::{AwaitedMessages, FrameContent, ReopeningRule, SocketStepCall};
use super::message_match::{MessageMatch, decode_bytes};
use super::protocol::SocketStepProtocol;
use super::section::{FrameBytesSpec, FramesSpec, MessageMatchSpec, SentFrameSpec, SocketStepSpec};
use crate::http::call::HttpCall;
use crate::http::journey::request_templates;
use crate::http::payload::{TemplateContext, parse_payload};
use crate::http::request::HttpRequest;
use crate::http::resolve::journey::with_all_parts_varying;
use crate::http::resolve::resolve_request;
use crate::http::section::HttpSpec;
use crate::interface::protocol_module::PrepareError;
use crate::journey::{
    CaptureRule, CaptureSource, MessageTypeSpec, SharedAnswerReader, StepCall, StepContext,
    StepScope, StepSection, describe_messages,
};
use crate::shared::backoff::Backoff;
use values::{check_subprotocol, resolve_token_number};

const SECTION: &str = "websocket";
const DEFAULT_MAX_MESSAGE: ByteSize = ByteSize(16 << 20);
const MAX_MESSAGE_LIMIT: ByteSize = ByteSize(u32::MAX as u64);
/// The first template slot of frames and messages. Lower slots belong to the path and the header fields.
const FIRST_MESSAGE_SLOT: u32 = 1 << 16;

impl CallSection for SocketStepSpec {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: SECTION,
        purpose: "for WebSockets",
        plain: "ws",
        secured: Some("wss"),
        aliases: None,
        foreign_schemes: &[],
        ports: Some((80, 443)),
        with_path: true,
    };
    type Call = SocketStepCall;

    fn resolve(
        &self,
        _spec: &Spec,
        problems: &mut Problems,
        _surroundings: &dyn ResolveContext,
    ) -> Option<SocketStepCall> {
        let key = format!("call.{SECTION}");
        problems.add(key, "only steps of a journey are written like this");
        None
    }

    fn input_files(&self) -> Vec<(&'static str, PathBuf)> {
        let frames = self.frames().iter();
        let files = frames.filter_map(|frame| match frame {
            SentFrameSpec::Text(_) => None,
            SentFrameSpec::Bytes(bytes) => bytes.file.clone(),
        });
        let described = self.protobuf.iter().flat_map(MessageTypeSpec::files);
        let described = described.map(|path| ("protobuf", path.clone()));
        files.map(|path| ("send", path)).chain(described).collect()
    }

    fn with_defaults(self, _call: &SocketStepCall) -> SocketStepSpec {
        self
    }
}

impl StepSection for SocketStepSpec {
    const TITLE: &'static str = "WebSocket";
    const FIELDS_KEY: &'static str = "headers";
    const CONTENT_KEYS: &'static [&'static str] = &[];
    const SHARED_KEYS: &'static [&'static str] = &[];
    const UNSUPPORTED_KEYS: &'static [&'static str] = &[];
    const TEMPLATE_KEYS: &'static [&'static str] = &[
        "path",
        "headers.*",
        "subprotocol",
        "send",
        "until",
        "until.equals",
        "error",
        "error.equals",
        "expect",
        "expect.equals",
        "tokens",
    ];

    fn resolve_step_call(
        &self,
        problems: &mut Problems,
        spec: &Spec,
        scope: &StepScope<'_>,
        surroundings: &dyn ResolveContext,
    ) -> Option<(SocketStepCall, bool)> {
        let before = problems.0.len();
        self.check_keys(problems, spec);
        let (upgrade, upgrade_uses_rows) =
            self.resolve_upgrade(problems, spec, scope, surroundings)?;
        let mut slots = FIRST_MESSAGE_SLOT;
        let mut texts = TemplateContext {
            slots: &mut slots,
            scope: scope.fields(),
            uses_rows: false,
            surroundings,
        };
        let subprotocols = self.resolve_subprotocols(problems, &mut texts);
        let frames = self.resolve_frames(problems, &mut texts);
        let until = self.resolve_until(problems, &mut texts);
        let message_type = self.resolve_message_type(problems);
        let mut resolve_match = |name: &str, typed: Option<&MessageMatchSpec>| {
            let resolved = typed.map(|typed| MessageMatch::resolve(typed, &mut texts));
            problems.ok_or_report(&problem_key(name), resolved.transpose())
        };
        let error = resolve_match("error", self.error.as_ref());
        let expect = resolve_match("expect", self.expect.as_ref());
        let uses_rows = upgrade_uses_rows || texts.uses_rows;
        let max_message = self.max_message.unwrap_or(DEFAULT_MAX_MESSAGE);
        if !(1..=MAX_MESSAGE_LIMIT.0).contains(&max_message.0) {
            let problem = format!("out of range: use 1B to {MAX_MESSAGE_LIMIT}");
            problems.add(problem_key("max_message"), problem);
        }
        let mut step = SocketStepCall {
            upgrade,
            opens: self.opens(),
            subprotocols,
            compressed: self.compressed.unwrap_or(false),
            max_message: max_message.0 as usize,
            reopening: self.reopening_rule(),
            frames,
            until: until?,
            error: error?,
            expect: expect?,
            message_type,
            closes: self.closes(),
        };
        resolve_paths(problems, &mut step);
        for (name, is_given) in [
            ("expect", step.expect.is_some()),
            ("error", step.error.is_some()),
            ("protobuf", step.message_type.is_some()),
        ] {
            if is_given && !step.awaits_message() {
                let problem = "the step awaits no message: write until, or leave it out";
                problems.add(problem_key(name), problem);
            }
        }
        (problems.0.len() == before).then_some((step, uses_rows))
    }

    fn used_name_indices(call: &SocketStepCall) -> Vec<usize> {
        let needed = request_templates(&call.upgrade)
            .chain(call.templates())
            .flat_map(Template::captured_indices);
        needed.map(usize::from).collect()
    }

    fn adapt_capture_rule(call: &SocketStepCall, take: &mut CaptureRule) -> Result<(), String> {
        match &mut take.source {
            CaptureSource::Header(..) | CaptureSource::Cookie(_) if !call.opens => Err(
                "only the answer to the upgrade has header fields and cookies: take it in the step with the path"
                    .to_owned(),
            ),
            CaptureSource::Pointer(_)
            | CaptureSource::Path(_)
            | CaptureSource::Regex(_)
            | CaptureSource::Bytes(_)
                if !call.awaits_message() =>
            {
                Err(
                    "the step awaits no message: write until, or take it in the step that does"
                        .to_owned(),
                )
            }
            CaptureSource::Pointer(tokens) => {
                if let Some(reader) = &call.message_type {
                    *tokens = reader.resolve_path(tokens)?;
                }
                Ok(())
            }
            CaptureSource::Bytes(_) if call.message_type.is_some() => Err(
                "binary messages of a described type are read as JSON: use a JSON Pointer such as /id"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    fn to_section_call(call: &CallPlan) -> CallPlan {
        // A plan whose target is a WebSocket has an HTTP section, so its call is the upgrade request.
        let own: Option<&SocketStepCall> = call.downcast_ref();
        own.map_or_else(|| call.clone(), |own| CallPlan::new(own.upgrade.clone()))
    }

    fn prepare(
        call: &SocketStepCall,
        context: &StepContext<'_>,
    ) -> Result<Box<dyn StepCall>, PrepareError> {
        let Some(varying) = &call.upgrade.varying else {
            return Err(PrepareError::Call("a step without templates".to_owned()));
        };
        let request = HttpRequest {
            call: &call.upgrade,
            authority: context.authority,
            closes: false,
        };
        let protocol = SocketStepProtocol::new(&request, call, &varying.variation, context);
        Ok(Box::new(protocol))
    }
}

/// Returns the bytes of a frame.
///
/// # Errors
/// Returns a message if no key or several are given, if the text can't be decoded, or if the file can't be read.
fn resolve_bytes(
    typed: &FrameBytesSpec,
    surroundings: &dyn ResolveContext,
) -> Result<Vec<u8>, String> {
    match (&typed.hex, &typed.base64, &typed.file) {
        (None, None, Some(path)) => {
            let read = surroundings.read_bytes(path);
            read.map_err(|e| format!("can't read {}: {e}", path.display()))
        }
        (hex, base64, None) => decode_bytes(hex.as_deref(), base64.as_deref()),
        _ => Err("write one of hex, base64 and file".to_owned()),
    }
}

/// Checks the paths of values in messages whose type is described.
fn resolve_paths(problems: &mut Problems, step: &mut SocketStepCall) {
    let Some(reader) = &step.message_type else {
        return;
    };
    let until = match &mut step.until {
        AwaitedMessages::Count(_) | AwaitedMessages::Tokens(_) => None,
        AwaitedMessages::Until(message) => Some(message),
    };
    for (name, message) in [
        ("until", until),
        ("error", step.error.as_mut()),
        ("expect", step.expect.as_mut()),
    ] {
        let resolved = message.map_or(Ok(()), |message| message.resolve_path(reader));
        problems.ok_or_report(&problem_key(name), resolved);
    }
}

/// Returns the key of a problem.
fn problem_key(name: &str) -> String {
    format!("call.{SECTION}.{name}")
}

impl SocketStepSpec {
    /// Reports keys that belong to other steps, and what is missing.
    fn check_keys(&self, problems: &mut Problems, spec: &Spec) {
        let of_upgrade = [
            ("headers", !self.headers.is_empty()),
            ("host", self.host.is_some()),
            ("subprotocol", self.subprotocol.is_some()),
            ("compressed", self.compressed.is_some()),
            ("max_message", self.max_message.is_some()),
            ("reconnects", self.reconnects.is_some()),
            ("reconnect_pause", self.reconnect_pause.is_some()),
            ("reconnect_pause_most", self.reconnect_pause_most.is_some()),
        ];
        let given = of_upgrade.iter().filter(|(_, is_given)| *is_given);
        for (name, _) in given.filter(|_| !self.opens()) {
            let problem =
                "belongs to the opening of the socket: write it in the step with the path";
            problems.add(problem_key(name), problem);
        }
        let pauses = [
            ("reconnect_pause", self.reconnect_pause.is_some()),
            ("reconnect_pause_most", self.reconnect_pause_most.is_some()),
        ];
        let given = pauses.iter().filter(|(_, is_given)| *is_given);
        let is_never = self.opens() && self.reconnects.is_none_or(|attempts| attempts == 0);
        for (name, _) in given.filter(|_| is_never) {
            let problem = "the socket is not opened again: write reconnects = 5, or leave it out";
            problems.add(problem_key(name), problem);
        }
        let in_url = spec.target.as_deref().and_then(call_path);
        if in_url.is_some_and(|path| path != "/") {
            problems.add(
                problem_key("target"),
                "has a path: write it as path, in the step that opens the socket",
            );
        }
        let own = |name: &&String| name.to_ascii_lowercase().starts_with("sec-websocket-");
        if let Some(name) = self.headers.keys().find(own) {
            problems.add(
                problem_key(&format!("headers.{name}")),
                "set by the WebSocket handshake itself: leave it out; write subprotocol and compressed",
            );
        }
        if matches!(&self.send, Some(FramesSpec::Several(frames)) if frames.is_empty()) {
            problems.add(problem_key("send"), "empty: write a frame, or leave it out");
        }
        if self.binary.is_some() && self.send.is_none() {
            problems.add(
                problem_key("binary"),
                "nothing is sent: write send, or leave it out",
            );
        }
        let judged_by_account = [
            ("until", self.until.is_some()),
            ("error", self.error.is_some()),
            ("expect", self.expect.is_some()),
        ];
        let given = judged_by_account.iter().filter(|(_, is_given)| *is_given);
        for (name, _) in given.filter(|_| self.tokens.is_some()) {
            let problem =
                "not used with tokens, which end with their `done`: leave one of them out";
            problems.add(problem_key(name), problem);
        }
        let awaits_none = matches!(self.until, Some(MessageMatchSpec::Messages(0)));
        if awaits_none && !self.opens() && !self.closes() && self.send.is_none() {
            problems.add(
                problem_key("until"),
                "0: the step does nothing; write path, send or close = true, or await a message",
            );
        }
    }

    /// Returns how the socket is opened again when it is lost; `None`: not at all.
    fn reopening_rule(&self) -> Option<ReopeningRule> {
        let default = Backoff::default();
        let max_attempts = self.reconnects.filter(|attempts| *attempts > 0)?;
        Some(ReopeningRule {
            max_attempts,
            backoff: Backoff {
                first: self.reconnect_pause.map_or(default.first, |pause| pause.0),
                max: self
                    .reconnect_pause_most
                    .map_or(default.max, |pause| pause.0),
            },
        })
    }

    /// Resolves the request that opens the socket. A step that opens no socket gets an unused request for `/`.
    fn resolve_upgrade(
        &self,
        problems: &mut Problems,
        spec: &Spec,
        scope: &StepScope<'_>,
        surroundings: &dyn ResolveContext,
    ) -> Option<(HttpCall, bool)> {
        let request = HttpSpec {
            path: Some(self.path.clone().unwrap_or_else(|| "/".to_owned())),
            headers: self.headers.clone(),
            host: self.host.clone(),
            ..HttpSpec::default()
        };
        let mut own = Problems::default();
        let without_path = Spec {
            target: None,
            traceparent: spec.traceparent.filter(|_| self.opens()),
            ..spec.clone()
        };
        let resolved = resolve_request(&mut own, &without_path, &request, scope, surroundings);
        let within = |problem: Problem| Problem {
            key: problem.key.replacen("call.http.", &problem_key(""), 1),
            ..problem
        };
        problems.0.extend(own.0.into_iter().map(within));
        let (call, uses_rows) = resolved?;
        Some((with_all_parts_varying(call, scope.variation), uses_rows))
    }

    /// Resolves the type of binary messages; `None` if it is not described, or if a problem was reported.
    fn resolve_message_type(&self, problems: &mut Problems) -> Option<SharedAnswerReader> {
        match describe_messages(self.protobuf.as_ref()?) {
            Ok(reader) => Some(reader),
            Err((key, problem)) => {
                problems.add(problem_key(&format!("protobuf.{key}")), problem);
                None
            }
        }
    }

    /// Resolves the subprotocols to offer.
    fn resolve_subprotocols(
        &self,
        problems: &mut Problems,
        texts: &mut TemplateContext<'_>,
    ) -> Vec<Template> {
        let key = problem_key("subprotocol");
        let mut names = Vec::new();
        for typed in self.subprotocol.iter().flat_map(MetadataSpec::values) {
            let text =
                match problems.resolve_call_independent_value(&key, typed, texts.surroundings) {
                    None => continue,
                    Some(CallIndependentValue::Constant(text)) => text,
                    Some(CallIndependentValue::Live(_)) => {
                        problems.add(
                            &*key,
                            "a command can't set it: write a name, or { env = \"NAME\" }",
                        );
                        continue;
                    }
                };
            // Commas separate names, as in the header field.
            for name in text.split(',').map(str::trim) {
                texts.uses_rows |= template::uses_rows(name);
                let parsed = Template::parse(name, texts.slots, texts.scope);
                let checked = parsed.and_then(check_subprotocol);
                names.extend(problems.ok_or_report(&key, checked));
            }
        }
        names
    }

    fn resolve_frames(
        &self,
        problems: &mut Problems,
        texts: &mut TemplateContext<'_>,
    ) -> Vec<FrameContent> {
        let is_binary = self.binary.unwrap_or(false);
        let frames = self.frames().iter().filter_map(|frame| match frame {
            SentFrameSpec::Text(text) => {
                let text = text.clone().into_bytes();
                let payload = parse_payload(problems, &problem_key("send"), text, texts)?;
                Some(FrameContent {
                    constant: payload.bytes,
                    varying: payload.varying,
                    is_binary,
                })
            }
            SentFrameSpec::Bytes(typed) => {
                let bytes = resolve_bytes(typed, texts.surroundings);
                Some(FrameContent {
                    constant: problems.ok_or_report(&problem_key("send"), bytes)?,
                    varying: None,
                    is_binary: true,
                })
            }
        });
        frames.collect()
    }

    fn resolve_until(
        &self,
        problems: &mut Problems,
        texts: &mut TemplateContext<'_>,
    ) -> Option<AwaitedMessages> {
        if let Some(tokens) = &self.tokens {
            let number = resolve_token_number(tokens, texts);
            let number = problems.ok_or_report(&problem_key("tokens"), number);
            return number.map(AwaitedMessages::Tokens);
        }
        match &self.until {
            None => {
                let awaits_one = self.send.is_some() || !self.opens() && !self.closes();
                Some(AwaitedMessages::Count(u32::from(awaits_one)))
            }
            Some(MessageMatchSpec::Messages(count)) => Some(AwaitedMessages::Count(*count)),
            Some(typed) => {
                let resolved = MessageMatch::resolve(typed, texts);
                problems
                    .ok_or_report(&problem_key("until"), resolved)
                    .map(AwaitedMessages::Until)
            }
        }
    }
}
