//! Splits bytes into frames, without a copy if a frame is complete.
//!
//! [`for_each_frame`] is forcibly inlined: a frame header in registers can be used at once, while a header that was
//! written to memory field by field and read back as a whole stalls the processor for longer than handling the frame
//! takes.

use super::{ErrorCode, FrameHeader, Violation};

/// Calls `take` with header and payload of every complete frame at the beginning of `input`, and returns the remaining
/// bytes.
///
/// # Errors
/// Returns an error if a payload exceeds `max` bytes (RFC 9113 §4.2), or the error of `take`; later frames are not
/// processed.
#[inline(always)]
pub fn for_each_frame<'a, F>(
    mut input: &'a [u8],
    max: u32,
    mut take: F,
) -> Result<&'a [u8], Violation>
where
    F: FnMut(FrameHeader, &'a [u8]) -> Result<(), Violation>,
{
    while let Some((head, rest)) = input.split_first_chunk::<{ FrameHeader::LEN }>() {
        let head = FrameHeader::parse(head);
        if head.length() > max {
            return Err(frame_too_large_violation(head, max));
        }
        let Some((payload, rest)) = rest.split_at_checked(head.length() as usize) else {
            break;
        };
        input = rest;
        take(head, payload)?;
    }
    Ok(input)
}

/// Removes the next complete frame from the beginning of `input`; returns `None` if there is none.
///
/// # Errors
/// Returns an error if the next frame's payload exceeds `max` bytes (RFC 9113 §4.2).
pub fn split_frame<'a>(
    input: &mut &'a [u8],
    max: u32,
) -> Result<Option<(FrameHeader, &'a [u8])>, Violation> {
    let Some((head, rest)) = input.split_first_chunk::<{ FrameHeader::LEN }>() else {
        return Ok(None);
    };
    let head = FrameHeader::parse(head);
    if head.length() > max {
        return Err(frame_too_large_violation(head, max));
    }
    let Some((payload, rest)) = rest.split_at_checked(head.length() as usize) else {
        return Ok(None);
    };
    *input = rest;
    Ok(Some((head, payload)))
}

/// Moves bytes from `input` to `partial`, which contains an incomplete frame, until it contains exactly one complete
/// frame; returns false if `input` ended before that.
///
/// # Errors
/// Returns an error if the frame's payload exceeds `max` bytes (RFC 9113 §4.2).
pub(super) fn fill_partial_frame(
    partial: &mut Vec<u8>,
    input: &mut &[u8],
    max: u32,
) -> Result<bool, Violation> {
    let mut take = |partial: &mut Vec<u8>, length: usize| {
        let (taken, rest) = input.split_at((length - partial.len()).min(input.len()));
        partial.extend_from_slice(taken);
        *input = rest;
        partial.len() == length
    };
    if partial.len() < FrameHeader::LEN && !take(partial, FrameHeader::LEN) {
        return Ok(false);
    }
    let Some(head) = partial.first_chunk::<{ FrameHeader::LEN }>() else {
        return Ok(false);
    };
    let head = FrameHeader::parse(head);
    if head.length() > max {
        return Err(frame_too_large_violation(head, max));
    }
    Ok(take(partial, FrameHeader::LEN + head.length() as usize))
}

#[cold]
fn frame_too_large_violation(head: FrameHeader, max: u32) -> Violation {
    let why = format!(
        "a frame of {} bytes, over the limit of {max} (RFC 9113, 4.2)",
        head.length()
    );
    Violation::connection_error(ErrorCode::FRAME_SIZE_ERROR, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes PING-type frames with payloads of these lengths.
    fn frames(lengths: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &length in lengths {
            bytes.extend([0, 0, length, 6, 0, 0, 0, 0, length]);
            bytes.extend((0..length).map(|i| i ^ length));
        }
        bytes
    }

    /// Returns the streams and lengths of the frames that both [`for_each_frame`] and [`split_frame`] find, and the
    /// number of remaining bytes.
    fn whole(bytes: &[u8], max: u32) -> Result<(Vec<(u32, usize)>, usize), Violation> {
        let mut of_each = Vec::new();
        let left = for_each_frame(bytes, max, |head, payload| {
            of_each.push((head.stream(), payload.len()));
            Ok(())
        });
        let (mut of_split, mut rest) = (Vec::new(), bytes);
        let end = loop {
            match split_frame(&mut rest, max) {
                Ok(Some((head, payload))) => of_split.push((head.stream(), payload.len())),
                Ok(None) => break Ok(rest.len()),
                Err(e) => break Err(e),
            }
        };
        assert_eq!(of_each, of_split);
        match (left, end) {
            (Ok(left), Ok(end)) => {
                assert_eq!(left.len(), end);
                Ok((of_each, end))
            }
            (Err(left), Err(end)) => {
                assert_eq!(left.code, end.code);
                Err(left)
            }
            (left, end) => panic!("{left:?} {end:?}"),
        }
    }

    #[test]
    fn only_complete_frames_are_taken() {
        let bytes = frames(&[3, 0, 20]);
        for end in 0..=bytes.len() {
            let whole = whole(&bytes[..end], 20).unwrap();
            let expected: (&[_], _) = match end {
                0..12 => (&[], end),
                12..21 => (&[(3, 3)], end - 12),
                21..50 => (&[(3, 3), (0, 0)], end - 21),
                _ => (&[(3, 3), (0, 0), (20, 20)], 0),
            };
            assert_eq!((&whole.0[..], whole.1), expected, "{end}");
        }
        // A frame that is too large is rejected by its header.
        let error = whole(&bytes[..30], 19).unwrap_err();
        assert_eq!(error.code, ErrorCode::FRAME_SIZE_ERROR);
    }

    #[test]
    fn partial_frame_is_completed_without_overreading() {
        let bytes = frames(&[20, 1]);
        for cut in 0..29 {
            for piece in [1, 9, 100] {
                let mut partial = bytes[..cut].to_vec();
                let mut taken = cut;
                for part in bytes[cut..].chunks(piece) {
                    let mut input = part;
                    let is_whole = fill_partial_frame(&mut partial, &mut input, 20).unwrap();
                    taken += part.len() - input.len();
                    assert_eq!(is_whole, taken == 29);
                    if is_whole {
                        break;
                    }
                }
                assert_eq!(partial, bytes[..29]);
            }
        }
        let mut partial = bytes[..5].to_vec();
        let error = fill_partial_frame(&mut partial, &mut &bytes[5..], 19).unwrap_err();
        assert_eq!(error.code, ErrorCode::FRAME_SIZE_ERROR);
    }
}
