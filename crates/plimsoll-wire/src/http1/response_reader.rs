//! Reads the responses of one connection, one after another.

use super::{BodyReader, Http1Error, ResponseHeadReader};

/// A complete response. Its body was passed to the sink of [`ResponseReader::consume`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The three-digit status code (RFC 9110 §15).
    pub status: u16,
    /// The reason phrase; empty if the server sent none.
    pub reason: String,
    /// Length of the body in bytes, without framing.
    pub body: u64,
    /// Whether the server closes the connection after this response.
    pub closes: bool,
}

/// A reader of responses to requests with any method except HEAD and CONNECT. It stores only an incomplete head.
#[derive(Debug)]
pub struct ResponseReader {
    heads: ResponseHeadReader,
    max_body: u64,
    current: Option<(HttpResponse, BodyReader)>,
}

impl ResponseReader {
    /// Creates a reader for bodies of at most `max_body` bytes.
    pub fn new(max_body: u64) -> ResponseReader {
        ResponseReader {
            heads: ResponseHeadReader::default(),
            max_body,
            current: None,
        }
    }

    /// Consumes a prefix of `bytes`, at most to the end of a response. Returns the prefix's length and the response if
    /// it is complete. The body's bytes are passed to `sink`.
    ///
    /// # Errors
    /// Returns an error if the response is invalid or too long.
    #[inline]
    pub fn consume(
        &mut self,
        bytes: &[u8],
        mut sink: impl FnMut(&[u8]),
    ) -> Result<(usize, Option<HttpResponse>), Http1Error> {
        let mut at = 0;
        while self.current.is_none() {
            if at == bytes.len() {
                return Ok((at, None));
            }
            let (taken, head) = self.heads.consume(&bytes[at..], |head, _| {
                let response = HttpResponse {
                    status: head.status,
                    reason: head.reason.to_owned(),
                    body: 0,
                    closes: head.closes,
                };
                (response, head.body)
            })?;
            at += taken;
            if let Some((response, framing)) = head {
                self.current = Some((response, BodyReader::new(framing, self.max_body)?));
            }
        }
        if let Some((_, body)) = &mut self.current {
            at += body.consume(&bytes[at..], &mut sink)?;
            if body.is_complete() {
                return Ok((at, self.take_response()));
            }
        }
        Ok((at, None))
    }

    /// Processes an orderly end of stream; returns the response that ends with the stream, if there is one.
    ///
    /// # Errors
    /// Returns an error if a response is incomplete.
    pub fn on_end_of_stream(&mut self) -> Result<Option<HttpResponse>, Http1Error> {
        match &self.current {
            None => self.heads.truncation_error().map_or(Ok(None), Err),
            Some((_, body)) => {
                body.on_end_of_stream()?;
                Ok(self.take_response())
            }
        }
    }

    /// Returns how many announced bytes of the current body or chunk have not arrived yet.
    pub fn awaited_bytes(&self) -> u64 {
        let current = self.current.as_ref();
        current.map_or(0, |(_, body)| body.awaited_bytes())
    }

    /// Returns whether a response has begun to arrive.
    pub fn has_begun(&self) -> bool {
        self.current.is_some() || self.heads.has_begun()
    }

    fn take_response(&mut self) -> Option<HttpResponse> {
        let (mut response, body) = self.current.take()?;
        response.body = body.received_bytes();
        Some(response)
    }
}
