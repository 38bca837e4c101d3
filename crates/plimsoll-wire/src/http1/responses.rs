//! The answers of one connection, one after another.

use super::{Body, FieldSpace, Http1Error, MAX_HEAD, ResponseHead};

/// Beyond so many bytes, more of a line of a head says nothing new.
const MAX_UNSEEN: usize = 1024;

/// An answer that has come whole. Its body went to the sink of [`Responses::take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Of three digits (RFC 9110, 15).
    pub status: u16,
    /// Empty where the server sent none.
    pub reason: String,
    /// Bytes of the body, without framing.
    pub body: u64,
    /// The server closes the connection behind this answer.
    pub closes: bool,
}

/// Reads answers to requests with any method but HEAD and CONNECT. A head that came in part
/// is all that it keeps.
#[derive(Debug)]
pub struct Responses {
    partial: Vec<u8>,
    /// Bytes of interim answers before the one that counts.
    interim: usize,
    max_body: u64,
    current: Option<(Response, Body)>,
}

impl Responses {
    /// `max_body`: bytes of a body, at most.
    pub fn new(max_body: u64) -> Responses {
        Responses {
            partial: Vec::new(),
            interim: 0,
            max_body,
            current: None,
        }
    }

    /// Takes a prefix of `bytes`, at most to the end of an answer, which is returned with the
    /// prefix's length. The body's bytes go to `sink`.
    ///
    /// # Errors
    /// What is wrong with the answer.
    #[inline]
    pub fn take(
        &mut self,
        bytes: &[u8],
        mut sink: impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Response>), Http1Error> {
        let mut at = 0;
        while self.current.is_none() {
            if at == bytes.len() {
                return Ok((at, None));
            }
            at += self.take_head(&bytes[at..])?;
        }
        if let Some((_, body)) = &mut self.current {
            at += body.take(&bytes[at..], &mut sink)?;
            if body.is_over() {
                return Ok((at, self.finished()));
            }
        }
        Ok((at, None))
    }

    /// The peer has closed its side in good order: the answer that ends there, if one does.
    ///
    /// # Errors
    /// An answer is cut off there.
    pub fn end(&mut self) -> Result<Option<Response>, Http1Error> {
        match &self.current {
            None if self.partial.is_empty() => Ok(None),
            None => Err(ResponseHead::cut_off(&self.partial)),
            Some((_, body)) => {
                body.end()?;
                Ok(self.finished())
            }
        }
    }

    /// Bytes of the body that the peer has promised and not sent.
    pub fn still_to_come(&self) -> u64 {
        let current = self.current.as_ref();
        current.map_or(0, |(_, body)| body.still_to_come())
    }

    /// Whether an answer has begun to arrive.
    pub fn has_begun(&self) -> bool {
        self.current.is_some() || self.interim > 0 || !self.partial.is_empty()
    }

    fn finished(&mut self) -> Option<Response> {
        self.interim = 0;
        let (mut response, body) = self.current.take()?;
        response.body = body.seen();
        Some(response)
    }

    /// The number of bytes of `rest` that belong to the head, or all of them.
    fn take_head(&mut self, rest: &[u8]) -> Result<usize, Http1Error> {
        let before = self.partial.len();
        if before == 0 {
            let taken = self.read_head(rest)?;
            if taken.is_none() {
                self.partial.extend_from_slice(rest);
            }
            return Ok(taken.unwrap_or(rest.len()));
        }
        let room = (MAX_HEAD + 1).saturating_sub(before).min(rest.len());
        let mut gathered = std::mem::take(&mut self.partial);
        gathered.extend_from_slice(&rest[..room]);
        // A long head is looked at again where a line ends, or a peer that sends it a byte at a
        // time would have it read once a byte.
        let is_due = before < MAX_UNSEEN || gathered.len() > MAX_HEAD || rest.contains(&b'\n');
        let size = if is_due {
            self.read_head(&gathered)?
        } else {
            None
        };
        if size.is_none() {
            self.partial = gathered;
        }
        Ok(size.map_or(rest.len(), |size| size - before))
    }

    /// The size of the head at the beginning of `bytes`.
    fn read_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Http1Error> {
        let mut space = FieldSpace::new();
        let Some(head) = ResponseHead::parse(bytes, &mut space)? else {
            return Ok(None);
        };
        if head.status == 101 {
            return Err(Http1Error::Switching);
        }
        if head.is_interim() {
            self.interim += head.size;
            if self.interim > MAX_HEAD {
                return Err(Http1Error::HeadTooLong(MAX_HEAD));
            }
        } else {
            let response = Response {
                status: head.status,
                reason: head.reason.to_owned(),
                body: 0,
                closes: head.closes,
            };
            self.current = Some((response, Body::new(head.body, self.max_body)?));
        }
        Ok(Some(head.size))
    }
}
