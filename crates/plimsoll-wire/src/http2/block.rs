//! A header block that comes in several frames (RFC 9113, 4.3).

use super::{ErrorCode, Piece, Violation};

/// Frames a block may come in. Past that, a peer sends tiny ones to keep us busy.
const MAX_FRAGMENTS: u32 = 256;

/// HEADERS without END_HEADERS, and the CONTINUATION frames so far.
///
/// Until it is whole no other frame may come, on any stream.
#[derive(Debug)]
pub struct HeaderBlock {
    stream: u32,
    end_stream: bool,
    bytes: Vec<u8>,
    fragments: u32,
}

impl HeaderBlock {
    /// Begins a block with the fragment of HEADERS or PUSH_PROMISE.
    pub fn new(first: Piece<'_>) -> HeaderBlock {
        HeaderBlock {
            stream: first.stream,
            end_stream: first.end_stream,
            bytes: first.bytes.to_vec(),
            fragments: 1,
        }
    }

    /// Adds the next CONTINUATION frame's fragment.
    ///
    /// # Errors
    /// The block is over `max` bytes, or in over 256 frames: ENHANCE_YOUR_CALM.
    pub fn push(&mut self, fragment: &[u8], max: usize) -> Result<(), Violation> {
        self.fragments += 1;
        if self.bytes.len() + fragment.len() > max || self.fragments > MAX_FRAGMENTS {
            return Err(Violation::connection(
                ErrorCode::ENHANCE_YOUR_CALM,
                format!(
                    "a header block over {max} bytes or {MAX_FRAGMENTS} frames \
                     (RFC 9113, 10.5.1)"
                ),
            ));
        }
        self.bytes.extend_from_slice(fragment);
        Ok(())
    }

    /// What it says, once it is whole.
    pub fn piece(&self) -> Piece<'_> {
        Piece {
            stream: self.stream,
            bytes: &self.bytes,
            length: self.bytes.len() as u32,
            end_stream: self.end_stream,
        }
    }
}
