//! gRPC calls as the steps of a journey.

use plimsoll_model::rows::template::Template;
use plimsoll_model::spec::{Problems, ResolveContext, Spec};

use super::resolve_step_call;
use crate::grpc::call::GrpcCall;
use crate::grpc::driver::GrpcProtocol;
use crate::grpc::request::GrpcRequest;
use crate::grpc::section::GrpcSpec;
use crate::interface::protocol_module::PrepareError;
use crate::journey::{
    CaptureRule, CaptureSource, ConnectionSecurity, StepCall, StepContext, StepScope, StepSection,
};

impl StepSection for GrpcSpec {
    const TITLE: &'static str = "gRPC";
    const FIELDS_KEY: &'static str = "metadata";
    const CONTENT_KEYS: &'static [&'static str] = &["message", "message_file", "message_binary"];
    const SHARED_KEYS: &'static [&'static str] = &["compression", "max_head", "deadline"];
    const UNSUPPORTED_KEYS: &'static [&'static str] = &[];
    const TEMPLATE_KEYS: &'static [&'static str] = &["message", "message.*", "metadata.*"];

    fn resolve_step_call(
        &self,
        problems: &mut Problems,
        spec: &Spec,
        scope: &StepScope<'_>,
        surroundings: &dyn ResolveContext,
    ) -> Option<(GrpcCall, bool)> {
        resolve_step_call(problems, spec, self, scope, surroundings)
    }

    fn used_name_indices(call: &GrpcCall) -> Vec<usize> {
        let metadata = call.varying_metadata.iter().flat_map(|all| &all.fields);
        let metadata = metadata.flat_map(|field| Template::captured_indices(&field.template));
        let messages = call.varying.iter().flat_map(|all| &all.messages);
        let messages = messages.flat_map(|message| message.captured_indices());
        metadata.chain(messages).map(usize::from).collect()
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
