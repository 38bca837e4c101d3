//! Relays field lists: decodes one connection's header blocks and encodes them for another.
//!
//! HPACK's tables belong to a connection, so a block cannot be forwarded unchanged. But field lists
//! repeat, and until a block changes a table, each block is a pure function of its list. The last
//! few blocks are therefore cached on both sides and found by comparing bytes, so that in the
//! steady state nothing is decoded or encoded.

use std::borrow::Cow;
use std::sync::Arc;

use plimsoll_model::Outcome;
use plimsoll_protocols::interface::relayed::StreamFields;
use plimsoll_protocols::registry::RelayedFields;
use plimsoll_wire::hpack::{Decoder, FieldListEncoder, HeaderField, HpackError};
use plimsoll_wire::http2::{MAX_HEADER_LIST_BYTES, MessageValidator};

/// Number of blocks cached on each side.
const MAX_CACHED_BLOCKS: usize = 4;

/// Size of the decoder's table that the peer may use, in bytes.
const DECODER_TABLE_BYTES: u32 = 4096;

/// Longest list or block that is cached, in bytes.
const MAX_CACHED_BLOCK_BYTES: usize = 1024;

/// Fields whose values differ from call to call, in addition to those that the protocol defines. Indexing them would
/// evict other fields from the peer's table.
const VARYING_FIELD_NAMES: [&[u8]; 6] = [
    b"content-length",
    b"date",
    b"timestamp",
    b"traceparent",
    b"tracestate",
    b"x-request-id",
];

/// A field list, with the properties that a relay needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderFields {
    /// The fields in sequence: length of the name, length of the value, sensitivity, name, value.
    packed: Vec<u8>,
    /// Whether the list is valid under RFC 9113.
    pub(crate) check: MessageValidator,
    /// The fields of the protocol over HTTP/2, such as gRPC.
    pub(crate) metadata: RelayedFields,
}

/// The sidecar's own answer to a call: its outcome in the protocol over HTTP/2, such as gRPC, and its status in plain
/// HTTP.
#[derive(Clone, Debug)]
pub(crate) struct LocalResponse {
    pub(crate) outcome: Outcome,
    pub(crate) http_status: &'static str,
    pub(crate) why: Cow<'static, str>,
}

/// Added to HTTP statuses, so that they differ from the statuses of the protocol over HTTP/2.
const HTTP_STATUS_OFFSET: u32 = 1000;

const PACKED_FIELD_PREFIX_BYTES: usize = 9;

impl HeaderFields {
    pub(crate) fn iter(&self) -> impl Iterator<Item = HeaderField<'_>> {
        let mut rest = &self.packed[..];
        std::iter::from_fn(move || {
            let (head, after) = rest.split_first_chunk::<PACKED_FIELD_PREFIX_BYTES>()?;
            let [a, b, c, d, e, f, g, h, sensitive] = *head;
            let (name, after) = after.split_at(u32::from_le_bytes([a, b, c, d]) as usize);
            let (value, after) = after.split_at(u32::from_le_bytes([e, f, g, h]) as usize);
            rest = after;
            Some(HeaderField {
                name,
                value,
                sensitive: sensitive != 0,
            })
        })
    }

    /// Returns the value of a field.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter()
            .find(|field| field.name == name)
            .map(|f| f.value)
    }

    /// Returns the status of the call, if these are the header fields or trailers of its answer.
    pub(crate) fn status(&self) -> Option<String> {
        match self.metadata.status() {
            Some(status) => Some(RelayedFields::status_name(status)),
            None => Some(String::from_utf8_lossy(self.http_status()?).into_owned()),
        }
    }

    /// Returns the status as a number: the protocol's, or 1000 plus HTTP's.
    pub(crate) fn status_number(&self) -> Option<u32> {
        self.metadata.status().or_else(|| {
            let status = std::str::from_utf8(self.http_status()?).ok()?;
            Some(HTTP_STATUS_OFFSET + u32::from(status.parse::<u16>().ok()?))
        })
    }

    /// Returns the HTTP status, unless the protocol over HTTP/2 defines statuses itself.
    fn http_status(&self) -> Option<&[u8]> {
        self.find(b":status")
            .filter(|_| !self.metadata.is_protocol_call())
    }

    /// Returns the name of a status; a `code` of `None` means an answer without a status.
    pub(crate) fn status_name(code: Option<u32>) -> String {
        match code {
            None => "none".to_owned(),
            Some(code) => match code.checked_sub(HTTP_STATUS_OFFSET) {
                None => RelayedFields::status_name(code),
                Some(status) => status.to_string(),
            },
        }
    }

    /// Returns why these fields cannot begin a request.
    pub(crate) fn request_problem(&self) -> Option<&'static str> {
        self.check.request_problem(|name| self.find(name))
    }

    /// Returns why these fields cannot begin an answer.
    pub(crate) fn answer_problem(&self) -> Option<&'static str> {
        self.check.response_problem()
    }

    /// Returns why these fields cannot end a request or an answer.
    pub(crate) fn trailers_problem(&self) -> Option<&'static str> {
        self.check.trailers_problem()
    }

    /// Returns the sidecar's own answer to the request that begins with these fields.
    pub(crate) fn local_response_fields(&self, response: &LocalResponse) -> HeaderFields {
        let mut fields = HeaderFields::default();
        if self.metadata.is_protocol_call() {
            RelayedFields::push_initial_fields(fields.field_sink());
            RelayedFields::push_final_fields(response.outcome, &response.why, fields.field_sink());
        } else {
            fields.field_sink()(b":status", response.http_status.as_bytes());
        }
        fields
    }

    /// Returns the trailers with which the sidecar ends an answer that has begun.
    pub(crate) fn local_trailers(verdict: &LocalResponse) -> HeaderFields {
        let mut fields = HeaderFields::default();
        RelayedFields::push_final_fields(verdict.outcome, &verdict.why, fields.field_sink());
        fields
    }

    /// Returns the access log's status for the sidecar's answer to this request.
    pub(crate) fn local_status(&self, verdict: &LocalResponse) -> String {
        if self.metadata.is_protocol_call() {
            verdict.outcome.code().to_owned()
        } else {
            verdict.http_status.to_owned()
        }
    }

    fn field_sink(&mut self) -> impl FnMut(&[u8], &[u8]) {
        |name: &[u8], value: &[u8]| {
            self.push(HeaderField {
                name,
                value,
                sensitive: false,
            });
        }
    }

    fn push(&mut self, field: HeaderField<'_>) {
        let HeaderField {
            name,
            value,
            sensitive,
        } = field;
        self.check.check_field(name, value);
        self.metadata.read_field(name, value);
        self.packed
            .extend_from_slice(&(name.len() as u32).to_le_bytes());
        self.packed
            .extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.packed.push(u8::from(sensitive));
        self.packed.extend_from_slice(name);
        self.packed.extend_from_slice(value);
    }
}

/// Caches an item, and drops the oldest one if the cache is full.
fn cache_item<T>(memo: &mut Vec<T>, thing: T) {
    if memo.len() == MAX_CACHED_BLOCKS {
        memo.remove(0);
    }
    memo.push(thing);
}

/// Decodes a connection's header blocks.
#[derive(Debug)]
pub(super) struct FieldReader {
    decoder: Decoder,
    memo: Vec<(Vec<u8>, Arc<HeaderFields>)>,
}

impl FieldReader {
    pub(super) fn new() -> FieldReader {
        FieldReader {
            decoder: Decoder::new(DECODER_TABLE_BYTES, MAX_HEADER_LIST_BYTES),
            memo: Vec::new(),
        }
    }

    /// Decodes a header block.
    ///
    /// # Errors
    /// Returns an error when the block violates RFC 7541, which makes the connection unusable.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Arc<HeaderFields>, HpackError> {
        if let Some((_, fields)) = self.memo.iter().find(|(known, _)| known == block) {
            return Ok(Arc::clone(fields));
        }
        let mut fields = HeaderFields::default();
        let decoded = self.decoder.decode(block, |field| fields.push(field))?;
        if decoded.is_list_too_large {
            (fields.check).set_problem("a field list over 65536 bytes (RFC 9113, 6.5.2)");
        }
        let fields = Arc::new(fields);
        if decoded.has_changed_table {
            self.memo.clear();
        }
        if decoded.is_steady && block.len() <= MAX_CACHED_BLOCK_BYTES {
            cache_item(&mut self.memo, (block.to_vec(), Arc::clone(&fields)));
        }
        Ok(fields)
    }
}

/// Encodes a connection's header blocks.
#[derive(Debug, Default)]
pub(super) struct FieldWriter {
    encoder: FieldListEncoder,
    memo: Vec<(Vec<u8>, Vec<u8>)>,
    block: Vec<u8>,
}

impl FieldWriter {
    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE, in bytes.
    pub(super) fn set_table_size(&mut self, size: u32) {
        self.encoder.set_allowed_table_size(size);
        self.memo.clear();
    }

    /// Encodes `fields`; the block must be sent, because encoding may change the table.
    pub(super) fn encode(&mut self, fields: &HeaderFields) -> &[u8] {
        let mut known = self.memo.iter();
        if let Some(place) = known.position(|(known, _)| *known == fields.packed) {
            return &self.memo[place].1;
        }
        self.block.clear();
        let keep = |field: &HeaderField<'_>| {
            !VARYING_FIELD_NAMES.contains(&field.name)
                && !RelayedFields::VARYING_FIELDS.contains(&field.name)
        };
        let changed = self.encoder.encode(fields.iter(), keep, &mut self.block);
        if changed {
            self.memo.clear();
        } else if fields.packed.len() <= MAX_CACHED_BLOCK_BYTES {
            let block = self.block.clone();
            cache_item(&mut self.memo, (fields.packed.clone(), block));
        }
        &self.block
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn list(fields: &[(&str, &str)]) -> HeaderFields {
        let mut list = HeaderFields::default();
        for (name, value) in fields {
            list.push(HeaderField {
                name: name.as_bytes(),
                value: value.as_bytes(),
                sensitive: *name == "authorization",
            });
        }
        list
    }

    #[test]
    fn headers_round_trip_any_table_size() {
        let calls = [
            list(&[
                (":method", "POST"),
                (":path", "/a.B/C"),
                ("te", "trailers"),
                ("authorization", "Bearer x"),
            ]),
            list(&[
                (":method", "POST"),
                (":path", "/a.B/D"),
                ("grpc-timeout", "99m"),
            ]),
            list(&[(":status", "200"), ("x-bin", "\u{1F600}")]),
        ];
        let (mut writer, mut reader) = (FieldWriter::default(), FieldReader::new());
        for (round, size) in [4096, 4096, 4096, 60, 60, 0, 0, 4096, 4096]
            .into_iter()
            .enumerate()
        {
            if round % 2 == 1 {
                writer.set_table_size(size);
            }
            for call in [0, 1, 2, 0, 0, 1] {
                let fields = &calls[call];
                let read = reader.read(writer.encode(fields)).unwrap();
                assert_eq!(read.packed, fields.packed, "round {round}");
                assert!(read.iter().eq(fields.iter()));
            }
        }
    }

    #[test]
    fn fields_are_parsed_and_validated() {
        let good = list(&[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/x"),
            ("content-type", "application/grpc+proto"),
            ("grpc-timeout", "250m"),
        ]);
        assert_eq!(good.request_problem(), None);
        assert!(good.metadata.is_protocol_call());
        assert_eq!(good.metadata.timeout(), Some(Duration::from_millis(250)));
        assert_eq!(good.find(b":path"), Some(&b"/x"[..]));
        assert!(list(&[(":path", "/")]).request_problem().is_some());
        let answer = list(&[(":status", "200")]);
        assert_eq!(answer.answer_problem(), None);
        assert!(answer.trailers_problem().is_some());
        assert_eq!(list(&[("grpc-status", "14")]).metadata.status(), Some(14));
        assert_eq!(list(&[("grpc-status", "14")]).trailers_problem(), None);
    }
}
