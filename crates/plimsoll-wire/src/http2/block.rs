//! A header block that comes in several frames (RFC 9113, 4.3).

use super::{ErrorCode, MAX_HEADER_BLOCK, Violation};

/// Frames a block may come in. Past that, a peer sends tiny ones to keep us busy.
const MAX_FRAGMENTS: u32 = 256;

/// HEADERS without END_HEADERS, and the CONTINUATION frames so far.
///
/// Until it is whole no other frame may come, on any stream.
#[derive(Debug)]
pub struct HeaderBlock {
    pub stream: u32,
    pub end_stream: bool,
    bytes: Vec<u8>,
    fragments: u32,
}

impl HeaderBlock {
    pub fn new(stream: u32, end_stream: bool, fragment: &[u8]) -> HeaderBlock {
        HeaderBlock {
            stream,
            end_stream,
            bytes: fragment.to_vec(),
            fragments: 1,
        }
    }

    /// Adds the next CONTINUATION frame's fragment.
    ///
    /// # Errors
    /// The block is over 64 KiB, or in over 256 frames: ENHANCE_YOUR_CALM.
    pub fn push(&mut self, fragment: &[u8]) -> Result<(), Violation> {
        self.fragments += 1;
        if self.bytes.len() + fragment.len() > MAX_HEADER_BLOCK || self.fragments > MAX_FRAGMENTS {
            return Err(Violation::connection(
                ErrorCode::ENHANCE_YOUR_CALM,
                format!(
                    "a header block over {MAX_HEADER_BLOCK} bytes or {MAX_FRAGMENTS} frames \
                     (RFC 9113, 10.5.1)"
                ),
            ));
        }
        self.bytes.extend_from_slice(fragment);
        Ok(())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
