//! Builds request bodies in `multipart/form-data` (RFC 7578) from the parts in a plan or in `--form`.
//!
//! The boundary between parts is a text that occurs in none of them, whichever row of the data file fills the
//! templates.

use plimsoll_model::rows::template::{self, FieldSource, Template, TemplatePart};
use plimsoll_model::spec::{MetadataSpec, Problems, is_valid_field_value};

use super::payload::{
    BodySource, Payload, TemplateContext, escape_template, load_payload, parse_payload,
};
use super::section::{FormPartSpec, HttpSpec};
use crate::interface::protocol_module::UsageError;
use crate::shared::alternatives::report_conflict;

/// Options that may follow a part's value.
const PART_OPTIONS: [&str; 2] = [";type=", ";filename="];

/// Parses a part of `--form`: `NAME=VALUE` or `NAME=@FILE`, optionally followed by `;type=TYPE` and `;filename=NAME`.
///
/// # Errors
/// Returns an error if the name, or the file after the @, is missing.
pub(super) fn parse_part(typed: &str) -> Result<FormPartSpec, UsageError> {
    let wrong = |problem: &str| {
        UsageError::new(
            format_args!("--form: {problem}"),
            "write, for example, --form name=value, or --form 'upload=@photo.png;type=image/png'",
        )
    };
    let (name, rest) = typed
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| wrong("no NAME= in front of the value"))?;
    let (value, mut rest) = rest.split_at(find_next_option(rest));
    let mut part = FormPartSpec {
        name: name.to_owned(),
        ..FormPartSpec::default()
    };
    match value.strip_prefix('@') {
        Some("" | "-") => return Err(wrong("no name of a file behind the @")),
        Some(file) => part.file = Some(file.into()),
        None => part.value = Some(value.to_owned()),
    }
    while let Some((key, value)) = rest.split_once('=') {
        let (value, others) = value.split_at(find_next_option(value));
        let option = if key == ";type" {
            &mut part.content_type
        } else {
            &mut part.filename
        };
        *option = Some(value.to_owned());
        rest = others;
    }
    Ok(part)
}

/// Returns where the next option begins, or the length of `text`.
fn find_next_option(text: &str) -> usize {
    let found = PART_OPTIONS.iter().filter_map(|option| text.find(option));
    found.min().unwrap_or(text.len())
}

/// A part whose file has been read.
struct LoadedPart {
    /// The part's header fields, and the empty line after them.
    head: String,
    data: Vec<u8>,
    /// Whether `data` may contain template fields: a value may, a file may not.
    is_typed: bool,
}

/// Resolves the body of a request: its form, its text or its file. `None` if a problem was reported.
pub(super) fn resolve_body(
    problems: &mut Problems,
    call: &HttpSpec,
    texts: &mut TemplateContext<'_>,
) -> Option<Payload> {
    let source = BodySource {
        key: "call.http",
        text: call.body.as_ref(),
        file: call.body_file.as_ref(),
    };
    let Some(parts) = &call.form else {
        return load_payload(problems, source, texts);
    };
    let given = [
        ("body", call.body.is_some()),
        ("body_file", call.body_file.is_some()),
        ("websocket", call.websocket.is_some()),
        ("conversation", call.conversation.is_some()),
        ("form", true),
    ];
    if report_conflict(problems, "call.http", &given) {
        return None;
    }
    if parts.is_empty() {
        problems.add(
            "call.http.form",
            "a form without parts: write { name = \"a\", value = \"b\" }",
        );
    }
    let is_type = |name: &String| name.eq_ignore_ascii_case("content-type");
    if let Some(name) = call.headers.keys().find(|name| is_type(name)) {
        problems.add(
            format!("call.http.headers.{name}"),
            "a form has its own, with the boundary between its parts: leave it out",
        );
    }
    let loaded = parts.iter().enumerate().map(|(nth, part)| {
        let key = format!("call.http.form.{nth}");
        load_part(problems, &key, part, texts)
    });
    let loaded = loaded.collect::<Vec<_>>();
    let loaded = loaded.into_iter().collect::<Option<Vec<LoadedPart>>>()?;
    // The data are finite, so some numbered boundary does not occur in them.
    (0..).find_map(|number| {
        let boundary = format!("plimsoll-form-{number}");
        let is_free = !loaded
            .iter()
            .any(|part| contains_bytes(&part.data, &boundary));
        is_free
            .then(|| encode_with_boundary(problems, &loaded, &boundary, texts))
            .flatten()
    })?
}

/// Reads a part's file, and writes the part's head. `None` if a problem was reported.
fn load_part(
    problems: &mut Problems,
    key: &str,
    part: &FormPartSpec,
    texts: &TemplateContext<'_>,
) -> Option<LoadedPart> {
    let before = problems.0.len();
    if part.name.is_empty() {
        problems.add(format!("{key}.name"), "empty: give the field a name");
    }
    for (name, text) in [
        ("name", Some(&part.name)),
        ("filename", part.filename.as_ref()),
        ("content_type", part.content_type.as_ref()),
    ] {
        problems.reject_template_fields(format!("{key}.{name}"), text.map(String::as_str));
    }
    let kind = part.content_type.as_deref();
    if kind.is_some_and(|kind| kind.is_empty() || !is_valid_field_value(kind)) {
        problems.add(
            format!("{key}.content_type"),
            "not a content type: write one such as \"image/png\"",
        );
    }
    let data = match (&part.value, &part.file) {
        (Some(value), None) => Some(value.clone().into_bytes()),
        (None, Some(path)) => {
            let bytes = texts.surroundings.read_bytes(path);
            let bytes = bytes.map_err(|e| format!("can't read {}: {e}", path.display()));
            problems.ok_or_report(&format!("{key}.file"), bytes)
        }
        _ => {
            problems.add(key, "a part has either a `value` or a `file`");
            None
        }
    };
    let of_file = part.file.as_ref().and_then(|path| path.file_name());
    let of_file = of_file.map(|name| name.to_string_lossy().into_owned());
    let filename = part.filename.clone().or(of_file);
    let default_kind = part.file.as_ref().map(|_| "application/octet-stream");
    let mut head = format!(
        "content-disposition: form-data; name=\"{}\"",
        escape_quotes(&part.name)
    );
    if let Some(filename) = filename {
        head.push_str(&format!("; filename=\"{}\"", escape_quotes(&filename)));
    }
    if let Some(kind) = kind.or(default_kind) {
        head.push_str(&format!("\r\ncontent-type: {kind}"));
    }
    head.push_str("\r\n\r\n");
    (problems.0.len() == before).then_some(LoadedPart {
        head,
        data: data?,
        is_typed: part.value.is_some(),
    })
}

/// Escapes characters that would end a quoted name, as browsers do (WHATWG HTML, 4.10.22.8).
fn escape_quotes(name: &str) -> String {
    name.replace('"', "%22")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn contains_bytes(data: &[u8], text: &str) -> bool {
    data.windows(text.len())
        .any(|bytes| bytes == text.as_bytes())
}

/// Encodes the body with this boundary. Returns `None` if a row contains the boundary, and `Some(None)` if a problem
/// was reported.
fn encode_with_boundary(
    problems: &mut Problems,
    parts: &[LoadedPart],
    boundary: &str,
    texts: &mut TemplateContext<'_>,
) -> Option<Option<Payload>> {
    let varies = |part: &LoadedPart| {
        let text = std::str::from_utf8(&part.data);
        part.is_typed && text.is_ok_and(template::has_fields)
    };
    let is_template = parts.iter().any(varies);
    let mut bytes = Vec::new();
    for (nth, part) in parts.iter().enumerate() {
        let head = format!("--{boundary}\r\n{}", part.head);
        if is_template {
            let Ok(data) = std::str::from_utf8(&part.data) else {
                problems.add(
                    format!("call.http.form.{nth}.file"),
                    "not text: beside values with fields, files have to be UTF-8",
                );
                return Some(None);
            };
            bytes.extend_from_slice(escape_template(&head).as_bytes());
            let is_file = !part.is_typed;
            let data = if is_file {
                escape_template(data)
            } else {
                data.to_owned()
            };
            bytes.extend_from_slice(data.as_bytes());
        } else {
            bytes.extend_from_slice(head.as_bytes());
            bytes.extend_from_slice(&part.data);
        }
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let kind = format!("multipart/form-data; boundary={boundary}");
    if !is_template {
        return Some(Some(Payload {
            bytes,
            varying: None,
            is_json: false,
            content_type: Some(kind),
        }));
    }
    let made = parse_payload(problems, "call.http.form", bytes, texts);
    let varying = made.as_ref().and_then(|made| made.varying.as_ref());
    if varying.is_some_and(|body| rows_contain(&body.template, boundary)) {
        return None;
    }
    Some(made.map(|made| Payload {
        content_type: Some(kind),
        ..made
    }))
}

/// Returns whether a column that the template uses contains `text`.
fn rows_contain(template: &Template, text: &str) -> bool {
    let fields = template.parts().iter().filter_map(TemplatePart::field);
    let mut columns = fields.filter_map(|field| match &field.source {
        FieldSource::Row(column) => Some(column),
        _ => None,
    });
    columns.any(|column| column.values().any(|value| value.contains(text)))
}

/// Replaces a form that contains files by its encoded body, so that the run can be repeated after the files have
/// changed. A form whose encoded body is not UTF-8 is left unchanged.
pub(super) fn inline_form_files(spec: &mut HttpSpec, call: &super::call::HttpCall) {
    let mut parts = spec.form.iter().flatten();
    if !parts.any(|part| part.file.is_some()) {
        return;
    }
    let varying = call.varying.as_ref().and_then(|all| all.body.as_ref());
    let text = match varying {
        Some(body) => Some(body.typed.clone()),
        None => std::str::from_utf8(&call.body).ok().map(escape_template),
    };
    let kind = call.headers.iter().find(|(name, _)| name == "content-type");
    if let (Some(text), Some((name, kind))) = (text, kind) {
        (spec.form, spec.body) = (None, Some(text));
        let kind = MetadataSpec::Text(kind.clone());
        spec.headers.insert(name.clone(), kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_parts_have_value_or_file_and_options() {
        let part = |name: &str| FormPartSpec {
            name: name.to_owned(),
            ..FormPartSpec::default()
        };
        let text = |text: &str| Some(text.to_owned());
        for (typed, read) in [
            (
                "a=b=c;d",
                FormPartSpec {
                    value: text("b=c;d"),
                    ..part("a")
                },
            ),
            (
                "a=",
                FormPartSpec {
                    value: text(""),
                    ..part("a")
                },
            ),
            (
                "meta={\"x\": 1};type=application/json; charset=utf-8",
                FormPartSpec {
                    value: text("{\"x\": 1}"),
                    content_type: text("application/json; charset=utf-8"),
                    ..part("meta")
                },
            ),
            (
                "f=@dir/x.png;filename=y;type=image/png",
                FormPartSpec {
                    file: Some("dir/x.png".into()),
                    filename: text("y"),
                    content_type: text("image/png"),
                    ..part("f")
                },
            ),
        ] {
            assert_eq!(parse_part(typed), Ok(read), "{typed}");
        }
        for typed in ["a", "=b", "a=@", "a=@-", "a=@;type=x"] {
            assert!(parse_part(typed).is_err(), "{typed}");
        }
    }
}
