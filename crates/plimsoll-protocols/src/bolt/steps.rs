//! SOFARPC and SOFABolt calls as the steps of a journey.

use std::borrow::Cow;
use std::sync::Arc;

use plimsoll_engine::driver::{Protocol, Tracer};
use plimsoll_model::rows::template::{self, RenderContext, Template};
use plimsoll_model::spec::{CallSection as _, MetadataSpec, Problems, ResolveContext, Spec};

use super::frame::{BoltFrame, codec};
use super::hessian::{self, to_json};
use super::sofa::RESPONSE_CLASS;
use super::varying::{VaryingBoltCall, VaryingContent};
use super::{BoltCall, BoltOptions, BoltProtocol, call_encoding, header};
use crate::framed::FramedSettings;
use crate::framed::steps::{FramedStepDriver, StepFormat};
use crate::http::{TemplateContext, parse_payload, write_body};
use crate::interface::protocol_module::PrepareError;
use crate::journey::{
    CaptureRule, CaptureSource, CapturedResponse, CapturedValues, CookieJar, StepCall, StepContext,
    StepMoment, StepProtocol, StepScope, StepSection,
};
use crate::shared::clock_origin::ClockOrigin;

impl StepSection for BoltOptions {
    const TITLE: &'static str = "Bolt";
    const FIELDS_KEY: &'static str = "header";
    const CONTENT_KEYS: &'static [&'static str] = &["arguments", "content", "content_file"];
    const SHARED_KEYS: &'static [&'static str] =
        &["version", "heartbeat", "max_content", "deadline"];
    const UNSUPPORTED_KEYS: &'static [&'static str] = &["in_flight"];
    const TEMPLATE_KEYS: &'static [&'static str] = &["arguments", "content", "header.*"];

    fn resolve_step_call(
        &self,
        problems: &mut Problems,
        spec: &Spec,
        scope: &StepScope<'_>,
        surroundings: &dyn ResolveContext,
    ) -> Option<(BoltCall, bool)> {
        let mut slots = 0;
        let mut texts = TemplateContext {
            slots: &mut slots,
            scope: scope.fields(),
            uses_rows: false,
            surroundings,
        };
        let mut sample = self.clone();
        let mut resolve_json = |key: &str, typed: &mut Option<String>| {
            let Some(text) = typed.as_mut().filter(|text| template::has_fields(text)) else {
                return Some(None);
            };
            let key = format!("call.bolt.{key}");
            let mut payload = parse_payload(problems, &key, text.clone().into(), &mut texts)?;
            let sampled = payload.make_varying(&mut texts);
            let sampled = problems.ok_or_report(&key, sampled)?;
            *text = String::from_utf8_lossy(&sampled).into_owned();
            Some(payload.varying)
        };
        let arguments = resolve_json("arguments", &mut sample.arguments)?;
        let content = resolve_json("content", &mut sample.content)?;
        let mut header = Vec::new();
        for (name, value) in &self.header {
            let MetadataSpec::Text(text) = value else {
                continue;
            };
            if !template::has_fields(text) {
                continue;
            }
            let parsed = Template::parse(text, texts.slots, texts.scope);
            let key = format!("call.bolt.header.{name}");
            header.push((name.clone(), problems.ok_or_report(&key, parsed)?));
            texts.uses_rows |= template::uses_rows(text);
            sample.header.remove(name);
        }
        let uses_rows = texts.uses_rows;
        // The resolution of single calls checks the call with samples in the place of its fields.
        let mut call = sample.resolve(spec, problems, surroundings)?;
        let is_constant = arguments.is_none() && content.is_none() && header.is_empty();
        let content = match (arguments, content) {
            (Some(arguments), _) => VaryingContent::Service {
                service: self.service.clone().unwrap_or_default(),
                method: self.method.clone().unwrap_or_default(),
                signature: self.signature.clone(),
                arguments,
            },
            (None, Some(content)) => VaryingContent::Raw {
                class: self.class.clone().unwrap_or_default(),
                content,
            },
            (None, None) => VaryingContent::Constant,
        };
        call.varying = (!is_constant).then(|| {
            Box::new(VaryingBoltCall {
                variation: scope.variation.clone(),
                content,
                header,
            })
        });
        Some((call, uses_rows))
    }

    fn used_name_indices(call: &BoltCall) -> Vec<usize> {
        let varying = call.varying.iter();
        let templates = varying.flat_map(|varying| varying.templates());
        let needed = templates.flat_map(Template::captured_indices);
        needed.map(usize::from).collect()
    }

    fn adapt_capture_rule(call: &BoltCall, take: &mut CaptureRule) -> Result<(), String> {
        match take.source {
            _ if call.oneway => Err("a one-way call has no answer".to_owned()),
            CaptureSource::Cookie(_) => {
                Err("Bolt has no cookies: use header, an entry of the header map".to_owned())
            }
            CaptureSource::Bytes(_) if call.codec == codec::HESSIAN2 => Err(
                "answers in Hessian are read as JSON: use a JSON Pointer such as /id".to_owned(),
            ),
            _ => Ok(()),
        }
    }

    fn prepare(
        call: &BoltCall,
        _context: &StepContext<'_>,
    ) -> Result<Box<dyn StepCall>, PrepareError> {
        Ok(Box::new(BoltStepProtocol {
            format: BoltProtocol::new(call)?,
            call: call.clone(),
            unix_zero: ClockOrigin::default(),
        }))
    }
}

impl StepFormat for BoltProtocol {
    fn settings(&self) -> FramedSettings {
        self.connection_settings()
    }

    fn adopt_request(&mut self, other: &BoltProtocol) {
        *self = other.clone();
    }
}

/// A step over Bolt.
struct BoltStepProtocol {
    /// The request, with samples in the place of values that vary.
    format: BoltProtocol,
    call: BoltCall,
    unix_zero: ClockOrigin,
}

impl Protocol for BoltStepProtocol {
    type Driver = FramedStepDriver<BoltProtocol>;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.unix_zero.set(unix_ns);
    }

    fn new_driver(&self) -> FramedStepDriver<BoltProtocol> {
        FramedStepDriver::for_steps(self.format.clone())
    }

    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        self.format.new_tracer()
    }
}

impl StepProtocol for BoltStepProtocol {
    fn select_request(
        &self,
        driver: &mut FramedStepDriver<BoltProtocol>,
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
        let call = render_call(varying, &self.call, &context.with_captured_values(values))?;
        let format = BoltProtocol::new(&call).map_err(|e| e.to_string())?;
        driver.select_request(&format);
        Ok(())
    }

    fn inspect_response(
        &self,
        driver: &FramedStepDriver<BoltProtocol>,
        f: &mut dyn FnMut(CapturedResponse<'_>),
    ) {
        let frame = driver.answer().and_then(|answer| {
            let parsed = BoltFrame::parse(answer, usize::MAX).map_err(|e| e.to_string())?;
            parsed.ok_or_else(|| "its frame is incomplete".to_owned())
        });
        match frame {
            Ok((frame, _)) => {
                let pairs = header::pairs(frame.header).filter_map(Result::ok);
                f(CapturedResponse {
                    fields: pairs
                        .filter_map(|(key, value)| Some((key?, value?)))
                        .collect(),
                    body: answer_body(&frame),
                });
            }
            Err(problem) => f(CapturedResponse {
                fields: Vec::new(),
                body: Err(problem),
            }),
        }
    }

    fn release_buffers(&self, driver: &mut FramedStepDriver<BoltProtocol>) {
        driver.release_answer();
    }
}

/// Returns the content of an answer: in Hessian as JSON, and of a SOFARPC response the returned value.
fn answer_body<'a>(frame: &BoltFrame<'a>) -> Result<Cow<'a, [u8]>, String> {
    if frame.codec != codec::HESSIAN2 {
        return Ok(Cow::Borrowed(frame.content));
    }
    let decoded = hessian::decode(frame.content);
    let decoded = decoded.map_err(|e| format!("its content is not Hessian: {e}"))?;
    let json = to_json(&decoded)?;
    let returned = match (decoded.class_name(), json) {
        (RESPONSE_CLASS, serde_json::Value::Object(mut response)) => {
            response.remove("appResponse").unwrap_or_default()
        }
        (_, json) => json,
    };
    Ok(Cow::Owned(returned.to_string().into_bytes()))
}

/// Returns `call` with the values of one user.
///
/// # Errors
/// Returns an error if a value does not fit its place.
fn render_call(
    varying: &VaryingBoltCall,
    call: &BoltCall,
    context: &RenderContext<'_>,
) -> Result<BoltCall, String> {
    let text = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        write(&mut bytes);
        String::from_utf8(bytes)
    };
    let mut entries = call.constant.clone();
    for (name, template) in &varying.header {
        let value = text(&|out| template.write(context, out));
        let value = value.map_err(|_| format!("header.{name}: a value is not UTF-8"))?;
        entries.push((name.clone(), value));
    }
    let extra = entries
        .iter()
        .map(|(name, value)| (&**name, value.as_str()));
    let typed = match &varying.content {
        VaryingContent::Service {
            service,
            method,
            signature,
            arguments,
        } => {
            let arguments = text(&|out| write_body(arguments, context, out));
            let arguments = arguments.map_err(|_| "arguments: a value is not UTF-8")?;
            call_encoding::encode_service_call(
                service,
                method,
                &arguments,
                signature.as_deref(),
                extra,
            )
            .map_err(|(key, problem)| format!("{key}: {problem}"))?
        }
        VaryingContent::Raw { class, content } => {
            let content = text(&|out| write_body(content, context, out));
            let content = content.map_err(|_| "content: a value is not UTF-8")?;
            let content = call_encoding::encode_content(&content)?;
            call_encoding::raw_call(class, content, extra)
        }
        VaryingContent::Constant => {
            let mut map = call.header.clone();
            for (name, value) in &entries[call.constant.len()..] {
                header::write(&mut map, Some(name.as_bytes()), Some(value.as_bytes()));
            }
            return Ok(BoltCall {
                header: map,
                ..call.clone()
            });
        }
    };
    Ok(BoltCall {
        class: typed.class,
        header: typed.header,
        content: typed.content,
        ..call.clone()
    })
}
