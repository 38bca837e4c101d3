//! Calls that are the steps of a journey: each step sends its own request, and checks its response against its own
//! expectations. The calls of a conversation have their own bodies.

use std::sync::Arc;

use plimsoll_model::Time;

use super::{Http2Driver, Http2Protocol, HttpCalls};
use crate::http::conversation::AcceptsBodies;
use crate::http::field_list::FieldList;
use crate::http::journey::{CapturedResponse, StepValues, SwitchableProtocol, captured_body};
use crate::http2::NO_SLOT;

impl HttpCalls {
    /// Sets the checks of the response to call `number`, if the step's expectations vary.
    #[inline]
    pub(super) fn render_checks(&mut self, number: u64, now: Time) {
        let Some(varying) = &self.shared.varying else {
            return;
        };
        let at = (number, self.shared.request.unix_zero.unix_ns_at(now));
        if let Some(checks) = varying.render_checks(&self.shared.checks, at, &self.step.taken) {
            self.checks = Arc::new(checks);
        }
    }
}

impl AcceptsBodies for Http2Driver {
    fn unix_ns(&self, now: Time) -> u64 {
        self.calls.shared.request.unix_zero.unix_ns_at(now)
    }

    fn set_next_body(&mut self, body: Vec<u8>) {
        (self.calls.scratch, self.calls.has_next_body) = (body, true);
    }
}

impl SwitchableProtocol for Http2Protocol {
    fn select_request(&self, driver: &mut Http2Driver, values: StepValues) {
        if !Arc::ptr_eq(&self.0, &driver.calls.shared) {
            driver.calls.shared = Arc::clone(&self.0);
        }
        // Checks that do not vary stay with the driver, since counting references to shared ones is dear.
        if !Arc::ptr_eq(&self.0.checks, &driver.calls.checks) {
            driver.calls.checks = Arc::clone(&self.0.checks);
        }
        driver.calls.step = values;
    }

    fn inspect_response<R>(driver: &Http2Driver, f: impl FnOnce(CapturedResponse<'_>) -> R) -> R {
        let calls = &driver.calls;
        let kept = calls.responses.get(calls.answer_slot as usize);
        f(CapturedResponse {
            fields: calls.answer_fields.iter().collect(),
            body: captured_body(kept.map_or(Some(&[]), |kept| kept.content.captured_body())),
        })
    }

    fn unix_ns(driver: &Http2Driver, now: Time) -> u64 {
        driver.calls.shared.request.unix_zero.unix_ns_at(now)
    }

    fn release_buffers(driver: &mut Http2Driver) {
        let calls = &mut driver.calls;
        // A stream whose call was cancelled may still have its slot.
        if calls.free.len() == calls.responses.len() {
            (calls.responses, calls.free) = (Vec::new(), Vec::new());
            calls.answer_slot = NO_SLOT;
        }
        (calls.fields, calls.answer_fields) = (FieldList::default(), FieldList::default());
        (calls.scratch, calls.step) = (Vec::new(), StepValues::default());
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_engine::driver::{CallId, Driver, Protocol};
    use plimsoll_wire::hpack::Encoder;
    use plimsoll_wire::http2::{EndStream, write};

    use super::*;
    use crate::http::HttpCall;
    use crate::http::journey::CaptureLevel;
    use crate::http::multiplexed::HttpScheme;
    use crate::http::request::HttpRequest;

    #[test]
    fn pausing_connection_has_no_buffers() {
        let call = HttpCall {
            method: "GET".into(),
            path: "/".into(),
            expect: vec![(200, 299)],
            max_body: 1 << 20,
            ..HttpCall::default()
        };
        let request = HttpRequest {
            call: &call,
            authority: "h:1",
            closes: false,
        };
        let protocol = Http2Protocol::for_step(&request, HttpScheme::Http, CaptureLevel::Whole);
        let mut driver = protocol.new_driver();
        let (mut out, mut events) = (Vec::new(), Vec::new());
        driver.open(Time::ZERO, &mut out);
        let mut settings = Vec::new();
        write::settings(&mut settings, &[]);
        assert_eq!(
            driver.receive(&settings, Time(1), &mut out, &mut events),
            Ok(())
        );
        for stream in [1, 3] {
            protocol.select_request(&mut driver, StepValues::default());
            driver.start(CallId(0), 0, Time(1), &mut out);
            let block = Encoder::encode_plain([(":status", "200"), ("x-a", "b")]);
            let mut answer = Vec::new();
            write::header_block(&mut answer, stream, &block, EndStream(false));
            write::data(&mut answer, stream, &[b'x'; 900], EndStream(true));
            events.clear();
            let read = driver.receive(&answer, Time(2), &mut out, &mut events);
            assert_eq!(read, Ok(()));
            let done = events.iter().find_map(|event| event.ended_call());
            assert!(done.is_some_and(|done| done.outcome.is_ok()), "{events:?}");
            assert!(driver.calls.answer_fields.heap_bytes() > 0);
            Http2Protocol::release_buffers(&mut driver);
            let calls = &driver.calls;
            let bodies = calls.responses.capacity() + calls.free.capacity();
            let fields = calls.fields.heap_bytes() + calls.answer_fields.heap_bytes();
            assert_eq!((bodies, fields, calls.scratch.capacity()), (0, 0, 0));
        }
    }
}
