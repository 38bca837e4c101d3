//! The constant part of requests, encoded once and shared by all connections.

use plimsoll_model::rows::template::TraceIds;
use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::{DEFAULT_MAX_FRAME_BYTES, EndStream, FrameHeader, kind, write};

use super::fields::{RequestBlock, VaryingFields};
use crate::shared::clock_origin::ClockOrigin;

/// How the bodies of calls are produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyKind {
    /// All calls send the same body.
    Same,
    /// Each call has its own body.
    PerCall,
    /// The protocol sends the bodies itself, message by message.
    Streamed,
}

/// The encoded part of requests that all calls have in common.
#[derive(Debug)]
pub struct RequestTemplate {
    /// A complete request without its stream ids: HEADERS that consist of table indices, and DATA. Only HEADERS if
    /// bodies vary.
    pub(crate) indexed_frames: Box<[u8]>,
    /// The offsets of the stream ids in [`RequestTemplate::indexed_frames`], in bytes.
    pub(crate) id_offsets: Box<[u32]>,
    pub(crate) first_block: RequestBlock,
    pub(crate) steady_block: RequestBlock,
    pub(crate) plain_block: RequestBlock,
    /// The size of the first block's entries in the peer's dynamic table, in bytes (RFC 7541, 4.1).
    pub(crate) table_needed: usize,
    pub(crate) body: Box<[u8]>,
    /// Header fields that vary between calls; `None` if all fields are constant.
    pub(crate) varying_fields: Option<VaryingFields>,
    pub(crate) body_kind: BodyKind,
    /// Whether requests have no body and end with their HEADERS.
    pub(crate) is_bodiless: bool,
    /// The window that is needed to send the prepared request, in bytes; `u32::MAX` if it is not complete.
    pub(crate) window_needed: u32,
    pub(crate) unix_zero: ClockOrigin,
}

impl RequestTemplate {
    pub(crate) fn new(
        fields: &[(&str, &str)],
        varying_fields: Option<VaryingFields>,
        body: Vec<u8>,
        bodies: BodyKind,
    ) -> RequestTemplate {
        let mut encoder = Encoder::default();
        let first_block = RequestBlock::encode(fields, |part| encoder.encode(part.iter().copied()));
        let table_needed = encoder.inserted_bytes();
        let steady_block =
            RequestBlock::encode(fields, |part| encoder.encode(part.iter().copied()));
        let plain_block =
            RequestBlock::encode(fields, |part| Encoder::encode_plain(part.iter().copied()));
        let is_bodiless = bodies == BodyKind::Same && body.is_empty();

        let constant_body = (bodies == BodyKind::Same).then_some(&*body);
        let steady = build_indexed_frames(&steady_block, constant_body, is_bodiless);
        RequestTemplate {
            window_needed: match (bodies, &varying_fields) {
                (BodyKind::Same, None) => body.len() as u32,
                _ => u32::MAX,
            },
            id_offsets: stream_id_offsets(&steady),
            indexed_frames: steady.into(),
            first_block,
            steady_block,
            plain_block,
            table_needed,
            body: body.into(),
            varying_fields,
            body_kind: bodies,
            is_bodiless,
            unix_zero: ClockOrigin::default(),
        }
    }

    /// Returns the same request without entries in the peer's dynamic table, for a connection that sends different
    /// requests.
    #[must_use]
    pub(crate) fn without_dynamic_table(self) -> RequestTemplate {
        let constant_body = (self.body_kind == BodyKind::Same).then_some(&*self.body);
        let steady = build_indexed_frames(&self.plain_block, constant_body, self.is_bodiless);
        RequestTemplate {
            first_block: self.plain_block.clone(),
            steady_block: self.plain_block.clone(),
            table_needed: 0,
            id_offsets: stream_id_offsets(&steady),
            indexed_frames: steady.into(),
            ..self
        }
    }

    /// Returns true if each call's request is encoded when it is sent.
    #[inline]
    pub(crate) fn varies(&self) -> bool {
        self.body_kind == BodyKind::PerCall
            || (self.varying_fields.is_some() && self.body_kind == BodyKind::Same)
    }

    pub(crate) fn trace_ids(&self) -> Option<TraceIds> {
        self.varying_fields.as_ref()?.trace_ids()
    }
}

/// Returns the frames of a request without its stream ids: HEADERS, and DATA if all calls send the same `body`.
fn build_indexed_frames(block: &RequestBlock, body: Option<&[u8]>, is_bodiless: bool) -> Vec<u8> {
    let size = block.bytes().len() + body.map_or(0, <[u8]>::len) + 32;
    let mut frames = Vec::with_capacity(size);
    write::header_block(&mut frames, 0, block.bytes(), EndStream(is_bodiless));
    let mut chunks = body
        .unwrap_or_default()
        .chunks(DEFAULT_MAX_FRAME_BYTES as usize)
        .peekable();
    while let Some(chunk) = chunks.next() {
        write::data(&mut frames, 0, chunk, EndStream(chunks.peek().is_none()));
    }
    frames
}

/// Returns the offsets of the stream ids in a sequence of complete frames.
pub(crate) fn stream_id_offsets(frames: &[u8]) -> Box<[u32]> {
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(head) = frames[at..].first_chunk::<{ FrameHeader::LEN }>() {
        let head = FrameHeader::parse(head);
        debug_assert!(matches!(
            head.kind(),
            kind::DATA | kind::HEADERS | kind::CONTINUATION
        ));
        places.push(at as u32 + 5);
        at += FrameHeader::LEN + head.length() as usize;
    }
    places.into()
}
