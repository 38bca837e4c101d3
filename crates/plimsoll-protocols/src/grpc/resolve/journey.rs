//! gRPC calls as the steps of a journey.

use plimsoll_model::rows::template::{self, Template};
use plimsoll_model::spec::{Problems, ResolveContext, Spec};
use serde_json::Value;

use super::resolve_step_call;
use crate::grpc::call::{GrpcCall, VaryingAnswer};
use crate::grpc::driver::GrpcProtocol;
use crate::grpc::request::GrpcRequest;
use crate::grpc::section::GrpcSpec;
use crate::http::{TemplateContext, parse_payload};
use crate::interface::protocol_module::PrepareError;
use crate::journey::{
    CaptureRule, CaptureSource, ConnectionSecurity, SharedAnswerReader, StepCall, StepContext,
    StepScope, StepSection,
};

const EXPECTATION_KEY: &str = "call.grpc.expect_message";

impl StepSection for GrpcSpec {
    const TITLE: &'static str = "gRPC";
    const FIELDS_KEY: &'static str = "metadata";
    const CONTENT_KEYS: &'static [&'static str] = &["message", "message_file", "message_binary"];
    const SHARED_KEYS: &'static [&'static str] = &["compression", "max_head", "deadline"];
    const UNSUPPORTED_KEYS: &'static [&'static str] = &[];
    const TEMPLATE_KEYS: &'static [&'static str] = &[
        "message",
        "message.*",
        "metadata.*",
        "expect_message",
        "expect_message.*",
    ];

    fn resolve_step_call(
        &self,
        problems: &mut Problems,
        spec: &Spec,
        scope: &StepScope<'_>,
        surroundings: &dyn ResolveContext,
    ) -> Option<(GrpcCall, bool)> {
        let mut constant = self.clone();
        let varying = take_varying_answer(problems, &mut constant, scope, surroundings);
        let resolved = resolve_step_call(problems, spec, &constant, scope, surroundings);
        let (mut call, uses_rows) = resolved?;
        let Some(varying) = varying else {
            return Some((call, uses_rows));
        };
        if let Some(reader) = &call.answer_schema {
            let checked = check_fields(reader, &varying.sample, &mut Vec::new());
            problems.ok_or_report(EXPECTATION_KEY, checked);
        }
        call.varying_answer = Some(Box::new(varying.answer));
        Some((call, uses_rows || varying.uses_rows))
    }

    fn used_name_indices(call: &GrpcCall) -> Vec<usize> {
        let metadata = call.varying_metadata.iter().flat_map(|all| &all.fields);
        let metadata = metadata.flat_map(|field| Template::captured_indices(&field.template));
        let messages = call.varying.iter().flat_map(|all| &all.messages);
        let messages = messages.flat_map(|message| message.captured_indices());
        let expected = call.varying_answer.iter();
        let expected = expected.flat_map(|answer| answer.json.template.captured_indices());
        metadata
            .chain(messages)
            .chain(expected)
            .map(usize::from)
            .collect()
    }

    /// Checks the paths into the response, and converts their field names to those in the response's JSON.
    fn adapt_capture_rule(call: &GrpcCall, take: &mut CaptureRule) -> Result<(), String> {
        match &mut take.source {
            CaptureSource::Pointer(tokens) => {
                if let Some(schema) = &call.answer_schema {
                    *tokens = schema.resolve_path(tokens)?;
                }
                Ok(())
            }
            CaptureSource::Bytes(_) => {
                Err("answers of gRPC are read as JSON: use a JSON Pointer such as /id".to_owned())
            }
            CaptureSource::Cookie(_) => Err("gRPC has no cookies: use metadata".to_owned()),
            CaptureSource::Path(_) | CaptureSource::Header(..) | CaptureSource::Regex(_) => Ok(()),
        }
    }

    fn prepare(
        call: &GrpcCall,
        context: &StepContext<'_>,
    ) -> Result<Box<dyn StepCall>, PrepareError> {
        let request = GrpcRequest {
            call,
            authority: context.authority,
            secure: context.security == ConnectionSecurity::Tls,
            deadline: context.deadline,
        };
        Ok(Box::new(GrpcProtocol::for_step(&request, context.capture)?))
    }
}

/// An `expect_message` with fields.
struct TypedVaryingAnswer {
    answer: VaryingAnswer,
    /// The JSON with samples in the place of the fields.
    sample: Value,
    uses_rows: bool,
}

/// Removes an `expect_message` with fields from a step. `None` if it has none, or if a problem was reported.
fn take_varying_answer(
    problems: &mut Problems,
    call: &mut GrpcSpec,
    scope: &StepScope<'_>,
    surroundings: &dyn ResolveContext,
) -> Option<TypedVaryingAnswer> {
    let expected = &mut call.expect_message;
    let typed = expected.take_if(|json| template::has_fields(&json.0))?;
    let mut slots = 0;
    let mut texts = TemplateContext {
        slots: &mut slots,
        scope: scope.fields(),
        uses_rows: false,
        surroundings,
    };
    let mut payload = parse_payload(problems, EXPECTATION_KEY, typed.0.into(), &mut texts)?;
    let sample = payload.make_varying(&mut texts);
    let sample = problems.ok_or_report(EXPECTATION_KEY, sample)?;
    let sample = serde_json::from_slice(&sample).map_err(|e| format!("not JSON: {e}"));
    Some(TypedVaryingAnswer {
        sample: problems.ok_or_report(EXPECTATION_KEY, sample)?,
        answer: VaryingAnswer {
            variation: scope.variation.clone(),
            json: payload.varying?,
        },
        uses_rows: texts.uses_rows,
    })
}

/// Checks that the answer has the fields of `json`, which is at `path`.
///
/// # Errors
/// Returns an error that names a field that does not exist.
fn check_fields(
    reader: &SharedAnswerReader,
    json: &Value,
    path: &mut Vec<String>,
) -> Result<(), String> {
    let inner: Vec<(String, &Value)> = match json {
        Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), v)).collect(),
        Value::Array(items) => (0..items.len())
            .map(|index| index.to_string())
            .zip(items)
            .collect(),
        _ => Vec::new(),
    };
    for (name, value) in inner {
        path.push(name);
        reader.resolve_path(path)?;
        check_fields(reader, value, path)?;
        path.pop();
    }
    Ok(())
}
