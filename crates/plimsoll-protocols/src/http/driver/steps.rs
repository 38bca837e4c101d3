//! Calls that are the steps of a journey: each step sends its own request, and checks its response against its own
//! expectations.

use std::sync::Arc;

use plimsoll_model::Time;
use plimsoll_wire::http1::{FieldStorage, ResponseHead};

use super::{Http1Driver, Http1Protocol};
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
            self.last_head.clear();
        }
    }
}

impl SwitchableProtocol for Http1Protocol {
    fn select_request(&self, driver: &mut Http1Driver, values: StepValues) {
        if !Arc::ptr_eq(&self.0, &driver.shared) {
            driver.shared = Arc::clone(&self.0);
            // The remembered head was checked for another step, so it must be checked again.
            driver.last_head.clear();
        }
        driver.checks = Arc::clone(&self.0.checks);
        driver.given.step = Some(values);
    }

    fn inspect_response<R>(driver: &Http1Driver, f: impl FnOnce(CapturedResponse<'_>) -> R) -> R {
        let mut space = FieldStorage::new();
        let max_head = driver.checks.max_head as usize;
        let fields =
            match ResponseHead::parse_with_max_bytes(&driver.last_head, max_head, &mut space) {
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
}
