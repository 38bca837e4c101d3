//! `[call.http]` → plan.

use super::metadata::{Given, Metadata, Names};
use super::{Problems, Surroundings, is_printable, is_visible};
use crate::plan::{
    CallPlan, EventFormat, EventMatch, EventStream, HttpCall, VaryingBody, VaryingHttp,
};
use crate::spec::target::path_of;
use crate::spec::{HttpSpec, Spec};
use crate::template::{self, Part, Rows, Source, Template};
use crate::units::Size;

/// Bodies are counted in 32 bits a call.
const MAX_BODY: Size = Size(u32::MAX as u64);

/// What a request carries besides its header fields, made ready.
struct Payload {
    /// As the first call has it.
    bytes: Vec<u8>,
    varying: Option<VaryingBody>,
    is_json: bool,
    uses_rows: bool,
}

impl Problems {
    pub(super) fn http_call(
        &mut self,
        spec: &Spec,
        call: &HttpSpec,
        surroundings: &dyn Surroundings,
    ) -> Option<CallPlan> {
        let before = self.0.len();
        let rows = self.rows(spec, surroundings);
        let given = match &rows {
            Some(rows) => Given::Rows(rows),
            None if spec.rows.is_some() => Given::Lost,
            None => Given::Nothing,
        };
        let metadata = self.metadata(Names::Http, &call.headers, given, surroundings);
        let mut slots = 0;
        let path = self.http_path(spec, call);
        if spec.rows.is_some() && rows.is_none() {
            return None;
        }
        let path_template = path.as_deref().and_then(|path| {
            let template = Template::parse(path, &mut slots, rows.as_ref());
            let template = self.keep("call.http.path", template.map_err(|e| e.to_string()))?;
            let checked = check_path(&template, rows.as_ref());
            self.keep("call.http.path", checked)?;
            Some(template)
        });
        let payload = self.http_body(call, &mut slots, rows.as_ref(), surroundings);
        if let Some(host) = &call.host
            && !is_visible(host)
        {
            self.add(
                "call.http.host",
                format!("`{host}` is not a host or host:port"),
            );
        }
        let method = self.http_method(call);
        let expect = match &call.expect {
            None => vec![(200, 299)],
            Some(statuses) if statuses.is_empty() => {
                self.add(
                    "call.http.expect",
                    "no status at all, so that no call could succeed: write [200], or leave it out",
                );
                Vec::new()
            }
            Some(statuses) => statuses.iter().map(|s| (s.from, s.to)).collect(),
        };
        for (name, value) in &call.expect_headers {
            if !is_visible(name) || name.contains(':') || !is_printable(value) {
                self.add(
                    format!("call.http.expect_headers.{name}"),
                    "not a header field: use a name without blanks, and a value of printable ASCII",
                );
            }
        }
        if call.expect_body.as_deref() == Some("") {
            self.add(
                "call.http.expect_body",
                "empty, which every body holds: write a text, or leave it out",
            );
        }
        if method == "HEAD" && (call.expect_body.is_some() || call.stream.is_some()) {
            self.add(
                "call.http.method",
                "answers to HEAD have no body to look at: use GET",
            );
        }
        let stream = self.http_stream(call);
        let max_body = call.max_body.unwrap_or(MAX_BODY).0;
        if !(1..=MAX_BODY.0).contains(&max_body) {
            self.add("call.http.max_body", "out of range: use 1B to 4294967295B");
        }
        let uses_rows = path.as_deref().is_some_and(template::uses_rows)
            || payload.as_ref().is_some_and(|payload| payload.uses_rows)
            || metadata.uses_rows;
        if rows.is_some() && !uses_rows {
            self.add(
                "rows",
                "neither path, headers nor body have a field of them: write {{row.NAME}} where a column belongs",
            );
        }
        let variation = self.variation(spec, rows.as_ref());
        if self.0.len() > before {
            return None;
        }
        let (path_template, payload) = (path_template?, payload?);
        let headers = headers(&metadata, call, &payload);
        let constant_path = path_template.constant().map(str::to_owned);
        let varies =
            constant_path.is_none() || payload.varying.is_some() || !metadata.varying.is_empty();
        Some(CallPlan::Http(HttpCall {
            version: call.version.unwrap_or_default(),
            method,
            path: constant_path.clone().or(path)?,
            host: call.host.clone(),
            headers,
            body: payload.bytes,
            varying: varies.then_some(VaryingHttp {
                variation,
                path: Some(path_template).filter(|_| constant_path.is_none()),
                headers: metadata.varying,
                body: payload.varying,
            }),
            expect,
            expect_headers: call
                .expect_headers
                .iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
                .collect(),
            expect_body: call.expect_body.clone(),
            stream,
            max_body: max_body as u32,
        }))
    }

    fn http_path(&mut self, spec: &Spec, call: &HttpSpec) -> Option<String> {
        let in_url = spec.target.as_deref().and_then(path_of);
        match (call.path.as_deref(), in_url) {
            (Some(path), Some(other)) if path != other && other != "/" => {
                self.add(
                    "call.http.path",
                    format!(
                        "`{path}` is another path than the target's `{other}`: use one of the two"
                    ),
                );
                None
            }
            (Some(path), _) | (None, Some(path)) => Some(path.to_owned()),
            (None, None) => Some("/".to_owned()),
        }
    }

    fn http_method(&mut self, call: &HttpSpec) -> String {
        let has_body = call.body.is_some() || call.body_file.is_some();
        let method = match &call.method {
            Some(method) => method.clone(),
            None if has_body => "POST".to_owned(),
            None => "GET".to_owned(),
        };
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if method.is_empty() || !method.bytes().all(is_token) {
            self.add(
                "call.http.method",
                format!("`{method}` is not a method: write GET, POST, PUT and the like"),
            );
        } else if method == "CONNECT" {
            self.add(
                "call.http.method",
                "CONNECT opens a tunnel and has no answer to measure: use another method",
            );
        } else if method.bytes().any(|b| b.is_ascii_lowercase()) {
            let upper = method.to_ascii_uppercase();
            self.add(
                "call.http.method",
                format!("methods are case-sensitive (RFC 9110, 9.1): write {upper}"),
            );
        }
        method
    }

    /// The body, with its fields. `None`: a problem with it is reported.
    fn http_body(
        &mut self,
        call: &HttpSpec,
        slots: &mut u32,
        rows: Option<&Rows>,
        surroundings: &dyn Surroundings,
    ) -> Option<Payload> {
        let (key, bytes) = match (&call.body, &call.body_file) {
            (Some(_), Some(_)) => {
                self.add(
                    "call.http.body_file",
                    "given beside call.http.body: use one of the two",
                );
                return None;
            }
            (Some(text), None) => ("call.http.body", text.clone().into_bytes()),
            (None, Some(path)) => {
                let bytes = surroundings.read_bytes(path);
                let bytes = bytes.map_err(|e| format!("can't read {}: {e}", path.display()));
                (
                    "call.http.body_file",
                    self.keep("call.http.body_file", bytes)?,
                )
            }
            (None, None) => ("call.http.body", Vec::new()),
        };
        let plain = |bytes: Vec<u8>| Payload {
            is_json: serde_json::from_slice::<serde_json::Value>(&bytes).is_ok(),
            bytes,
            varying: None,
            uses_rows: false,
        };
        // What is no text has no fields.
        let text = match String::from_utf8(bytes) {
            Ok(text) if template::has_fields(&text) => text,
            Ok(text) => return Some(plain(text.into_bytes())),
            Err(e) => return Some(plain(e.into_bytes())),
        };
        let parsed = Template::parse(&text, slots, rows).map_err(|e| e.to_string());
        let parsed = self.keep(key, parsed)?;
        if let Some(constant) = parsed.constant() {
            return Some(plain(constant.as_bytes().to_vec()));
        }
        if has_message(&parsed) {
            self.add(key, "{{message}}: a request has one body");
            return None;
        }
        let is_json = serde_json::from_str::<serde_json::Value>(&standing_in(&parsed)).is_ok();
        Some(Payload {
            bytes: Vec::new(),
            uses_rows: template::uses_rows(&text),
            varying: Some(VaryingBody {
                quoted: quoted(&parsed, is_json),
                template: parsed,
                typed: text,
            }),
            is_json,
        })
    }

    fn http_stream(&mut self, call: &HttpSpec) -> Option<EventStream> {
        let format = match call.stream.as_deref() {
            Some("sse") => EventFormat::Sse,
            Some("ndjson") => EventFormat::NdJson,
            Some(other) => {
                self.add(
                    "call.http.stream",
                    format!("`{other}` is unknown: use \"sse\" or \"ndjson\""),
                );
                return None;
            }
            None => {
                for (key, given) in [
                    ("stream_until", &call.stream_until),
                    ("stream_error", &call.stream_error),
                ] {
                    if given.is_some() {
                        self.add(
                            format!("call.http.{key}"),
                            "needs call.http.stream: \"sse\" for server-sent events, \"ndjson\" for a JSON document a line",
                        );
                    }
                }
                return None;
            }
        };
        let mut meant = |key: &str, text: Option<&String>| {
            let text = text?;
            let of = |what: &str| text.strip_prefix(what).map(|rest| rest.trim().to_owned());
            let meant = match (of("event:"), of("contains:")) {
                (Some(name), _) => EventMatch::Named(name),
                (_, Some(part)) => EventMatch::Contains(part),
                _ => EventMatch::Data(text.trim().to_owned()),
            };
            let (EventMatch::Named(inner) | EventMatch::Contains(inner) | EventMatch::Data(inner)) =
                &meant;
            if inner.is_empty() {
                self.add(
                    format!("call.http.{key}"),
                    "empty: write the data of an event, such as [DONE], or event:NAME, or contains:TEXT",
                );
            } else if format == EventFormat::NdJson && matches!(meant, EventMatch::Named(_)) {
                self.add(
                    format!("call.http.{key}"),
                    "lines of JSON have no event names: write contains:TEXT, such as contains:\"done\":true",
                );
            }
            Some(meant)
        };
        Some(EventStream {
            format,
            until: meant("stream_until", call.stream_until.as_ref()),
            error: meant("stream_error", call.stream_error.as_ref()),
        })
    }
}

/// The constant fields, with a type for a body that has none.
fn headers(metadata: &Metadata, call: &HttpSpec, payload: &Payload) -> Vec<(String, String)> {
    let mut headers = metadata.constant.clone();
    let has_body = payload.varying.is_some() || !payload.bytes.is_empty();
    let typed = call
        .headers
        .keys()
        .any(|name| name.eq_ignore_ascii_case("content-type"));
    if has_body && !typed {
        let kind = match payload.is_json {
            true => "application/json",
            false => "application/octet-stream",
        };
        headers.push(("content-type".to_owned(), kind.to_owned()));
    }
    headers
}

fn has_message(template: &Template) -> bool {
    let mut fields = template.parts().iter().filter_map(Part::field);
    fields.any(|field| matches!(field.source, Source::Message))
}

/// Whether every call has a path that a request line can carry.
fn check_path(template: &Template, rows: Option<&Rows>) -> Result<(), String> {
    let wrong = |text: &str| {
        format!("`{text}` is not a path: begin with `/`, and write blanks and `#` as %20 and %23")
    };
    if has_message(template) {
        return Err("{{message}}: a request has one path".to_owned());
    }
    for (nth, part) in template.parts().iter().enumerate() {
        match part {
            Part::Text(text) => {
                let begins = nth > 0 || text.starts_with('/');
                if !begins || !is_visible(text) || text.contains('#') {
                    return Err(wrong(text));
                }
            }
            Part::Field(field) => {
                if nth == 0 {
                    return Err(wrong("{{…}}"));
                }
                let Source::Row(column) = &field.source else {
                    continue;
                };
                let bad = |value: &&str| !is_visible(value) || value.contains('#');
                if let Some(value) = column.values().find(bad) {
                    let file = rows.map_or("rows", Rows::file);
                    return Err(format!(
                        "{file}, column {:?}: {value:?} can't stand in a path: write it percent-encoded",
                        column.name
                    ));
                }
            }
        }
    }
    Ok(())
}

/// The text with something in place of its fields that is JSON in a string and outside of one.
fn standing_in(template: &Template) -> String {
    let parts = template.parts().iter();
    parts
        .map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Field(_) => "0",
        })
        .collect()
}

/// Which parts stand within a string of JSON.
fn quoted(template: &Template, is_json: bool) -> Vec<bool> {
    let mut inside = false;
    let mut quoted = Vec::new();
    for part in template.parts() {
        quoted.push(is_json && inside);
        if let Part::Text(text) = part {
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
