//! Writes the requests to a session's API, and reads its responses: one at a time, over a persistent connection.

use plimsoll_wire::http1::{Http1Error, HttpResponse, ResponseReader, append_request_head};

/// Maximum size of a response body, in bytes.
const MAX_BODY_BYTES: u64 = 1 << 20;

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiResponse {
    /// The status code.
    pub status: u16,
    /// The whole body.
    pub body: Vec<u8>,
    /// Whether the server closes the connection after this response.
    pub closes: bool,
}

/// Appends a POST request with a JSON body; an empty `json` means no body. `own`: the request's additional header
/// fields.
pub fn write_post(
    out: &mut Vec<u8>,
    host: &str,
    path: &str,
    own: &[(String, String)],
    json: &[u8],
) {
    let length = json.len().to_string();
    let mut fields = vec![
        ("Host", host),
        ("Content-Length", &length),
        ("Accept", "application/json"),
    ];
    // A request without a body has no `content-type` either.
    if !json.is_empty() {
        fields.push(("Content-Type", "application/json"));
    }
    fields.extend(own.iter().map(|(name, value)| (&**name, &**value)));
    append_request_head(out, "POST", path, &fields);
    out.extend_from_slice(json);
}

/// The reader of an API's responses, one at a time. It has no state between responses.
#[derive(Debug)]
pub struct ApiResponseReader {
    responses: ResponseReader,
    body: Vec<u8>,
}

impl Default for ApiResponseReader {
    fn default() -> ApiResponseReader {
        ApiResponseReader {
            responses: ResponseReader::new(MAX_BODY_BYTES),
            body: Vec::new(),
        }
    }
}

impl ApiResponseReader {
    /// Reads bytes, and returns the response once it is complete. Bytes after the response are dropped.
    ///
    /// # Errors
    /// When the bytes are not an HTTP/1.1 response, or its body is larger than 1 MiB.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<ApiResponse>, Http1Error> {
        let body = &mut self.body;
        let read = self
            .responses
            .consume(bytes, |data| body.extend_from_slice(data));
        Ok(read?.1.map(|response| self.take_response(&response)))
    }

    /// Handles the end of the connection, and returns the response that ends with it, if there is one.
    ///
    /// # Errors
    /// When the connection ends within a response.
    pub fn finish(&mut self) -> Result<Option<ApiResponse>, Http1Error> {
        let ended = self.responses.on_end_of_stream()?;
        Ok(ended.map(|response| self.take_response(&response)))
    }

    fn take_response(&mut self, response: &HttpResponse) -> ApiResponse {
        ApiResponse {
            status: response.status,
            body: std::mem::take(&mut self.body),
            closes: response.closes,
        }
    }

    /// Returns whether a response has begun to arrive.
    pub fn has_begun(&self) -> bool {
        self.responses.has_begun()
    }

    /// Resets the reader for the next response.
    pub fn clear(&mut self) {
        *self = ApiResponseReader::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], piece: usize) -> Result<Option<ApiResponse>, Http1Error> {
        let mut reader = ApiResponseReader::default();
        let mut answer = None;
        for part in bytes.chunks(piece) {
            assert!(answer.is_none(), "the answer came before its end");
            answer = reader.read(part)?;
        }
        match answer {
            None => reader.finish(),
            answer => {
                assert!(!reader.has_begun());
                Ok(answer)
            }
        }
    }

    #[test]
    fn responses_parse_in_any_split() {
        for (bytes, status, body, closes) in [
            (
                &b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nConnection: close\r\n\r\n{\"a\"}"[..],
                404,
                &b"{\"a\"}"[..],
                true,
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX: y\r\n\r\n",
                200,
                b"abcde",
                false,
            ),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", false),
            (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, b"to the end", true),
        ] {
            for piece in 1..=bytes.len() {
                let answer = read(bytes, piece).unwrap().unwrap();
                assert_eq!((answer.status, answer.closes), (status, closes));
                assert_eq!(answer.body, body);
            }
        }
    }

    #[test]
    fn oversized_content_length_is_rejected() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n";
        assert_eq!(
            read(head, 100),
            Err(Http1Error::BodyTooLong(MAX_BODY_BYTES))
        );
    }

    #[test]
    fn content_type_is_sent_with_body() {
        let mut out = Vec::new();
        write_post(&mut out, "h:1", "/x", &[], b"");
        let own = [("x-tenant".to_owned(), "7".to_owned())];
        write_post(&mut out, "h:1", "/x", &own, b"{}");
        let expected = "POST /x HTTP/1.1\r\nHost: h:1\r\nContent-Length: 0\r\nAccept: application/json\r\n\r\n\
            POST /x HTTP/1.1\r\nHost: h:1\r\nContent-Length: 2\r\nAccept: application/json\r\nContent-Type: application/json\r\nx-tenant: 7\r\n\r\n{}";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
