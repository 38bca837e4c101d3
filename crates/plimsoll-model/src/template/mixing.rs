//! Numbers that look random, made of a number: a bijection, so that different ones stay different.
//!
//! That of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).

/// The step from one number to be mixed to the next.
pub(super) const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
