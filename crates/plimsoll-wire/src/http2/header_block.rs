//! Header blocks that are split into several frames (RFC 9113 §4.3).

use super::{ErrorCode, StreamPayload, Violation};

/// Maximum number of frames of a block; it protects against peers that send tiny frames to waste CPU time.
const MAX_FRAGMENTS: u32 = 256;

/// A HEADERS frame without END_HEADERS, and the CONTINUATION frames received so far.
///
/// Until the block is complete, no other frame may arrive, on any stream.
#[derive(Debug)]
pub struct HeaderBlock {
    stream: u32,
    end_stream: bool,
    bytes: Vec<u8>,
    fragments: u32,
}

impl HeaderBlock {
    /// Begins a block with the fragment of HEADERS or PUSH_PROMISE.
    pub fn new(first: StreamPayload<'_>) -> HeaderBlock {
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
    /// Returns ENHANCE_YOUR_CALM if the block exceeds `max` bytes or 256 frames.
    pub fn push(&mut self, fragment: &[u8], max: usize) -> Result<(), Violation> {
        self.fragments += 1;
        if self.bytes.len() + fragment.len() > max || self.fragments > MAX_FRAGMENTS {
            return Err(Violation::connection_error(
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

    /// Returns the complete block.
    pub fn payload(&self) -> StreamPayload<'_> {
        StreamPayload {
            stream: self.stream,
            bytes: &self.bytes,
            length: self.bytes.len() as u32,
            end_stream: self.end_stream,
        }
    }
}
