//! Encoding and decoding of single frames (RFC 6455 §5.2).

use super::is_sendable;

/// Maximum length of a frame header in bytes: 2, plus 8 for the length and 4 for the mask.
pub(super) const MAX_HEADER_BYTES: usize = 14;

/// The opcode of a frame (RFC 6455 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Continues the message that an earlier frame began.
    Continuation = 0,
    /// Begins a text message; its joined fragments must be UTF-8.
    Text = 1,
    /// Begins a binary message.
    Binary = 2,
    /// Closes the connection: the sender sends nothing after it.
    Close = 8,
    /// A ping, which must be answered with its payload.
    Ping = 9,
    /// The answer to a ping, or an unsolicited heartbeat.
    Pong = 10,
}

impl Opcode {
    fn from_bits(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return None,
        })
    }

    /// Returns whether this is Close, Ping or Pong, which are never fragmented and have at most 125 bytes (§5.5).
    pub(super) fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// The violation for reserved bits that no extension defines.
pub(super) const RESERVED_BIT_VIOLATION: &str =
    "a reserved bit is set, and no extension was agreed to";

/// A decoded frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSocketFrameHeader {
    /// Whether this is the last fragment of its message.
    pub fin: bool,
    /// The first reserved bit, which marks a compressed message (RFC 7692 §6) if compression was agreed on.
    pub rsv1: bool,
    /// The opcode; [`Opcode::Continuation`] in all fragments except the first.
    pub opcode: Opcode,
    /// The mask of a client's payload; `None` in a server's frame.
    pub mask: Option<[u8; 4]>,
    /// Length of the payload in bytes.
    pub length: u64,
    /// Length of the header itself in bytes.
    pub size: usize,
}

impl WebSocketFrameHeader {
    /// Parses a header at the beginning of `bytes`; `None` if it is incomplete.
    ///
    /// # Errors
    /// Returns an error if RFC 6455 §5.2 or §5.5 forbids the header.
    pub fn parse(bytes: &[u8]) -> Result<Option<WebSocketFrameHeader>, &'static str> {
        let [first, second, ..] = *bytes else {
            return Ok(None);
        };
        if first & 0x30 != 0 {
            return Err(RESERVED_BIT_VIOLATION);
        }
        let opcode = Opcode::from_bits(first & 0x0f).ok_or("a reserved opcode")?;
        let fin = first & 0x80 != 0;
        let masked = second & 0x80 != 0;
        let short = second & 0x7f;
        if opcode.is_control() && !fin {
            return Err("a fragmented control frame");
        }
        if opcode.is_control() && short > 125 {
            return Err("a control frame of more than 125 bytes");
        }
        let (length, mut size) = match short {
            126 => match bytes.get(2..4) {
                Some(b) => (u64::from(u16::from_be_bytes([b[0], b[1]])), 4),
                None => return Ok(None),
            },
            127 => match bytes.get(2..10).and_then(|b| <[u8; 8]>::try_from(b).ok()) {
                Some(b) => (u64::from_be_bytes(b), 10),
                None => return Ok(None),
            },
            short => (u64::from(short), 2),
        };
        if length > i64::MAX as u64 {
            return Err("a payload length with its highest bit set");
        }
        if matches!((short, length), (126, 0..=125) | (127, 0..=0xffff)) {
            return Err("a payload length in more bytes than it needs");
        }
        let mask = if masked {
            let Some(mask) = bytes.get(size..size + 4).and_then(|b| b.try_into().ok()) else {
                return Ok(None);
            };
            size += 4;
            Some(mask)
        } else {
            None
        };
        Ok(Some(WebSocketFrameHeader {
            fin,
            rsv1: first & 0x40 != 0,
            opcode,
            mask,
            length,
            size,
        }))
    }

    fn append_header(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.fin) << 7 | u8::from(self.rsv1) << 6 | self.opcode as u8);
        let masked = u8::from(self.mask.is_some()) << 7;
        match self.length {
            0..=125 => out.push(masked | self.length as u8),
            126..=0xffff => {
                out.push(masked | 126);
                out.extend_from_slice(&(self.length as u16).to_be_bytes());
            }
            _ => {
                out.push(masked | 127);
                out.extend_from_slice(&self.length.to_be_bytes());
            }
        }
        if let Some(mask) = self.mask {
            out.extend_from_slice(&mask);
        }
    }
}

/// Appends a complete, unmasked frame, as a server sends it.
#[inline]
pub fn append_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
    append_complete_frame(out, opcode, false, None, payload);
}

/// Appends a complete, masked frame, as a client sends it.
pub fn append_masked_frame(out: &mut Vec<u8>, opcode: Opcode, mask: [u8; 4], payload: &[u8]) {
    append_complete_frame(out, opcode, false, Some(mask), payload);
}

/// Appends a complete frame of a compressed message.
pub(super) fn append_compressed_frame(
    out: &mut Vec<u8>,
    opcode: Opcode,
    mask: Option<[u8; 4]>,
    payload: &[u8],
) {
    append_complete_frame(out, opcode, true, mask, payload);
}

#[inline]
fn append_complete_frame(
    out: &mut Vec<u8>,
    opcode: Opcode,
    rsv1: bool,
    mask: Option<[u8; 4]>,
    payload: &[u8],
) {
    out.reserve(MAX_HEADER_BYTES + payload.len());
    WebSocketFrameHeader {
        fin: true,
        rsv1,
        opcode,
        mask,
        length: payload.len() as u64,
        size: 0,
    }
    .append_header(out);
    let begin = out.len();
    out.extend_from_slice(payload);
    if let Some(mask) = mask {
        apply_mask(&mut out[begin..], mask);
    }
}

/// Returns the payload of a Close frame: the code and a reason, cut to 123 bytes (§5.5.1). For a code that must not be
/// sent, the payload is empty.
pub fn encode_close_payload(close_code: u16, reason: &str) -> Vec<u8> {
    if !is_sendable(close_code) {
        return Vec::new();
    }
    let mut end = reason.len().min(123);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut payload = close_code.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..end]);
    payload
}

/// Masks or unmasks bytes, which are the same operation (§5.3).
#[inline]
pub fn apply_mask(bytes: &mut [u8], mask: [u8; 4]) {
    let word = u64::from_ne_bytes([
        mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3],
    ]);
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let masked = u64::from_ne_bytes([
            chunk[0], chunk[1], chunk[2], chunk[3], chunk[4], chunk[5], chunk[6], chunk[7],
        ]) ^ word;
        chunk.copy_from_slice(&masked.to_ne_bytes());
    }
    for (i, byte) in chunks.into_remainder().iter_mut().enumerate() {
        *byte ^= mask[i % 4];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_6455_frame_examples() {
        // RFC 6455 §5.7.
        let mut out = Vec::new();
        append_frame(&mut out, Opcode::Text, b"Hello");
        assert_eq!(out, [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f]);
        out.clear();
        append_masked_frame(&mut out, Opcode::Text, [0x37, 0xfa, 0x21, 0x3d], b"Hello");
        assert_eq!(
            out,
            [
                0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58
            ]
        );
        for (length, head) in [(256usize, 4), (65536, 10), (125, 2), (126, 4), (65535, 4)] {
            out.clear();
            append_frame(&mut out, Opcode::Binary, &vec![0; length]);
            let parsed = WebSocketFrameHeader::parse(&out).unwrap().unwrap();
            assert_eq!((parsed.length, parsed.size), (length as u64, head));
            for cut in 0..head {
                assert_eq!(WebSocketFrameHeader::parse(&out[..cut]).unwrap(), None);
            }
        }
    }

    /// RFC 6455 §5.2: a length must have the minimum number of bytes.
    #[test]
    fn non_minimal_lengths_are_rejected() {
        let of = |short: u8, length: &[u8]| {
            WebSocketFrameHeader::parse(&[&[0x81, short], length].concat())
        };
        let (two, eight) = (u16::to_be_bytes, u64::to_be_bytes);
        for (short, length) in [(126, &two(0)[..]), (126, &two(125)), (127, &eight(0xffff))] {
            assert!(of(short, length).unwrap_err().contains("more bytes"));
        }
        let longest = i64::MAX as u64;
        for (short, length) in [
            (126, &two(126)[..]),
            (127, &eight(0x1_0000)),
            (127, &eight(longest)),
        ] {
            assert!(of(short, length).unwrap().is_some());
        }
        let problem = of(127, &eight(longest + 1)).unwrap_err();
        assert!(problem.contains("highest bit"), "{problem}");
    }

    /// RFC 7692 §7.2: apart from RSV1 it is like any other frame.
    #[test]
    fn compressed_message_is_masked_like_plain() {
        let (mut plain, mut out) = (b"before".to_vec(), b"before".to_vec());
        append_masked_frame(&mut plain, Opcode::Text, [1, 2, 3, 4], b"Hello");
        append_compressed_frame(&mut out, Opcode::Text, Some([1, 2, 3, 4]), b"Hello");
        plain["before".len()] |= 1 << 6;
        assert_eq!(out, plain);
    }

    #[test]
    fn mask_is_involution() {
        let original: Vec<u8> = (0..=255).collect();
        for length in 0..40 {
            let mut bytes = original[..length].to_vec();
            apply_mask(&mut bytes, [1, 2, 3, 0xff]);
            assert!(length == 0 || bytes != original[..length]);
            let slow: Vec<u8> = (0..length)
                .map(|i| original[i] ^ [1, 2, 3, 0xff][i % 4])
                .collect();
            assert_eq!(bytes, slow);
        }
    }

    #[test]
    fn close_reason_truncates_between_characters() {
        let payload = encode_close_payload(1000, &"é".repeat(100));
        assert_eq!(payload.len(), 2 + 122);
        assert!(std::str::from_utf8(&payload[2..]).is_ok());
        assert!(encode_close_payload(1005, "").is_empty());
    }
}
