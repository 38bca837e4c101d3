//! Field lists on their way through: read from one connection's header block, written as
//! another's.
//!
//! HPACK's tables belong to a connection, so a block can't be passed on as it is. But
//! lists repeat, and a block that changes no table is a pure function of its list until
//! one that does: the last few are remembered on both sides and recognised by comparing
//! bytes, so that in the steady state nothing is decoded or encoded.

use std::borrow::Cow;
use std::sync::Arc;

use plimsoll_model::Outcome;
use plimsoll_protocols::registry::Streams;
use plimsoll_protocols::relayed::StreamFields;
use plimsoll_wire::hpack::{Decoder, Field, HpackError, ListEncoder};
use plimsoll_wire::http2::{MAX_HEADER_LIST, MessageCheck};

/// Blocks remembered, on either side.
const MAX_REMEMBERED_BLOCKS: usize = 4;

/// What the other side may keep in the table that we decode with. Bytes.
const TABLE_SIZE: u32 = 4096;

/// The longest list or block remembered. Bytes.
const LONGEST_REMEMBERED: usize = 1024;

/// Fields whose values differ from call to call, besides those of the protocol: they would push the
/// others out of the peer's table.
const CHANGING_FIELDS: [&[u8]; 6] = [
    b"content-length",
    b"date",
    b"timestamp",
    b"traceparent",
    b"tracestate",
    b"x-request-id",
];

/// A field list, and what of it matters to a relay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    /// Each field: its name's length, its value's, whether it is sensitive; name; value.
    packed: Vec<u8>,
    /// What RFC 9113 says of it.
    pub(crate) check: MessageCheck,
    /// The fields of the protocol above HTTP/2.
    pub(crate) metadata: Streams,
}

/// How the sidecar itself answers a call: in the terms of the protocol, and in those of plain HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) outcome: Outcome,
    pub(crate) http_status: &'static str,
    pub(crate) why: Cow<'static, str>,
}

/// Added to the statuses of HTTP, so that they are none of the protocol's.
const HTTP_CODE_OFFSET: u32 = 1000;

const FIELD_HEAD_BYTES: usize = 9;

impl Fields {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        let mut rest = &self.packed[..];
        std::iter::from_fn(move || {
            let (head, after) = rest.split_first_chunk::<FIELD_HEAD_BYTES>()?;
            let [a, b, c, d, e, f, g, h, sensitive] = *head;
            let (name, after) = after.split_at(u32::from_le_bytes([a, b, c, d]) as usize);
            let (value, after) = after.split_at(u32::from_le_bytes([e, f, g, h]) as usize);
            rest = after;
            Some(Field {
                name,
                value,
                sensitive: sensitive != 0,
            })
        })
    }

    /// A field's value.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter()
            .find(|field| field.name == name)
            .map(|f| f.value)
    }

    /// How a call ended whose answer these are, or are the trailers of.
    pub(crate) fn status(&self) -> Option<String> {
        match self.metadata.status() {
            Some(status) => Some(Streams::status_name(status)),
            None => Some(String::from_utf8_lossy(self.http_status()?).into_owned()),
        }
    }

    /// The same as a number: that of the protocol, or 1000 and that of HTTP.
    pub(crate) fn code(&self) -> Option<u32> {
        self.metadata.status().or_else(|| {
            let status = std::str::from_utf8(self.http_status()?).ok()?;
            Some(HTTP_CODE_OFFSET + u32::from(status.parse::<u16>().ok()?))
        })
    }

    /// Returns the HTTP status where the protocol has no status of its own.
    fn http_status(&self) -> Option<&[u8]> {
        self.find(b":status")
            .filter(|_| !self.metadata.are_of_protocol())
    }

    /// What people call it; `None`: an answer without a status.
    pub(crate) fn code_name(code: Option<u32>) -> String {
        match code {
            None => "none".to_owned(),
            Some(code) => match code.checked_sub(HTTP_CODE_OFFSET) {
                None => Streams::status_name(code),
                Some(status) => status.to_string(),
            },
        }
    }

    /// Why it can't begin a request.
    pub(crate) fn request_problem(&self) -> Option<&'static str> {
        self.check.request(|name| self.find(name))
    }

    /// Why it can't begin an answer.
    pub(crate) fn answer_problem(&self) -> Option<&'static str> {
        self.check.answer()
    }

    /// Why it can't end a request or an answer.
    pub(crate) fn trailers_problem(&self) -> Option<&'static str> {
        self.check.trailers()
    }

    /// The answer that the sidecar gives itself to the request that begins with these.
    pub(crate) fn answer(&self, verdict: &Verdict) -> Fields {
        let mut fields = Fields::default();
        if self.metadata.are_of_protocol() {
            Streams::begin_answer(fields.pusher());
            Streams::end_answer(verdict.outcome, &verdict.why, fields.pusher());
        } else {
            fields.pusher()(b":status", verdict.http_status.as_bytes());
        }
        fields
    }

    /// The end that the sidecar gives an answer of the protocol that has begun.
    pub(crate) fn end(verdict: &Verdict) -> Fields {
        let mut fields = Fields::default();
        Streams::end_answer(verdict.outcome, &verdict.why, fields.pusher());
        fields
    }

    /// Returns the access log's word for the verdict on the request that begins with these.
    pub(crate) fn status_of(&self, verdict: &Verdict) -> String {
        if self.metadata.are_of_protocol() {
            verdict.outcome.code().to_owned()
        } else {
            verdict.http_status.to_owned()
        }
    }

    fn pusher(&mut self) -> impl FnMut(&[u8], &[u8]) {
        |name: &[u8], value: &[u8]| {
            self.push(Field {
                name,
                value,
                sensitive: false,
            });
        }
    }

    fn push(&mut self, field: Field<'_>) {
        let Field {
            name,
            value,
            sensitive,
        } = field;
        self.check.note(name, value);
        self.metadata.note(name, value);
        self.packed
            .extend_from_slice(&(name.len() as u32).to_le_bytes());
        self.packed
            .extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.packed.push(u8::from(sensitive));
        self.packed.extend_from_slice(name);
        self.packed.extend_from_slice(value);
    }
}

/// Remembers one more, and forgets the oldest of many.
fn remember<T>(memo: &mut Vec<T>, thing: T) {
    if memo.len() == MAX_REMEMBERED_BLOCKS {
        memo.remove(0);
    }
    memo.push(thing);
}

/// Reads a connection's header blocks.
#[derive(Debug)]
pub(super) struct FieldReader {
    decoder: Decoder,
    memo: Vec<(Vec<u8>, Arc<Fields>)>,
}

impl FieldReader {
    pub(super) fn new() -> FieldReader {
        FieldReader {
            decoder: Decoder::new(TABLE_SIZE, MAX_HEADER_LIST),
            memo: Vec::new(),
        }
    }

    /// # Errors
    /// The block breaks RFC 7541, and the connection with it.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Arc<Fields>, HpackError> {
        if let Some((_, fields)) = self.memo.iter().find(|(known, _)| known == block) {
            return Ok(Arc::clone(fields));
        }
        let mut fields = Fields::default();
        let decoded = self.decoder.decode(block, |field| fields.push(field))?;
        if decoded.list_too_large {
            (fields.check).refuse("a field list over 65536 bytes (RFC 9113, 6.5.2)");
        }
        let fields = Arc::new(fields);
        if decoded.changed_table {
            self.memo.clear();
        }
        if decoded.is_steady && block.len() <= LONGEST_REMEMBERED {
            remember(&mut self.memo, (block.to_vec(), Arc::clone(&fields)));
        }
        Ok(fields)
    }
}

/// Writes a connection's header blocks.
#[derive(Debug, Default)]
pub(super) struct FieldWriter {
    encoder: ListEncoder,
    memo: Vec<(Vec<u8>, Vec<u8>)>,
    block: Vec<u8>,
}

impl FieldWriter {
    /// The peer's SETTINGS_HEADER_TABLE_SIZE. Bytes.
    pub(super) fn allow(&mut self, size: u32) {
        self.encoder.allow(size);
        self.memo.clear();
    }

    /// The block that encodes `fields` now; it must be sent.
    pub(super) fn block(&mut self, fields: &Fields) -> &[u8] {
        let mut known = self.memo.iter();
        if let Some(place) = known.position(|(known, _)| *known == fields.packed) {
            return &self.memo[place].1;
        }
        self.block.clear();
        let keep = |field: &Field<'_>| {
            !CHANGING_FIELDS.contains(&field.name) && !Streams::CHANGING.contains(&field.name)
        };
        let changed = self.encoder.encode(fields.iter(), keep, &mut self.block);
        if changed {
            self.memo.clear();
        } else if fields.packed.len() <= LONGEST_REMEMBERED {
            let block = self.block.clone();
            remember(&mut self.memo, (fields.packed.clone(), block));
        }
        &self.block
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn list(fields: &[(&str, &str)]) -> Fields {
        let mut list = Fields::default();
        for (name, value) in fields {
            list.push(Field {
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
                writer.allow(size);
            }
            for call in [0, 1, 2, 0, 0, 1] {
                let fields = &calls[call];
                let read = reader.read(writer.block(fields)).unwrap();
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
        assert!(good.metadata.are_of_protocol());
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
