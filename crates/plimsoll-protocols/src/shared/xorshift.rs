//! Random numbers of one connection, for pauses and for the masks of WebSocket frames (RFC 6455 §5.3), which protect
//! against caching intermediaries, not against attackers. The same seed yields the same numbers.

/// The xorshift64* generator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Xorshift(u64);

impl Xorshift {
    /// Makes a generator; the seed must not be 0.
    pub(crate) fn new(seed: u64) -> Xorshift {
        Xorshift(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns the mask of a WebSocket frame.
    pub(crate) fn mask(&mut self) -> [u8; 4] {
        (self.next_u64() as u32).to_ne_bytes()
    }
}
