//! Handles responses with compressed messages, which are decompressed only to validate them; the output is not
//! kept.

use std::sync::Arc;

use plimsoll_model::Outcome;
use plimsoll_wire::http2::StreamPayload;

use super::{GrpcDriver, GrpcStream};
use crate::grpc::decompression::StreamUnpackers;
use crate::grpc::head::{FailureTexts, GrpcHeaders, MessageEncoding};
use crate::grpc::response_state::ResponseAction;
use crate::grpc::{MessageCompression, MessageShapes};

/// Stores the encoding that the header of an open stream's response declares.
#[cold]
pub(super) fn store_encoding(
    unpackers: &mut Option<Box<StreamUnpackers>>,
    stream: &mut GrpcStream,
    offered: Option<MessageCompression>,
    head: &GrpcHeaders,
    texts: Option<&FailureTexts>,
) {
    stream.answer.may_be_compressed = offered.is_some() && head.encoding == MessageEncoding::Gzip;
    if !stream.answer.may_be_compressed {
        let named = texts.and_then(|texts| texts.encoding.as_deref());
        unpackers.get_or_insert_default().unknown_encoding = Some(named.unwrap_or("gzip").into());
    }
}

/// Handles DATA of a response with compressed messages. `limit` applies to a decompressed message, in bytes.
#[inline(never)]
pub(super) fn read_data(
    unpackers: &mut Option<Box<StreamUnpackers>>,
    shapes: &Option<Arc<MessageShapes>>,
    stream: &mut GrpcStream,
    piece: StreamPayload<'_>,
    limit: u32,
) -> ResponseAction {
    let unpackers = unpackers.get_or_insert_default();
    let mut unpacking = unpackers.take(stream.id, limit, shapes);
    let answer = &mut stream.answer;
    let step = answer.receive_compressed_data(piece, limit, &mut unpacking);
    if step == ResponseAction::Continue {
        unpackers.put_back(stream.id, unpacking);
    }
    step
}

impl GrpcDriver {
    /// Returns the text of a failure; if an unknown encoding caused it, the text names it.
    #[cold]
    pub(super) fn failure_detail(
        &self,
        outcome: Outcome,
        detail: Option<String>,
    ) -> Option<String> {
        let unpackers = self.calls.unpackers.as_ref();
        let unknown = unpackers.and_then(|unpackers| unpackers.unknown_encoding.as_deref());
        match (outcome, unknown) {
            (Outcome::CompressionUnsupported, Some(name)) => Some(format!(
                "a message compressed with `{name}`, which was not offered"
            )),
            _ => detail,
        }
    }
}
