//! The expectations of a journey's step that contain fields. They are rendered with the user's values when the step's
//! request is sent, and the response is checked against the result.

use plimsoll_model::rows::template::{self, RenderContext, Template};
use plimsoll_model::spec::Problems;

use super::call::{HttpCall, VaryingExpectations, VaryingRequest};
use super::checks::ResponseChecks;
use super::payload::{TemplateContext, has_message_field, with_placeholders};
use super::section::{ExpectedValues, HttpSpec};
use super::text_search::Needle;

impl VaryingExpectations {
    /// Replaces the texts with fields in `call` by samples, with which the other keys are checked.
    pub(super) fn replace_with_samples(
        problems: &mut Problems,
        call: &mut HttpSpec,
        texts: &mut TemplateContext<'_>,
    ) -> VaryingExpectations {
        let mut varying = VaryingExpectations::default();
        if let Some(text) = call.expect_body.as_mut() {
            varying.body = replace_with_sample(problems, "expect_body", text, texts);
        }
        for (name, values) in &mut call.expect_headers {
            let key = format!("expect_headers.{name}");
            let values = match values {
                ExpectedValues::One(value) => std::slice::from_mut(value),
                ExpectedValues::All(values) => values.as_mut_slice(),
            };
            for value in values {
                let template = replace_with_sample(problems, &key, value, texts);
                let name = name.to_ascii_lowercase();
                varying
                    .headers
                    .extend(template.map(|template| (name, template)));
            }
        }
        varying
    }

    /// Adds the expectations to the resolved step, and removes their samples.
    pub(super) fn add_to_step(self, call: &mut HttpCall) {
        if self == VaryingExpectations::default() {
            return;
        }
        if self.body.is_some() {
            call.expect_body = None;
        }
        for (name, template) in &self.headers {
            let sample = sample_of(template);
            let mut fields = call.expect_headers.iter();
            let found = fields.position(|(other, value)| (other, value) == (name, &sample));
            if let Some(index) = found {
                call.expect_headers.remove(index);
            }
        }
        if let Some(varying) = &mut call.varying {
            varying.expectations = Some(Box::new(self));
        }
    }

    /// Returns the templates of all texts.
    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        let headers = self.headers.iter().map(|(_, template)| template);
        headers.chain(&self.body)
    }

    /// Returns `checks` with these expectations as well, rendered at `moment`.
    fn render(&self, checks: &ResponseChecks, moment: &RenderContext<'_>) -> ResponseChecks {
        let render = |template: &Template| {
            let mut text = Vec::new();
            template.write(moment, &mut text);
            text
        };
        let mut rendered = checks.clone();
        if let Some(template) = &self.body {
            // Every body contains the empty text, such as that of an empty column.
            let text = Some(render(template)).filter(|text| !text.is_empty());
            rendered.body = text.map(|text| Needle::from_bytes(&text));
        }
        let headers = self.headers.iter();
        let headers = headers.map(|(name, template)| (name.clone(), render(template)));
        rendered.headers.extend(headers);
        rendered
    }
}

impl VaryingRequest {
    /// Returns the checks of the response to call `number` at `unix_ns`, of a user with the values `taken`. `None` if
    /// `checks` apply to all calls.
    #[inline]
    pub(super) fn render_checks(
        &self,
        checks: &ResponseChecks,
        (number, unix_ns): (u64, u64),
        taken: &[Option<Box<[u8]>>],
    ) -> Option<ResponseChecks> {
        let expectations = self.expectations.as_ref()?;
        let moment = self.variation.render_context(number, 0, unix_ns);
        Some(expectations.render(checks, &moment.with_captured_values(taken)))
    }
}

/// Parses a text with fields, and puts a sample in its place. `None` if it has none, or if a problem was reported.
fn replace_with_sample(
    problems: &mut Problems,
    key: &str,
    text: &mut String,
    texts: &mut TemplateContext<'_>,
) -> Option<Template> {
    if !template::has_fields(text) {
        return None;
    }
    let key = format!("call.http.{key}");
    let parsed = Template::parse(text, texts.slots, texts.scope);
    let parsed = problems.ok_or_report(&key, parsed)?;
    if has_message_field(&parsed) {
        problems.add(key, "{{message}}: not supported in an expectation");
        return None;
    }
    texts.uses_rows |= template::uses_rows(text);
    *text = sample_of(&parsed);
    Some(parsed)
}

/// Returns a text that the template could become, without braces that look like a field.
fn sample_of(template: &Template) -> String {
    with_placeholders(template).replace("{{", "00")
}
