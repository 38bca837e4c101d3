//! permessage-deflate (RFC 7692): compression of individual messages.
//!
//! This end keeps no compression context between the messages that it sends (§7.1.1), and none between those that it
//! receives if the other end agrees. An idle connection therefore has no compressor, and all connections of a thread
//! share one. Messages of a server that keeps its context are decompressed with an [`InflateContext`], one per
//! connection. Windows smaller than the usual 32 KiB are implemented by restarting compression after each window.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::frame::append_compressed_frame;
use super::{Opcode, Violation, append_frame, append_masked_frame, code};

const EXTENSION_NAME: &str = "permessage-deflate";
const CLIENT_WINDOW_PARAMETER: &str = "client_max_window_bits";
const SERVER_WINDOW_PARAMETER: &str = "server_max_window_bits";
/// The bytes at the end of a flush, which are not sent (§7.2.1).
const FLUSH_TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// Minimum size in bytes of a message that is compressed; shorter ones would grow.
const MIN_COMPRESSED_BYTES: usize = 32;
const MAX_WINDOW_BITS: u8 = 15;
/// Number of bytes that are inflated per step.
const INFLATE_CHUNK_BYTES: usize = 16 * 1024;
/// Number of bytes that are deflated per step.
const DEFLATE_CHUNK_BYTES: usize = 16 * 1024;

thread_local! {
    static THREAD_COMPRESSOR: RefCell<Compressor> = RefCell::new(Compressor {
        compress: Compress::new(Compression::fast(), false),
        chunk: [0; DEFLATE_CHUNK_BYTES].into(),
    });
    static THREAD_DECOMPRESSOR: RefCell<Decompress> = RefCell::new(Decompress::new(false));
}

/// A compressor with an output buffer. flate2 zeroes the whole buffer that it is given, so a buffer for a complete
/// message would be zeroed once per window.
struct Compressor {
    compress: Compress,
    chunk: Box<[u8]>,
}

impl Compressor {
    /// Compresses `window` independently of earlier data, flushes, and appends it to `out`; `None` if flate2 failed.
    fn append_compressed(&mut self, out: &mut Vec<u8>, window: &[u8]) -> Option<()> {
        self.compress.reset();
        loop {
            let taken = self.compress.total_in() as usize;
            let before = self.compress.total_out();
            self.compress
                .compress(&window[taken..], &mut self.chunk, FlushCompress::Sync)
                .ok()?;
            let made = (self.compress.total_out() - before) as usize;
            out.extend_from_slice(&self.chunk[..made]);
            // A flush is complete if it does not fill the buffer.
            if self.compress.total_in() as usize == window.len() && made < self.chunk.len() {
                return Some(());
            }
        }
    }
}

/// The parameters of permessage-deflate that both ends agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeflateParameters {
    /// Base-2 logarithm of the window size, in bytes, with which this end compresses.
    window_bits: u8,
    /// Whether the other end has requested that window size.
    is_bounded: bool,
    /// Whether messages of the other end may refer to its earlier ones.
    keeps_context: bool,
}

impl DeflateParameters {
    /// Returns the parameters of the first of a client's offers (`Sec-WebSocket-Extensions`, split at commas) that is
    /// acceptable.
    pub fn from_offers<'a>(offers: impl IntoIterator<Item = &'a str>) -> Option<DeflateParameters> {
        offers.into_iter().find_map(DeflateParameters::parse_offer)
    }

    /// A client's offers. The first asks the server to keep no context. The second, which browsers make, is for servers
    /// that insist on keeping their context, such as Node's `ws` with `serverNoContextTakeover: false`.
    pub const CLIENT_OFFER: &str = "permessage-deflate; server_no_context_takeover; \
                             client_no_context_takeover; client_max_window_bits, \
                             permessage-deflate; client_no_context_takeover; client_max_window_bits";

    /// Parses a server's answer to [`DeflateParameters::CLIENT_OFFER`] (`Sec-WebSocket-Extensions`); returns `None` if
    /// it does not match the offer (§7.1.1.1, §7.1.2.1).
    pub fn parse_answer(answer: &str) -> Option<DeflateParameters> {
        let parameters = parse_parameters(answer)?;
        let is_answer = !parameters.contains(&(CLIENT_WINDOW_PARAMETER, None));
        let deflate = DeflateParameters::from_parameters(&parameters, CLIENT_WINDOW_PARAMETER)
            .filter(|_| is_answer)?;
        Some(DeflateParameters {
            keeps_context: !parameters.contains(&("server_no_context_takeover", None)),
            ..deflate
        })
    }

    fn parse_offer(offer: &str) -> Option<DeflateParameters> {
        DeflateParameters::from_parameters(&parse_parameters(offer)?, SERVER_WINDOW_PARAMETER)
    }

    /// Returns a decompression context if messages may refer to earlier ones; otherwise `None`.
    pub(super) fn new_inflate_context(self) -> Option<Box<InflateContext>> {
        self.keeps_context
            .then(|| Box::new(InflateContext(Decompress::new(false))))
    }

    /// Parses parameters; `bounds` is the name of the parameter that limits the window with which this end compresses.
    fn from_parameters(
        parameters: &[(&str, Option<&str>)],
        bounds: &str,
    ) -> Option<DeflateParameters> {
        let mut deflate = DeflateParameters {
            window_bits: MAX_WINDOW_BITS,
            is_bounded: false,
            keeps_context: false,
        };
        for (name, value) in parameters {
            match (*name, *value) {
                (
                    "server_no_context_takeover"
                    | "client_no_context_takeover"
                    | CLIENT_WINDOW_PARAMETER,
                    None,
                ) => {}
                (CLIENT_WINDOW_PARAMETER | SERVER_WINDOW_PARAMETER, Some(bits)) => {
                    let bits = parse_window_bits(bits)?;
                    if *name == bounds {
                        (deflate.window_bits, deflate.is_bounded) = (bits, true);
                    }
                }
                _ => return None,
            }
        }
        Some(deflate)
    }

    /// Returns the value of the answer's `Sec-WebSocket-Extensions`.
    pub fn to_header_value(&self) -> String {
        let bits = if self.is_bounded {
            format!("; server_max_window_bits={}", self.window_bits)
        } else {
            String::new()
        };
        format!("{EXTENSION_NAME}; server_no_context_takeover; client_no_context_takeover{bits}")
    }

    /// Appends a complete, unmasked message, compressed if that makes it shorter.
    pub fn append_message(&self, out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
        match self.compress_message(payload) {
            Some(compressed) => append_compressed_frame(out, opcode, None, &compressed),
            None => append_frame(out, opcode, payload),
        }
    }

    /// Appends a complete, masked message, as a client sends it, compressed if that makes it shorter.
    pub fn append_masked_message(
        &self,
        out: &mut Vec<u8>,
        opcode: Opcode,
        mask: [u8; 4],
        payload: &[u8],
    ) {
        match self.compress_message(payload) {
            Some(compressed) => append_compressed_frame(out, opcode, Some(mask), &compressed),
            None => append_masked_frame(out, opcode, mask, payload),
        }
    }

    fn compress_message(&self, payload: &[u8]) -> Option<Vec<u8>> {
        if payload.len() < MIN_COMPRESSED_BYTES {
            return None;
        }
        let mut out = Vec::with_capacity(payload.len());
        THREAD_COMPRESSOR.with_borrow_mut(|compressor| {
            for window in payload.chunks(1 << self.window_bits) {
                compressor.append_compressed(&mut out, window)?;
            }
            Some(())
        })?;
        let length = out.len().checked_sub(FLUSH_TAIL.len())?;
        if out[length..] != FLUSH_TAIL || length >= payload.len() {
            return None;
        }
        out.truncate(length);
        Some(out)
    }
}

/// Returns the parameters of an offer or an answer; `None` if it is another extension, or contains a parameter twice,
/// which is invalid (§7.1).
fn parse_parameters(extension: &str) -> Option<Vec<(&str, Option<&str>)>> {
    let mut parts = extension.split(';').map(str::trim);
    if parts.next()? != EXTENSION_NAME {
        return None;
    }
    let mut seen: Vec<(&str, Option<&str>)> = Vec::new();
    for parameter in parts {
        let (name, value) = match parameter.split_once('=') {
            None => (parameter, None),
            Some((name, value)) => (name.trim(), Some(value.trim().trim_matches('"'))),
        };
        if seen.iter().any(|(known, _)| *known == name) {
            return None;
        }
        seen.push((name, value));
    }
    Some(seen)
}

/// Parses window bits: 8 to 15, without a leading zero (§7.1.2).
fn parse_window_bits(text: &str) -> Option<u8> {
    let bits = text
        .parse()
        .ok()
        .filter(|bits| (8..=MAX_WINDOW_BITS).contains(bits))?;
    (!text.starts_with(['0', '+'])).then_some(bits)
}

/// The decompression context of a connection whose messages may refer to earlier ones.
#[derive(Debug)]
pub(super) struct InflateContext(Decompress);

impl InflateContext {
    /// Inflates a message that may refer to earlier messages; returns the same errors as [`inflate_message`].
    pub(super) fn inflate_message(
        &mut self,
        payload: &[u8],
        most: usize,
    ) -> Result<Vec<u8>, Violation> {
        let (out, is_last) = inflate(&mut self.0, payload, most)?;
        if is_last {
            // The peer has ended its DEFLATE stream (§7.2.3.4) and will begin another.
            self.0.reset(false);
        }
        Ok(out)
    }
}

/// Inflates a message.
///
/// # Errors
/// Returns an error if the result exceeds `most` bytes, or the message is not valid DEFLATE data.
pub(super) fn inflate_message(payload: &[u8], most: usize) -> Result<Vec<u8>, Violation> {
    THREAD_DECOMPRESSOR.with_borrow_mut(|decompress| {
        decompress.reset(false);
        Ok(inflate(decompress, payload, most)?.0)
    })
}

/// Returns the message, and whether the DEFLATE stream has ended and must be reset.
fn inflate(
    decompress: &mut Decompress,
    payload: &[u8],
    most: usize,
) -> Result<(Vec<u8>, bool), Violation> {
    const CORRUPT_MESSAGE: Violation = Violation {
        code: code::INVALID_PAYLOAD,
        reason: "a message that is not validly compressed",
    };
    let mut out = Vec::new();
    for mut input in [payload, &FLUSH_TAIL] {
        loop {
            out.reserve(INFLATE_CHUNK_BYTES);
            let before = (decompress.total_in(), decompress.total_out());
            let status = decompress.decompress_vec(input, &mut out, FlushDecompress::Sync);
            let taken = (decompress.total_in() - before.0) as usize;
            let came = decompress.total_out() - before.1;
            if out.len() > most {
                return Err(Violation {
                    code: code::MESSAGE_TOO_BIG,
                    reason: "a message over the size limit",
                });
            }
            input = &input[taken..];
            match status {
                Err(_) => return Err(CORRUPT_MESSAGE),
                Ok(Status::StreamEnd) => return Ok((out, true)),
                // The output buffer was not filled, so this input is fully inflated.
                Ok(_) if input.is_empty() && out.len() < out.capacity() => break,
                Ok(_) if taken == 0 && came == 0 => return Err(CORRUPT_MESSAGE),
                Ok(_) => {}
            }
        }
    }
    Ok((out, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(offers: &str) -> Option<String> {
        let offers = offers.split(',').map(str::trim);
        DeflateParameters::from_offers(offers).map(|deflate| deflate.to_header_value())
    }

    #[test]
    fn only_supported_offers_are_accepted() {
        let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        let ten = format!("{plain}; server_max_window_bits=10");
        for (offers, answer) in [
            ("permessage-deflate", Some(plain)),
            ("permessage-deflate; client_max_window_bits", Some(plain)),
            ("permessage-deflate; client_max_window_bits=9", Some(plain)),
            ("permessage-deflate; server_max_window_bits=10", Some(&*ten)),
            (
                "permessage-deflate; server_max_window_bits=\"10\"",
                Some(&*ten),
            ),
            ("permessage-deflate; server_max_window_bits", None),
            ("permessage-deflate; server_max_window_bits=7", None),
            ("permessage-deflate; server_max_window_bits=16", None),
            ("permessage-deflate; server_max_window_bits=010", None),
            ("permessage-deflate; unheard_of", None),
            (
                "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
                None,
            ),
            ("x-webkit-deflate-frame", None),
            ("x, permessage-deflate; y, permessage-deflate", Some(plain)),
            ("", None),
        ] {
            assert_eq!(agreed(offers).as_deref(), answer, "{offers}");
        }
    }

    #[test]
    fn answer_must_match_offer() {
        let plain = "permessage-deflate; server_no_context_takeover";
        let bits =
            |answer: &str| DeflateParameters::parse_answer(answer).map(|agreed| agreed.window_bits);
        for (more, expected) in [
            ("", Some(15)),
            ("; client_no_context_takeover", Some(15)),
            ("; client_max_window_bits=9", Some(9)),
            ("; server_max_window_bits=\"9\"", Some(15)),
            ("; client_max_window_bits", None),
            ("; client_max_window_bits=16", None),
            ("; server_no_context_takeover", None),
            ("; unheard_of", None),
        ] {
            assert_eq!(bits(&format!("{plain}{more}")), expected, "{more}");
        }
        // Messages may refer to those before them.
        assert_eq!(bits("permessage-deflate"), Some(15));
        assert_eq!(
            bits("permessage-deflate; client_no_context_takeover"),
            Some(15)
        );
        assert_eq!(bits("x-webkit-deflate-frame"), None);
        let keeps =
            |answer| DeflateParameters::parse_answer(answer).map(|agreed| agreed.keeps_context);
        assert_eq!(keeps("permessage-deflate"), Some(true));
        assert_eq!(keeps(plain), Some(false));
        // A server that insists on its context takes the second offer.
        let offers: Vec<&str> = DeflateParameters::CLIENT_OFFER.split(',').collect();
        assert_eq!(offers.len(), 2);
        assert!(!offers[1].contains("server_no_context_takeover"));
        assert_eq!(
            agreed(DeflateParameters::CLIENT_OFFER).as_deref(),
            Some("permessage-deflate; server_no_context_takeover; client_no_context_takeover")
        );
    }

    /// RFC 7692 §7.2.3.1 to §7.2.3.4.
    #[test]
    fn rfc_7692_examples_inflate() {
        for compressed in [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            &[
                0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00,
            ],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[
                0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00,
            ],
        ] {
            assert_eq!(inflate_message(compressed, 5).unwrap(), b"Hello");
            assert_eq!(
                inflate_message(compressed, 4).unwrap_err().code,
                code::MESSAGE_TOO_BIG
            );
        }
        assert_eq!(inflate_message(&[0], 0).unwrap(), b"");
        assert_eq!(
            inflate_message(&[0xff; 9], 100).unwrap_err().code,
            code::INVALID_PAYLOAD
        );
    }

    /// RFC 7692 §7.2.3.2: the second "Hello" refers to the first.
    #[test]
    fn context_takeover_messages_inflate() {
        let (first, second) = (
            [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00],
            [0xf2, 0x00, 0x11, 0x00, 0x00],
        );
        let agreed = DeflateParameters::parse_answer("permessage-deflate").unwrap();
        let mut context = agreed.new_inflate_context().unwrap();
        for message in [&first[..], &second, &second] {
            assert_eq!(context.inflate_message(message, 5).unwrap(), b"Hello");
        }
        // The stream has ended, and the next message begins a new one.
        let ended = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
        assert_eq!(context.inflate_message(&ended, 5).unwrap(), b"Hello");
        assert_eq!(context.inflate_message(&first, 5).unwrap(), b"Hello");
        assert_eq!(
            context.inflate_message(&first, 4).unwrap_err().code,
            code::MESSAGE_TOO_BIG
        );
        // Without the context there is nothing to refer to.
        assert_ne!(
            inflate_message(&second, 5).ok().as_deref(),
            Some(&b"Hello"[..])
        );
        let agreed =
            DeflateParameters::parse_answer("permessage-deflate; server_no_context_takeover");
        assert!(agreed.unwrap().new_inflate_context().is_none());
    }

    #[test]
    fn compression_round_trips_any_window() {
        let mut random = 1u64;
        let mut noise = Vec::new();
        for _ in 0..200_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            noise.push((random >> 60) as u8);
        }
        for bits in 8..=15 {
            let deflate = DeflateParameters {
                window_bits: bits,
                is_bounded: true,
                keeps_context: false,
            };
            for length in [32, 33, 255, 256, 257, 511, 4096, 65_535, 65_537, 200_000] {
                let compressed = deflate.compress_message(&noise[..length]);
                // Short messages of noise grow, and are sent uncompressed.
                let Some(compressed) = compressed else {
                    assert!(length < 256, "{bits} {length}");
                    continue;
                };
                assert_eq!(
                    inflate_message(&compressed, length).unwrap(),
                    &noise[..length]
                );
            }
        }
        let deflate = DeflateParameters::from_offers([EXTENSION_NAME]).unwrap();
        assert!(deflate.compress_message(&[b'x'; 100_000]).unwrap().len() < 1000);
    }

    #[test]
    fn decompression_bomb_is_rejected_early() {
        let bomb = DeflateParameters::from_offers([EXTENSION_NAME])
            .unwrap()
            .compress_message(&vec![0; 64 << 20])
            .unwrap();
        assert_eq!(
            inflate_message(&bomb, 64 * 1024).unwrap_err().code,
            code::MESSAGE_TOO_BIG
        );
    }
}
