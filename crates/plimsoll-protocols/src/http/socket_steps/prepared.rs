//! A step over a WebSocket whose constant parts are encoded, as all users share them.

use plimsoll_model::Time;
use plimsoll_model::rows::template::{RenderContext, Template, TraceIds, VariationSettings};
use plimsoll_wire::websocket::Opcode;

use super::call::SocketStepCall;
use crate::http::call::HttpCall;
use crate::http::checks::to_printable;
use crate::http::journey::StepCookieScope;
use crate::http::request::{EncodedUpgrade, HttpRequest, write_body};
use crate::journey::{CapturedValues, StepContext, StepMoment};
use crate::shared::clock_origin::ClockOrigin;

/// The request and the frames of a step, shared by all users.
pub(super) struct PreparedSocketCall {
    pub(super) call: SocketStepCall,
    upgrade: EncodedUpgrade,
    variation: VariationSettings,
    pub(super) cookie_scope: StepCookieScope,
    /// The names of the values that the journey takes. The two fields below are indices into it: of the values that
    /// must be names of subprotocols, and of those in text frames.
    pub(super) taken: Vec<String>,
    pub(super) in_subprotocols: Vec<usize>,
    pub(super) in_text: Vec<usize>,
    pub(super) unix_zero: ClockOrigin,
}

impl PreparedSocketCall {
    /// Prepares `step`. `request`: the request that opens its socket.
    pub(super) fn new(
        request: &HttpRequest<'_>,
        step: &SocketStepCall,
        variation: &VariationSettings,
        context: &StepContext<'_>,
    ) -> PreparedSocketCall {
        let call: &HttpCall = request.call;
        let needs = |templates: &mut dyn Iterator<Item = &Template>| -> Vec<usize> {
            templates
                .flat_map(Template::captured_indices)
                .map(usize::from)
                .collect()
        };
        let frames = step.frames.iter().filter(|frame| !frame.is_binary);
        let frames = frames.filter_map(|frame| frame.varying.as_ref());
        let mut frames = frames.map(|frame| &frame.template);
        PreparedSocketCall {
            upgrade: EncodedUpgrade::new(request),
            variation: variation.clone(),
            cookie_scope: StepCookieScope::new(call, context.taken, context.security),
            taken: context.taken.to_vec(),
            in_subprotocols: needs(&mut step.subprotocols.iter()),
            in_text: needs(&mut frames),
            call: step.clone(),
            unix_zero: ClockOrigin::default(),
        }
    }

    /// Returns the trace ids in the upgrade request; `None` if it has none.
    pub(super) fn trace_ids(&self) -> Option<TraceIds> {
        self.upgrade.trace_ids()
    }

    /// Returns the opcode of the step's frame at `index`.
    pub(super) fn opcode(&self, index: usize) -> Opcode {
        if self.call.frames[index].is_binary {
            Opcode::Binary
        } else {
            Opcode::Text
        }
    }

    /// Returns the context in which templates are rendered for the user's call `number`.
    pub(super) fn render_context<'a>(
        &'a self,
        number: u64,
        now: Time,
        taken: &'a CapturedValues,
    ) -> RenderContext<'a> {
        let render_context =
            self.variation
                .render_context(number, 0, self.unix_zero.unix_ns_at(now));
        render_context.with_captured_values(taken)
    }

    /// Appends the upgrade request of the user's call `number`. `handshake`: the header fields of the WebSocket
    /// handshake.
    pub(super) fn write_upgrade(
        &self,
        (number, now): (u64, Time),
        taken: &CapturedValues,
        handshake: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) {
        let at = (number, self.unix_zero.unix_ns_at(now));
        self.upgrade
            .write_with_captured_values(at, taken, handshake, out);
    }

    /// Returns the number of tokens that the step awaits, if it is known beforehand.
    ///
    /// # Errors
    /// Returns an error if the text with the user's values is not a number.
    pub(super) fn render_token_number(
        &self,
        moment: StepMoment,
        taken: &CapturedValues,
    ) -> Result<Option<u64>, String> {
        let Some(template) = self.call.token_number() else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let render_context = self.render_context(moment.number, moment.now, taken);
        template.write(&render_context, &mut text);
        let number = std::str::from_utf8(&text).ok().map(str::parse);
        let Some(Ok(number)) = number else {
            let text = to_printable(&text);
            return Err(format!("tokens: not a number: {text}"));
        };
        Ok(Some(number))
    }

    /// Renders the frame at `index`.
    pub(super) fn render_frame<'a>(
        &'a self,
        index: usize,
        moment: &RenderContext<'_>,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let frame = &self.call.frames[index];
        let Some(varying) = &frame.varying else {
            return &frame.constant;
        };
        scratch.clear();
        write_body(varying, moment, scratch);
        scratch
    }
}
