//! Drives connections over HTTP/1.1 or HTTP/2, as the server chooses by ALPN (RFC 7301); HTTP/1.1 if it chooses
//! neither.
//!
//! The driver delegates to the drivers of the two versions. Loads whose version is known use that version's protocol
//! directly.

use std::time::Duration;

use plimsoll_engine::driver::{
    CallId, CallProgress, Direction, Driver, Event, Protocol, ProtocolError, Tracer,
};
use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::{Outcome, Time};

use super::driver::{Http1Driver, Http1Protocol};
use super::multiplexed::{Http2Driver, Http2Protocol, HttpScheme};
use super::refusals::RefusalRetries;
use super::request::HttpRequest;

const ALPN_H2: &[u8] = b"h2";

/// HTTP/1.1 and HTTP/2, each with the prepared request.
#[derive(Clone, Debug)]
pub struct HttpProtocol {
    http1: Http1Protocol,
    http2: Http2Protocol,
}

impl HttpProtocol {
    /// Prepares the request for both versions.
    pub fn new(request: &HttpRequest<'_>) -> HttpProtocol {
        HttpProtocol {
            http1: Http1Protocol::new(request),
            http2: Http2Protocol::new(request, HttpScheme::Https),
        }
    }
}

impl Protocol for HttpProtocol {
    type Driver = HttpDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }

    fn alpn_choices(&self) -> &'static [&'static [u8]] {
        &[ALPN_H2, b"http/1.1"]
    }

    fn alpn_label(&self, alpn: Option<&[u8]>) -> Option<&'static str> {
        Some(if alpn == Some(ALPN_H2) { "2" } else { "1.1" })
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.http1.set_clock_origin(unix_ns);
        self.http2.set_clock_origin(unix_ns);
    }

    fn new_driver(&self) -> HttpDriver {
        HttpDriver {
            two: Some(Box::new(self.http2.new_driver())),
            one: self.http1.new_driver(),
        }
    }

    fn goodput_bounds(&self) -> GoodputBounds {
        self.http1.goodput_bounds()
    }

    fn refusal_retries(&self) -> RefusalRetries {
        self.http1.refusal_retries()
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.http1.trace_ids()
    }

    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        Some(Box::new(NegotiatedTracer {
            chosen: None,
            protocol: self.clone(),
        }))
    }
}

/// The driver of one connection. The HTTP/2 driver is dropped after the TLS handshake if the server has not chosen
/// HTTP/2.
#[derive(Debug)]
pub struct HttpDriver {
    two: Option<Box<Http2Driver>>,
    one: Http1Driver,
}

/// Calls a method of the driver that is in use.
macro_rules! either {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match &$self.two {
            Some(two) => two.$method($($argument),*),
            None => $self.one.$method($($argument),*),
        }
    };
    (mut $self:ident.$method:ident($($argument:expr),*)) => {
        match &mut $self.two {
            Some(two) => two.$method($($argument),*),
            None => $self.one.$method($($argument),*),
        }
    };
}

impl Driver for HttpDriver {
    fn on_alpn(&mut self, alpn: Option<&[u8]>) {
        if alpn != Some(ALPN_H2) {
            self.two = None;
        }
    }

    fn open(&mut self, now: Time, out: &mut Vec<u8>) {
        either!(mut self.open(now, out));
    }

    fn has_negligible_receive_time(&self) -> bool {
        either!(self.has_negligible_receive_time())
    }

    fn is_ready(&self) -> bool {
        either!(self.is_ready())
    }

    #[inline]
    fn capacity(&self) -> usize {
        either!(self.capacity())
    }

    fn is_reading_answer_remainder(&self) -> bool {
        either!(self.is_reading_answer_remainder())
    }

    fn carries_one_call_at_a_time(&self) -> bool {
        either!(self.carries_one_call_at_a_time())
    }

    fn is_draining(&self) -> bool {
        either!(self.is_draining())
    }

    fn draining_outcome(&self) -> Outcome {
        either!(self.draining_outcome())
    }

    #[inline]
    fn start(&mut self, call: CallId, number: u64, now: Time, out: &mut Vec<u8>) {
        either!(mut self.start(call, number, now, out));
    }

    fn start_delayed(
        &mut self,
        call: CallId,
        number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        either!(mut self.start_delayed(call, number, waited, now, out));
    }

    fn cancel(&mut self, call: CallId, now: Time, out: &mut Vec<u8>) {
        either!(mut self.cancel(call, now, out));
    }

    fn call_progress(&self, call: CallId) -> CallProgress {
        either!(self.call_progress(call))
    }

    fn awaited_bytes(&self) -> u64 {
        either!(self.awaited_bytes())
    }

    #[inline]
    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        either!(mut self.receive(bytes, now, out, events))
    }

    fn receive_end(&mut self, now: Time, events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        either!(mut self.receive_end(now, events))
    }

    fn next_timer(&self) -> Option<Time> {
        either!(self.next_timer())
    }

    fn appended_payload_bytes(&self) -> u64 {
        either!(self.appended_payload_bytes())
    }

    fn has_held_back_messages(&self) -> bool {
        either!(self.has_held_back_messages())
    }

    fn resume_sending(&mut self, now: Time, out: &mut Vec<u8>) {
        either!(mut self.resume_sending(now, out));
    }

    fn on_timer(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        either!(mut self.on_timer(now, out, events));
    }

    fn end_open_ended_calls(&mut self, now: Time, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        either!(mut self.end_open_ended_calls(now, out, events));
    }

    fn abort(&mut self, outcome: Outcome, now: Time, events: &mut Vec<Event>) {
        either!(mut self.abort(outcome, now, events));
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        either!(mut self.finish(out));
    }
}

/// Traces a connection. The first bytes show its version, since HTTP/2 clients send a preface first.
struct NegotiatedTracer {
    chosen: Option<Box<dyn Tracer>>,
    protocol: HttpProtocol,
}

impl Tracer for NegotiatedTracer {
    fn trace_bytes(&mut self, direction: Direction, bytes: &[u8], lines: &mut Vec<String>) {
        let chosen = match &mut self.chosen {
            Some(chosen) => Some(chosen),
            none => {
                *none = if bytes.starts_with(b"PRI * HTTP/2") {
                    self.protocol.http2.new_tracer()
                } else {
                    self.protocol.http1.new_tracer()
                };
                none.as_mut()
            }
        };
        if let Some(chosen) = chosen {
            chosen.trace_bytes(direction, bytes, lines);
        }
    }
}
