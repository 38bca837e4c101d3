//! Calls that are the steps of a journey: each step sends its own request, and checks its response against its own
//! expectations. The calls of a conversation have their own bodies.

use std::sync::Arc;

use plimsoll_model::Time;
use plimsoll_wire::http1::{FieldStorage, ResponseHead};

use super::{Http1Driver, Http1Protocol};
use crate::http::conversation::AcceptsBodies;
use crate::http::journey::{CapturedResponse, StepValues, SwitchableProtocol, captured_body};

impl Http1Driver {
    /// Sets the checks of the response to call `number`, if the step's expectations vary.
    pub(super) fn render_checks(&mut self, values: &StepValues, number: u64, now: Time) {
        let request = &self.shared.request;
        let Some(varying) = &request.varying else {
            return;
        };
        let at = (number, request.unix_zero.unix_ns_at(now));
        if let Some(checks) = varying.render_checks(&self.shared.checks, at, &values.taken) {
            self.checks = Arc::new(checks);
            // The remembered head was checked against other values, so it must be checked again.
            self.last_head.bytes.clear();
        }
    }
}

impl AcceptsBodies for Http1Driver {
    fn unix_ns(&self, now: Time) -> u64 {
        self.shared.request.unix_zero.unix_ns_at(now)
    }

    fn set_next_body(&mut self, body: Vec<u8>) {
        self.given.body = Some(body);
    }
}

impl SwitchableProtocol for Http1Protocol {
    fn select_request(&self, driver: &mut Http1Driver, values: StepValues) {
        if !Arc::ptr_eq(&self.0, &driver.shared) {
            driver.shared = Arc::clone(&self.0);
            // The remembered head was checked for another step, so it must be checked again.
            driver.last_head.bytes.clear();
        }
        // Checks that do not vary stay with the driver, since counting references to shared ones is dear.
        if !Arc::ptr_eq(&self.0.checks, &driver.checks) {
            driver.checks = Arc::clone(&self.0.checks);
        }
        driver.given.step = Some(values);
    }

    fn inspect_response<R>(driver: &Http1Driver, f: impl FnOnce(CapturedResponse<'_>) -> R) -> R {
        let mut space = FieldStorage::new();
        let max_head = driver.checks.max_head as usize;
        let fields =
            match ResponseHead::parse_with_max_bytes(&driver.last_head.bytes, max_head, &mut space)
            {
                Ok(Some(head)) => head.fields.iter().map(|(n, v)| (n.as_bytes(), v)).collect(),
                _ => Vec::new(),
            };
        f(CapturedResponse {
            fields,
            body: captured_body(driver.content.captured_body()),
        })
    }

    fn unix_ns(driver: &Http1Driver, now: Time) -> u64 {
        driver.shared.request.unix_zero.unix_ns_at(now)
    }

    fn release_buffers(driver: &mut Http1Driver) {
        driver.content.release_buffers();
        (driver.scratch, driver.last_head.bytes) = (Vec::new(), Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_engine::driver::{CallId, Driver, Protocol};

    use super::*;
    use crate::http::HttpCall;
    use crate::http::journey::CaptureLevel;
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
        let protocol = Http1Protocol::for_step(&request, CaptureLevel::Whole);
        let mut driver = protocol.new_driver();
        let mut out = Vec::new();
        driver.open(Time::ZERO, &mut out);
        for body in ["{\"a\":1}".repeat(500), "b".to_owned()] {
            protocol.select_request(&mut driver, StepValues::default());
            driver.start(CallId(0), 0, Time(1), &mut out);
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let mut events = Vec::new();
            // The head arrives in pieces, so that it is gathered.
            for piece in answer.as_bytes().chunks(10) {
                let read = driver.receive(piece, Time(2), &mut out, &mut events);
                assert_eq!(read, Ok(()));
            }
            let done = events.iter().find_map(|event| event.ended_call());
            assert!(done.is_some_and(|done| done.outcome.is_ok()), "{events:?}");
            let kept = Http1Protocol::inspect_response(&driver, |answer| {
                answer.body.map(|body| body.into_owned())
            });
            assert_eq!(kept.as_deref(), Ok(body.as_bytes()));
            assert!(driver.content.heap_bytes() >= body.len());
            Http1Protocol::release_buffers(&mut driver);
            let capacities = (driver.scratch.capacity(), driver.last_head.bytes.capacity());
            assert_eq!((driver.content.heap_bytes(), capacities), (0, (0, 0)));
        }
    }
}
