//! The answers of one connection, one after another.

use super::{Body, Heads, Http1Error};

/// An answer that has come whole. Its body went to the sink of [`Responses::take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code, of three digits (RFC 9110, 15).
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
    heads: Heads,
    max_body: u64,
    current: Option<(Response, Body)>,
}

impl Responses {
    /// `max_body`: bytes of a body, at most.
    pub fn new(max_body: u64) -> Responses {
        Responses {
            heads: Heads::default(),
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
            let (taken, head) = self.heads.take(&bytes[at..], |head, _| {
                let response = Response {
                    status: head.status,
                    reason: head.reason.to_owned(),
                    body: 0,
                    closes: head.closes,
                };
                (response, head.body)
            })?;
            at += taken;
            if let Some((response, framing)) = head {
                self.current = Some((response, Body::new(framing, self.max_body)?));
            }
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
            None => self.heads.cut_off().map_or(Ok(None), Err),
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
        self.current.is_some() || self.heads.have_begun()
    }

    fn finished(&mut self) -> Option<Response> {
        let (mut response, body) = self.current.take()?;
        response.body = body.seen();
        Some(response)
    }
}
