//! A request made ready to send: all that is the same for every call, encoded once.

use std::ops::Range;

use plimsoll_model::Time;
use plimsoll_model::template::{Moment, Part, Source, TraceIds, Variation};
use plimsoll_wire::http1::put_request;

use super::call::{HttpCall, VaryingBody, VaryingHttp};
use super::envelopes;
use crate::unix_zero::UnixZero;
use crate::unpacking::ACCEPT_ENCODING;

/// What a connection needs to know of the calls that it will carry.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// What is sent, and what its answer must be.
    pub call: &'a HttpCall,
    /// `host:port` of the target; [`HttpCall::host`] goes before it.
    pub authority: &'a str,
    /// Each connection carries one call.
    pub closes: bool,
}

impl HttpRequest<'_> {
    /// `Host`, or `:authority`.
    pub(super) fn host(&self) -> &str {
        self.call.host.as_deref().unwrap_or(self.authority)
    }
}

/// Appends the fields of a request that are the same for every call and whatever carries it.
/// `length`: of its body.
pub(super) fn constant_fields<'a>(
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
    for (name, value) in [("user-agent", own), ("accept", "*/*")] {
        if !given(name) {
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
    // Methods that have a meaning for bodies say so where there is none (RFC 9110, 8.6).
    let expects_body = matches!(&*call.method, "POST" | "PUT" | "PATCH");
    if !body_varies && (expects_body || !call.body.is_empty()) {
        fields.push(("content-length", length));
    }
}

/// What varies, with the names of fields as HTTP/1.1 sends them.
fn varying_as_typed(call: &HttpCall) -> Option<VaryingHttp> {
    let mut varying = call.varying.clone()?;
    for field in &mut varying.headers {
        field.name = call.typed_name(&field.name).to_owned();
    }
    Some(varying)
}

/// The head of a request over HTTP/1.1, up to its blank line, encoded as far as it is the same for all.
#[derive(Debug)]
struct Head {
    bytes: Vec<u8>,
    /// The path's range in `bytes`.
    path: Range<usize>,
}

impl Head {
    fn new(method: &str, path: &str, fields: &[(&str, &str)]) -> Head {
        let mut bytes = Vec::new();
        put_request(&mut bytes, method, path, fields);
        bytes.truncate(bytes.len() - 2);
        let start = method.len() + 1;
        Head {
            bytes,
            path: start..start + path.len(),
        }
    }

    /// Appends it with the path and the fields that vary.
    fn write(&self, varying: &VaryingHttp, moment: &Moment<'_>, out: &mut Vec<u8>) {
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

/// A request over HTTP/1.1, encoded as far as it is the same for all.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The head; the whole request where nothing varies.
    head: Head,
    body: Vec<u8>,
    /// Bodies that vary have one, too.
    has_prefix: bool,
    varying: Option<VaryingHttp>,
    /// Nanoseconds since 1970 at [`Time::ZERO`].
    pub(super) unix_zero: UnixZero,
}

impl Prepared {
    pub(super) fn new(request: &HttpRequest<'_>) -> Prepared {
        let call = request.call;
        let body = envelopes::body(call);
        let length = body.len().to_string();
        let mut fields = vec![("host", request.host())];
        constant_fields(call, &length, &mut fields);
        if request.closes {
            fields.push(("connection", "close"));
        }
        for (name, _) in &mut fields {
            *name = call.typed_name(name);
        }
        let mut head = Head::new(&call.method, &call.path, &fields);
        if call.varying.is_none() {
            head.bytes.extend_from_slice(b"\r\n");
            head.bytes.extend_from_slice(&body);
        }
        Prepared {
            head,
            body: body.into_owned(),
            has_prefix: envelopes::has_prefix(call),
            varying: varying_as_typed(call),
            unix_zero: UnixZero::default(),
        }
    }

    pub(super) fn trace_ids(&self) -> Option<TraceIds> {
        self.varying.as_ref()?.trace_ids()
    }

    /// Appends the request of call `number`; `scratch` is for its body, which has to be as long as
    /// the head says. Where bodies vary, one may be `given`.
    #[inline]
    pub(super) fn write(
        &self,
        given: Option<Vec<u8>>,
        number: u64,
        now: Time,
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        let Some(varying) = &self.varying else {
            return out.extend_from_slice(&self.head.bytes);
        };
        let unix_ns = self.unix_zero.at(now);
        let moment = varying.variation.moment(number, 0, unix_ns);
        match (given, &varying.body) {
            (Some(body), _) => *scratch = body,
            (None, Some(body)) => {
                scratch.clear();
                write_body(body, &moment, scratch);
                if self.has_prefix {
                    envelopes::wrap(scratch);
                }
            }
            (None, None) => {}
        }
        self.head.write(varying, &moment, out);
        if varying.body.is_none() {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(&self.body);
            return;
        }
        out.extend_from_slice(b"content-length: ");
        let mut digits = [0; 20];
        out.extend_from_slice(decimal(scratch.len(), &mut digits));
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(scratch);
    }
}

/// The request that opens a WebSocket, encoded as far as it is the same for all.
#[derive(Debug)]
pub(super) struct Upgrade {
    head: Head,
    varying: Option<VaryingHttp>,
}

impl Upgrade {
    pub(super) fn new(request: &HttpRequest<'_>) -> Upgrade {
        let call = request.call;
        let mut fields = vec![("host", request.host())];
        let own = concat!("plimsoll/", env!("CARGO_PKG_VERSION"));
        if !call.headers.iter().any(|(name, _)| name == "user-agent") {
            fields.push(("user-agent", own));
        }
        // A type is one of a body, and a frame has none.
        let given = call.headers.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        fields.extend(given.filter(|(name, _)| *name != "content-type"));
        for (name, _) in &mut fields {
            *name = call.typed_name(name);
        }
        Upgrade {
            head: Head::new("GET", &call.path, &fields),
            varying: varying_as_typed(call),
        }
    }

    pub(super) fn trace_ids(&self) -> Option<TraceIds> {
        self.varying.as_ref()?.trace_ids()
    }

    /// Appends the request of socket `number`, with the `handshake`'s fields.
    pub(super) fn write(
        &self,
        number: u64,
        unix_ns: u64,
        handshake: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) {
        match &self.varying {
            None => out.extend_from_slice(&self.head.bytes),
            Some(varying) => {
                let moment = varying.variation.moment(number, 0, unix_ns);
                self.head.write(varying, &moment, out);
            }
        }
        for (name, value) in handshake {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// What a call sends over a WebSocket.
#[derive(Debug)]
pub(super) struct FrameText {
    constant: Vec<u8>,
    varying: Option<(Variation, VaryingBody)>,
}

impl FrameText {
    /// `varying`: what it holds instead of `constant`, chosen by what the other parts of `call` are.
    pub(super) fn new(
        call: &HttpCall,
        constant: &[u8],
        varying: Option<&VaryingBody>,
    ) -> FrameText {
        let chosen_by = call.varying.as_ref().map(|all| all.variation.clone());
        FrameText {
            constant: constant.to_vec(),
            varying: chosen_by.zip(varying.cloned()),
        }
    }

    /// That of call `number`; `scratch` is for one that varies.
    pub(super) fn of<'a>(
        &'a self,
        number: u64,
        unix_ns: u64,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let Some((variation, body)) = &self.varying else {
            return &self.constant;
        };
        scratch.clear();
        write_body(body, &variation.moment(number, 0, unix_ns), scratch);
        scratch
    }
}

/// Appends the body as `moment` has it. Columns within a JSON string are escaped.
pub(super) fn write_body(body: &VaryingBody, moment: &Moment<'_>, out: &mut Vec<u8>) {
    for (part, quoted) in body.template.parts().iter().zip(&body.quoted) {
        match part {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Field(field) => {
                let start = out.len();
                field.write(moment, out);
                if *quoted && matches!(field.source, Source::Row(_)) {
                    escape(out, start);
                }
            }
        }
    }
}

/// Escapes what a JSON string can't hold as it is (RFC 8259, 7) from `start` on.
fn escape(out: &mut Vec<u8>, start: usize) {
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

pub(super) fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
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
