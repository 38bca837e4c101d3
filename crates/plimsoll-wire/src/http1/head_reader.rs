//! Reads the heads of one connection's responses, regardless of how the bytes are split.

use super::{FieldStorage, Http1Error, MAX_HEAD_BYTES, ResponseHead};

/// Size in bytes above which an incomplete head is parsed again only at the end of a line.
const RESCAN_THRESHOLD_BYTES: usize = 1024;

/// A reader of the heads of responses. It stores only an incomplete head.
#[derive(Debug)]
pub struct ResponseHeadReader {
    partial: Vec<u8>,
    /// Number of bytes of interim responses before the final one.
    interim: usize,
    /// Maximum size of a head in bytes, including preceding interim responses.
    max: usize,
}

impl Default for ResponseHeadReader {
    fn default() -> ResponseHeadReader {
        ResponseHeadReader::with_max_bytes(MAX_HEAD_BYTES)
    }
}

impl ResponseHeadReader {
    /// Creates a reader of heads of at most `max` bytes.
    pub fn with_max_bytes(max: usize) -> ResponseHeadReader {
        ResponseHeadReader {
            partial: Vec::new(),
            interim: 0,
            max,
        }
    }

    /// Consumes a prefix of `bytes`, at most to the end of a head. Returns the prefix's length, and the result of
    /// `on_head` for a final head and its bytes.
    ///
    /// # Errors
    /// Returns an error if a head is invalid or too long.
    pub fn consume<T>(
        &mut self,
        bytes: &[u8],
        on_head: impl FnOnce(&ResponseHead<'_, '_>, &[u8]) -> T,
    ) -> Result<(usize, Option<T>), Http1Error> {
        let before = self.partial.len();
        let mut gathered = std::mem::take(&mut self.partial);
        let mut whole = bytes;
        if before > 0 {
            let room = (self.max + 1).saturating_sub(before).min(bytes.len());
            gathered.extend_from_slice(&bytes[..room]);
            whole = &gathered;
        }
        // A long head is parsed again only at line ends; otherwise a peer that sends single bytes would cause a parse
        // for each byte.
        let is_due =
            before < RESCAN_THRESHOLD_BYTES || whole.len() > self.max || bytes.contains(&b'\n');
        let mut space = FieldStorage::new();
        let head = if is_due {
            ResponseHead::parse_with_max_bytes(whole, self.max, &mut space)?
        } else {
            None
        };
        let Some(head) = head else {
            if before == 0 {
                gathered.extend_from_slice(bytes);
            }
            self.partial = gathered;
            return Ok((bytes.len(), None));
        };
        let size = head.size;
        if head.status == 101 {
            return Err(Http1Error::Switching);
        }
        let made = if head.is_interim() {
            self.interim += size;
            None
        } else {
            self.interim = 0;
            Some(on_head(&head, &whole[..size]))
        };
        if self.interim > self.max {
            return Err(Http1Error::HeadTooLong(self.max));
        }
        // The allocation is kept for the next head.
        gathered.clear();
        self.partial = gathered;
        Ok((size - before, made))
    }

    /// Returns whether an incomplete head has been received.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.interim > 0 || !self.partial.is_empty()
    }

    /// Returns the error if the connection ended within a head; `None` if it did not.
    pub fn truncation_error(&self) -> Option<Http1Error> {
        (!self.partial.is_empty()).then(|| ResponseHead::truncation_error(&self.partial))
    }
}
