//! Answers are packed as their requests were: a client that packs nothing costs the
//! server nothing for it.

use tonic::Response;
use tonic::metadata::MetadataMap;

/// How a request's messages may be packed.
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

    /// The answer to such a request.
    pub(super) fn answer<T>(self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        if self == Packing::Plain {
            response.disable_compression();
        }
        response
    }
}
