//! Validates that the bytes of a response are the message that its method returns (Protocol Buffers,
//! "Encoding"), without decoding it.
//!
//! The validator accepts a message in pieces of any size and stores a few words for each level of nesting, so a
//! server can't inflate its memory use. It rejects messages that every decoder rejects: invalid tags, lengths that
//! exceed the enclosing message, unterminated groups, and strings that are not UTF-8. A field with an unknown
//! number or of an unexpected wire type is an unknown field, which is valid.

use std::collections::BTreeMap;

use plimsoll_engine::structures::prefetch::prefetch;

use super::call::{FieldShape, MessageShapes};
use super::message::{MessageError, MessageReader, MessageSink, PREFIX_LEN};
use crate::http2::bytes_equal;

/// The maximum nesting depth that is validated. Messages nested deeper are accepted unchecked; deeper groups
/// are rejected.
const MAX_NESTING_LEVELS: usize = 100;
/// The maximum size of a message that is kept for comparison, in bytes.
const MAX_CACHED_BYTES: usize = 1024;
/// The shape index of unknown messages.
const UNKNOWN_SHAPE: usize = usize::MAX;

/// The next element that the validator expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValidatorState {
    Tag,
    /// A varint whose value is ignored.
    Number,
    /// The length of a length-delimited field.
    Length(Option<FieldShape>),
    /// The number of remaining bytes of a field with any content.
    Bytes(u64),
    /// The number of remaining bytes of a UTF-8 string.
    Text(u64),
}

/// An open message or group.
#[derive(Clone, Copy, Debug)]
struct NestingLevel {
    shape: usize,
    /// The maximum offset of the end of the message or group, in bytes from the start of the top-level message.
    end: u64,
    /// The group's field number; 0 for a message.
    group: u32,
}

/// The validation of one message.
#[derive(Clone, Debug)]
pub(super) struct WireValidator {
    /// The open messages and groups within the top-level message.
    levels: Vec<NestingLevel>,
    state: ValidatorState,
    /// The number of bytes seen so far.
    offset: u64,
    /// The value of a partial varint.
    number: u64,
    shift: u32,
    /// The first bytes of a partial UTF-8 character.
    partial_char: [u8; 4],
    partial_char_len: usize,
    /// The bytes of the message so far, if the plan expects particular content.
    kept: Vec<u8>,
}

impl Default for WireValidator {
    fn default() -> WireValidator {
        WireValidator {
            levels: Vec::new(),
            state: ValidatorState::Tag,
            offset: 0,
            number: 0,
            shift: 0,
            partial_char: [0; 4],
            partial_char_len: 0,
            kept: Vec::new(),
        }
    }
}

impl WireValidator {
    fn reset(&mut self) {
        self.levels.clear();
        (self.state, self.offset) = (ValidatorState::Tag, 0);
        (self.number, self.shift, self.partial_char_len) = (0, 0, 0);
        self.kept.clear();
    }

    /// Returns true if no byte of a message has arrived.
    pub(super) fn is_new(&self) -> bool {
        self.offset == 0
    }

    #[inline]
    fn current_level(&self) -> NestingLevel {
        self.levels.last().copied().unwrap_or(NestingLevel {
            shape: 0,
            end: u64::MAX,
            group: 0,
        })
    }

    /// Validates the next bytes of the message.
    ///
    /// # Errors
    /// Returns the reason why the bytes are invalid.
    fn validate_bytes(
        &mut self,
        shapes: &MessageShapes,
        mut bytes: &[u8],
    ) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            match self.state {
                ValidatorState::Bytes(left) | ValidatorState::Text(left) => {
                    let take = usize::try_from(left).map_or(bytes.len(), |n| n.min(bytes.len()));
                    let (taken, rest) = bytes.split_at(take);
                    bytes = rest;
                    self.offset += take as u64;
                    let left = left - take as u64;
                    let is_text = matches!(self.state, ValidatorState::Text(_));
                    if is_text {
                        self.validate_text(taken, left == 0)?;
                    }
                    self.state = match left {
                        0 => ValidatorState::Tag,
                        left if is_text => ValidatorState::Text(left),
                        left => ValidatorState::Bytes(left),
                    };
                }
                ValidatorState::Tag | ValidatorState::Number | ValidatorState::Length(_) => {
                    let byte = bytes[0];
                    bytes = &bytes[1..];
                    self.offset += 1;
                    // The tenth byte of a varint has only one bit left.
                    if self.shift == 63 && byte > 1 {
                        return Err("a number of more than 64 bits");
                    }
                    self.number |= u64::from(byte & 0x7f) << self.shift;
                    if byte & 0x80 != 0 {
                        self.shift += 7;
                        continue;
                    }
                    let number = std::mem::take(&mut self.number);
                    self.shift = 0;
                    self.on_varint(shapes, number)?;
                }
            }
            while self.state == ValidatorState::Tag
                && let Some(level) = self.levels.last()
                && self.offset >= level.end
            {
                if self.offset > level.end {
                    return Err("a field that extends past the end of its message");
                }
                if level.group != 0 {
                    return Err("a group without an end");
                }
                self.levels.pop();
            }
        }
        Ok(())
    }

    /// Handles a complete varint.
    #[inline]
    fn on_varint(&mut self, shapes: &MessageShapes, number: u64) -> Result<(), &'static str> {
        let level = self.current_level();
        self.state = match self.state {
            ValidatorState::Tag => {
                let field = match u32::try_from(number >> 3) {
                    Ok(field) if field != 0 && field < 1 << 29 => field,
                    _ => return Err("an invalid field number"),
                };
                let part = || shapes.field_shape(level.shape, field);
                match number & 7 {
                    0 => ValidatorState::Number,
                    1 => self.bytes_state_within_bounds(level, 8)?,
                    2 => ValidatorState::Length(part()),
                    3 => {
                        if self.levels.len() >= MAX_NESTING_LEVELS {
                            return Err("groups nested too deep");
                        }
                        let shape = match part() {
                            Some(FieldShape::Message(shape)) => shape,
                            _ => UNKNOWN_SHAPE,
                        };
                        self.levels.push(NestingLevel {
                            shape,
                            end: level.end,
                            group: field,
                        });
                        ValidatorState::Tag
                    }
                    4 if level.group == field => {
                        self.levels.pop();
                        ValidatorState::Tag
                    }
                    4 => return Err("an end-group tag without a start-group tag"),
                    5 => self.bytes_state_within_bounds(level, 4)?,
                    _ => return Err("an invalid wire type"),
                }
            }
            ValidatorState::Length(part) => {
                let ValidatorState::Bytes(length) =
                    self.bytes_state_within_bounds(level, number)?
                else {
                    return Ok(());
                };
                match part {
                    Some(FieldShape::Message(shape)) if self.levels.len() < MAX_NESTING_LEVELS => {
                        self.levels.push(NestingLevel {
                            shape,
                            end: self.offset + length,
                            group: 0,
                        });
                        ValidatorState::Tag
                    }
                    _ if length == 0 => ValidatorState::Tag,
                    Some(FieldShape::Text) => ValidatorState::Text(length),
                    _ => ValidatorState::Bytes(length),
                }
            }
            _ => ValidatorState::Tag,
        };
        Ok(())
    }

    #[inline]
    fn bytes_state_within_bounds(
        &self,
        level: NestingLevel,
        length: u64,
    ) -> Result<ValidatorState, &'static str> {
        match self.offset.checked_add(length) {
            Some(end) if end <= level.end => Ok(ValidatorState::Bytes(length)),
            _ => Err("a field that extends past the end of its message"),
        }
    }

    /// Validates a piece of a string.
    fn validate_text(&mut self, mut piece: &[u8], is_last: bool) -> Result<(), &'static str> {
        const INVALID_UTF8: &str = "a string that is not UTF-8";
        while self.partial_char_len > 0
            && let [first, rest @ ..] = piece
        {
            self.partial_char[self.partial_char_len] = *first;
            self.partial_char_len += 1;
            piece = rest;
            match std::str::from_utf8(&self.partial_char[..self.partial_char_len]) {
                Ok(_) => self.partial_char_len = 0,
                Err(e) if e.error_len().is_some() => return Err(INVALID_UTF8),
                Err(_) => {}
            }
        }
        if let Err(e) = std::str::from_utf8(piece) {
            let rest = &piece[e.valid_up_to()..];
            if e.error_len().is_some() {
                return Err(INVALID_UTF8);
            }
            self.partial_char[..rest.len()].copy_from_slice(rest);
            self.partial_char_len = rest.len();
        }
        if is_last && self.partial_char_len > 0 {
            Err(INVALID_UTF8)
        } else {
            Ok(())
        }
    }

    /// Checks that the message may end here.
    fn finish(&self) -> Result<(), &'static str> {
        match self.state {
            ValidatorState::Tag if self.shift == 0 && self.levels.is_empty() => Ok(()),
            ValidatorState::Tag if self.shift == 0 => Err("a message or a group that does not end"),
            _ => Err("a field that is cut short"),
        }
    }
}

/// A sink that validates the messages of a stream.
#[derive(Debug)]
pub(super) struct ValidatingSink<'a> {
    pub(super) validator: &'a mut WireValidator,
    pub(super) shapes: &'a MessageShapes,
}

impl MessageSink for ValidatingSink<'_> {
    fn on_piece(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        let walked = self.validator.validate_bytes(self.shapes, bytes);
        if self.shapes.expected.is_some() {
            self.validator.kept.extend_from_slice(bytes);
        }
        walked.map_err(MessageError::Undecodable)
    }

    fn on_end(&mut self) -> Result<(), MessageError> {
        let finished = self.validator.finish().map_err(MessageError::Undecodable);
        let finished = finished.and_then(|()| check_expected(self.shapes, &self.validator.kept));
        self.validator.reset();
        finished
    }
}

/// Checks that a valid message has the content that the plan expects.
fn check_expected(shapes: &MessageShapes, message: &[u8]) -> Result<(), MessageError> {
    let Some(expected) = &shapes.expected else {
        return Ok(());
    };
    let checked = expected.check(message);
    checked.map_err(|difference| MessageError::Mismatch(difference.into()))
}

/// The validation of one connection's responses.
#[derive(Debug, Default)]
pub(super) struct AnswerValidator {
    /// The last valid message.
    last_valid: Vec<u8>,
    validators: Option<Box<ValidatorSet>>,
}

#[derive(Debug, Default)]
struct ValidatorSet {
    whole: WireValidator,
    /// The validators of messages that arrive in several pieces, by stream.
    split: BTreeMap<u32, (MessageReader, WireValidator)>,
}

impl AnswerValidator {
    /// Prefetches the last valid message.
    #[inline]
    pub(super) fn prefetch(&self) {
        if let Some(first) = self.last_valid.first() {
            prefetch(first);
        }
    }

    /// Returns true if a complete message is valid. This is cheap for most messages, because they equal the last valid
    /// one.
    #[inline(always)]
    pub(super) fn is_valid(&mut self, shapes: Option<&MessageShapes>, message: &[u8]) -> bool {
        self.equals_last_valid(shapes, message) || self.validate(shapes, message).is_ok()
    }

    /// Returns true if the message equals the last valid one.
    #[inline(always)]
    fn equals_last_valid(&self, shapes: Option<&MessageShapes>, message: &[u8]) -> bool {
        // Before the first valid message `last_valid` is empty, which does not mean that an empty message has the
        // expected content.
        let is_expected = || shapes.is_some_and(|shapes| shapes.expected.is_some());
        bytes_equal(message, &self.last_valid) && !(message.is_empty() && is_expected())
    }

    #[inline(never)]
    fn validate(
        &mut self,
        shapes: Option<&MessageShapes>,
        message: &[u8],
    ) -> Result<(), MessageError> {
        let Some(shapes) = shapes else { return Ok(()) };
        let walk = &mut self.validators.get_or_insert_default().whole;
        walk.reset();
        let walked = walk
            .validate_bytes(shapes, message)
            .and_then(|()| walk.finish());
        walked.map_err(MessageError::Undecodable)?;
        check_expected(shapes, message)?;
        if message.len() <= MAX_CACHED_BYTES {
            self.last_valid.clear();
            self.last_valid.extend_from_slice(message);
        }
        Ok(())
    }

    /// Validates uncompressed DATA that begins with a message's prefix.
    #[inline]
    pub(super) fn begin_validation(
        &mut self,
        shapes: &MessageShapes,
        stream: u32,
        data: &[u8],
    ) -> Result<(), MessageError> {
        if let [0, a, b, c, d, message @ ..] = data
            && message.len() == u32::from_be_bytes([*a, *b, *c, *d]) as usize
        {
            if self.equals_last_valid(Some(shapes), message) {
                return Ok(());
            }
            return self.validate(Some(shapes), message);
        }
        self.continue_validation(shapes, stream, data)
    }

    /// Validates further uncompressed DATA of a stream, which may begin anywhere in a message.
    #[inline(never)]
    pub(super) fn continue_validation(
        &mut self,
        shapes: &MessageShapes,
        stream: u32,
        data: &[u8],
    ) -> Result<(), MessageError> {
        let split = &mut self.validators.get_or_insert_default().split;
        let new = || (MessageReader::NEW, WireValidator::default());
        let (reader, walk) = split.entry(stream).or_insert_with(new);
        // The reader needs no limit, because the message's size was checked before.
        let read = reader.read_into(
            &mut ValidatingSink {
                validator: walk,
                shapes,
            },
            data,
            u32::MAX,
        );
        if read.is_err() || !reader.is_mid_message() {
            split.remove(&stream);
        }
        read
    }

    /// Discards the state of a stream whose call has ended.
    #[inline]
    pub(super) fn discard_stream(&mut self, stream: u32) {
        if let Some(walks) = &mut self.validators {
            walks.split.remove(&stream);
        }
    }

    /// Returns the bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let levels = |walk: &WireValidator| {
            walk.levels.capacity() * size_of::<NestingLevel>() + walk.kept.capacity()
        };
        self.last_valid.capacity()
            + self.validators.as_ref().map_or(0, |walks| {
                size_of_val(&**walks)
                    + levels(&walks.whole)
                    + walks
                        .split
                        .values()
                        .map(|(_, walk)| {
                            size_of::<(u32, MessageReader, WireValidator)>() + levels(walk)
                        })
                        .sum::<usize>()
            })
    }
}

const _: () = assert!(
    PREFIX_LEN == 5,
    "AnswerValidator::begin splits a prefix of 5 bytes"
);

#[cfg(test)]
mod tests;
