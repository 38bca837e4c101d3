//! Random numbers of one connection: pauses, and the masks of WebSocket frames (RFC 6455 §5.3), which guard against
//! caches in between and not against an enemy. The same seed draws the same numbers.

/// A generator of numbers (xorshift64*).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Xorshift(u64);

impl Xorshift {
    /// `seed`: not 0.
    pub(crate) fn new(seed: u64) -> Xorshift {
        Xorshift(seed)
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Draws the mask of a WebSocket frame.
    pub(crate) fn mask(&mut self) -> [u8; 4] {
        (self.draw() as u32).to_ne_bytes()
    }
}
