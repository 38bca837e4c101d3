//! The limit of a response's header list, which plans set for HTTP and for protocols on top of it.

use plimsoll_model::formats::units::ByteSize;
use plimsoll_model::spec::Problems;
use plimsoll_wire::http2::MAX_HEADER_LIST_BYTES;

/// The maximum value of the limit in a plan: a connection buffers a whole header block.
const MAX_HEAD_LIMIT: ByteSize = ByteSize(16 << 20);

/// The limit if the plan sets none.
pub(crate) const DEFAULT_MAX_HEAD: ByteSize = ByteSize(MAX_HEADER_LIST_BYTES as u64);

/// Resolves the key `max_head` of a section, in bytes. The limit applies to trailers, too. A value out of range is
/// reported in `problems`.
pub(crate) fn resolve_max_head(
    problems: &mut Problems,
    section: &str,
    given: Option<ByteSize>,
) -> u32 {
    let max_head = given.unwrap_or(DEFAULT_MAX_HEAD).0;
    if !(DEFAULT_MAX_HEAD.0..=MAX_HEAD_LIMIT.0).contains(&max_head) {
        problems.add(
            format!("call.{section}.max_head"),
            "out of range: use 64KiB to 16MiB",
        );
    }
    max_head as u32
}
