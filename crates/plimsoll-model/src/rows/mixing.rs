//! A mixing function: a bijection of 64-bit numbers whose results look random.
//!
//! The function is the one of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).

/// SplitMix64's increment between consecutive inputs.
pub(crate) const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mixes a text and a seed into a number.
pub(crate) fn mix_text(seed: u64, text: &str) -> u64 {
    let chunks = text.as_bytes().chunks(8);
    chunks.fold(mix(seed ^ text.len() as u64), |mixed, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(mixed.wrapping_add(GOLDEN_GAMMA) ^ u64::from_le_bytes(word))
    })
}
