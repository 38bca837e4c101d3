//! Compression of responses: a response is compressed if its request was, so that clients without compression
//! do not cost the server any.

use tonic::Response;
use tonic::metadata::MetadataMap;

/// Whether a request announces compressed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Packed,
}

impl Packing {
    pub(super) fn of(metadata: &MetadataMap) -> Packing {
        match metadata.get("grpc-encoding") {
            Some(encoding) if encoding != "identity" => Packing::Packed,
            _ => Packing::Plain,
        }
    }

    /// Returns the response to such a request.
    pub(super) fn answer<T>(self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        if self == Packing::Plain {
            response.disable_compression();
        }
        response
    }
}
