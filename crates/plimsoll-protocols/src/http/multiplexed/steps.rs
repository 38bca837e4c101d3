//! Calls that are the steps of a journey: each step sends its own request, and checks its response against its own
//! expectations.

use std::sync::Arc;

use plimsoll_model::Time;

use super::{Http2Driver, Http2Protocol, HttpCalls};
use crate::http::journey::{CapturedResponse, StepValues, SwitchableProtocol, captured_body};

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

impl SwitchableProtocol for Http2Protocol {
    fn select_request(&self, driver: &mut Http2Driver, values: StepValues) {
        driver.calls.shared = Arc::clone(&self.0);
        driver.calls.checks = Arc::clone(&self.0.checks);
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
}
