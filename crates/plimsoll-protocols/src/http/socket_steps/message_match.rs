//! Recognises messages by their whole text, by a part of it, by a value in JSON, or by a regular expression. Binary
//! messages of a described type are JSON in this sense.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::rows::template::{RenderContext, Template};
use plimsoll_wire::hex;
use plimsoll_wire::websocket::Opcode;
use regex::bytes::Regex;
use toml::Value;

use super::section::{MessageMatchSpec, MessagePartSpec};
use crate::http::checks::to_printable;
use crate::http::payload::TemplateContext;
use crate::journey::{CaptureSource, SharedAnswerReader, parse_json_source, resolve_pointer};

/// A message as the rules of a step see it.
pub(super) struct ReceivedMessage<'a> {
    /// The message as received.
    bytes: &'a [u8],
    /// The message in JSON if it is binary and its type is described, otherwise as received; or the reason why it can't
    /// be read.
    content: Result<Cow<'a, [u8]>, String>,
}

impl<'a> ReceivedMessage<'a> {
    /// Reads a message. `message_type`: the type of binary messages, if it is described.
    pub(super) fn read(
        bytes: &'a [u8],
        opcode: Opcode,
        message_type: Option<&SharedAnswerReader>,
    ) -> ReceivedMessage<'a> {
        let content = match message_type.filter(|_| opcode == Opcode::Binary) {
            None => Ok(Cow::Borrowed(bytes)),
            Some(reader) => match reader.to_json(bytes) {
                Ok(json) => Ok(Cow::Owned(json.into_bytes())),
                Err(problem) => Err(format!(
                    "the message is not a {}: {problem}",
                    reader.type_name()
                )),
            },
        };
        ReceivedMessage { bytes, content }
    }

    /// Returns the beginning of the message for an error message.
    pub(super) fn to_printable(&self) -> String {
        to_printable(self.content.as_deref().unwrap_or(self.bytes))
    }

    /// Returns the content from which values are taken, or the reason why it can't be read.
    pub(super) fn into_content(self) -> Result<Vec<u8>, String> {
        self.content.map(Cow::into_owned)
    }
}

/// How a message is recognised.
#[derive(Clone, Debug)]
pub(super) enum MessageMatch {
    /// The whole message equals a text, apart from white space at both ends.
    Whole(Template),
    /// The message contains a text.
    Contains(Template),
    /// The value at a JSON Pointer equals the text of the template; without a template, it exists and is not null.
    Json(Vec<String>, Option<Template>),
    /// The message matches a regular expression.
    Regex(Regex),
    /// The message is these bytes, or has them at this index.
    Bytes(Vec<u8>, Option<usize>),
}

impl PartialEq for MessageMatch {
    fn eq(&self, other: &MessageMatch) -> bool {
        match (self, other) {
            (MessageMatch::Whole(one), MessageMatch::Whole(two))
            | (MessageMatch::Contains(one), MessageMatch::Contains(two)) => one == two,
            (MessageMatch::Json(one, equal_one), MessageMatch::Json(two, equal_two)) => {
                (one, equal_one) == (two, equal_two)
            }
            (MessageMatch::Regex(one), MessageMatch::Regex(two)) => one.as_str() == two.as_str(),
            (MessageMatch::Bytes(one, at_one), MessageMatch::Bytes(two, at_two)) => {
                (one, at_one) == (two, at_two)
            }
            _ => false,
        }
    }
}

impl Eq for MessageMatch {}

impl MessageMatch {
    /// Resolves the rule in a plan.
    ///
    /// # Errors
    /// Returns an error that says what is wrong with the rule, and how to write it.
    pub(super) fn resolve(
        typed: &MessageMatchSpec,
        texts: &mut TemplateContext<'_>,
    ) -> Result<MessageMatch, String> {
        match typed {
            MessageMatchSpec::Messages(count) => Err(format!(
                "{count}: only until can be a number of messages; write a text, or a table such as {{ json = \
                 \"/type\", equals = \"error\" }}"
            )),
            MessageMatchSpec::Text(text) => {
                let part = text.strip_prefix("contains:").map(str::trim);
                let wanted = part.unwrap_or(text.trim());
                if wanted.is_empty() {
                    return Err(
                        "empty: write the text of a message, or contains:TEXT, such as contains:\"done\":true"
                            .to_owned(),
                    );
                }
                let template = parse(wanted, texts)?;
                Ok(match part {
                    Some(_) => MessageMatch::Contains(template),
                    None => MessageMatch::Whole(template),
                })
            }
            MessageMatchSpec::Part(part) => MessageMatch::from_part(part, texts),
        }
    }

    fn from_part(
        part: &MessagePartSpec,
        texts: &mut TemplateContext<'_>,
    ) -> Result<MessageMatch, String> {
        let is_of_bytes = part.hex.is_some() || part.base64.is_some() || part.at.is_some();
        match (&part.json, &part.regex) {
            (None, None) if is_of_bytes && part.equals.is_none() => {
                let bytes = decode_bytes(part.hex.as_deref(), part.base64.as_deref())?;
                if bytes.is_empty() {
                    return Err("no bytes: write at least one".to_owned());
                }
                Ok(MessageMatch::Bytes(bytes, part.at.map(|at| at as usize)))
            }
            (Some(path), None) if !is_of_bytes => {
                let Ok(CaptureSource::Pointer(tokens)) = parse_json_source(path) else {
                    return Err(format!("`{path}` is not a JSON Pointer such as /type"));
                };
                let wanted = part.equals.as_ref().map(|wanted| match wanted {
                    Value::String(text) => parse(text, texts),
                    Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => {
                        Ok(Template::from_text(&wanted.to_string()))
                    }
                    _ => Err("equals: write a text, a number, true or false".to_owned()),
                });
                Ok(MessageMatch::Json(tokens, wanted.transpose()?))
            }
            (None, Some(pattern)) if part.equals.is_none() && !is_of_bytes => match Regex::new(pattern) {
                Ok(regex) => Ok(MessageMatch::Regex(regex)),
                Err(e) => Err(format!("not a regular expression: {e}")),
            },
            _ => Err(
                "write one of json, which may have equals, regex, hex and base64, which may have at, such as { json = \
                 \"/type\", equals = \"done\" }"
                    .to_owned(),
            ),
        }
    }

    /// Returns the template of the text or value to compare with; `None` for a regular expression, and for any value.
    pub(super) fn template(&self) -> Option<&Template> {
        match self {
            MessageMatch::Whole(template) | MessageMatch::Contains(template) => Some(template),
            MessageMatch::Json(_, wanted) => wanted.as_ref(),
            MessageMatch::Regex(_) | MessageMatch::Bytes(..) => None,
        }
    }

    /// Renders the text or value to compare with, for one step of a user.
    pub(super) fn render_expected(&self, moment: &RenderContext<'_>) -> Vec<u8> {
        let mut wanted = Vec::new();
        if let Some(template) = self.template() {
            template.write(moment, &mut wanted);
        }
        wanted
    }

    /// Checks the path of a value in messages of a described type, and converts its names to those in the messages'
    /// JSON.
    ///
    /// # Errors
    /// Returns an error that names the field that does not exist.
    pub(super) fn resolve_path(&mut self, reader: &SharedAnswerReader) -> Result<(), String> {
        if let MessageMatch::Json(tokens, _) = self {
            *tokens = reader.resolve_path(tokens)?;
        }
        Ok(())
    }

    /// Returns whether the rule matches `message`. `wanted`: the text or value that
    /// [`MessageMatch::render_expected`] has rendered.
    pub(super) fn matches(&self, message: &ReceivedMessage<'_>, wanted: &[u8]) -> bool {
        let text = message.content.as_deref().ok();
        match self {
            MessageMatch::Whole(_) => text.is_some_and(|text| text.trim_ascii() == wanted),
            MessageMatch::Contains(_) => text.is_some_and(|text| {
                let mut parts = text.windows(wanted.len().max(1));
                wanted.is_empty() || parts.any(|part| part == wanted)
            }),
            MessageMatch::Json(tokens, equals) => {
                let text = text.and_then(|text| std::str::from_utf8(text).ok());
                let value = text.and_then(|text| resolve_pointer(text, tokens).ok().flatten());
                value.is_some_and(|value| equals.is_none() || *value == *wanted)
            }
            MessageMatch::Regex(regex) => text.is_some_and(|text| regex.is_match(text)),
            MessageMatch::Bytes(bytes, None) => message.bytes == bytes.as_slice(),
            MessageMatch::Bytes(bytes, Some(at)) => (message.bytes)
                .get(*at..)
                .is_some_and(|rest| rest.starts_with(bytes)),
        }
    }
}

/// Decodes bytes that are written in hexadecimal digits or in base64.
///
/// # Errors
/// Returns a message if neither or both are given, or if the text can't be decoded.
pub(super) fn decode_bytes(hex: Option<&str>, base64: Option<&str>) -> Result<Vec<u8>, String> {
    match (hex, base64) {
        (Some(digits), None) => {
            let digits: String = digits.split_whitespace().collect();
            let wrong = "hex: not hexadecimal: write two digits for each byte, such as 0a03";
            hex::decode(&digits).ok_or_else(|| wrong.to_owned())
        }
        (None, Some(text)) => {
            let decoded = STANDARD.decode(text);
            decoded.map_err(|e| format!("base64: not base64: {e}"))
        }
        _ => Err("write either hex or base64".to_owned()),
    }
}

fn parse(text: &str, texts: &mut TemplateContext<'_>) -> Result<Template, String> {
    texts.uses_rows |= plimsoll_model::rows::template::uses_rows(text);
    Template::parse(text, texts.slots, texts.scope)
}
