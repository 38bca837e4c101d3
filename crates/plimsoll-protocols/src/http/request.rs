//! Prepares requests: the parts that are the same for every call are encoded once.

use std::ops::Range;

use plimsoll_model::Time;
use plimsoll_model::rows::template::{
    FieldSource, RenderContext, TemplatePart, TraceIds, VariationSettings,
};
use plimsoll_wire::http1::append_request_head;

use super::call::{HttpCall, ReplayedParts, VaryingBody, VaryingRequest};
use super::envelopes;
use super::journey::StepValues;
use super::replayed_parts::expects_body;
use crate::shared::clock_origin::ClockOrigin;
use crate::shared::unpacking::ACCEPT_ENCODING;

/// The request of a connection's calls, and whether the connection is reused.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// The call to send, and the checks of its response.
    pub call: &'a HttpCall,
    /// `host:port` of the target; [`HttpCall::host`] takes precedence.
    pub authority: &'a str,
    /// Whether each connection is closed after one call.
    pub closes: bool,
}

/// The scheme of the request's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpScheme {
    /// Plaintext, by prior knowledge (RFC 9113, 3.3).
    Http,
    /// Over TLS.
    Https,
}

impl HttpScheme {
    /// Returns the scheme as written in URLs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            HttpScheme::Http => "http",
            HttpScheme::Https => "https",
        }
    }
}

impl HttpRequest<'_> {
    /// Returns the value of `Host`, or of `:authority`.
    pub(super) fn host(&self) -> &str {
        self.call.host.as_deref().unwrap_or(self.authority)
    }
}

/// Appends the header fields that are the same for every call and both versions. `length`: the body's length in bytes,
/// as text.
pub(super) fn push_constant_fields<'a>(
    call: &'a HttpCall,
    length: &'a str,
    fields: &mut Vec<(&'a str, &'a str)>,
) {
    let own = concat!("plimsoll/", env!("CARGO_PKG_VERSION"));
    let given = |name: &str| {
        let varying = call.varying.iter().flat_map(|varying| &varying.headers);
        let mut names = call.headers.iter().map(|(name, _)| name);
        names.any(|other| other == name) || varying.clone().any(|field| field.name == name)
    };
    // The lines of a replayed file set all header fields of their requests.
    let has_line_fields = call
        .replayed
        .as_ref()
        .is_some_and(|parts| parts.headers.is_some());
    for (name, value) in [("user-agent", own), ("accept", "*/*")] {
        if !has_line_fields && !given(name) {
            fields.push((name, value));
        }
    }
    if call.compressed && !given("accept-encoding") {
        fields.push(("accept-encoding", ACCEPT_ENCODING));
    }
    fields.extend(call.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())));
    let body_varies = call
        .varying
        .as_ref()
        .is_some_and(|varying| varying.body.is_some());
    if !body_varies && (expects_body(call.method.as_bytes()) || !call.body.is_empty()) {
        fields.push(("content-length", length));
    }
}

/// Returns the varying parts, with the capitalisation of field names that HTTP/1.1 sends.
fn varying_with_wire_names(call: &HttpCall) -> Option<VaryingRequest> {
    let mut varying = call.varying.clone()?;
    for field in &mut varying.headers {
        field.name = call.wire_name(&field.name).to_owned();
    }
    Some(varying)
}

/// The constant parts of the head of an HTTP/1.1 request, encoded, without the final blank line.
#[derive(Debug)]
struct EncodedHead {
    bytes: Vec<u8>,
    /// The range of the path in `bytes`.
    path: Range<usize>,
}

impl EncodedHead {
    fn new(method: &str, path: &str, fields: &[(&str, &str)]) -> EncodedHead {
        let mut bytes = Vec::new();
        append_request_head(&mut bytes, method, path, fields);
        bytes.truncate(bytes.len() - 2);
        let start = method.len() + 1;
        EncodedHead {
            bytes,
            path: start..start + path.len(),
        }
    }

    /// Appends the head with the varying path and header fields.
    fn write(&self, varying: &VaryingRequest, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        match &varying.path {
            None => out.extend_from_slice(&self.bytes),
            Some(path) => {
                out.extend_from_slice(&self.bytes[..self.path.start]);
                path.write(moment, out);
                out.extend_from_slice(&self.bytes[self.path.end..]);
            }
        }
        for field in &varying.headers {
            out.extend_from_slice(field.name.as_bytes());
            out.extend_from_slice(b": ");
            field.write(moment, out);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The parts of the next request that the user's scenario has set.
#[derive(Debug, Default)]
pub(super) struct NextRequestParts {
    /// The body; `None` means the prepared body.
    pub(super) body: Option<Vec<u8>>,
    /// The values of a journey's step.
    pub(super) step: Option<StepValues>,
}

/// An HTTP/1.1 request whose constant parts are encoded.
#[derive(Debug)]
pub(super) struct EncodedRequest {
    /// The head, or the whole request if nothing varies.
    head: EncodedHead,
    body: Vec<u8>,
    /// Whether all bodies have a length prefix, including those that vary.
    has_prefix: bool,
    pub(super) varying: Option<VaryingRequest>,
    replayed: Option<ReplayedParts>,
    /// The time between 1970 and [`Time::ZERO`], in nanoseconds.
    pub(super) unix_zero: ClockOrigin,
}

impl EncodedRequest {
    pub(super) fn new(request: &HttpRequest<'_>) -> EncodedRequest {
        let call = request.call;
        let body = envelopes::encoded_body(call);
        let length = body.len().to_string();
        let mut fields = vec![("host", request.host())];
        push_constant_fields(call, &length, &mut fields);
        if request.closes {
            fields.push(("connection", "close"));
        }
        for (name, _) in &mut fields {
            *name = call.wire_name(name);
        }
        let mut head = EncodedHead::new(&call.method, &call.path, &fields);
        if call.varying.is_none() {
            head.bytes.extend_from_slice(b"\r\n");
            head.bytes.extend_from_slice(&body);
        }
        EncodedRequest {
            head,
            body: body.into_owned(),
            has_prefix: envelopes::has_prefix(call),
            varying: varying_with_wire_names(call),
            replayed: call.replayed.clone(),
            unix_zero: ClockOrigin::default(),
        }
    }

    pub(super) fn trace_ids(&self) -> Option<TraceIds> {
        self.varying.as_ref()?.trace_ids()
    }

    /// Appends the request of call `number`. A body in `given` replaces the varying body. `scratch`: a buffer for the
    /// body, whose length is part of the head.
    #[inline]
    pub(super) fn write(
        &self,
        given: NextRequestParts,
        number: u64,
        now: Time,
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        let Some(varying) = &self.varying else {
            return out.extend_from_slice(&self.head.bytes);
        };
        let unix_ns = self.unix_zero.unix_ns_at(now);
        let NextRequestParts { body: given, step } = given;
        let moment = varying.variation.render_context(number, 0, unix_ns);
        let moment = moment.with_captured_values(step.as_ref().map_or(&[], |step| &step.taken));
        match (given, &varying.body) {
            (Some(body), _) => *scratch = body,
            (None, Some(body)) => {
                scratch.clear();
                write_body(body, &moment, scratch);
                if self.has_prefix {
                    envelopes::insert_prefix(scratch);
                }
            }
            (None, None) => {}
        }
        if let Some(parts) = &self.replayed {
            return self.write_replayed(varying, parts, (&moment, scratch), out);
        }
        self.head.write(varying, &moment, out);
        if let Some(step) = step.filter(|step| !step.cookies.is_empty()) {
            out.extend_from_slice(b"cookie: ");
            out.extend_from_slice(step.cookies.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        if varying.body.is_none() {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(&self.body);
            return;
        }
        out.extend_from_slice(b"content-length: ");
        let mut digits = [0; 20];
        out.extend_from_slice(format_decimal(scratch.len(), &mut digits));
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(scratch);
    }
}

impl EncodedRequest {
    /// Appends the request of a line of a replayed file. The body has been rendered to the scratch buffer.
    #[inline(never)]
    fn write_replayed(
        &self,
        varying: &VaryingRequest,
        parts: &ReplayedParts,
        (moment, body): (&RenderContext<'_>, &[u8]),
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        self.head.write(varying, moment, out);
        if let Some(method) = &parts.method {
            let end = start + self.head.path.start - 1;
            let mut rendered = Vec::new();
            method.write(moment, &mut rendered);
            out.splice(start..end, rendered);
        }
        let sent = out[start..].split(|byte| *byte == b' ').next();
        let has_length = !body.is_empty() || sent.is_some_and(expects_body);
        parts.for_each_field(moment, body, &mut |name, value| {
            for part in [name, ": ", value, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        });
        // The length of a constant body is already in the head.
        if varying.body.is_some() && has_length {
            out.extend_from_slice(b"content-length: ");
            out.extend_from_slice(format_decimal(body.len(), &mut [0; 20]));
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
    }
}

/// The encoded constant parts of the request that opens a WebSocket.
#[derive(Debug)]
pub(super) struct EncodedUpgrade {
    head: EncodedHead,
    varying: Option<VaryingRequest>,
}

impl EncodedUpgrade {
    pub(super) fn new(request: &HttpRequest<'_>) -> EncodedUpgrade {
        let call = request.call;
        let mut fields = vec![("host", request.host())];
        let own = concat!("plimsoll/", env!("CARGO_PKG_VERSION"));
        if !call.headers.iter().any(|(name, _)| name == "user-agent") {
            fields.push(("user-agent", own));
        }
        // An upgrade request has no body, so a content type is left out.
        let given = call.headers.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        fields.extend(given.filter(|(name, _)| *name != "content-type"));
        for (name, _) in &mut fields {
            *name = call.wire_name(name);
        }
        EncodedUpgrade {
            head: EncodedHead::new("GET", &call.path, &fields),
            varying: varying_with_wire_names(call),
        }
    }

    pub(super) fn trace_ids(&self) -> Option<TraceIds> {
        self.varying.as_ref()?.trace_ids()
    }

    /// Appends the request of socket `number`. `handshake`: the header fields of the WebSocket handshake.
    pub(super) fn write(
        &self,
        number: u64,
        unix_ns: u64,
        handshake: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) {
        self.write_with_captured_values((number, unix_ns), &[], handshake, out);
    }

    /// Appends the request of socket `number` at `unix_ns`. `taken`: the values that a journey has taken from
    /// responses.
    pub(super) fn write_with_captured_values(
        &self,
        (number, unix_ns): (u64, u64),
        taken: &[Option<Box<[u8]>>],
        handshake: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) {
        match &self.varying {
            None => out.extend_from_slice(&self.head.bytes),
            Some(varying) => {
                let moment = varying.variation.render_context(number, 0, unix_ns);
                self.head
                    .write(varying, &moment.with_captured_values(taken), out);
            }
        }
        for (name, value) in handshake {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The payload of a frame.
#[derive(Debug)]
pub(super) struct FramePayload {
    constant: Vec<u8>,
    varying: Option<(VariationSettings, VaryingBody)>,
}

impl FramePayload {
    /// Creates a payload that is `constant`, or is rendered from `varying` with the variation of `call`.
    pub(super) fn new(
        call: &HttpCall,
        constant: &[u8],
        varying: Option<&VaryingBody>,
    ) -> FramePayload {
        let chosen_by = call.varying.as_ref().map(|all| all.variation.clone());
        FramePayload {
            constant: constant.to_vec(),
            varying: chosen_by.zip(varying.cloned()),
        }
    }

    /// Returns the payload of call `number`. `scratch`: a buffer for a varying payload.
    pub(super) fn render<'a>(
        &'a self,
        number: u64,
        unix_ns: u64,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let Some((variation, body)) = &self.varying else {
            return &self.constant;
        };
        scratch.clear();
        write_body(body, &variation.render_context(number, 0, unix_ns), scratch);
        scratch
    }
}

/// Appends the body rendered at `moment`. Values of columns, and values taken from responses, are escaped within JSON
/// strings.
pub(crate) fn write_body(body: &VaryingBody, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
    for (part, quoted) in body.template.parts().iter().zip(&body.quoted) {
        match part {
            TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
            TemplatePart::Field(field) => {
                let start = out.len();
                field.write(moment, out);
                if *quoted && matches!(field.source, FieldSource::Row(_) | FieldSource::Captured(_))
                {
                    escape_json(out, start);
                }
            }
        }
    }
}

/// Escapes the characters after `start` that a JSON string can't contain (RFC 8259 §7).
fn escape_json(out: &mut Vec<u8>, start: usize) {
    if !out[start..]
        .iter()
        .any(|b| matches!(b, b'"' | b'\\' | 0..=0x1f))
    {
        return;
    }
    let plain = out.split_off(start);
    let quoted = serde_json::Value::from(String::from_utf8_lossy(&plain)).to_string();
    out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
}

pub(super) fn format_decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}
