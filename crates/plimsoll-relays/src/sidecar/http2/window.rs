//! Flow control windows (RFC 9113, 6.9).

use plimsoll_wire::http2::{ErrorCode, MAX_WINDOW, Violation};

/// What the peer may still send here. Bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveWindow {
    size: u32,
    left: u32,
    /// Passed on, and not yet given back to the peer.
    owed: u32,
}

impl ReceiveWindow {
    pub(super) fn new(size: u32) -> ReceiveWindow {
        ReceiveWindow {
            size,
            left: size,
            owed: 0,
        }
    }

    /// Half of it, or more, is under way or waits.
    pub(super) fn is_half_used(&self) -> bool {
        self.left <= self.size / 2
    }

    /// Lets more wait from now on: the next bytes that are given back bring it to `size`.
    pub(super) fn widen_to(&mut self, size: u32) {
        if size > self.size {
            self.owed += size - self.size;
            self.size = size;
        }
    }

    /// # Errors
    /// The peer sent more than it might.
    pub(super) fn take(&mut self, stream: u32, length: u32) -> Result<(), Violation> {
        self.left = self.left.checked_sub(length).ok_or_else(|| {
            let why = format!(
                "{length} bytes of DATA in a window of {} (RFC 9113, 6.9.1)",
                self.left
            );
            Violation::stream(stream, ErrorCode::FLOW_CONTROL_ERROR, why)
        })?;
        Ok(())
    }

    /// Bytes have been passed on; the update that the peer is due now, in few frames.
    pub(super) fn give_back(&mut self, length: u32) -> Option<u32> {
        self.owed += length;
        if self.owed < self.size / 2 {
            return None;
        }
        self.left += self.owed;
        Some(std::mem::take(&mut self.owed))
    }
}

/// The sum, if it is a window.
///
/// # Errors
/// It is over 2³¹−1.
pub(super) fn widen(window: i64, by: i64, stream: u32) -> Result<i64, Violation> {
    let window = window + by;
    if window > i64::from(MAX_WINDOW) {
        let why = "a window over 2147483647 bytes (RFC 9113, 6.9.1)";
        return Err(Violation::stream(
            stream,
            ErrorCode::FLOW_CONTROL_ERROR,
            why,
        ));
    }
    Ok(window)
}
