//! Answers are packed as their requests were: a client that packs nothing costs the
//! server nothing for it.

use tonic::Response;
use tonic::metadata::MetadataMap;

/// Whether a request's messages may be packed.
pub(super) fn is_packed(metadata: &MetadataMap) -> bool {
    metadata
        .get("grpc-encoding")
        .is_some_and(|encoding| encoding != "identity")
}

/// An answer to a request that was packed, or was not.
pub(super) fn answer<T>(packed: bool, message: T) -> Response<T> {
    let mut response = Response::new(message);
    if !packed {
        response.disable_compression();
    }
    response
}
