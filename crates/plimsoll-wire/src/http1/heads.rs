//! The heads of one connection's answers, in any split.

use super::{FieldSpace, Http1Error, MAX_HEAD, ResponseHead};

/// Beyond so many bytes, more of a line of a head says nothing new.
const MAX_UNSEEN: usize = 1024;

/// Reads the heads of answers. One that came in part is all that it keeps.
#[derive(Debug)]
pub struct Heads {
    partial: Vec<u8>,
    /// Bytes of interim answers before the one that counts.
    interim: usize,
    /// The largest head, the interim answers before it included. Bytes.
    max: usize,
}

impl Default for Heads {
    fn default() -> Heads {
        Heads::up_to(MAX_HEAD)
    }
}

impl Heads {
    /// Reads heads of at most `max` bytes.
    pub fn up_to(max: usize) -> Heads {
        Heads {
            partial: Vec::new(),
            interim: 0,
            max,
        }
    }

    /// Takes a prefix of `bytes`, at most to the end of a head, and returns its length, and what `made` makes of a
    /// head that counts and its bytes.
    ///
    /// # Errors
    /// The problem with a head.
    pub fn take<T>(
        &mut self,
        bytes: &[u8],
        made: impl FnOnce(&ResponseHead<'_, '_>, &[u8]) -> T,
    ) -> Result<(usize, Option<T>), Http1Error> {
        let before = self.partial.len();
        let mut gathered = std::mem::take(&mut self.partial);
        let mut whole = bytes;
        if before > 0 {
            let room = (self.max + 1).saturating_sub(before).min(bytes.len());
            gathered.extend_from_slice(&bytes[..room]);
            whole = &gathered;
        }
        // A long head is looked at again where a line ends, or a peer that sends it a byte at a time
        // would have it read once a byte.
        let is_due = before < MAX_UNSEEN || whole.len() > self.max || bytes.contains(&b'\n');
        let mut space = FieldSpace::new();
        let head = if is_due {
            ResponseHead::parse_within(whole, self.max, &mut space)?
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
            Some(made(&head, &whole[..size]))
        };
        if self.interim > self.max {
            return Err(Http1Error::HeadTooLong(self.max));
        }
        // Its room is for the next one.
        gathered.clear();
        self.partial = gathered;
        Ok((size - before, made))
    }

    /// Something has come of an answer whose head has not.
    #[inline]
    pub fn have_begun(&self) -> bool {
        self.interim > 0 || !self.partial.is_empty()
    }

    /// Why the head is none that the connection ended within; `None`: it did not.
    pub fn cut_off(&self) -> Option<Http1Error> {
        (!self.partial.is_empty()).then(|| ResponseHead::cut_off(&self.partial))
    }
}
