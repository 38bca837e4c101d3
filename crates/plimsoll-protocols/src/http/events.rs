//! Splits the body of a streamed response into events, wherever the received pieces begin and end. The formats are
//! server-sent events (WHATWG HTML §9.2.6), JSON lines, and messages with a length prefix (`envelopes`).
//!
//! Invariant: only an incomplete event is buffered, and never more bytes than the limit of its stream.
//! `body_inspection` passes bodies to the reader as they arrive, and limits the size of bodies that are one document.

use plimsoll_model::Outcome;

use super::call::{EventFormat, EventMatch, EventStream};
use super::envelopes::{self, PREFIX_LEN};

/// The maximum size of an event in a stream without tokens, in bytes.
pub const MAX_EVENT_BYTES: usize = 1 << 20;

/// The maximum size of an event in a stream of tokens, in bytes. The last event may repeat the whole answer.
const MAX_TOKEN_EVENT_BYTES: usize = 16 << 20;

/// The data of the event that ends a stream of tokens, unless the plan sets another one.
const TOKEN_STREAM_END: &[u8] = b"[DONE]";

/// The role of an event in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEventKind {
    /// An event after which the stream continues.
    Ordinary,
    /// The event ends the stream successfully.
    Last,
    /// The event reports an error.
    Error,
}

/// An event of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamEvent<'a> {
    /// The role of the event.
    pub kind: StreamEventKind,
    /// The event's name; empty if it has none.
    pub name: &'a [u8],
    /// The event's data.
    pub data: &'a [u8],
}

/// The reason why a stream can't be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventStreamError {
    /// An event is larger than the limit of its stream, in bytes.
    #[error("an event of more than {0} bytes")]
    TooLarge(usize),
    /// A line is not JSON in a stream of JSON lines.
    #[error("a line that does not begin like a JSON document")]
    NotJson,
}

/// Splits a body into events.
#[derive(Debug, Default)]
pub struct EventReader {
    /// The beginning of an incomplete line.
    line: Vec<u8>,
    /// The data lines of an incomplete event, each with a line end.
    data: Vec<u8>,
    name: Vec<u8>,
    /// Whether the last line ended in CR, in which case an LF right after it belongs to the same line end.
    after_cr: bool,
    /// Whether the first line, which may begin with a byte order mark, has been read.
    has_begun: bool,
}

impl EventReader {
    /// Resets the reader for the next stream; its buffers are kept unless they are large.
    pub fn restart(&mut self) {
        for buffer in [&mut self.line, &mut self.data] {
            buffer.clear();
            // Large events are rare, and every connection has a reader.
            buffer.shrink_to(MAX_EVENT_BYTES);
        }
        self.name.clear();
        self.after_cr = false;
        self.has_begun = false;
    }

    /// Reads `data` and calls `sink` with each complete event, until `sink` returns false. Returns the number of bytes
    /// read.
    ///
    /// # Errors
    /// Returns an error if the stream is not of this format, or an event is too large.
    pub fn push(
        &mut self,
        stream: &EventStream,
        data: &[u8],
        mut sink: impl FnMut(StreamEvent<'_>) -> bool,
    ) -> Result<usize, EventStreamError> {
        if let Some(flag) = envelopes::last_envelope_flag(stream.format) {
            return self.read_prefixed_messages(stream, flag, data, &mut sink);
        }
        if stream.format == EventFormat::Document {
            self.line.extend_from_slice(data);
            return Ok(data.len());
        }
        let mut bytes = data;
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let is_end = |b: &u8| *b == b'\n' || *b == b'\r' && stream.format == EventFormat::Sse;
            let Some(end) = bytes.iter().position(is_end) else {
                self.buffer_line(stream, bytes)?;
                break;
            };
            self.after_cr = bytes[end] == b'\r';
            let (mut piece, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            // Most lines arrive complete, and need no copy.
            let mut gathered = std::mem::take(&mut self.line);
            check_size(stream, gathered.len() + piece.len())?;
            if !gathered.is_empty() {
                gathered.extend_from_slice(piece);
                piece = &gathered;
            }
            let goes_on = self.process_line(stream, piece, &mut sink)?;
            gathered.clear();
            self.line = gathered;
            if !goes_on {
                return Ok(data.len() - bytes.len());
            }
        }
        Ok(data.len())
    }

    /// Reads messages with a length prefix, with the same contract as [`EventReader::push`]. `last`: the flag of the
    /// last envelope.
    fn read_prefixed_messages(
        &mut self,
        stream: &EventStream,
        last: u8,
        data: &[u8],
        sink: &mut impl FnMut(StreamEvent<'_>) -> bool,
    ) -> Result<usize, EventStreamError> {
        let mut bytes = data;
        while !bytes.is_empty() {
            let message = envelopes::message_length(&self.line);
            check_size(stream, message.unwrap_or(0))?;
            let whole = PREFIX_LEN + message.unwrap_or(0);
            let lacks = (whole - self.line.len()).min(bytes.len());
            self.line.extend_from_slice(&bytes[..lacks]);
            bytes = &bytes[lacks..];
            if envelopes::message_length(&self.line)
                != Some(self.line.len().wrapping_sub(PREFIX_LEN))
            {
                continue;
            }
            let mut gathered = std::mem::take(&mut self.line);
            let message = &gathered[PREFIX_LEN..];
            let kind = match gathered[0] & last != 0 {
                false => StreamEventKind::Ordinary,
                true if envelopes::parse_last_envelope(stream.format, message)
                    == Some(Outcome::Ok) =>
                {
                    StreamEventKind::Last
                }
                true => StreamEventKind::Error,
            };
            let goes_on = sink(StreamEvent {
                kind,
                name: b"",
                data: message,
            });
            gathered.clear();
            self.line = gathered;
            if !goes_on {
                break;
            }
        }
        Ok(data.len() - bytes.len())
    }

    /// Handles the end of the body. The last line of JSON may lack its line end. A server-sent event that lacks the
    /// blank line after it is dropped (§9.2.6), unless it ends the stream, reports an error or contains complete
    /// tokens: some servers omit the last blank line, and clients that read line by line do not notice.
    ///
    /// # Errors
    /// The same as those of [`EventReader::push`].
    pub fn finish(
        &mut self,
        stream: &EventStream,
        mut sink: impl FnMut(StreamEvent<'_>) -> bool,
    ) -> Result<(), EventStreamError> {
        let line = std::mem::take(&mut self.line);
        if stream.format == EventFormat::Document {
            sink(classify_event(stream, b"", &line));
            return Ok(());
        }
        let has_lines = envelopes::last_envelope_flag(stream.format).is_none();
        if has_lines && !line.is_empty() {
            self.process_line(stream, &line, &mut sink)?;
        }
        if let Some(data) = self.data.strip_suffix(b"\n") {
            let event = classify_event(stream, &self.name, data);
            let is_whole = stream.tokens.is_some() && data.trim_ascii_end().ends_with(b"}");
            if event.kind != StreamEventKind::Ordinary || is_whole {
                sink(event);
            }
        }
        Ok(())
    }

    /// Returns the heap memory in use, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.line.capacity() + self.data.capacity() + self.name.capacity()
    }

    fn buffer_line(&mut self, stream: &EventStream, bytes: &[u8]) -> Result<(), EventStreamError> {
        check_size(stream, self.line.len() + bytes.len())?;
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn process_line(
        &mut self,
        stream: &EventStream,
        mut line: &[u8],
        sink: &mut impl FnMut(StreamEvent<'_>) -> bool,
    ) -> Result<bool, EventStreamError> {
        if !std::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if stream.format == EventFormat::NdJson {
            let line = line.trim_ascii();
            return match line.first() {
                None => Ok(true),
                Some(b) if b"{[\"-tfn".contains(b) || b.is_ascii_digit() => {
                    Ok(sink(classify_event(stream, b"", line)))
                }
                Some(_) => Err(EventStreamError::NotJson),
            };
        }
        if line.is_empty() {
            let Some(data) = self.data.strip_suffix(b"\n") else {
                // An event without data is dropped, whatever its name (§9.2.6).
                self.name.clear();
                return Ok(true);
            };
            let goes_on = sink(classify_event(stream, &self.name, data));
            self.data.clear();
            self.name.clear();
            return Ok(goes_on);
        }
        let colon = line.iter().position(|b| *b == b':');
        let (field, value) = match colon {
            // The line is a comment.
            Some(0) => return Ok(true),
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                check_size(stream, self.data.len() + value.len())?;
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            // The standard has no such field, but llama.cpp reports errors in it.
            b"error" if stream.tokens.is_some() && !is_nothing(value) => {
                check_size(stream, self.data.len() + value.len())?;
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
                self.name.clear();
                self.name.extend_from_slice(b"error");
            }
            // Ignores `id` and `retry`, which only matter to clients that reconnect.
            _ => {}
        }
        Ok(true)
    }
}

/// # Errors
/// Returns an error if `bytes`, the size of an event, is above the limit of its stream.
fn check_size(stream: &EventStream, bytes: usize) -> Result<(), EventStreamError> {
    let limit = match stream.tokens {
        Some(_) => MAX_TOKEN_EVENT_BYTES,
        None => MAX_EVENT_BYTES,
    };
    if bytes > limit {
        return Err(EventStreamError::TooLarge(limit));
    }
    Ok(())
}

fn classify_event<'a>(stream: &EventStream, name: &'a [u8], data: &'a [u8]) -> StreamEvent<'a> {
    let has_tokens = stream.tokens.is_some();
    let is_error = match &stream.error {
        Some(meant) => matches_event(meant, name, data),
        // In events with tokens, errors are found later by their keys, when the whole event is parsed.
        None => name == b"error" || !has_tokens && begins_with_error(data),
    };
    let is_last = match &stream.until {
        Some(meant) => matches_event(meant, name, data),
        None => has_tokens && data.trim_ascii() == TOKEN_STREAM_END,
    };
    let kind = match (is_error, is_last) {
        (true, _) => StreamEventKind::Error,
        (false, true) => StreamEventKind::Last,
        (false, false) => StreamEventKind::Ordinary,
    };
    StreamEvent { kind, name, data }
}

pub(super) fn matches_event(meant: &EventMatch, name: &[u8], data: &[u8]) -> bool {
    match meant {
        EventMatch::Data(text) => data.trim_ascii() == text.as_bytes(),
        EventMatch::Named(text) => name == text.as_bytes(),
        EventMatch::Contains(text) => {
            let text = text.as_bytes();
            data.len() >= text.len() && data.windows(text.len()).any(|part| part == text)
        }
    }
}

/// Returns whether the data begin with `{"error": …}`, as services write errors in the middle of a stream. An empty
/// value, as in `{"error": null, …}`, does not count.
pub(super) fn begins_with_error(data: &[u8]) -> bool {
    let mut rest = data;
    for what in [&b"{"[..], b"\"error\"", b":"] {
        match rest.trim_ascii_start().strip_prefix(what) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    let value = rest.trim_ascii_start();
    !EMPTY_VALUES.iter().any(|empty| value.starts_with(empty))
}

/// The values of an error that mean that there is none.
const EMPTY_VALUES: [&[u8]; 5] = [b"null", b"false", b"\"\"", b"{}", b"[]"];

/// Returns whether the value of a field `error` means that there is no error.
fn is_nothing(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    value.is_empty() || EMPTY_VALUES.contains(&value)
}

#[cfg(test)]
mod tests;
