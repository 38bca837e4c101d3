//! A request made ready to send: all that is the same for every call, encoded once.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_model::Time;
use plimsoll_model::plan::{HttpCall, VaryingBody, VaryingHttp};
use plimsoll_model::template::{Moment, Part, Source};
use plimsoll_wire::http1::put_request;

/// What a connection needs to know of the calls that it will carry.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
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

/// A request over HTTP/1.1, encoded as far as it is the same for all.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Where nothing varies: the whole request. Otherwise its head, up to the blank line.
    bytes: Vec<u8>,
    /// Where in `bytes` the path is; 0 where it does not vary.
    path: (usize, usize),
    body: Vec<u8>,
    varying: Option<VaryingHttp>,
    /// Nanoseconds since 1970 at [`Time::ZERO`].
    unix_zero: AtomicU64,
}

impl Prepared {
    pub(super) fn new(request: &HttpRequest<'_>) -> Prepared {
        let call = request.call;
        let length = call.body.len().to_string();
        let mut fields = vec![("host", request.host())];
        constant_fields(call, &length, &mut fields);
        if request.closes {
            fields.push(("connection", "close"));
        }
        let varies = |of: fn(&VaryingHttp) -> bool| call.varying.as_ref().is_some_and(of);
        let mut bytes = Vec::new();
        put_request(&mut bytes, &call.method, &call.path, &fields);
        let path = call.method.len() + 1;
        match &call.varying {
            None => bytes.extend_from_slice(&call.body),
            // The blank line comes behind the fields that vary.
            Some(_) => bytes.truncate(bytes.len() - 2),
        }
        Prepared {
            bytes,
            path: match varies(|varying| varying.path.is_some()) {
                true => (path, path + call.path.len()),
                false => (0, 0),
            },
            body: call.body.clone(),
            varying: call.varying.clone(),
            unix_zero: AtomicU64::new(0),
        }
    }

    /// What the run's clock began at.
    pub(super) fn set_unix_zero(&self, unix_ns: u64) {
        self.unix_zero.store(unix_ns, Ordering::Relaxed);
    }

    /// Appends the request of call `number`; `scratch` is for its body, which has to be as long as
    /// the head says.
    #[inline]
    pub(super) fn write(&self, number: u64, now: Time, scratch: &mut Vec<u8>, out: &mut Vec<u8>) {
        match &self.varying {
            None => out.extend_from_slice(&self.bytes),
            Some(varying) => self.write_varying(varying, number, now, scratch, out),
        }
    }

    fn write_varying(
        &self,
        varying: &VaryingHttp,
        number: u64,
        now: Time,
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        let unix_ns = self.unix_zero.load(Ordering::Relaxed).wrapping_add(now.0);
        let moment = varying.variation.moment(number, 0, unix_ns);
        match &varying.path {
            None => out.extend_from_slice(&self.bytes),
            Some(path) => {
                out.extend_from_slice(&self.bytes[..self.path.0]);
                path.write(&moment, out);
                out.extend_from_slice(&self.bytes[self.path.1..]);
            }
        }
        for field in &varying.headers {
            out.extend_from_slice(field.name.as_bytes());
            out.extend_from_slice(b": ");
            field.write(&moment, out);
            out.extend_from_slice(b"\r\n");
        }
        let Some(body) = &varying.body else {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(&self.body);
            return;
        };
        scratch.clear();
        write_body(body, &moment, scratch);
        out.extend_from_slice(b"content-length: ");
        let mut digits = [0; 20];
        out.extend_from_slice(decimal(scratch.len(), &mut digits));
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(scratch);
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
