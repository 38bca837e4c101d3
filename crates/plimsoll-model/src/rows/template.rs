//! Data that varies from call to call: `{{seq}}`, `{{uuid}}`, `{{random 1 100}}`, `{{words 5 9}}`, `{{now}}`,
//! `{{client}}`, `{{message}}`, `{{row.NAME}}` and `{{row}}`, and the names of values that a journey captured from
//! earlier answers (the key `take` of a step).
//!
//! A [`Template`] is a text that contains [`TemplateField`]s. A field's value is a pure function of the plan's seed,
//! the call's number and the time, which are in a [`RenderContext`]. So a run is reproducible, and its shards agree
//! without communicating. Protocols parse their messages into implementations of [`MessageRenderer`], which are part of
//! the plan.
//!
//! This file is long because parsing and rendering of fields are kept together with the list of their sources.

mod captured_values;
mod command_output;
mod data_sets;
mod formatting;
mod random;
mod render_context;
mod rows;
mod trace_context;
mod varying_data;
mod words;

use std::sync::Arc;

use crate::formats::suggest::suggest;
pub use captured_values::{CapturedField, FieldScope, MAX_CAPTURED_VALUE_BYTES};
pub use command_output::{CommandOutput, MAX_COMMAND_OUTPUT_BYTES};
use formatting::{hyphenate_uuid, write_number};
pub use random::RandomRange;
use random::parse_random_range;
pub use render_context::{RenderContext, VariationSettings};
pub use rows::{RowColumn, RowOrder, Rows};
pub use trace_context::{SpanId, TraceId, TraceIds};
pub use varying_data::{
    MessageRenderer, MetadataField, VaryingMessages, VaryingMetadata, trace_ids,
};
pub use words::{WordRange, append_filler_words};

/// The names of built-in fields.
const FIELD_NAMES: [&str; 8] = [
    "seq", "uuid", "random", "words", "now", "client", "message", "row",
];
const FIELD_HELP: &str = "use seq, uuid, random LOW HIGH, words LOW HIGH, now, client, message, row.NAME or row; two plain braces are written {{{{";

/// The source of a field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldSource {
    /// The call's number in the run, from 0.
    Seq,
    /// The number of one of the plan's clients, from 0; calls are assigned to them in turn.
    Client,
    /// The message's number in its stream, from 0.
    Message,
    /// A random UUID (RFC 9562, version 4).
    Uuid,
    /// The time at which the call is made.
    Now(TimeFormat),
    /// A random number for each call.
    Random(RandomRange),
    /// A random number of common words for each call.
    Words(WordRange),
    /// A column of the call's row, or the whole row as JSON.
    Row(Arc<RowColumn>),
    /// The last output of a command. It can't be written in braces.
    CommandOutput(Arc<CommandOutput>),
    /// The call's trace ids as the value of `traceparent`. They can't be written in braces.
    Traceparent,
    /// A value that the same journey captured from an earlier answer, by its name.
    Captured(CapturedField),
}

/// The format of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeFormat {
    /// The number of whole units since 1970. The value is the length of a unit in nanoseconds.
    UnixUnits(u64),
    /// `2026-11-21T09:30:00.123456789Z`
    Rfc3339,
}

/// A field in a template: its source and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateField {
    /// The source of the value.
    pub source: FieldSource,
    /// The position among all fields of the call, which makes the values of two random fields differ.
    slot: u32,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    /// Text that is the same in every call.
    Text(String),
    /// A field with a value for each call.
    Field(TemplateField),
}

impl TemplatePart {
    /// Returns the field; `None`: the part is text.
    pub fn field(&self) -> Option<&TemplateField> {
        match self {
            TemplatePart::Text(_) => None,
            TemplatePart::Field(field) => Some(field),
        }
    }
}

/// A text that contains fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

/// Returns whether a text may contain fields.
pub fn has_fields(text: &str) -> bool {
    text.contains("{{")
}

/// Returns whether a text contains a field for a column of the rows.
pub fn uses_rows(text: &str) -> bool {
    let mut fields = text.split("{{").skip(1);
    fields.any(|inside| {
        let inside = inside.trim_start().strip_prefix("row");
        inside.is_some_and(|rest| rest.starts_with(['.', '}', ' ']))
    })
}

/// Returns the first field in `text`. Protocols use this to reject fields in a text that they send unchanged: calls
/// would succeed, but without the intended variation.
pub fn first_field(text: &str) -> Option<&str> {
    first_field_among(text, &[])
}

/// Returns the first field in `text` that has a built-in name, or one of the names in `captured`.
pub fn first_field_among<'a>(text: &'a str, captured: &[String]) -> Option<&'a str> {
    text.match_indices("{{").find_map(|(at, _)| {
        let inside = text[at + 2..].trim_start();
        let name = inside.split([' ', '}']).next()?;
        let known = FIELD_NAMES.contains(&name)
            || name.starts_with("row.")
            || captured.iter().any(|known| known == name);
        let end = text[at..].find("}}")?;
        known.then(|| &text[at..at + end + 2])
    })
}

/// Converts JSON with bare fields (`{"n": {{seq}}}`) to valid JSON, in which they are strings (`{"n": "{{seq}}"}`).
pub fn quote_unquoted_fields(json: &str) -> String {
    let mut quoted = String::with_capacity(json.len() + 16);
    let (mut rest, mut in_string) = (json, false);
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        match c {
            '\\' if in_string => length += rest[1..].chars().next().map_or(0, char::len_utf8),
            '"' => in_string = !in_string,
            '{' if !in_string && rest.starts_with("{{") => {
                if let Some(end) = rest.find("}}") {
                    let field = &rest[..end + 2];
                    quoted.push('"');
                    quoted.push_str(&field.replace('\\', "\\\\").replace('"', "\\\""));
                    quoted.push('"');
                    rest = &rest[end + 2..];
                    continue;
                }
            }
            _ => {}
        }
        quoted.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    quoted
}

impl Template {
    /// Returns a template that consists of a command's output.
    pub fn from_command_output(value: CommandOutput) -> Template {
        Template::from_source(FieldSource::CommandOutput(Arc::new(value)))
    }

    /// Returns a template without fields.
    pub fn from_text(text: &str) -> Template {
        let parts = Some(text).filter(|text| !text.is_empty());
        Template {
            parts: parts
                .map(|text| TemplatePart::Text(text.to_owned()))
                .into_iter()
                .collect(),
        }
    }

    fn from_source(source: FieldSource) -> Template {
        Template {
            parts: vec![TemplatePart::Field(TemplateField { source, slot: 0 })],
        }
    }

    /// Parses `text`. `slots` counts the fields in all templates of a call.
    ///
    /// # Errors
    /// Returns what is wrong with a field, and what would be valid.
    pub fn parse<'a>(
        text: &str,
        slots: &mut u32,
        scope: impl Into<FieldScope<'a>>,
    ) -> Result<Template, String> {
        let scope = scope.into();
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("{{") {
            plain.push_str(&rest[..at]);
            let after = &rest[at + 2..];
            if let Some(behind) = after.strip_prefix("{{") {
                plain.push_str("{{");
                rest = behind;
                continue;
            }
            let Some(end) = after.find("}}") else {
                let text: String = rest[at..].chars().take(40).collect();
                return Err(format!(
                    "`{text}` is not closed: write }}}} after it; two plain braces are written {{{{{{{{"
                ));
            };
            if !plain.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
            }
            parts.push(TemplatePart::Field(TemplateField {
                source: parse_source(after[..end].trim(), &scope)?,
                slot: *slots,
            }));
            *slots += 1;
            rest = &after[end + 2..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(TemplatePart::Text(plain));
        }
        Ok(Template { parts })
    }

    /// Converts to a template for path and query: values captured from answers are percent-encoded, except at the start
    /// of the text, where the value may be a path.
    #[must_use]
    pub fn with_url_encoding(mut self) -> Template {
        captured_values::mark_percent_encoded(self.parts.iter_mut().skip(1));
        self
    }

    /// Converts to a template for the content of a form, in which all values captured from answers are percent-encoded.
    #[must_use]
    pub fn with_form_encoding(mut self) -> Template {
        captured_values::mark_percent_encoded(self.parts.iter_mut());
        self
    }

    /// Returns the index of the captured value with which the text begins; `None`: the text begins with something else.
    pub fn leading_captured_index(&self) -> Option<u16> {
        let first = self.parts.first().and_then(TemplatePart::field);
        first.and_then(|field| match field.source {
            FieldSource::Captured(taken) => Some(taken.index),
            _ => None,
        })
    }

    /// Returns the index of the captured value that is the whole text; `None`: the text contains anything else.
    pub fn sole_captured_index(&self) -> Option<u16> {
        match self.sole_field()?.source {
            FieldSource::Captured(taken) => Some(taken.index),
            _ => None,
        }
    }

    /// Returns the indices (in [`FieldScope::captured`]) of the captured values that the template contains.
    pub fn captured_indices(&self) -> impl Iterator<Item = u16> + '_ {
        let fields = self.parts.iter().filter_map(TemplatePart::field);
        fields.filter_map(|field| match field.source {
            FieldSource::Captured(taken) => Some(taken.index),
            _ => None,
        })
    }

    /// Returns the parts in order; text parts are not empty.
    pub fn parts(&self) -> &[TemplatePart] {
        &self.parts
    }

    /// Returns the field if it is the only part.
    pub fn sole_field(&self) -> Option<&TemplateField> {
        match self.parts.as_slice() {
            [TemplatePart::Field(field)] => Some(field),
            _ => None,
        }
    }

    /// Returns the text if it contains no fields.
    pub fn constant_text(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text for the message that `moment` describes.
    #[inline]
    pub fn write(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePart::Field(field) => field.write(moment, out),
            }
        }
    }

    /// Returns the minimum and the maximum length of the text, in bytes.
    pub fn length_bounds(&self) -> (usize, usize) {
        self.parts.iter().fold((0, 0), |(least, most), part| {
            let (low, high) = match part {
                TemplatePart::Text(text) => (text.len(), text.len()),
                TemplatePart::Field(field) => field.length_bounds(),
            };
            (least + low, most + high)
        })
    }
}

fn parse_source(inside: &str, scope: &FieldScope<'_>) -> Result<FieldSource, String> {
    let rows = scope.rows;
    if let Some(index) = scope.captured.iter().position(|name| name == inside) {
        return Ok(FieldSource::Captured(CapturedField {
            index: index as u16,
            is_in_url: false,
        }));
    }
    let mut words = inside.split_whitespace();
    let name = words.next().unwrap_or_default();
    let arguments: Vec<&str> = words.collect();
    let wrong = |problem: &str| format!("`{{{{{inside}}}}}`: {problem}");
    let no_rows = || format!("`{{{{{inside}}}}}` needs rows: name their file (rows.file, --rows)");
    if name == "row" && arguments.is_empty() {
        return Ok(FieldSource::Row(Arc::clone(
            rows.ok_or_else(no_rows)?.whole_rows(),
        )));
    }
    if let Some(column) = name.strip_prefix("row.") {
        // The whole rest is the column's name, which may contain blanks.
        let column = inside.strip_prefix("row.").unwrap_or(column);
        let rows = rows.ok_or_else(no_rows)?;
        let (key, file) = (format!("`{{{{row.{column}}}}}`"), rows.file());
        if let Some(defect) = rows.column_defect(column) {
            return Err(format!("{key}: {defect}"));
        }
        let found = rows.column(column).ok_or_else(|| {
            let help = rows.missing_column_help(column);
            format!("{key}: {file} has no such column: {help}")
        })?;
        return Ok(FieldSource::Row(Arc::clone(found)));
    }
    let plain = match name {
        "seq" => Some(FieldSource::Seq),
        "uuid" => Some(FieldSource::Uuid),
        "client" => Some(FieldSource::Client),
        "message" => Some(FieldSource::Message),
        _ => None,
    };
    match (plain, name, arguments.as_slice()) {
        (Some(source), _, []) => Ok(source),
        (Some(_), ..) => Err(wrong("takes no arguments")),
        (None, "now", []) => Ok(FieldSource::Now(TimeFormat::UnixUnits(1_000_000))),
        (None, "now", [unit]) => Ok(FieldSource::Now(match *unit {
            "s" => TimeFormat::UnixUnits(1_000_000_000),
            "ms" => TimeFormat::UnixUnits(1_000_000),
            "us" => TimeFormat::UnixUnits(1_000),
            "ns" => TimeFormat::UnixUnits(1),
            "rfc3339" => TimeFormat::Rfc3339,
            _ => return Err(wrong("the time is written in s, ms, us, ns or rfc3339")),
        })),
        (None, "now", _) => Err(wrong("takes one unit: s, ms, us, ns or rfc3339")),
        (None, "random", [low, high]) => parse_random_range(low, high).map_err(|e| wrong(&e)),
        (None, "random", _) => Err(wrong("takes two numbers: random 1 100")),
        (None, "words", limits) => WordRange::parse(limits).map_err(|e| wrong(&e)),
        _ => {
            let taken = scope.captured.iter().map(String::as_str);
            let known: Vec<&str> = FIELD_NAMES.into_iter().chain(taken).collect();
            let help = match suggest(name, &known) {
                Some(near) => format!("did you mean {near}?"),
                None => FIELD_HELP.to_owned(),
            };
            Err(format!("`{{{{{inside}}}}}` is unknown: {help}"))
        }
    }
}

impl TemplateField {
    /// Returns whether the value is a number. Its number of decimals is [`TemplateField::decimal_places`].
    pub fn is_number(&self) -> bool {
        match self.source {
            FieldSource::Seq
            | FieldSource::Client
            | FieldSource::Message
            | FieldSource::Random(_) => true,
            FieldSource::Now(unit) => unit != TimeFormat::Rfc3339,
            FieldSource::Uuid
            | FieldSource::Words(_)
            | FieldSource::Row(_)
            | FieldSource::CommandOutput(_)
            | FieldSource::Captured(_)
            | FieldSource::Traceparent => false,
        }
    }

    /// Returns the number of decimals of a number; 0 for any other value.
    pub fn decimal_places(&self) -> u8 {
        match self.source {
            FieldSource::Random(random) => random.digits,
            _ => 0,
        }
    }

    /// Returns a number as an integer in units of its last decimal; 0 for any other value.
    #[inline]
    pub fn scaled_integer(&self, moment: &RenderContext<'_>) -> i64 {
        match &self.source {
            FieldSource::Seq => moment.number as i64,
            FieldSource::Client => moment.client_number() as i64,
            FieldSource::Message => i64::from(moment.message),
            FieldSource::Now(TimeFormat::UnixUnits(nanos)) => (moment.unix_ns / nanos) as i64,
            FieldSource::Random(random) => {
                moment.random_between(self.slot, random.low, random.high)
            }
            FieldSource::Now(TimeFormat::Rfc3339)
            | FieldSource::Uuid
            | FieldSource::Words(_)
            | FieldSource::Row(_)
            | FieldSource::CommandOutput(_)
            | FieldSource::Captured(_)
            | FieldSource::Traceparent => 0,
        }
    }

    /// Returns a random UUID that depends on the field's position, even if the field's source is not a UUID.
    #[inline]
    pub fn uuid(&self, moment: &RenderContext<'_>) -> [u8; 16] {
        moment.uuid(self.slot)
    }

    /// Appends the value as text.
    #[inline]
    pub fn write(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        match &self.source {
            FieldSource::Row(column) => column.write(moment.row_index(), out),
            FieldSource::CommandOutput(value) => value.write(out),
            FieldSource::Captured(taken) => taken.write(moment, out),
            FieldSource::Words(range) => range.write(self.slot, moment, out),
            FieldSource::Uuid => out.extend_from_slice(&hyphenate_uuid(self.uuid(moment))),
            FieldSource::Traceparent => out.extend_from_slice(&moment.traceparent()),
            FieldSource::Now(TimeFormat::Rfc3339) => {
                out.extend_from_slice(moment.format_rfc3339().as_bytes());
            }
            _ => write_number(self.scaled_integer(moment), self.decimal_places(), out),
        }
    }

    /// Returns the minimum and the maximum length of the text, in bytes.
    pub fn length_bounds(&self) -> (usize, usize) {
        match &self.source {
            FieldSource::Row(column) => column.value_length_bounds(),
            FieldSource::CommandOutput(_) => (1, MAX_COMMAND_OUTPUT_BYTES),
            FieldSource::Captured(_) => (0, MAX_CAPTURED_VALUE_BYTES),
            FieldSource::Words(range) => range.length_bounds(),
            FieldSource::Uuid => (36, 36),
            FieldSource::Traceparent => {
                (TraceIds::TRACEPARENT_LENGTH, TraceIds::TRACEPARENT_LENGTH)
            }
            FieldSource::Now(TimeFormat::Rfc3339) => (20, 30),
            FieldSource::Random(random) => {
                let length = |n| {
                    let mut text = Vec::new();
                    write_number(n, random.digits, &mut text);
                    text.len()
                };
                let ends = length(random.low).max(length(random.high));
                (1 + usize::from(random.digits), ends)
            }
            _ => (1, 20),
        }
    }
}

#[cfg(test)]
mod tests;
