//! Validation of the values that a plugin returned, before they are used.
//!
//! Invariant: a returned frame lies within the input, its payload lies within the frame, and its length is above 0, so
//! that a caller that removes frames from a buffer always advances and never passes its end. The functions are pure and
//! call no plugin.

use std::time::Duration;

use crate::abi::{self, parse_frame_kind as kinds, result_code};
use crate::frame::{DecodeResult, Frame, FrameKind, Match};

/// The reason why a connection cannot continue: a fault of the peer or of the plugin.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecFault {
    // The next two variants are faults of the peer.
    #[error("the bytes are not a frame")]
    Malformed,
    #[error("a frame of {length} bytes, over the limit of {limit}")]
    TooLong {
        length: u64,
        limit: usize,
        /// The known properties of the frame, if there are any.
        head: Option<PartialFrame>,
    },

    // The other variants are faults of the plugin.
    #[error("the plugin failed (it panicked, or returned PLIMSOLL_FAILED)")]
    Failed,
    #[error("the plugin's `{function}` returned {result}, which is not a valid result")]
    Result { function: &'static str, result: i32 },
    #[error("the plugin claims a frame of {length} bytes, but only {given} are available")]
    BeyondInput { length: u64, given: usize },
    #[error("the plugin claims an empty frame")]
    Empty,
    #[error("the plugin asks for {needed} bytes although {given} are available already")]
    MoreAgain { needed: u64, given: usize },
    #[error("the plugin claims a payload of {length} bytes at {at}, in a frame of {frame} bytes")]
    Payload { at: u64, length: u64, frame: u64 },
    #[error("the plugin claims a frame of kind {0}, expected 0 to 3")]
    Kind(u32),
    #[error("the plugin's heartbeat is {0}, expected 0 or 1")]
    Heartbeat(u32),
    #[error(
        "the plugin's `{function}` claims to have written {length} bytes into a buffer of {room}"
    )]
    Written {
        function: &'static str,
        length: u64,
        room: usize,
    },
    #[error(
        "the plugin's `{function}` needs a buffer of {needed} bytes, but at most {room} are allowed"
    )]
    Room {
        function: &'static str,
        needed: u64,
        room: usize,
    },
}

/// The known properties of an incomplete frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialFrame {
    /// The frame's id; not 0.
    pub id: u64,
    /// An opaque value from the plugin, which is passed back to it.
    pub note: u64,
    /// The kind of the frame.
    pub kind: FrameKind,
}

impl CodecFault {
    /// Returns whether the plugin caused the fault, and not the peer.
    pub fn is_plugin_fault(self) -> bool {
        !matches!(self, CodecFault::Malformed | CodecFault::TooLong { .. })
    }
}

/// Returns the fault for a result code other than success.
#[cold]
fn fault_from_result(function: &'static str, result: i32) -> CodecFault {
    match result {
        result_code::MALFORMED => CodecFault::Malformed,
        result_code::FAILED => CodecFault::Failed,
        result => CodecFault::Result { function, result },
    }
}

/// Converts the result code of `match`.
///
/// # Errors
/// Returns an error if the code is not allowed for `match`.
pub fn check_match(result: i32) -> Result<Match, CodecFault> {
    match result {
        result_code::OK => Ok(Match::Yes),
        result_code::MORE => Ok(Match::More),
        result_code::MALFORMED => Ok(Match::No),
        result => Err(fault_from_result("match", result)),
    }
}

/// Validates the result of `decode` for `given` bytes. Frames may have at most `limit` bytes.
///
/// # Errors
/// Returns an error if the bytes are not a frame, or the plugin's values are inconsistent.
#[inline]
pub fn check_decode(
    result: i32,
    frame: &abi::Frame,
    given: usize,
    limit: usize,
) -> Result<DecodeResult, CodecFault> {
    match result {
        result_code::OK => check_complete_frame(frame, given, limit).map(DecodeResult::Frame),
        result_code::MORE => check_incomplete_frame(frame, given, limit),
        result => Err(fault_from_result("decode", result)),
    }
}

fn check_incomplete_frame(
    frame: &abi::Frame,
    given: usize,
    limit: usize,
) -> Result<DecodeResult, CodecFault> {
    let needed = frame.length;
    if needed > limit as u64 || given >= limit {
        return Err(frame_too_long_fault(frame, given, limit));
    }
    if needed == 0 {
        return Ok(DecodeResult::More(None));
    }
    if needed <= given as u64 {
        return Err(CodecFault::MoreAgain { needed, given });
    }
    // The cast is lossless: the value is at most the limit, a usize.
    Ok(DecodeResult::More(Some(needed as usize)))
}

#[inline]
fn check_complete_frame(
    frame: &abi::Frame,
    given: usize,
    limit: usize,
) -> Result<Frame, CodecFault> {
    if frame.length == 0 {
        return Err(CodecFault::Empty);
    }
    if frame.length > given as u64 {
        return Err(CodecFault::BeyondInput {
            length: frame.length,
            given,
        });
    }
    if frame.length > limit as u64 {
        return Err(frame_too_long_fault(frame, given, limit));
    }
    let payload_end = frame.payload_at.checked_add(frame.payload_length);
    if payload_end.is_none_or(|end| end > frame.length) {
        return Err(CodecFault::Payload {
            at: frame.payload_at,
            length: frame.payload_length,
            frame: frame.length,
        });
    }
    // The casts are lossless: all values are at most `given`, a usize.
    let payload_at = frame.payload_at as usize;
    Ok(Frame {
        length: frame.length as usize,
        id: frame.id,
        note: frame.note,
        kind: parse_frame_kind(frame)?,
        payload: payload_at..payload_at + frame.payload_length as usize,
    })
}

/// Returns the fault for a frame over the limit. The request can be answered only if both its id and its length are
/// known.
fn frame_too_long_fault(frame: &abi::Frame, given: usize, limit: usize) -> CodecFault {
    let is_known = frame.id != 0 && frame.length >= given.min(limit) as u64;
    let head = parse_frame_kind(frame)
        .ok()
        .filter(|_| is_known)
        .map(|kind| PartialFrame {
            id: frame.id,
            note: frame.note,
            kind,
        });
    CodecFault::TooLong {
        length: frame.length.max(given as u64),
        limit,
        head,
    }
}

#[inline]
fn parse_frame_kind(frame: &abi::Frame) -> Result<FrameKind, CodecFault> {
    let heartbeat = match frame.heartbeat {
        0 => false,
        1 => true,
        other => return Err(CodecFault::Heartbeat(other)),
    };
    Ok(match (frame.kind, heartbeat) {
        (kinds::REQUEST | kinds::ONEWAY, true) => FrameKind::Heartbeat,
        (kinds::RESPONSE, true) => FrameKind::HeartbeatAck,
        (kinds::REQUEST, false) => FrameKind::Request {
            timeout: (frame.timeout_ms > 0).then(|| Duration::from_millis(frame.timeout_ms.into())),
        },
        (kinds::ONEWAY, false) => FrameKind::Oneway,
        (kinds::RESPONSE, false) => FrameKind::Response {
            status: frame.status,
        },
        (kinds::GOAWAY, _) => FrameKind::GoAway,
        (other, _) => return Err(CodecFault::Kind(other)),
    })
}

/// The result of writing a frame into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// The length of the frame: at least 1 and at most the buffer's size.
    Bytes(usize),
    /// The buffer was too small; contains the required size.
    TooSmall(usize),
    /// The protocol has no such frame.
    Nothing,
}

/// Validates the result code and length that `encode` or `make` returned for a buffer of `room` bytes. The buffer may
/// have at most `most` bytes.
///
/// # Errors
/// Returns an error if the input is not a frame, or the plugin's values are inconsistent.
#[inline]
pub fn check_write(
    function: &'static str,
    result: i32,
    length: u64,
    room: usize,
    most: usize,
) -> Result<WriteResult, CodecFault> {
    match result {
        result_code::OK if length == 0 => Err(CodecFault::Empty),
        result_code::OK if length > room as u64 => Err(CodecFault::Written {
            function,
            length,
            room,
        }),
        result_code::OK => Ok(WriteResult::Bytes(length as usize)),
        result_code::NEEDS_ROOM if length <= room as u64 || length > most as u64 => {
            Err(CodecFault::Room {
                function,
                needed: length,
                room: most,
            })
        }
        result_code::NEEDS_ROOM => Ok(WriteResult::TooSmall(length as usize)),
        result_code::NONE if function == "make" => Ok(WriteResult::Nothing),
        result => Err(fault_from_result(function, result)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Generates boundary values and arbitrary numbers.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![
            0u64..200,
            any::<u64>(),
            (0u64..64).prop_map(|n| u64::MAX - n),
            (0u64..64).prop_map(|n| (1 << 63) - n),
            (0u64..64).prop_map(|n| (1 << 32) - n),
        ]
    }

    proptest! {
        #[test]
        fn decoded_frame_stays_within_input(
            result in prop_oneof![Just(0), -2i32..8, any::<i32>()],
            (length, id, note, payload_at, payload_length) in
                (number(), number(), number(), number(), number()),
            kind in prop_oneof![0u32..6, any::<u32>()],
            heartbeat in prop_oneof![0u32..3, any::<u32>()],
            timeout_ms in any::<u32>(),
            given in 0usize..300,
            limit in 1usize..300,
        ) {
            let frame = abi::Frame {
                length, id, note, payload_at, payload_length, kind, heartbeat, timeout_ms,
                status: 0,
            };
            match check_decode(result, &frame, given, limit) {
                Ok(DecodeResult::Frame(seen)) => {
                    prop_assert!(seen.length > 0 && seen.length <= given && seen.length <= limit);
                    prop_assert!(seen.payload.start <= seen.payload.end);
                    prop_assert!(seen.payload.end <= seen.length);
                    prop_assert_eq!((seen.id, seen.note), (id, note));
                }
                Ok(DecodeResult::More(Some(needed))) => {
                    prop_assert!(needed > given && needed <= limit);
                }
                // Without a known length the caller's buffer must stay bounded.
                Ok(DecodeResult::More(None)) => prop_assert!(given < limit),
                Err(fault) => prop_assert!(!fault.to_string().is_empty()),
            }
        }

        #[test]
        fn written_bytes_never_exceed_buffer(
            result in prop_oneof![Just(0), Just(3), any::<i32>()],
            length in number(), room in 0usize..300, more in 0usize..300,
        ) {
            match check_write("make", result, length, room, room + more) {
                Ok(WriteResult::Bytes(bytes)) => prop_assert!(bytes > 0 && bytes <= room),
                Ok(WriteResult::TooSmall(needed)) => {
                    prop_assert!(needed > room && needed <= room + more);
                }
                Ok(WriteResult::Nothing) => prop_assert_eq!(result, 4),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn faults_distinguish_plugin_and_peer() {
        assert!(!CodecFault::Malformed.is_plugin_fault());
        let frame = abi::Frame {
            length: 90,
            ..abi::Frame::default()
        };
        let fault = check_decode(0, &frame, 80, 1000).unwrap_err();
        assert!(fault.is_plugin_fault());
        assert_eq!(
            fault.to_string(),
            "the plugin claims a frame of 90 bytes, but only 80 are available"
        );
        assert_eq!(
            check_decode(-1, &frame, 80, 1000).unwrap_err().to_string(),
            "the plugin's `decode` returned -1, which is not a valid result"
        );
        let fault = check_decode(1, &frame, 80, 85).unwrap_err();
        assert_eq!(
            fault,
            CodecFault::TooLong {
                length: 90,
                limit: 85,
                head: None,
            }
        );
        // The call can be answered by its id.
        let known = abi::Frame { id: 7, ..frame };
        let Err(CodecFault::TooLong { head, .. }) = check_decode(1, &known, 80, 85) else {
            panic!("{fault}");
        };
        assert_eq!(head.map(|head| head.id), Some(7));
        // Without its length, the next frame cannot be found.
        let endless = abi::Frame { length: 0, ..known };
        let fault = check_decode(1, &endless, 90, 85).unwrap_err();
        assert!(
            matches!(fault, CodecFault::TooLong { head: None, .. }),
            "{fault}"
        );
    }
}
