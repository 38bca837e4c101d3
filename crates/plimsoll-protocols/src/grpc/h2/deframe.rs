//! Bytes in any split to whole frames, in place where a frame is whole.
//!
//! [`each`] is put in line by force: a frame's head in registers is read at once, one
//! that was written to memory field by field and read back whole stalls the processor
//! for longer than the frame's handling takes.

use super::{ErrorCode, FrameHead, Violation};

/// Calls `take` with the head and payload of every whole frame at the front of `input`,
/// and returns the bytes after them.
///
/// # Errors
/// A frame's payload is over `max` bytes (RFC 9113, 4.2), or `take`'s own; the frames
/// after it are not looked at.
#[inline(always)]
pub fn each<'a, F>(mut input: &'a [u8], max: u32, mut take: F) -> Result<&'a [u8], Violation>
where
    F: FnMut(FrameHead, &'a [u8]) -> Result<(), Violation>,
{
    while let Some((head, rest)) = input.split_first_chunk::<{ FrameHead::LEN }>() {
        let head = FrameHead::parse(head);
        if head.length() > max {
            return Err(too_large(head, max));
        }
        let Some((payload, rest)) = rest.split_at_checked(head.length() as usize) else {
            break;
        };
        input = rest;
        take(head, payload)?;
    }
    Ok(input)
}

/// Takes the next whole frame off the front of `input`; `None` if there is none.
///
/// # Errors
/// The next frame's payload is over `max` bytes (RFC 9113, 4.2).
pub fn split<'a>(
    input: &mut &'a [u8],
    max: u32,
) -> Result<Option<(FrameHead, &'a [u8])>, Violation> {
    let Some((head, rest)) = input.split_first_chunk::<{ FrameHead::LEN }>() else {
        return Ok(None);
    };
    let head = FrameHead::parse(head);
    if head.length() > max {
        return Err(too_large(head, max));
    }
    let Some((payload, rest)) = rest.split_at_checked(head.length() as usize) else {
        return Ok(None);
    };
    *input = rest;
    Ok(Some((head, payload)))
}

/// Moves bytes from `input` to `partial`, which holds the beginning of a frame, until
/// it is exactly one frame; false if `input` was used up before that.
///
/// # Errors
/// The frame's payload is over `max` bytes (RFC 9113, 4.2).
pub fn complete(partial: &mut Vec<u8>, input: &mut &[u8], max: u32) -> Result<bool, Violation> {
    let mut take = |partial: &mut Vec<u8>, length: usize| {
        let (taken, rest) = input.split_at((length - partial.len()).min(input.len()));
        partial.extend_from_slice(taken);
        *input = rest;
        partial.len() == length
    };
    if partial.len() < FrameHead::LEN && !take(partial, FrameHead::LEN) {
        return Ok(false);
    }
    let Some(head) = partial.first_chunk::<{ FrameHead::LEN }>() else {
        return Ok(false);
    };
    let head = FrameHead::parse(head);
    if head.length() > max {
        return Err(too_large(head, max));
    }
    Ok(take(partial, FrameHead::LEN + head.length() as usize))
}

#[cold]
fn too_large(head: FrameHead, max: u32) -> Violation {
    let why = format!(
        "a frame of {} bytes, over the limit of {max} (RFC 9113, 4.2)",
        head.length()
    );
    Violation::connection(ErrorCode::FRAME_SIZE_ERROR, why)
}
