//! The path between the two ends of a fuzzed TLS conversation, one of Plimsoll and one of rustls. The path changes the
//! segmentation: it decrypts each record with the secrets that the rustls end logs, and encrypts the content again in
//! records of other sizes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::KeyLog;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use super::super::handshake::TlsEnd;
use super::super::record::{
    ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, Cipher, HANDSHAKE, HEADER_BYTES, KeyRebuilder,
    MAX_PLAINTEXT_BYTES, TrafficKey,
};
use super::super::traffic_secrets::TrafficSecrets;
use super::{Conversation, ConversationEnd, PathSegmentation, client_text, server_text};

/// Maximum size of a read in bytes.
const MAX_READ_BYTES: usize = 128 * 1024;
/// A choice whose remainder modulo 32 equals this selects the maximum size.
const REMAINDER_FOR_MAX_SIZE: u16 = 31;
const FINISHED_MESSAGE_TYPE: u8 = 20;

/// A source of fuzzing choices for one direction: a sequence of numbers.
pub struct ChoiceSource<'a> {
    next: Box<dyn FnMut() -> u16 + 'a>,
    /// The fixed sizes of all records and reads, in bytes; if they are given, nothing else varies.
    fixed: Option<(usize, usize)>,
}

impl<'a> ChoiceSource<'a> {
    /// Creates a source that uses the numbers that `next` returns.
    pub fn new(next: impl FnMut() -> u16 + 'a) -> ChoiceSource<'a> {
        ChoiceSource {
            next: Box::new(next),
            fixed: None,
        }
    }

    /// Creates a source with fixed sizes of records and reads, in bytes.
    pub fn with_fixed_sizes(record: usize, read: usize) -> ChoiceSource<'a> {
        ChoiceSource {
            fixed: Some((record, read)),
            ..ChoiceSource::new(|| 0)
        }
    }

    /// Creates a source that uses two of `bytes` for each choice. After the last byte, every choice is 0.
    pub fn from_bytes(bytes: &'a [u8]) -> ChoiceSource<'a> {
        let mut pairs = bytes.chunks_exact(2);
        ChoiceSource::new(move || {
            pairs
                .next()
                .map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
        })
    }

    fn choose_number_below(&mut self, most: usize) -> usize {
        usize::from((self.next)()) % most
    }

    /// Chooses a distribution of sizes between 1 and `most`.
    fn choose_size_policy(&mut self, most: usize) -> SizePolicy {
        let bound = [1, 7, 100, 600, 5_000, most][self.choose_number_below(6)];
        SizePolicy::UpTo { bound, most }
    }
}

#[derive(Clone, Copy)]
enum SizePolicy {
    Fixed(usize),
    UpTo { bound: usize, most: usize },
}

impl SizePolicy {
    fn choose_size(self, choices: &mut ChoiceSource<'_>) -> usize {
        let (bound, most) = match self {
            SizePolicy::Fixed(size) => return size,
            SizePolicy::UpTo { bound, most } => (bound, most),
        };
        let choice = choices.choose_number_below(usize::MAX);
        // Occasionally choose the maximum size.
        match choice % 32 {
            n if n == usize::from(REMAINDER_FOR_MAX_SIZE) => most,
            _ => 1 + choice % bound,
        }
    }
}

/// A modification of one handshake record, or a record inserted before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tampering {
    Flip,
    Empty,
    Alert([u8; 2]),
    ChangeCipherSpec(u8),
}

/// A key log that captures all secrets of a conversation.
#[derive(Debug, Default)]
pub(super) struct KeyLogTap(Mutex<Vec<(String, Vec<u8>)>>);

impl KeyLogTap {
    fn secret(&self, label: &str) -> Option<Vec<u8>> {
        let secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = secrets.iter().find(|(is, _)| is == label);
        found.map(|(_, secret)| secret.clone())
    }
}

impl KeyLog for KeyLogTap {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.push((label.to_owned(), secret.to_vec()));
    }
}

/// Labels of the client's secrets in the key log (RFC 9850), in the order of their use.
const CLIENT_LABELS: [&str; 2] = ["CLIENT_HANDSHAKE_TRAFFIC_SECRET", "CLIENT_TRAFFIC_SECRET_0"];
const SERVER_LABELS: [&str; 2] = ["SERVER_HANDSHAKE_TRAFFIC_SECRET", "SERVER_TRAFFIC_SECRET_0"];

/// One direction of the path, with its segmentation.
struct PathDirection<'a> {
    choices: ChoiceSource<'a>,
    cipher: Cipher,
    labels: VecDeque<&'static str>,
    tap: Arc<KeyLogTap>,
    /// The key that decrypts the sender's records.
    opening: Option<TrafficKey>,
    /// The key that encrypts the forwarded records.
    sealing: Option<TrafficKey>,
    /// An incomplete handshake message, which continues in the sender's next record.
    message: Vec<u8>,
    records: SizePolicy,
    reads: SizePolicy,
    padding: usize,
    tampering: Option<(usize, Tampering)>,
    has_tampered: bool,
    records_written: usize,
}

impl<'a> PathDirection<'a> {
    fn new(
        cipher: Cipher,
        labels: [&'static str; 2],
        tap: &Arc<KeyLogTap>,
        mut choices: ChoiceSource<'a>,
    ) -> PathDirection<'a> {
        let (records, reads) = match choices.fixed {
            Some((record, read)) => (SizePolicy::Fixed(record), SizePolicy::Fixed(read)),
            None => (
                choices.choose_size_policy(MAX_PLAINTEXT_BYTES),
                choices.choose_size_policy(MAX_READ_BYTES),
            ),
        };
        let is_fixed = choices.fixed.is_some();
        let meddling = match choices.choose_number_below(16) {
            _ if is_fixed => None,
            0 => Some(Tampering::Flip),
            1 => Some(Tampering::Empty),
            2 => Some(Tampering::Alert([2, 40])),
            3 => Some(Tampering::Alert([1, 0])),
            4 => Some(Tampering::ChangeCipherSpec(1)),
            5 => Some(Tampering::ChangeCipherSpec(2)),
            _ => None,
        };
        PathDirection {
            cipher,
            labels: labels.into(),
            tap: Arc::clone(tap),
            opening: None,
            sealing: None,
            message: Vec::new(),
            records,
            reads,
            padding: if is_fixed {
                0
            } else {
                [0, 0, 1, 40][choices.choose_number_below(4)]
            },
            tampering: meddling.map(|what| (choices.choose_number_below(40), what)),
            has_tampered: false,
            records_written: 0,
            choices,
        }
    }

    /// Returns whether the library has logged the current secrets.
    fn has_keys(&mut self) -> bool {
        if self.opening.is_none()
            && let Some(secret) = self.labels.front().and_then(|label| self.tap.secret(label))
        {
            let key = || TrafficSecrets::with_single_secret(self.cipher, &secret).sending_key(0);
            (self.opening, self.sealing) = (key().ok(), key().ok());
            self.labels.pop_front();
        }
        self.opening.is_some()
    }

    /// Returns the same messages in records of other sizes, as far as they can already be decrypted.
    fn resegment(&mut self, bytes: &mut Vec<u8>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut cut = 0;
        while let [kind, major, minor, high, low, ..] = bytes[cut..] {
            if kind == APPLICATION_DATA && !self.has_keys() {
                break;
            }
            let end = cut + HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
            let record = &mut bytes[cut..end];
            cut = end;
            match kind {
                HANDSHAKE => {
                    for piece in self.split_content(&record[HEADER_BYTES..]) {
                        self.tamper(&mut out, false);
                        append_unprotected(HANDSHAKE, [major, minor], piece, &mut out);
                    }
                }
                APPLICATION_DATA => self.resegment_protected(record, &mut out),
                _ => out.extend_from_slice(record),
            }
        }
        bytes.drain(..cut);
        out
    }

    fn split_content<'b>(&mut self, mut rest: &'b [u8]) -> Vec<&'b [u8]> {
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let mut size = self.records.choose_size(&mut self.choices);
            if self.labels.is_empty() {
                // Only the handshake is under test, so application data is split into larger pieces.
                size = (64 * size).min(MAX_PLAINTEXT_BYTES);
            }
            let (piece, next) = rest.split_at(size.min(rest.len()));
            rest = next;
            pieces.push(piece);
        }
        pieces
    }

    fn resegment_protected(&mut self, record: &mut [u8], out: &mut Vec<u8>) {
        let opening = self.opening.as_mut().expect("the keys are known");
        let inner = opening.open(record).expect("its sender sealed it");
        let end = inner.iter().rposition(|byte| *byte != 0);
        let (content, kind) = inner.split_at(end.expect("a type"));
        let kind = kind[0];
        let pieces = match kind {
            ALERT => vec![content],
            _ => self.split_content(content),
        };
        for piece in pieces {
            let room = MAX_PLAINTEXT_BYTES - piece.len();
            let mut tail = vec![kind];
            tail.resize(
                1 + self.choices.choose_number_below(self.padding + 1).min(room),
                0,
            );
            let flip = self.tamper(out, true);
            let sealing = self.sealing.as_mut().expect("the keys are known");
            sealing.seal(piece, &tail, out).expect("numbers are left");
            if flip && let Some(last) = out.last_mut() {
                *last ^= 1;
            }
        }
        if kind == HANDSHAKE && self.track_messages(content) {
            (self.opening, self.sealing) = (None, None);
        }
    }

    /// Returns the size of the next read.
    fn choose_read_size(&mut self, there: usize) -> usize {
        self.reads.choose_size(&mut self.choices).min(there)
    }

    /// Tracks handshake messages; returns true after the last one under the current keys.
    fn track_messages(&mut self, content: &[u8]) -> bool {
        self.message.extend_from_slice(content);
        let mut finished = false;
        while let [kind, a, b, c, ..] = *self.message {
            let length = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
            if self.message.len() < length {
                break;
            }
            finished = kind == FINISHED_MESSAGE_TYPE;
            self.message.drain(..length);
        }
        finished
    }

    /// Applies the modification before the next record; returns true if that record must be changed.
    fn tamper(&mut self, out: &mut Vec<u8>, is_protected: bool) -> bool {
        let (at, open) = (self.records_written, self.labels.is_empty());
        self.records_written += 1;
        let Some((_, what)) = self.tampering.filter(|(here, _)| *here == at && !open) else {
            return false;
        };
        match what {
            // Unprotected records are not changed: the order of extensions in a `ClientHello` is random, so the effect
            // would not be reproducible.
            Tampering::Flip => {
                self.has_tampered |= is_protected;
                return is_protected;
            }
            Tampering::Empty => append_unprotected(HANDSHAKE, [3, 3], &[], out),
            Tampering::Alert(alert) => append_unprotected(ALERT, [3, 3], &alert, out),
            Tampering::ChangeCipherSpec(value) => {
                append_unprotected(CHANGE_CIPHER_SPEC, [3, 3], &[value], out);
            }
        }
        self.has_tampered = true;
        false
    }
}

/// Appends an unprotected record.
fn append_unprotected(kind: u8, [major, minor]: [u8; 2], content: &[u8], out: &mut Vec<u8>) {
    let [high, low] = u16::try_from(content.len())
        .unwrap_or(u16::MAX)
        .to_be_bytes();
    out.extend_from_slice(&[kind, major, minor, high, low]);
    out.extend_from_slice(content);
}

/// Both directions of the path.
pub(super) struct TamperingPath<'a> {
    up: PathDirection<'a>,
    down: PathDirection<'a>,
}

impl<'a> TamperingPath<'a> {
    pub(super) fn new(
        cipher: Cipher,
        tap: &Arc<KeyLogTap>,
        [up, down]: PathSegmentation<'a>,
    ) -> TamperingPath<'a> {
        TamperingPath {
            up: PathDirection::new(cipher, CLIENT_LABELS, tap, up),
            down: PathDirection::new(cipher, SERVER_LABELS, tap, down),
        }
    }

    /// Forwards the bytes that each end sends until neither sends any more.
    pub(super) fn run(
        mut self,
        mut client: ConversationEnd<'_, UnbufferedClientConnection>,
        mut server: ConversationEnd<'_, UnbufferedServerConnection>,
    ) -> Conversation {
        let (mut client_spoke, mut server_spoke) = (false, false);
        loop {
            if !client_spoke && !client.session.is_handshaking() {
                client_spoke = true;
                client.send_text(&client_text());
            }
            if !server_spoke && !server.session.is_handshaking() {
                server_spoke = true;
                server.send_text(&server_text());
                server.session.queue_close_notify();
            }
            let (up, down) = (client.take_output(), server.take_output());
            if up.is_empty() && down.is_empty() {
                break;
            }
            deliver(&mut self.up, up, &mut server);
            deliver(&mut self.down, down, &mut client);
        }
        Conversation {
            client: client.state,
            server: server.state,
            is_untampered: !self.up.has_tampered && !self.down.has_tampered,
        }
    }
}

fn deliver<E: TlsEnd>(
    path: &mut PathDirection<'_>,
    mut bytes: Vec<u8>,
    to: &mut ConversationEnd<'_, E>,
) {
    loop {
        let mut cut = path.resegment(&mut bytes);
        let mut rest = &mut cut[..];
        if rest.is_empty() {
            // Data from an end that has failed, which cannot be decrypted, is dropped.
            return;
        }
        while !rest.is_empty() && to.is_receiving() {
            let size = path.choose_read_size(rest.len());
            let (piece, next) = std::mem::take(&mut rest).split_at_mut(size);
            rest = next;
            to.receive(piece);
        }
    }
}
