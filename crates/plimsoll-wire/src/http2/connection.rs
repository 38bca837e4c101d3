//! What a connection is, whoever keeps its streams (RFC 9113): its preface, the order of frames, header
//! blocks in several, SETTINGS, windows, stream ids, GOAWAY, and whether a broken rule ends a stream
//! or all.
//!
//! No socket, no clock and no streams. A user splits frames ([`super::each`], [`super::split`]), gives DATA to
//! [`Connection::data`], HEADERS with END_HEADERS to [`Connection::headers`], all others to
//! [`Connection::control`], and keeps a table of its streams, which is asked by [`Streams`].
//! Drivers, the canned server and the sidecar do so.

mod frames;

use std::mem;

use super::{
    DEFAULT_MAX_FRAME, DEFAULT_WINDOW, ErrorCode, HeaderBlock, MAX_HEADER_BLOCK, MAX_STREAM_ID,
    PREFACE, Peer, ReceiveWindow, Settings, Violation, complete, write,
};

/// A buffer for partial frames larger than this is given back when it is empty. Bytes.
const KEPT_PARTIAL: usize = 64;

/// A user's streams, as far as the rules of a connection need them.
pub trait Streams {
    /// What may be sent on a stream, negative where SETTINGS made it so (RFC 9113, 6.9.2); `None`:
    /// it is closed. Bytes.
    fn send_window(&mut self, id: u32) -> Option<&mut i32>;

    /// [`Streams::send_window`] of every stream that has one.
    fn send_windows(&mut self) -> impl Iterator<Item = &mut i32>;
}

/// What a frame that is neither DATA nor a whole header block leaves to the user.
#[derive(Debug)]
pub enum Control<'a> {
    /// It was answered here, or needs no answer.
    Nothing,
    /// A header block that came in several frames is whole.
    Block(Box<HeaderBlock>),
    /// Acknowledged. More may be sent than before; the size of the peer's header table is the
    /// user's to note.
    Settings(Settings<'a>),
    /// The peer keeps to our SETTINGS from now on.
    Acknowledged,
    /// More may be sent than before.
    Room,
    /// The peer has reset a stream that was opened before.
    Reset {
        /// Its id.
        stream: u32,
        /// Why.
        code: ErrorCode,
    },
    /// The peer takes no stream above `last_stream`.
    GoAway {
        /// Never higher than in a GOAWAY before (RFC 9113, 6.8).
        last_stream: u32,
        /// Why.
        code: ErrorCode,
        /// Diagnostic data, meant for people.
        debug: &'a [u8],
    },
    /// The answer to a PING.
    Pong([u8; 8]),
}

/// How a stream ended that the peer has sent something on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// This end reset it, or lets it be: what comes was under way.
    Reset,
    /// The peer has sent RST_STREAM, and sends nothing on it any more.
    ResetByPeer,
    /// The peer has ended it, this end has not.
    HalfEnded,
    /// Both ends have ended it.
    Ended,
    /// The user does not remember it.
    Forgotten,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The peer's SETTINGS have not arrived.
    Greeting,
    /// SETTINGS have arrived.
    Open,
    /// The peer has sent GOAWAY.
    Leaving,
    /// It is of no more use.
    Failed,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection<P> {
    peer: P,
    stage: Stage,
    /// Bytes of the client's preface that have not come.
    preface_left: u8,
    /// How many times [`MAX_HEADER_BLOCK`] a header block of several frames may have beyond the first: a byte, because
    /// there are many connections.
    extra_blocks: u8,
    is_acknowledged: bool,
    /// The beginning of a frame.
    partial: Vec<u8>,
    /// A header block whose end has not come.
    block: Option<Box<HeaderBlock>>,
    /// The lowest stream id that was not used.
    next_id: u32,
    send_window: u32,
    /// The peer's SETTINGS.
    initial_window: u32,
    max_streams: u32,
    receive_window: ReceiveWindow,
    /// The last stream that the peer's last GOAWAY names.
    last_stream: u32,
    /// The last stream that we took, as our GOAWAY names it; `None`: none names it yet.
    last_taken: Option<u32>,
    /// The highest stream that was reset here: frames on it, and on those below that are forgotten, may
    /// be under way.
    last_reset: u32,
}

impl<P: Peer> Connection<P> {
    /// `window`: of what is received; HTTP/2 gives at least 65,535. Bytes.
    pub fn new(peer: P, window: u32) -> Connection<P> {
        Connection {
            peer,
            stage: Stage::Greeting,
            preface_left: if peer.is_client() {
                0
            } else {
                PREFACE.len() as u8
            },
            extra_blocks: 0,
            is_acknowledged: false,
            partial: Vec::new(),
            block: None,
            next_id: 1,
            send_window: DEFAULT_WINDOW,
            initial_window: DEFAULT_WINDOW,
            max_streams: u32::MAX,
            receive_window: ReceiveWindow::new(window.max(DEFAULT_WINDOW)),
            last_stream: MAX_STREAM_ID,
            last_taken: None,
            last_reset: 0,
        }
    }

    /// Which end this is.
    pub fn peer(&self) -> P {
        self.peer
    }

    /// [`Stage::Failed`] once it was closed here.
    #[inline]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The peer has acknowledged SETTINGS, and has to keep them.
    pub fn is_acknowledged(&self) -> bool {
        self.is_acknowledged
    }

    /// A GOAWAY was sent that names the last stream taken.
    pub fn has_left(&self) -> bool {
        self.last_taken.is_some()
    }

    /// What the connection's window lets this end send. Bytes.
    #[inline]
    pub fn send_window(&self) -> u32 {
        self.send_window
    }

    /// What a new stream's window lets this end send: at most 2³¹−1. Bytes.
    #[inline]
    pub fn initial_window(&self) -> u32 {
        self.initial_window
    }

    /// Streams that the peer takes at once.
    #[inline]
    pub fn max_streams(&self) -> u32 {
        self.max_streams
    }

    /// Takes header blocks of `max` bytes, up to 256 times [`MAX_HEADER_BLOCK`].
    pub fn allow_blocks(&mut self, max: u32) {
        let extra = (max as usize).div_ceil(MAX_HEADER_BLOCK).saturating_sub(1);
        self.extra_blocks = u8::try_from(extra).unwrap_or(u8::MAX);
    }

    /// The largest header block that is received in several frames. Bytes.
    fn max_block(&self) -> usize {
        (usize::from(self.extra_blocks) + 1) * MAX_HEADER_BLOCK
    }

    /// Stream ids that are left (RFC 9113, 5.1.1).
    #[inline]
    pub fn ids_left(&self) -> u32 {
        (MAX_STREAM_ID + 2).saturating_sub(self.next_id) / 2
    }

    /// The lowest id that was not used.
    #[inline]
    pub fn next_id(&self) -> u32 {
        self.next_id
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let block = self.block.as_ref();
        let block = block.map_or(0, |block| size_of_val(&**block) + block.piece().bytes.len());
        self.partial.capacity() + block
    }

    // ---- sending ----

    /// The greeting, which need not wait for the peer's (RFC 9113, 3.4).
    pub fn open(&self, settings: &[(u16, u32)], out: &mut Vec<u8>) {
        if self.peer.is_client() {
            out.extend_from_slice(PREFACE);
        }
        write::settings(out, settings);
        let more = self.receive_window.size() - DEFAULT_WINDOW;
        if more > 0 {
            write::window_update(out, 0, more);
        }
    }

    /// The id of a new stream of this end, a client's.
    #[inline]
    pub fn begin(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id += 2;
        id
    }

    /// Uses up the ids below `next`.
    pub fn skip_to(&mut self, next: u32) {
        self.next_id = next;
    }

    /// DATA of so many bytes, within [`Connection::send_window`], goes out.
    #[inline]
    pub fn sent(&mut self, length: u32) {
        self.send_window -= length;
    }

    /// Ends a stream at once. What still comes on it is [`Closed::Reset`].
    pub fn reset(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        write::reset_stream(out, stream, code);
        self.last_reset = self.last_reset.max(stream);
    }

    /// Gives back to the peer bytes that were passed on.
    pub fn give_back(&mut self, length: u32, out: &mut Vec<u8>) {
        if let Some(increment) = self.receive_window.give_back(length) {
            write::window_update(out, 0, increment);
        }
    }

    /// Gives back all that came, of a user with whom nothing waits.
    #[inline]
    pub fn give_back_all(&mut self, out: &mut Vec<u8>) {
        if let Some(increment) = self.receive_window.give_back_all() {
            write::window_update(out, 0, increment);
        }
    }

    /// Announces the end, so that no request is lost (RFC 9113, 6.8).
    pub fn announce_goaway(&self, out: &mut Vec<u8>) {
        write::goaway(out, MAX_STREAM_ID, ErrorCode::NO_ERROR, b"");
    }

    /// Takes no more streams of the peer's. The last one taken is that of the first time (RFC 9113, 6.8).
    pub fn goaway(&mut self, code: ErrorCode, debug: &[u8], out: &mut Vec<u8>) {
        let newest = if self.peer.is_client() {
            0
        } else {
            self.next_id.saturating_sub(2)
        };
        let last = *self.last_taken.get_or_insert(newest);
        write::goaway(out, last, code, debug);
    }

    /// Ends the connection of a peer that broke the protocol, and says why.
    #[cold]
    pub fn fail(&mut self, violation: &Violation, out: &mut Vec<u8>) {
        self.goaway(violation.code, violation.why.as_bytes(), out);
        self.close();
    }

    /// Nothing more comes, or will be sent. Returns how far it was.
    pub fn close(&mut self) -> Stage {
        (self.partial, self.block) = (Vec::new(), None);
        mem::replace(&mut self.stage, Stage::Failed)
    }

    // ---- bytes to frames ----

    /// Takes what there is of the client's preface off the front of `input` (RFC 9113, 3.4).
    ///
    /// # Errors
    /// It is something else.
    #[inline]
    pub fn preface(&mut self, input: &mut &[u8]) -> Result<(), Violation> {
        if self.preface_left == 0 {
            return Ok(());
        }
        let expected = &PREFACE[PREFACE.len() - usize::from(self.preface_left)..];
        let (preface, rest) = input.split_at(expected.len().min(input.len()));
        if !expected.starts_with(preface) {
            return Err(broken("no HTTP/2 connection preface (RFC 9113, 3.4)"));
        }
        self.preface_left -= preface.len() as u8;
        *input = rest;
        Ok(())
    }

    /// The frame whose beginning was kept, once `input` has the rest; `None`: go on with `input`.
    ///
    /// # Errors
    /// It is too large (RFC 9113, 4.2).
    #[inline]
    pub fn mended(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, Violation> {
        if self.partial.is_empty() || !complete(&mut self.partial, input, DEFAULT_MAX_FRAME)? {
            return Ok(None);
        }
        Ok(Some(mem::take(&mut self.partial)))
    }

    /// Keeps the beginning of a frame. `buffer`: of the one that was [`Connection::mended`] before.
    #[inline]
    pub fn keep(&mut self, rest: &[u8], buffer: Option<Vec<u8>>) {
        if let Some(mut buffer) = buffer.filter(|buffer| buffer.capacity() <= KEPT_PARTIAL) {
            buffer.clear();
            self.partial = buffer;
        }
        self.partial.extend_from_slice(rest);
    }

    /// The beginning of a frame that was kept.
    pub fn partial(&self) -> &[u8] {
        &self.partial
    }

    /// Frames and header blocks are whole so far.
    pub fn is_between_frames(&self) -> bool {
        self.partial.is_empty() && self.block.is_none()
    }
}

#[cold]
fn broken(why: impl Into<String>) -> Violation {
    Violation::connection(ErrorCode::PROTOCOL_ERROR, why)
}

#[cfg(test)]
mod tests;
