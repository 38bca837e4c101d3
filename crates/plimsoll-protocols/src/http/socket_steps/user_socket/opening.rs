//! Opens the socket: sends the upgrade request, and reads the response.

use plimsoll_engine::driver::ProtocolError;
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::http1::{FieldStorage, ResponseHead};
use plimsoll_wire::websocket::{
    DeflateParameters, ReaderRole, UpgradeOffer, UpgradeResponse, WebSocketReader, client_key,
};

use super::{SelectedCall, SocketState, SocketStepDriver};

impl SocketStepDriver {
    /// Appends the upgrade request of a step.
    pub(super) fn write_upgrade(
        &mut self,
        step: &SelectedCall,
        number: u64,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        let call = &step.prepared.call;
        let mut nonce = [0; 16];
        for half in nonce.chunks_mut(8) {
            half.copy_from_slice(&self.random.next_u64().to_ne_bytes());
        }
        self.key = client_key(&nonce);
        self.reader = WebSocketReader::new(ReaderRole::Client, call.max_message);
        let moment = step.prepared.render_context(number, now, &step.taken);
        let rendered = call.subprotocols.iter().map(|name| {
            let mut text = Vec::new();
            name.write(&moment, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        self.subprotocols = rendered.collect();
        let subprotocols = self.subprotocols.join(", ");
        let mut fields = vec![
            ("upgrade", "websocket"),
            ("connection", "Upgrade"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", &*self.key),
        ];
        if call.compressed {
            fields.push(("sec-websocket-extensions", DeflateParameters::CLIENT_OFFER));
        }
        if !subprotocols.is_empty() {
            fields.push(("sec-websocket-protocol", &*subprotocols));
        }
        if !step.cookies.is_empty() {
            fields.push(("cookie", &*step.cookies));
        }
        (step.prepared).write_upgrade((number, now), &step.taken, &fields, out);
        self.opened_by = Some(number);
        self.state = SocketState::Upgrading(Vec::new());
    }

    /// Reads the part of `bytes` that belongs to the response to the upgrade. Returns the bytes after it, which are
    /// frames; `None` if the response is not complete.
    pub(super) fn read_upgrade_response<'a>(
        &mut self,
        bytes: &'a [u8],
    ) -> Result<Option<&'a [u8]>, ProtocolError> {
        let SocketState::Upgrading(gathered) = &mut self.state else {
            return Ok(Some(bytes));
        };
        let before = gathered.len();
        gathered.extend_from_slice(bytes);
        let again = self.reopening.as_ref().map(|reopening| reopening.opening());
        let opening = again.or(self.selected.as_ref());
        let compression = opening.is_some_and(|step| step.prepared.call.compressed);
        let offer = UpgradeOffer {
            compression,
            protocols: &self.subprotocols,
        };
        let refused = |outcome, problem: String| ProtocolError {
            outcome,
            detail: format!("websocket: {problem}"),
        };
        let parsed = UpgradeResponse::parse(gathered, &self.key, offer);
        let parsed = parsed.map_err(|e| refused(Outcome::SocketRefused, e.to_string()))?;
        let Some(answer) = parsed else {
            return Ok(None);
        };
        if let Some(problem) = answer.problem {
            let outcome = match answer.status {
                401 | 403 => Outcome::SocketDenied,
                _ => Outcome::SocketRefused,
            };
            return Err(refused(outcome, problem));
        }
        let mut space = FieldStorage::new();
        let reopening = self.reopening.as_ref();
        let is_first = reopening.is_none_or(|reopening| !reopening.is_lost());
        if is_first && let Ok(Some(head)) = ResponseHead::parse_final(gathered, &mut space) {
            let fields = head.fields.iter();
            let owned = fields.map(|(name, value)| (name.as_bytes().into(), value.into()));
            self.fields = owned.collect();
        }
        if let Some(agreed) = answer.deflate {
            let nothing = WebSocketReader::new(ReaderRole::Client, 0);
            self.reader =
                std::mem::replace(&mut self.reader, nothing).with_deflate_parameters(agreed);
        }
        self.state = SocketState::Open;
        Ok(Some(
            &bytes[answer.size.saturating_sub(before).min(bytes.len())..],
        ))
    }
}
