//! Reads the payloads of requests and frames, as bytes or as templates.

use std::path::PathBuf;

use plimsoll_model::rows::template::{self, FieldScope, FieldSource, Template, TemplatePart};
use plimsoll_model::spec::{Problems, ResolveContext};

use crate::shared::alternatives::report_conflict;

use super::call::VaryingBody;

/// The context in which the templates of a call are parsed.
pub(crate) struct TemplateContext<'a> {
    pub(crate) slots: &'a mut u32,
    /// The names that fields may refer to.
    pub(crate) scope: FieldScope<'a>,
    /// Whether some template uses a column of the rows.
    pub(crate) uses_rows: bool,
    pub(crate) surroundings: &'a dyn ResolveContext,
}

/// The payload of a request or a frame, as bytes or as a template.
pub(crate) struct Payload {
    /// The bytes, if the payload does not vary.
    pub(super) bytes: Vec<u8>,
    pub(crate) varying: Option<VaryingBody>,
    pub(super) is_json: bool,
    /// The content type that the payload needs; `None` means the default for JSON or for bytes.
    pub(super) content_type: Option<String>,
}

/// The key and value of the plan that set a payload.
#[derive(Clone, Copy)]
pub(super) struct BodySource<'a> {
    /// The key of the table with `body` or `body_file`.
    pub(super) key: &'a str,
    pub(super) text: Option<&'a String>,
    pub(super) file: Option<&'a PathBuf>,
}

/// Reads and parses a payload. `None` if a problem was reported.
pub(super) fn load_payload(
    problems: &mut Problems,
    source: BodySource<'_>,
    texts: &mut TemplateContext<'_>,
) -> Option<Payload> {
    let given = [
        ("body", source.text.is_some()),
        ("body_file", source.file.is_some()),
    ];
    if report_conflict(problems, source.key, &given) {
        return None;
    }
    let (key, bytes) = match source.file {
        Some(path) => {
            let file_key = format!("{}.body_file", source.key);
            let bytes = texts.surroundings.read_bytes(path);
            let bytes = bytes.map_err(|e| format!("can't read {}: {e}", path.display()));
            let bytes = problems.ok_or_report(&file_key, bytes)?;
            (file_key, bytes)
        }
        None => {
            let bytes = source.text.cloned().unwrap_or_default().into_bytes();
            (format!("{}.body", source.key), bytes)
        }
    };
    parse_payload(problems, &key, bytes, texts)
}

/// Parses the content at `key`, as a template if it is UTF-8 text.
pub(crate) fn parse_payload(
    problems: &mut Problems,
    key: &str,
    bytes: Vec<u8>,
    texts: &mut TemplateContext<'_>,
) -> Option<Payload> {
    let plain = |bytes: Vec<u8>| Payload {
        is_json: serde_json::from_slice::<serde_json::Value>(&bytes).is_ok(),
        bytes,
        varying: None,
        content_type: None,
    };
    // Bytes that are not UTF-8 have no template fields.
    let text = match String::from_utf8(bytes) {
        Ok(text) if template::has_fields(&text) => text,
        Ok(text) => return Some(plain(text.into_bytes())),
        Err(e) => return Some(plain(e.into_bytes())),
    };
    let parsed = Template::parse(&text, texts.slots, texts.scope);
    let parsed = problems.ok_or_report(key, parsed)?;
    if let Some(constant) = parsed.constant_text() {
        return Some(plain(constant.as_bytes().to_vec()));
    }
    if has_message_field(&parsed) {
        problems.add(key, "{{message}}: not supported in a body");
        return None;
    }
    texts.uses_rows |= template::uses_rows(&text);
    let is_json = serde_json::from_str::<serde_json::Value>(&with_placeholders(&parsed)).is_ok();
    Some(Payload {
        bytes: Vec::new(),
        varying: Some(VaryingBody {
            quoted: find_quoted_parts(&parsed, is_json),
            template: parsed,
            typed: text,
        }),
        is_json,
        content_type: None,
    })
}

impl Payload {
    /// Turns a constant payload into a template, so that every call renders it, and returns a sample of the body.
    ///
    /// # Errors
    /// Returns an error if the body is not UTF-8.
    pub(crate) fn make_varying(
        &mut self,
        texts: &mut TemplateContext<'_>,
    ) -> Result<Vec<u8>, String> {
        if let Some(varying) = &self.varying {
            return Ok(with_placeholders(&varying.template).into_bytes());
        }
        let text = std::str::from_utf8(&self.bytes).map_err(|e| e.to_string())?;
        let typed = escape_template(text);
        let template = Template::parse(&typed, texts.slots, texts.scope)?;
        let bytes = std::mem::take(&mut self.bytes);
        self.varying = Some(VaryingBody {
            quoted: vec![false; template.parts().len()],
            template,
            typed,
        });
        Ok(bytes)
    }
}

/// Escapes a text without fields, so that parsing it as a template returns the same text.
pub(super) fn escape_template(text: &str) -> String {
    text.replace("{{", "{{{{")
}

pub(super) fn has_message_field(template: &Template) -> bool {
    let mut fields = template.parts().iter().filter_map(TemplatePart::field);
    fields.any(|field| matches!(field.source, FieldSource::Message))
}

/// Replaces template fields by a text that is valid JSON both inside and outside of a string.
pub(super) fn with_placeholders(template: &Template) -> String {
    let parts = template.parts().iter();
    parts
        .map(|part| match part {
            TemplatePart::Text(text) => text.as_str(),
            TemplatePart::Field(_) => "0",
        })
        .collect()
}

/// Returns, for each part of the template, whether it is within a JSON string.
fn find_quoted_parts(template: &Template, is_json: bool) -> Vec<bool> {
    let mut inside = false;
    let mut quoted = Vec::new();
    for part in template.parts() {
        quoted.push(is_json && inside);
        if let TemplatePart::Text(text) = part {
            let mut escaped = false;
            for b in text.bytes() {
                match b {
                    _ if escaped => escaped = false,
                    b'\\' if inside => escaped = true,
                    b'"' => inside = !inside,
                    _ => {}
                }
            }
        }
    }
    quoted
}
