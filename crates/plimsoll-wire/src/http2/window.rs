//! Flow control of received data (RFC 9113 §6.9).

use super::{ErrorCode, Violation};

/// Maximum window size in bytes (RFC 9113 §6.9.1).
pub const MAX_WINDOW_BYTES: u32 = 0x7fff_ffff;

/// The receive window of a stream or a connection: the number of bytes that the peer may still send.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWindow {
    size: u32,
    /// Number of bytes that the peer may still send; negative after SETTINGS reduced the window.
    left: i32,
    /// Number of bytes that were processed and that the peer may not yet send again, because no WINDOW_UPDATE was sent
    /// for them.
    unreturned: u32,
}

impl ReceiveWindow {
    /// Creates a window of `size` bytes, at most [`MAX_WINDOW_BYTES`].
    pub fn new(size: u32) -> ReceiveWindow {
        ReceiveWindow {
            size,
            left: size as i32,
            unreturned: 0,
        }
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Returns whether at least half of the window is in use.
    pub fn is_half_used(&self) -> bool {
        self.left <= (self.size / 2) as i32
    }

    /// Changes the window to `size` after the peer acknowledged SETTINGS (RFC 9113 §6.9.2); returns the
    /// WINDOW_UPDATE increment to send now, if any.
    pub fn resize(&mut self, size: u32) -> Option<u32> {
        self.left += size as i32 - self.size as i32;
        self.size = size;
        self.release(0)
    }

    /// Enlarges the window: the next WINDOW_UPDATE raises it to `size`.
    pub fn widen_to(&mut self, size: u32) {
        let more = size.saturating_sub(self.size);
        self.size += more;
        self.unreturned += more;
    }

    /// Subtracts received DATA, including padding, from the window. `stream` is 0 for the connection's window.
    ///
    /// # Errors
    /// Returns FLOW_CONTROL_ERROR if the peer sent more than the window allows.
    #[inline]
    pub fn receive(&mut self, stream: u32, length: u32) -> Result<(), Violation> {
        self.count_received(length);
        // An empty frame is allowed even if the window is negative.
        if self.left < 0 && length > 0 {
            return Err(self.overrun_violation(stream, length));
        }
        Ok(())
    }

    #[cold]
    fn overrun_violation(&mut self, stream: u32, length: u32) -> Violation {
        self.left = self.left.wrapping_add_unsigned(length);
        let left = self.left.max(0);
        let why = format!("{length} bytes of DATA in a window of {left} (RFC 9113, 6.9.1)");
        Violation::stream_error(stream, ErrorCode::FLOW_CONTROL_ERROR, why)
    }

    /// Counts processed bytes; returns the WINDOW_UPDATE increment to send now, if any.
    pub fn release(&mut self, length: u32) -> Option<u32> {
        self.unreturned += length;
        if self.unreturned == 0 || self.unreturned < self.size / 2 {
            return None;
        }
        self.left = self.left.saturating_add_unsigned(self.unreturned);
        Some(std::mem::take(&mut self.unreturned))
    }

    /// Counts all received bytes as processed, for callers that process data at once; returns the WINDOW_UPDATE
    /// increment to send now, if any.
    #[inline]
    pub(super) fn release_all(&mut self) -> Option<u32> {
        let used = self.size.wrapping_sub(self.left as u32);
        if used <= self.size / 4 {
            return None;
        }
        self.left = self.size as i32;
        Some(used)
    }

    /// Subtracts received DATA that is known to fit into the window.
    #[inline]
    pub(super) fn count_received(&mut self, length: u32) {
        self.left = self.left.wrapping_sub_unsigned(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_window_is_reusable() {
        let mut window = ReceiveWindow::new(100);
        window.receive(3, 100).unwrap();
        let error = window.receive(3, 1).unwrap_err();
        assert_eq!(
            (error.stream, error.code),
            (3, ErrorCode::FLOW_CONTROL_ERROR)
        );
        assert_eq!(window.release(49), None, "in few frames");
        assert_eq!(window.release(1), Some(50));
        window.receive(3, 50).unwrap();
        assert!(window.receive(3, 1).is_err());
        // An empty frame needs no window, and no update may be 0 (RFC 9113 §6.9).
        assert_eq!(ReceiveWindow::new(0).release(0), None);
        assert_eq!(ReceiveWindow::new(1).release(0), None);
    }

    #[test]
    fn widened_window_applies_on_update() {
        let mut window = ReceiveWindow::new(100);
        window.receive(1, 50).unwrap();
        assert!(window.is_half_used());
        window.widen_to(400);
        window.widen_to(300);
        assert!(window.receive(1, 51).is_err(), "the peer does not know yet");
        assert_eq!(window.release(50), Some(350));
        window.receive(1, 400).unwrap();
    }

    #[test]
    fn resize_keeps_bytes_in_use() {
        let mut window = ReceiveWindow::new(65_535);
        window.receive(1, 20).unwrap();
        assert_eq!(window.resize(10), None);
        assert!(window.receive(1, 1).is_err() && window.receive(1, 0).is_ok());
        assert_eq!(window.release(20), Some(20));
        window.receive(1, 10).unwrap();
        let mut window = ReceiveWindow::new(65_535);
        window.receive(1, 20).unwrap();
        assert_eq!(window.release(20), None);
        assert_eq!(window.resize(10), Some(20), "the peer could send nothing");
    }
}
