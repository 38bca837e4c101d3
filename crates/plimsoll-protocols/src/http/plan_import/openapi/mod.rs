//! Imports descriptions of services (OpenAPI 3.0 and 3.1, <https://spec.openapis.org/oas/>). Each operation becomes a
//! step with a weight, and each user performs one of the steps.

mod document;
mod parameters;
mod samples;
mod yaml;

use std::collections::BTreeSet;

use plimsoll_model::{formats::quantity, formats::redaction};
use serde_json::Value;

use super::draft::{HeaderText, PartDraft, PlanDraft, StepDraft};
use super::exchange::split_url;
use super::omissions::MAX_STEPS;
use super::secrets::{SecretPlaceholders, is_secret_under_name};
use super::template_text::TemplateText;
use super::{finish_import, invalid_file_message};
use crate::interface::protocol_module::{ForeignFormatError, PlanImportRequest, PlanImportResult};
use document::{ServiceDescription, ServiceOperation};
use parameters::{ParameterSyntax, ParameterText, find_parameters};
use samples::build_sample;

/// Builds a plan from a description in JSON.
///
/// # Errors
/// Returns an error if the version is not supported, or the server or a requested operation is missing.
pub(super) fn import_json(
    request: &PlanImportRequest<'_>,
) -> Result<PlanImportResult, ForeignFormatError> {
    let root = serde_json::from_str(request.text);
    let root: Value = root.map_err(invalid_file_message("OpenAPI in JSON", request.text))?;
    import(request, &root)
}

/// Builds a plan from a description in YAML.
///
/// # Errors
/// Returns the errors of [`import_json`], or line and column if the text is not YAML.
pub(super) fn import_yaml(
    request: &PlanImportRequest<'_>,
) -> Result<PlanImportResult, ForeignFormatError> {
    import(request, &yaml::parse(request.text)?)
}

fn import(
    request: &PlanImportRequest<'_>,
    root: &Value,
) -> Result<PlanImportResult, ForeignFormatError> {
    if request.with_assets {
        return Err("--with-assets: only a recording has assets".into());
    }
    let document = ServiceDescription::new(root)?;
    let server = match request.origin {
        Some(origin) => origin.to_owned(),
        None => document.server_url()?,
    };
    let (target, base) = split_url(&server).map_err(|e| format!("the server's URL: {e}"))?;
    let base = base.trim_end_matches('/');
    let chosen = document.operations(request.operations)?;
    let mut steps = OperationStepBuilder {
        document: &document,
        secrets: SecretPlaceholders::new(request.name),
        missing: BTreeSet::new(),
        notes: Vec::new(),
        left_out: 0,
        names: BTreeSet::new(),
    };
    let mut drafts: Vec<StepDraft> = chosen
        .iter()
        .take(MAX_STEPS)
        .map(|operation| steps.build_step(operation, base))
        .collect();
    if drafts.len() > 1 {
        drafts.iter_mut().for_each(|step| step.weight = Some(1));
    }
    let mut notes = steps.notes;
    let count = quantity::plural(drafts.len() as u64, "operation");
    let became = if drafts.len() == 1 {
        "became a step"
    } else {
        "became steps"
    };
    notes.push(format!("{count} {became} to {target}{base}"));
    if chosen.len() > MAX_STEPS {
        notes.push(format!(
            "left out: {} behind the first {MAX_STEPS}, the most steps of a plan (--operation chooses)",
            quantity::plural((chosen.len() - MAX_STEPS) as u64, "operation")
        ));
    }
    if steps.left_out > 0 {
        notes.push(format!(
            "left out: {} without an example",
            quantity::plural(steps.left_out, "optional parameter")
        ));
    }
    let missing = steps.missing.iter();
    notes.extend(
        missing.map(|name| format!("{name}: it has no example: write its value in the plan")),
    );
    let mut comments = vec![format!(
        "Imported from the description of {}: {count}.",
        document.title(),
    )];
    if drafts.len() > 1 {
        comments.push(
            "Each user makes one of them, chosen by the weights: write how often each is called."
                .to_owned(),
        );
    }
    let draft = PlanDraft {
        comments,
        target,
        steps: drafts,
        ..PlanDraft::default()
    };
    Ok(finish_import(request, draft, &steps.secrets, notes))
}

/// The builder of steps from operations.
struct OperationStepBuilder<'a> {
    document: &'a ServiceDescription<'a>,
    secrets: SecretPlaceholders,
    /// The names of required values without an example.
    missing: BTreeSet<String>,
    notes: Vec<String>,
    /// The number of optional parameters without an example.
    left_out: u64,
    names: BTreeSet<String>,
}

impl OperationStepBuilder<'_> {
    fn build_step(&mut self, operation: &ServiceOperation<'_>, base: &str) -> StepDraft {
        let name = self.unused_name(operation.name());
        let mut step = StepDraft {
            method: operation.method.to_ascii_uppercase(),
            comments: operation.summary().into_iter().map(str::to_owned).collect(),
            name,
            ..StepDraft::default()
        };
        let parameters = find_parameters(self.document, operation);
        let mut query = Vec::new();
        let mut cookies = Vec::new();
        let mut in_path = Vec::new();
        for parameter in parameters {
            let Some(text) = self.parameter_text(&parameter, &step.name) else {
                continue;
            };
            match parameter.place {
                ParameterSyntax::Path => in_path.push((parameter.name.clone(), text)),
                ParameterSyntax::Query => query.push(text),
                ParameterSyntax::Cookie => cookies.push((parameter.name.clone(), text)),
                ParameterSyntax::Header => {
                    let name = parameter.name.to_ascii_lowercase();
                    let text = if redaction::is_secret_field_name(&name) {
                        HeaderText::Env(self.secrets.assign_variable(&name, ""))
                    } else {
                        HeaderText::Text(text)
                    };
                    step.headers.insert(name, vec![text]);
                }
            }
        }
        step.path = self.fill_path(operation, base, &in_path);
        self.add_security(operation, &mut step, &mut query, &mut cookies);
        for (separator, text) in std::iter::once("?")
            .chain(std::iter::repeat("&"))
            .zip(query)
        {
            step.path.push(separator);
            step.path.append(text);
        }
        let mut cookie = TemplateText::default();
        for (name, text) in cookies {
            let separator = if cookie == TemplateText::default() {
                ""
            } else {
                "; "
            };
            cookie.push(&format!("{separator}{name}="));
            cookie.append(text);
        }
        if cookie != TemplateText::default() {
            step.headers
                .insert("cookie".to_owned(), vec![HeaderText::Text(cookie)]);
        }
        self.add_body(operation, &mut step);
        step
    }

    fn unused_name(&mut self, wanted: String) -> String {
        let mut name = wanted.clone();
        let mut number = 2;
        while !self.names.insert(name.clone()) {
            name = format!("{wanted} {number}");
            number += 1;
        }
        name
    }

    /// Returns the text of a parameter in the request; `None` if it is optional and has no example.
    fn parameter_text(
        &mut self,
        parameter: &parameters::OperationParameter,
        step: &str,
    ) -> Option<TemplateText> {
        match &parameter.text {
            ParameterText::Known(text) => Some(TemplateText::from_literal(text)),
            ParameterText::Missing => {
                self.missing.insert(format!("{} of {step}", parameter.name));
                let mut text = TemplateText::default();
                if parameter.place == ParameterSyntax::Query {
                    text.push(&format!("{}=", parameters::percent_encode(&parameter.name)));
                }
                text.push_field(&placeholder(&parameter.name));
                Some(text)
            }
            ParameterText::LeftOut => {
                self.left_out += 1;
                None
            }
        }
    }

    /// Returns the path with values in place of its parameters, which the description writes as `{name}`.
    fn fill_path(
        &mut self,
        operation: &ServiceOperation<'_>,
        base: &str,
        known: &[(String, TemplateText)],
    ) -> TemplateText {
        let mut path = TemplateText::from_literal(base);
        let mut rest = operation.path;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, behind)) = after.split_once('}') else {
                break;
            };
            path.push(&parameters::encode_path_text(before));
            match known.iter().find(|(known, _)| known == name) {
                Some((_, text)) => path.append(text.clone()),
                None => {
                    self.missing
                        .insert(format!("{name} of {}", operation.name()));
                    path.push_field(&placeholder(name));
                }
            }
            rest = behind;
        }
        path.push(&parameters::encode_path_text(rest));
        path
    }

    /// Adds the credentials for the operation's first security requirement.
    fn add_security(
        &mut self,
        operation: &ServiceOperation<'_>,
        step: &mut StepDraft,
        query: &mut Vec<TemplateText>,
        cookies: &mut Vec<(String, TemplateText)>,
    ) {
        for scheme in self.document.security_schemes(operation) {
            let text = |key: &str| scheme.get(key).and_then(Value::as_str).unwrap_or_default();
            let name = text("name");
            match (text("type"), text("in")) {
                ("apiKey", "query") => {
                    let mut value = TemplateText::from_literal(&format!(
                        "{}=",
                        parameters::percent_encode(name)
                    ));
                    if redaction::is_secret_parameter_name(name) {
                        value.push_variable(&self.secrets.assign_variable(name, ""));
                    } else {
                        value.push_field(&format!("row.{}", self.secrets.assign_column(name, "")));
                    }
                    query.push(value);
                }
                ("apiKey", "cookie") => {
                    let column = self.secrets.assign_column(&format!("cookie_{name}"), "");
                    let mut value = TemplateText::default();
                    value.push_field(&format!("row.{column}"));
                    cookies.push((name.to_owned(), value));
                }
                ("mutualTLS", _) => {
                    self.notes.push(
                        "the service asks for a client certificate: add [tls] cert and key"
                            .to_owned(),
                    );
                }
                (kind, _) => {
                    let name = if kind == "apiKey" {
                        name
                    } else {
                        "authorization"
                    };
                    let name = name.to_ascii_lowercase();
                    let variable = self.secrets.assign_variable(&name, "");
                    step.headers.insert(name, vec![HeaderText::Env(variable)]);
                }
            }
        }
    }

    fn add_body(&mut self, operation: &ServiceOperation<'_>, step: &mut StepDraft) {
        let Some((kind, media)) = self.document.request_body(operation) else {
            return;
        };
        let found = self.document.find_example(media);
        let schema = media.get("schema");
        let is_from_schema = found.is_none();
        let value = found.or_else(|| schema.map(|schema| build_sample(self.document, schema)));
        let Some(value) = value else {
            self.missing.insert(format!("the body of {}", step.name));
            let mut body = TemplateText::default();
            body.push_field(&placeholder("body"));
            step.body = Some(body);
            return;
        };
        if is_from_schema {
            let comment =
                "The description has no example of the body: this one is made from its schema.";
            step.comments.push(comment.to_owned());
        }
        let pairs = value.as_object().into_iter().flatten();
        let plain = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let is_multipart = kind.starts_with("multipart/");
        if is_multipart {
            let parts = pairs.map(|(name, value)| {
                let value = plain(value);
                let mut text = TemplateText::default();
                if is_secret_under_name(name, &value) {
                    let column = self.secrets.assign_column(name, "");
                    text.push_field(&format!("row.{column}"));
                } else {
                    text.push(&value);
                }
                PartDraft {
                    name: name.clone(),
                    value: text,
                    file: None,
                }
            });
            step.parts = parts.collect();
            return;
        }
        step.body = Some(if kind.starts_with("application/x-www-form-urlencoded") {
            let mut body = TemplateText::default();
            for (name, value) in pairs {
                let separator = if body == TemplateText::default() {
                    ""
                } else {
                    "&"
                };
                body.push(&format!("{separator}{}=", parameters::percent_encode(name)));
                let text = plain(value);
                if is_secret_under_name(name, &text) {
                    body.push_field(&format!("row.{}", self.secrets.assign_column(name, "")));
                } else {
                    body.push(&parameters::percent_encode(&text));
                }
            }
            body
        } else {
            match &value {
                Value::String(text) if !kind.contains("json") => TemplateText::from_literal(text),
                json => TemplateText::from_literal(&json.to_string()),
            }
        });
        let kind = TemplateText::from_literal(kind);
        step.headers
            .insert("content-type".to_owned(), vec![HeaderText::Text(kind)]);
    }
}

/// Returns the name to write in braces for a value that the user must fill in. It is not a valid template field, so
/// until the user replaces it, the plan is rejected with an error that contains `name`.
fn placeholder(name: &str) -> String {
    let is_plain = |c: &char| !c.is_control() && !"{}".contains(*c);
    let name: String = name.chars().filter(is_plain).collect();
    format!("VALUE-OF-{name}")
}
