//! Drafts of plans that are imported from other tools' files, and their conversion to TOML.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_model::formats::units::Period;
use toml::Value;

use super::template_text::{TemplateText, toml_key, toml_string};
use crate::journey::TakeSpec;

/// A plan that is being built.
#[derive(Debug, Default)]
pub(super) struct PlanDraft {
    pub(super) name: String,
    /// The comment lines above the plan, without `#`.
    pub(super) comments: Vec<String>,
    pub(super) target: String,
    /// Whether requests go over HTTP/2.
    pub(super) is_http2: bool,
    /// The columns of the rows that the plan needs.
    pub(super) columns: Vec<String>,
    pub(super) steps: Vec<StepDraft>,
}

/// A step that is being built from a request.
#[derive(Debug, Default)]
pub(super) struct StepDraft {
    pub(super) name: String,
    /// The comment lines above the step, without `#`.
    pub(super) comments: Vec<String>,
    /// The step's target, unless it is the plan's own.
    pub(super) target: Option<String>,
    /// Whether the step names HTTP/2, because its target is not the plan's.
    pub(super) is_http2: bool,
    pub(super) method: String,
    pub(super) path: TemplateText,
    pub(super) headers: BTreeMap<String, Vec<HeaderText>>,
    pub(super) body: Option<TemplateText>,
    pub(super) parts: Vec<PartDraft>,
    /// The expected status, if the response was not a success.
    pub(super) expect: Option<u16>,
    pub(super) pause: Option<Duration>,
    pub(super) weight: Option<u32>,
    pub(super) take: BTreeMap<String, TakeSpec>,
}

/// The value of a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeaderText {
    Text(TemplateText),
    /// The name of an environment variable.
    Env(String),
}

impl HeaderText {
    fn to_toml(&self) -> String {
        match self {
            HeaderText::Text(text) => toml_string(&text.to_string()),
            HeaderText::Env(name) => format!("{{ env = {} }}", toml_string(name)),
        }
    }
}

/// Returns the name of the rows file for the plan `plan`.
pub(super) fn rows_file_name(plan: &str) -> String {
    format!("{plan}-users.csv")
}

impl PlanDraft {
    /// Returns the plan as TOML.
    pub(super) fn to_toml(&self) -> String {
        let mut text = String::new();
        self.comments
            .iter()
            .for_each(|line| push_comment(&mut text, line));
        push_line(&mut text, &format!("name   = {}", toml_string(&self.name)));
        push_line(
            &mut text,
            &format!("target = {}", toml_string(&self.target)),
        );
        if !self.columns.is_empty() {
            text.push('\n');
            push_comment(
                &mut text,
                "Secrets of users are not in this plan. This file has a line of column names and a line for each user:",
            );
            push_comment(&mut text, &self.columns.join(","));
            push_comment(
                &mut text,
                "In forms and URLs values are written percent-encoded: a%26b for a&b. Give each user an account of its own.",
            );
            let file = toml_string(&rows_file_name(&self.name));
            push_line(&mut text, &format!("[rows]\nfile = {file}"));
        }
        text.push_str("\n# Users who arrive; raise the rate once the plan works.\n");
        text.push_str("[load]\nrate     = \"1/s\"\nduration = \"10s\"\n");
        let shared = self.shared_headers();
        if self.is_http2 || !shared.is_empty() {
            text.push_str("\n[call.http]\n");
        }
        if self.is_http2 {
            text.push_str("version = \"2\"\n");
        }
        for (name, values) in &shared {
            push_header(&mut text, name, values);
        }
        for step in &self.steps {
            let inherited = if step.target.is_none() {
                &shared
            } else {
                &BTreeMap::new()
            };
            step.write_toml(&mut text, inherited);
        }
        text
    }

    /// Returns the header fields that have the same values in all steps to the plan's target. Steps to other targets have
    /// no defaults.
    fn shared_headers(&self) -> BTreeMap<String, Vec<HeaderText>> {
        let own = self.steps.iter().filter(|step| step.target.is_none());
        let own: Vec<&StepDraft> = own.collect();
        let Some((first, others)) = own.split_first() else {
            return BTreeMap::new();
        };
        let is_literal = |value: &HeaderText| match value {
            HeaderText::Text(text) => text.as_literal().is_some(),
            HeaderText::Env(_) => true,
        };
        let mut shared = first.headers.clone();
        shared.retain(|name, values| {
            !others.is_empty()
                && values.iter().all(is_literal)
                && others
                    .iter()
                    .all(|step| step.headers.get(name) == Some(values))
        });
        shared
    }
}

impl StepDraft {
    fn write_toml(&self, text: &mut String, shared: &BTreeMap<String, Vec<HeaderText>>) {
        text.push('\n');
        self.comments
            .iter()
            .for_each(|line| push_comment(text, line));
        push_line(text, "[[steps]]");
        push_line(text, &format!("name = {}", toml_string(&self.name)));
        if let Some(target) = &self.target {
            push_line(text, &format!("target = {}", toml_string(target)));
        }
        if self.is_http2 {
            push_line(text, "version = \"2\"");
        }
        let has_body = self.body.is_some() || !self.parts.is_empty();
        let usual = if has_body { "POST" } else { "GET" };
        if self.method != usual {
            push_line(text, &format!("method = {}", toml_string(&self.method)));
        }
        push_line(
            text,
            &format!("path = {}", toml_string(&self.path.to_string())),
        );
        if let Some(pause) = self.pause {
            push_line(text, &format!("pause = \"{}\"", Period(pause)));
        }
        if let Some(weight) = self.weight {
            push_line(text, &format!("weight = {weight}"));
        }
        if let Some(body) = &self.body {
            push_line(text, &format!("body = {}", toml_string(&body.to_string())));
        }
        if !self.parts.is_empty() {
            let parts = self.parts.iter().map(part_to_toml);
            push_line(
                text,
                &format!("form = [{}]", parts.collect::<Vec<_>>().join(", ")),
            );
        }
        if let Some(status) = self.expect {
            push_line(text, &format!("expect = [{status}]"));
        }
        for (name, values) in &self.headers {
            if !shared.contains_key(name) {
                push_header(text, name, values);
            }
        }
        for (name, take) in &self.take {
            if let Ok(source) = Value::try_from(take) {
                push_line(text, &format!("take.{} = {source}", toml_key(name)));
            }
        }
    }
}

/// A part of a multipart form.
#[derive(Clone, Debug)]
pub(super) struct PartDraft {
    pub(super) name: String,
    pub(super) value: TemplateText,
    /// The file that is sent in place of a value.
    pub(super) file: Option<String>,
}

fn part_to_toml(part: &PartDraft) -> String {
    let content = match &part.file {
        Some(file) => format!("file = {}", toml_string(file)),
        None => format!("value = {}", toml_string(&part.value.to_string())),
    };
    format!("{{ name = {}, {content} }}", toml_string(&part.name))
}

fn push_header(text: &mut String, name: &str, values: &[HeaderText]) {
    let values: Vec<String> = values.iter().map(HeaderText::to_toml).collect();
    let value = match &*values {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    push_line(text, &format!("headers.{} = {value}", toml_key(name)));
}

fn push_line(text: &mut String, line: &str) {
    let _infallible = writeln!(text, "{line}");
}

/// Appends a comment. Line breaks in recorded text would end the comment, so they become spaces.
fn push_comment(text: &mut String, line: &str) {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = line.chars().map(plain).collect();
    push_line(text, format!("# {line}").trim_end());
}
