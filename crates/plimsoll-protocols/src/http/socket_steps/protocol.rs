//! The protocol of steps over a WebSocket, which connects their driver with journeys.

use std::sync::Arc;

use plimsoll_engine::driver::Protocol;
use plimsoll_engine::script::scenario::ConnectionNeed;
use plimsoll_model::Time;
use plimsoll_model::rows::template::{TraceIds, VariationSettings};

use super::call::{SocketStepCall, is_token_byte};
use super::prepared::PreparedSocketCall;
use super::user_socket::{SelectedCall, SocketStepDriver};
use crate::http::checks::to_printable;
use crate::http::request::HttpRequest;
use crate::journey::{
    CapturedResponse, CapturedValues, CookieJar, StepContext, StepMoment, StepProtocol,
};

/// A step over a WebSocket.
#[derive(Clone)]
pub(super) struct SocketStepProtocol(Arc<PreparedSocketCall>);

impl SocketStepProtocol {
    /// Prepares `step`. `request`: the request that opens its socket.
    pub(super) fn new(
        request: &HttpRequest<'_>,
        step: &SocketStepCall,
        variation: &VariationSettings,
        context: &StepContext<'_>,
    ) -> SocketStepProtocol {
        let prepared = PreparedSocketCall::new(request, step, variation, context);
        SocketStepProtocol(Arc::new(prepared))
    }
}

impl Protocol for SocketStepProtocol {
    type Driver = SocketStepDriver;

    fn alpn(&self) -> Option<&'static [u8]> {
        // ALPN is not offered, as for HTTP/1.1.
        None
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.0.unix_zero.set(unix_ns);
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.0.trace_ids()
    }

    fn new_driver(&self) -> SocketStepDriver {
        SocketStepDriver::new()
    }
}

impl StepProtocol for SocketStepProtocol {
    fn connection_need(&self) -> ConnectionNeed {
        if self.0.call.opens {
            ConnectionNeed::New
        } else {
            ConnectionNeed::Open
        }
    }

    fn select_request(
        &self,
        driver: &mut SocketStepDriver,
        moment: StepMoment,
        values: &Arc<CapturedValues>,
        cookies: &CookieJar,
    ) -> Result<(), String> {
        let step = &self.0;
        let value = |name: usize| values[name].as_deref().unwrap_or_default();
        let is_token = |name: &usize| value(*name).iter().copied().all(is_token_byte);
        if let Some(wrong) = step.in_subprotocols.iter().find(|name| !is_token(name)) {
            let (name, value) = (&step.taken[*wrong], to_printable(value(*wrong)));
            return Err(format!("`{name}` can't be in a subprotocol: {value}"));
        }
        let is_text = |name: &usize| std::str::from_utf8(value(*name)).is_ok();
        if let Some(wrong) = step.in_text.iter().find(|name| !is_text(name)) {
            let name = &step.taken[*wrong];
            return Err(format!(
                "`{name}` is not UTF-8, as text frames are: write binary = true"
            ));
        }
        driver.select_step(SelectedCall {
            prepared: Arc::clone(step),
            expected_tokens: step.render_token_number(moment, values)?,
            taken: Arc::clone(values),
            cookies: step.cookie_scope.cookie_field(values, cookies)?,
        });
        Ok(())
    }

    fn store_cookies(
        &self,
        driver: &SocketStepDriver,
        now: Time,
        values: &CapturedValues,
        cookies: &mut CookieJar,
    ) {
        let unix_ns = self.0.unix_zero.unix_ns_at(now);
        let fields = driver.response_fields();
        (self.0.cookie_scope).store_set_cookies(fields, unix_ns, values, cookies);
    }

    fn inspect_response(&self, driver: &SocketStepDriver, f: &mut dyn FnMut(CapturedResponse<'_>)) {
        let body = driver.last_message();
        f(CapturedResponse {
            fields: driver.response_fields().collect(),
            body: body.map(Into::into).map_err(str::to_owned),
        });
    }

    fn release_buffers(&self, driver: &mut SocketStepDriver) {
        driver.release_buffers();
    }
}
