//! The largest head of an answer, as plans set it for HTTP and for what runs over it.

use plimsoll_model::spec::Problems;
use plimsoll_model::units::Size;
use plimsoll_wire::http2::MAX_HEADER_LIST;

/// A connection holds a head as a whole.
const MAX_HEAD: Size = Size(16 << 20);

/// What the key `max_head` of a section sets, in bytes; trailers are held to it, too.
pub(crate) fn max_head(problems: &mut Problems, section: &str, given: Option<Size>) -> u32 {
    let default = u64::from(MAX_HEADER_LIST);
    let max_head = given.map_or(default, |size| size.0);
    if !(default..=MAX_HEAD.0).contains(&max_head) {
        problems.add(
            format!("call.{section}.max_head"),
            "out of range: use 64KiB to 16MiB",
        );
    }
    max_head as u32
}
