//! Resolves `[call.grpc]` to a call with all defaults, and writes the resolved section back to the plan.

mod journey;
mod keys;

#[cfg(all(feature = "schema", feature = "targets"))]
use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_model::Outcome;
use plimsoll_model::formats::units::{ByteSize, Period};
#[cfg(all(feature = "schema", feature = "targets"))]
use plimsoll_model::plan::ForwardProxy;
use plimsoll_model::rows::template::{self, FieldScope, VaryingMessages};
#[cfg(all(feature = "schema", feature = "targets"))]
use plimsoll_model::rows::template::{RowOrder, VariationSettings};
use plimsoll_model::spec::{
    CallSection, DEFAULT_DEADLINE, FieldNameRules, LoadSpec, MetadataSpec, OptionalPeriod,
    PlanRows, Problem, Problems, ProxiedCalls, ResolveContext, Spec, UrlSchemes, WireFormat,
};

use self::keys::{check_keys, check_stream_duration, read_message};
use super::binary::{BinarySource, BinarySpec};
use super::call::{
    EncodedMethod, GrpcCall, MessageCompression, MethodKind, PlanMessages, StreamPace, StreamPlan,
};
use super::driver::GrpcProtocol;
#[cfg(feature = "schema")]
use super::encoding::encode;
use super::request::GrpcRequest;
use super::section::{GrpcSpec, MessageSpec};
use crate::http2::{DEFAULT_MAX_HEAD, NOT_HTTP2};
#[cfg(all(feature = "schema", feature = "targets"))]
use crate::interface::protocol_module::ServerUnreachable;
use crate::interface::protocol_module::{
    LocalFolder, PrepareError, PrepareRequest, PreparedLoad, ProtocolModule, load_with_driver,
    random_trace_ids,
};
use crate::journey::{
    StepScope, change_fields, has_secured_target, keys_within, prepare_journey_load,
    resolve_journey, step_files,
};

impl ProtocolModule for GrpcSpec {
    fn load<'a>(
        asked: PrepareRequest<'a>,
        call: &GrpcCall,
    ) -> Result<PreparedLoad<'a>, PrepareError> {
        let plan = asked.plan;
        let authority = plan.target.authority();
        let request = GrpcRequest {
            call,
            authority: &authority,
            secure: plan.tls.is_some(),
            deadline: plan.load.deadline,
        };
        if let Some(journey) = &call.journey {
            return prepare_journey_load(plan, journey);
        }
        Ok(load_with_driver(asked, GrpcProtocol::new(&request)?))
    }

    #[cfg(all(feature = "schema", feature = "targets"))]
    fn query_server(
        question: &mut dyn Any,
        spec: &Spec,
        proxy: Option<&ForwardProxy>,
    ) -> Option<ServerUnreachable> {
        super::server_query::run_reflection_query(question.downcast_mut()?, spec, proxy)
    }

    fn connect_advice(_: &GrpcCall, outcome: Outcome) -> Option<&'static str> {
        connect_advice(outcome)
    }

    fn local_folder(&self) -> Option<LocalFolder> {
        self.import_path.as_ref().map(|_| LocalFolder {
            key: "call.grpc.import_path",
            help: "compile the files to a descriptor set: protoc --include_imports --descriptor_set_out=calls.pb; \
                   then write descriptor_set = \"calls.pb\"",
        })
    }
}

/// Returns gRPC's advice to print when no connection could be established.
pub(crate) fn connect_advice(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::TlsAlpn => Some(
            "the server must offer HTTP/2 (h2) by ALPN: are host and port those of the right server?",
        ),
        NOT_HTTP2 => Some("is it a gRPC server? If it speaks TLS, write the target with {secured}"),
        _ => None,
    }
}

/// The rules for the names of metadata.
const METADATA_NAME_RULES: FieldNameRules = FieldNameRules {
    key: "call.grpc.metadata",
    binary: true,
    check: check_metadata_name,
};

fn check_metadata_name(name: &str) -> Result<(), &'static str> {
    let is_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.".contains(&b);
    if name.is_empty() || !name.bytes().all(is_name) {
        return Err("not a metadata name: use a-z, 0-9, `_`, `-` and `.`");
    }
    if name == "user-agent" {
        return Err("has a key of its own: write call.grpc.user_agent");
    }
    if name == "grpc-timeout" {
        return Err("is the call's deadline: write load.deadline");
    }
    let own = [
        "te",
        "content-type",
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
    ];
    if name.starts_with("grpc-") || own.contains(&name) {
        return Err("set by gRPC itself: remove it");
    }
    Ok(())
}

/// Resolves the metadata of `call`, in order, with `-bin` values in base64. Varying entries have the values of the
/// first call.
///
/// # Errors
/// Returns an error for every entry that is invalid, or whose variable or file does not exist. Template fields for
/// columns of rows are errors, too, because no rows have been read.
#[cfg(all(feature = "schema", feature = "targets"))]
pub(super) fn resolve_metadata(
    call: &GrpcSpec,
    surroundings: &dyn ResolveContext,
) -> Result<Vec<(String, String)>, Vec<Problem>> {
    let mut problems = Problems::default();
    let metadata = problems.resolve_metadata(
        &METADATA_NAME_RULES,
        &call.metadata,
        PlanRows::Nothing,
        surroundings,
    );
    if problems.0.is_empty() {
        let fields =
            metadata.into_request_fields(&VariationSettings::new(1, 1, 0, RowOrder::default()));
        Ok(fields.for_call(0, 0))
    } else {
        Err(problems.0)
    }
}

impl CallSection for GrpcSpec {
    const SCHEMES: UrlSchemes = UrlSchemes {
        section: "grpc",
        purpose: "for gRPC",
        plain: "grpc",
        secured: Some("grpcs"),
        aliases: None,
        foreign_schemes: &[],
        ports: None,
        with_path: false,
    };
    const SUPPORTS_ROWS: bool = true;
    const SUPPORTS_TRACEPARENT: bool = true;
    const BINARY_NAME_SUFFIX: Option<(&'static str, &'static str)> =
        Some(("-bin", "names that end in -bin are gRPC's: use another"));
    type Call = GrpcCall;

    fn nested_keys(path: &str) -> Option<&'static [&'static str]> {
        match path {
            "message_binary" => Some(BinarySource::keys()),
            path if path.split('.').next() == Some("steps") => keys_within::<GrpcSpec>(path),
            path => path.starts_with("metadata.").then(MetadataSpec::keys),
        }
    }

    fn fields(&mut self) -> Option<&mut BTreeMap<String, MetadataSpec>> {
        Some(&mut self.metadata)
    }

    fn change_nested_fields(&mut self, change: &dyn Fn(&str, &mut MetadataSpec)) {
        change_fields(self.steps.as_deref_mut().unwrap_or_default(), change);
    }

    fn uses_tls(&self, spec: &Spec) -> bool {
        has_secured_target(self.journey_steps().unwrap_or_default(), spec)
    }

    fn calls_per_user(&self) -> Option<u32> {
        // A journey counts as one call, because its number of calls varies.
        self.journey_steps().map(|_| 1)
    }

    fn proxied_calls(&self, _: &Spec) -> ProxiedCalls {
        WireFormat::Http2Trailers.into()
    }

    fn input_files(&self) -> Vec<(&'static str, PathBuf)> {
        let given = [
            ("descriptor_set", &self.descriptor_set),
            ("message_file", &self.message_file),
        ];
        let given = given.into_iter();
        let given = given.filter_map(|(key, path)| Some((key, path.as_ref()?)));
        let protos = self.proto.iter().flatten().map(|path| ("proto", path));
        let sources = self.message_binary.iter().flat_map(|binary| &binary.0);
        let binary = sources.filter_map(|source| match source {
            BinarySource::File(path) | BinarySource::Delimited(path) => {
                Some(("message_binary", path))
            }
            BinarySource::Base64(_) => None,
        });
        let all = given.chain(protos).chain(binary);
        let all = all.map(|(key, path)| (key, path.clone()));
        let steps = self.journey_steps().unwrap_or_default();
        all.chain(step_files(GrpcSpec::SCHEMES.section, steps))
            .collect()
    }

    /// Sets the deadline of a stream with a planned duration to that duration plus the default deadline.
    fn apply_defaults(&self, load: &mut LoadSpec) {
        if let (Some(lasts), None) = (self.stream_duration, self.deadline) {
            let deadline = OptionalPeriod::After(Period(lasts.0 + DEFAULT_DEADLINE));
            load.deadline.get_or_insert(deadline);
        }
    }

    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn ResolveContext,
    ) -> Option<GrpcCall> {
        match self.journey_steps() {
            Some(steps) => {
                let resolved = resolve_journey(problems, spec, self, steps, surroundings);
                let (journey, first) = resolved?;
                let journey = Some(Box::new(journey));
                Some(GrpcCall { journey, ..first })
            }
            None => resolve_call(problems, spec, self, surroundings),
        }
    }

    /// Adds the default maximum size of response metadata, which plans of older versions do not contain.
    fn into_canonical(mut self) -> GrpcSpec {
        self.max_head.get_or_insert(DEFAULT_MAX_HEAD);
        self
    }

    fn with_defaults(mut self, call: &GrpcCall) -> GrpcSpec {
        // The deadline is written to the section `[load]` instead.
        self.deadline = None;
        if call.journey.is_some() {
            // The calls of a journey are described by its steps, so the section's own keys stay unchanged.
            return self;
        }
        self.method = Some(call.method.clone());
        // The messages themselves are recorded instead of files, so that the plan stays the same when a file changes.
        (self.message, self.message_file, self.message_binary) = (None, None, None);
        match &call.plan_messages {
            PlanMessages::EmptyMessage => {}
            PlanMessages::Json(text) => self.message = Some(MessageSpec(text.clone())),
            PlanMessages::Binary(messages) => {
                let each = messages
                    .iter()
                    .map(|m| BinarySource::from_message(&m.bytes));
                self.message_binary = Some(BinarySpec(each.collect()));
            }
        }
        if let Some(stream) = call
            .stream
            .as_ref()
            .filter(|s| s.kind.is_client_streaming())
        {
            self.messages = Some(stream.count);
            self.pace = Some(stream.pace);
        }
        self.compression = Some(match call.compression {
            None => "none".to_owned(),
            Some(MessageCompression::Gzip) => "gzip".to_owned(),
        });
        self.max_message = Some(ByteSize(call.max_message as u64));
        self.max_head = Some(ByteSize(call.max_head.into()));
        self
    }
}

fn resolve_call(
    problems: &mut Problems,
    spec: &Spec,
    call: &GrpcSpec,
    surroundings: &dyn ResolveContext,
) -> Option<GrpcCall> {
    let rows = problems.resolve_rows(spec, surroundings);
    let variation = problems.resolve_variation(spec, rows.as_ref());
    let scope = StepScope {
        rows: rows.as_ref(),
        metadata: PlanRows::from_spec(rows.as_ref(), spec).into(),
        variation: &variation,
    };
    let (resolved, uses_rows) = resolve_step_call(problems, spec, call, &scope, surroundings)?;
    if spec.rows.is_some() && !uses_rows {
        problems.add(
            "rows",
            "not used by any message or metadata: write {{row.NAME}} where a column belongs",
        );
    }
    Some(resolved)
}

/// Resolves one call, which may be a step of a journey, and returns whether it uses rows.
fn resolve_step_call(
    problems: &mut Problems,
    spec: &Spec,
    call: &GrpcSpec,
    scope: &StepScope<'_>,
    surroundings: &dyn ResolveContext,
) -> Option<(GrpcCall, bool)> {
    let rows = scope.rows;
    let fields = FieldScope {
        rows,
        captured: scope.metadata.taken,
    };
    let mut metadata = problems.resolve_metadata(
        &METADATA_NAME_RULES,
        &call.metadata,
        scope.metadata,
        surroundings,
    );
    problems.add_traceparent(&METADATA_NAME_RULES, spec, &mut metadata);
    let limits = check_keys(problems, call);
    check_stream_duration(problems, spec, call);
    let Some(method) = &call.method else {
        problems.add("call.grpc.method", "missing: write package.Service/Method");
        return None;
    };
    let given = read_message(problems, call, surroundings)?;
    if spec.rows.is_some() && rows.is_none() {
        return None;
    }
    let uses_rows = matches!(&given, PlanMessages::Json(text) if template::uses_rows(text));
    let uses_rows = uses_rows || metadata.uses_rows;
    let variation = scope.variation.clone();
    let of_question = variation.clone().with_trace_ids(random_trace_ids());
    // Removes entries that need captured values: the query for the schema is sent before any call.
    let mut known = metadata.clone();
    known
        .varying
        .retain(|field| field.template.captured_indices().next().is_none());
    let first = known.into_request_fields(&of_question).for_call(0, 0);
    let metadata = metadata.into_request_fields(&variation);
    let asked = (&given, fields, first.as_slice());
    let url = spec.target.as_deref().unwrap_or_default();
    let encoded = encode((call, url), method, asked, surroundings);
    let encoded = encoded.map_err(|problem| problems.0.push(problem)).ok()?;
    let stream = resolve_stream(problems, call, &encoded);
    let resolved = GrpcCall {
        method: encoded.method,
        message: match encoded.kind {
            MethodKind::Unary => encoded.messages.into_iter().next().unwrap_or_default(),
            _ => Vec::new(),
        },
        stream,
        varying: (!encoded.varying.is_empty()).then(|| VaryingMessages {
            variation,
            messages: encoded.varying,
        }),
        plan_messages: given,
        metadata: metadata.constant,
        varying_metadata: metadata.varying,
        authority: call.authority.clone(),
        user_agent: call.user_agent.clone(),
        compression: limits.compression,
        max_message: limits.max_message,
        max_head: limits.max_head,
        answer_shapes: encoded.answer_shapes,
        answer_schema: encoded.answer_schema,
        varying_answer: None,
        journey: None,
    };
    Some((resolved, uses_rows))
}

/// Resolves the plan of a streaming call; `None`: the call is unary.
fn resolve_stream(
    problems: &mut Problems,
    call: &GrpcSpec,
    encoded: &EncodedMethod,
) -> Option<StreamPlan> {
    let kind = encoded.kind;
    let requests = (kind.is_client_streaming(), "streams of requests");
    let answers = (kind.is_server_streaming(), "streams of answers");
    let either = (kind != MethodKind::Unary, "streams");
    for (key, given, (fits, what)) in [
        ("messages", call.messages.is_some(), requests),
        ("pace", call.pace.is_some(), requests),
        ("expect", call.expect.is_some(), answers),
        ("cancel_after", call.cancel_after.is_some(), either),
        ("stream_duration", call.stream_duration.is_some(), either),
    ] {
        if given && !fits {
            problems.add(
                format!("call.grpc.{key}"),
                format!("only for {what}, but {} is {kind}", encoded.method),
            );
        }
    }
    if kind == MethodKind::Unary {
        return None;
    }
    let pace = match call.pace {
        Some(StreamPace::Answers) if kind != MethodKind::Bidirectional => {
            problems.add(
                "call.grpc.pace",
                format!(
                    "\"answers\" needs responses while the client still sends, but {} is {kind}",
                    encoded.method
                ),
            );
            StreamPace::None
        }
        Some(StreamPace::Every(gap)) if gap.is_zero() => StreamPace::None,
        pace => pace.unwrap_or(StreamPace::None),
    };
    let count = if kind.is_client_streaming() {
        call.messages.unwrap_or(encoded.messages.len() as u32)
    } else {
        1
    };
    if count > 0 && encoded.messages.is_empty() {
        problems.add(
            "call.grpc.messages",
            format!("{count} messages to send, but the list of messages is empty"),
        );
    }
    Some(StreamPlan {
        kind,
        messages: encoded.messages.clone(),
        count,
        pace,
        expect: call.expect,
        cancel_after: call.cancel_after,
        duration: call.stream_duration.map(|period| period.0),
    })
}

/// Returns an error, because this build lacks the feature `schema`.
///
/// # Errors
/// Always returns the problem that the method can't be looked up.
#[cfg(not(feature = "schema"))]
fn encode(
    _: (&GrpcSpec, &str),
    method: &str,
    _: (&PlanMessages, FieldScope<'_>, &[(String, String)]),
    _: &dyn ResolveContext,
) -> Result<EncodedMethod, Problem> {
    let problem = format!("{method} can't be looked up here");
    Err(Problem::new("call.grpc.method", problem))
}

#[cfg(all(test, feature = "schema"))]
mod tests;
