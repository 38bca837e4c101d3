//! Resolves HTTP requests that are steps of a journey.

use plimsoll_model::rows::template::{Template, VariationSettings};
use plimsoll_model::spec::{Problems, ResolveContext, Spec};

use super::resolve_request;
use crate::http::call::{HttpCall, HttpVersion, VaryingExpectations, VaryingRequest};
use crate::http::driver::Http1Protocol;
use crate::http::journey::{HttpStepProtocol, request_templates};
use crate::http::multiplexed::{Http2Protocol, HttpScheme};
use crate::http::payload::TemplateContext;
use crate::http::request::HttpRequest;
use crate::http::section::HttpSpec;
use crate::interface::protocol_module::PrepareError;
use crate::journey::{
    ConnectionSecurity, StepCall, StepContext, StepScope, StepSection, StepSpec, resolve_journey,
};

/// The first template slot of expectations. Lower slots belong to the request.
const FIRST_EXPECTATION_SLOT: u32 = 1 << 16;

/// Resolves a journey. The returned call is the journey's first step at the plan's own target.
pub(super) fn resolve(
    problems: &mut Problems,
    spec: &Spec,
    section: &HttpSpec,
    steps: &[StepSpec],
    surroundings: &dyn ResolveContext,
) -> Option<HttpCall> {
    let (journey, first) = resolve_journey(problems, spec, section, steps, surroundings)?;
    let journey = Some(Box::new(journey));
    Some(HttpCall { journey, ..first })
}

impl StepSection for HttpSpec {
    const TITLE: &'static str = "HTTP";
    const FIELDS_KEY: &'static str = "headers";
    const CONTENT_KEYS: &'static [&'static str] = &["body", "body_file", "form"];
    const SHARED_KEYS: &'static [&'static str] =
        &["version", "max_body", "max_head", "deadline", "typed_names"];
    const UNSUPPORTED_KEYS: &'static [&'static str] = &[
        "websocket",
        "conversation",
        "stream",
        "api",
        "tokenizer",
        "goodput",
        "retry_refused",
        "retry_wait",
    ];
    const TEMPLATE_KEYS: &'static [&'static str] = &[
        "path",
        "headers.*",
        "body",
        "form.value",
        "expect_body",
        "expect_headers.*",
    ];

    fn check_journey(&self, problems: &mut Problems) {
        if self.version == Some(HttpVersion::Auto) {
            problems.add(
                "call.http.version",
                "a journey has one version: use \"1.1\" or \"2\"",
            );
        }
    }

    fn resolve_step_call(
        &self,
        problems: &mut Problems,
        spec: &Spec,
        scope: &StepScope<'_>,
        surroundings: &dyn ResolveContext,
    ) -> Option<(HttpCall, bool)> {
        let before = problems.0.len();
        let mut slots = FIRST_EXPECTATION_SLOT;
        let mut texts = TemplateContext {
            slots: &mut slots,
            scope: scope.fields(),
            uses_rows: false,
            surroundings,
        };
        let mut sample = self.clone();
        let expectations =
            VaryingExpectations::replace_with_samples(problems, &mut sample, &mut texts);
        let expects_rows = texts.uses_rows;
        let resolved = resolve_request(problems, spec, &sample, scope, surroundings);
        let (call, uses_rows) = resolved.filter(|_| problems.0.len() == before)?;
        let mut call = with_all_parts_varying(call, scope.variation);
        expectations.add_to_step(&mut call);
        Some((call, uses_rows || expects_rows))
    }

    fn used_name_indices(call: &HttpCall) -> Vec<usize> {
        let needed = request_templates(call).flat_map(Template::captured_indices);
        needed.map(usize::from).collect()
    }

    fn prepare(
        call: &HttpCall,
        context: &StepContext<'_>,
    ) -> Result<Box<dyn StepCall>, PrepareError> {
        let request = HttpRequest {
            call,
            authority: context.authority,
            closes: context.closes,
        };
        let &StepContext {
            capture,
            taken,
            security,
            ..
        } = context;
        let scheme = match security {
            ConnectionSecurity::Plain => HttpScheme::Http,
            ConnectionSecurity::Tls => HttpScheme::Https,
        };
        Ok(if call.version == HttpVersion::V2 {
            let protocol = Http2Protocol::for_step(&request, scheme, capture);
            Box::new(HttpStepProtocol::new(protocol, call, taken, security))
        } else {
            let protocol = Http1Protocol::for_step(&request, capture);
            Box::new(HttpStepProtocol::new(protocol, call, taken, security))
        })
    }
}

/// Returns whether the body is an encoded form (`application/x-www-form-urlencoded`).
fn sends_form(headers: &[(String, String)]) -> bool {
    let mut fields = headers.iter();
    fields.any(|(name, value)| {
        name == "content-type" && value.starts_with("application/x-www-form-urlencoded")
    })
}

/// Returns the request with all parts as templates, which are rendered for every call. Taken values are encoded as the
/// path or a form requires.
pub(in crate::http) fn with_all_parts_varying(
    mut call: HttpCall,
    variation: &VariationSettings,
) -> HttpCall {
    let mut varying = call.varying.take().unwrap_or_else(|| VaryingRequest {
        variation: variation.clone(),
        path: None,
        headers: Vec::new(),
        body: None,
        expectations: None,
    });
    let path = varying.path.take();
    varying.path = Some(
        path.unwrap_or_else(|| Template::from_text(&call.path))
            .with_url_encoding(),
    );
    if let Some(body) = varying.body.as_mut().filter(|_| sends_form(&call.headers)) {
        body.template = body.template.clone().with_form_encoding();
    }
    call.varying = Some(varying);
    call
}
