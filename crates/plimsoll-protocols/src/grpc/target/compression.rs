//! Compresses a response only if its request announced compression, so the server spends no time on compression for
//! other clients.

use tonic::Response;
use tonic::metadata::MetadataMap;

/// Whether a request announces compressed messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseCompression {
    Plain,
    Compressed,
}

impl ResponseCompression {
    pub(super) fn from_metadata(metadata: &MetadataMap) -> ResponseCompression {
        match metadata.get("grpc-encoding") {
            Some(encoding) if encoding != "identity" => ResponseCompression::Compressed,
            _ => ResponseCompression::Plain,
        }
    }

    /// Builds a response with this message, compressed if the request was.
    pub(super) fn build_response<T>(self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        if self == ResponseCompression::Plain {
            response.disable_compression();
        }
        response
    }
}
