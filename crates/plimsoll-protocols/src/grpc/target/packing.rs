//! Compression of responses: a response is compressed if its request was, so that clients without compression
//! do not cost the server any.

use tonic::Response;
use tonic::metadata::MetadataMap;

/// Whether a request announces compressed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerPacking {
    Plain,
    Packed,
}

impl AnswerPacking {
    pub(super) fn of(metadata: &MetadataMap) -> AnswerPacking {
        match metadata.get("grpc-encoding") {
            Some(encoding) if encoding != "identity" => AnswerPacking::Packed,
            _ => AnswerPacking::Plain,
        }
    }

    /// Returns the response to such a request.
    pub(super) fn answer<T>(self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        if self == AnswerPacking::Plain {
            response.disable_compression();
        }
        response
    }
}
