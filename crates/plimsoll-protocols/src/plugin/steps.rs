//! Calls of a codec plugin's protocol as the steps of a journey.

use std::borrow::Cow;
use std::sync::Arc;

use plimsoll_engine::driver::{Protocol, Tracer};
use plimsoll_model::rows::template::{self, Template};
use plimsoll_model::spec::{CallSection as _, Problems, ResolveContext, Spec};
use plimsoll_plugin::{Codec, DecodeResult, SenderRole};

use super::varying::VaryingPluginCall;
use super::{PluginCall, PluginOptions, PluginProtocol, RequestContent, build_frame};
use crate::framed::FramedSettings;
use crate::framed::steps::{FramedStepDriver, StepFormat};
use crate::http::{TemplateContext, parse_payload, write_body};
use crate::interface::protocol_module::PrepareError;
use crate::journey::{
    CaptureRule, CaptureSource, CapturedResponse, CapturedValues, CookieJar, StepCall, StepContext,
    StepMoment, StepProtocol, StepScope, StepSection,
};
use crate::shared::clock_origin::ClockOrigin;

impl StepSection for PluginOptions {
    const TITLE: &'static str = "a codec plugin";
    const FIELDS_KEY: &'static str = "";
    const CONTENT_KEYS: &'static [&'static str] =
        &["payload", "payload_file", "frame", "frame_file"];
    const SHARED_KEYS: &'static [&'static str] = &["codec", "heartbeat", "max_frame", "deadline"];
    const UNSUPPORTED_KEYS: &'static [&'static str] = &["in_flight"];
    const TEMPLATE_KEYS: &'static [&'static str] = &["payload"];

    fn resolve_step_call(
        &self,
        problems: &mut Problems,
        spec: &Spec,
        scope: &StepScope<'_>,
        surroundings: &dyn ResolveContext,
    ) -> Option<(PluginCall, bool)> {
        let mut sample = self.clone();
        let Some(text) = sample
            .payload
            .as_mut()
            .filter(|text| template::has_fields(text))
        else {
            return Some((sample.resolve(spec, problems, surroundings)?, false));
        };
        let mut slots = 0;
        let mut texts = TemplateContext {
            slots: &mut slots,
            scope: scope.fields(),
            uses_rows: false,
            surroundings,
        };
        let key = "call.plugin.payload";
        let mut payload = parse_payload(problems, key, text.clone().into(), &mut texts)?;
        let sampled = payload.make_varying(&mut texts);
        *text = String::from_utf8_lossy(&problems.ok_or_report(key, sampled)?).into_owned();
        let uses_rows = texts.uses_rows;
        // The resolution of single calls checks the payload with samples in the place of its fields.
        let mut call = sample.resolve(spec, problems, surroundings)?;
        call.varying = payload.varying.map(|payload| {
            Box::new(VaryingPluginCall {
                variation: scope.variation.clone(),
                payload,
            })
        });
        Some((call, uses_rows))
    }

    fn used_name_indices(call: &PluginCall) -> Vec<usize> {
        let varying = call.varying.iter();
        let templates = varying.map(|varying| &varying.payload.template);
        let needed = templates.flat_map(Template::captured_indices);
        needed.map(usize::from).collect()
    }

    fn adapt_capture_rule(_call: &PluginCall, take: &mut CaptureRule) -> Result<(), String> {
        match take.source {
            CaptureSource::Cookie(_) | CaptureSource::Header(..) => {
                Err("a plugin's answers have a payload only: use json, regex or bytes".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn prepare(
        call: &PluginCall,
        _context: &StepContext<'_>,
    ) -> Result<Box<dyn StepCall>, PrepareError> {
        let codec = Codec::load(&call.codec).map_err(|e| e.to_string())?;
        Ok(Box::new(PluginStepProtocol {
            format: PluginProtocol::new(&codec, call)?,
            codec,
            call: call.clone(),
            unix_zero: ClockOrigin::default(),
        }))
    }
}

impl StepFormat for PluginProtocol {
    fn settings(&self) -> FramedSettings {
        self.connection_settings()
    }

    fn adopt_request(&mut self, other: &PluginProtocol) {
        self.replace_request(other);
    }
}

/// A step in a codec plugin's protocol.
struct PluginStepProtocol {
    /// The request, with a sample in the place of a payload that varies.
    format: PluginProtocol,
    codec: Codec,
    call: PluginCall,
    unix_zero: ClockOrigin,
}

impl Protocol for PluginStepProtocol {
    type Driver = FramedStepDriver<PluginProtocol>;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.unix_zero.set(unix_ns);
    }

    fn new_driver(&self) -> FramedStepDriver<PluginProtocol> {
        FramedStepDriver::for_steps(self.format.clone())
    }

    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        self.format.new_tracer()
    }
}

impl StepProtocol for PluginStepProtocol {
    fn select_request(
        &self,
        driver: &mut FramedStepDriver<PluginProtocol>,
        moment: StepMoment,
        values: &Arc<CapturedValues>,
        _: &CookieJar,
    ) -> Result<(), String> {
        let Some(varying) = &self.call.varying else {
            driver.select_request(&self.format);
            return Ok(());
        };
        let unix_ns = self.unix_zero.unix_ns_at(moment.now);
        let context = varying.variation.render_context(moment.number, 0, unix_ns);
        let mut payload = Vec::new();
        write_body(
            &varying.payload,
            &context.with_captured_values(values),
            &mut payload,
        );
        let frame = build_frame(&self.codec, RequestContent::Payload(&payload));
        let call = PluginCall {
            frame: frame.map_err(|e| e.to_string())?,
            ..self.call.clone()
        };
        let format = PluginProtocol::new(&self.codec, &call).map_err(|e| e.to_string())?;
        driver.select_request(&format);
        Ok(())
    }

    fn inspect_response(
        &self,
        driver: &FramedStepDriver<PluginProtocol>,
        f: &mut dyn FnMut(CapturedResponse<'_>),
    ) {
        let payload = driver.answer().and_then(|answer| {
            let decoded = (self.codec).decode(answer, SenderRole::Server, self.call.max_frame);
            match decoded {
                Ok(DecodeResult::Frame(frame)) => answer
                    .get(frame.payload)
                    .ok_or_else(|| "its payload is incomplete".to_owned()),
                Ok(DecodeResult::More(_)) => Err("its frame is incomplete".to_owned()),
                Err(fault) => Err(fault.to_string()),
            }
        });
        f(CapturedResponse {
            fields: Vec::new(),
            body: payload.map(Cow::Borrowed),
        });
    }

    fn release_buffers(&self, driver: &mut FramedStepDriver<PluginProtocol>) {
        driver.release_answer();
    }
}
