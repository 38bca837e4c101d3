//! A cache of decoded header blocks.
//!
//! The meaning of a steady block ([`plimsoll_wire::hpack::DecodedBlock`]) depends only on its bytes, until another
//! block changes the dynamic table. A server's blocks soon become steady and repeat. So the last few blocks are stored
//! with their meaning, and recognised by comparing bytes.

use plimsoll_engine::structures::prefetch::prefetch;

/// The number of blocks that are remembered.
const MAX_REMEMBERED_BLOCKS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct CacheEntry<T, const LEN: usize> {
    meaning: T,
    length: u8,
    block: [u8; LEN],
}

#[derive(Debug)]
struct CacheRing<T, const LEN: usize> {
    /// The number of blocks stored so far. The next block is stored at this index modulo the ring's length.
    count: usize,
    blocks: [CacheEntry<T, LEN>; MAX_REMEMBERED_BLOCKS],
}

/// A cache of the last few blocks of at most `LEN` bytes. It is allocated when the first block is stored.
#[derive(Debug)]
pub(crate) struct BlockCache<T, const LEN: usize>(Option<Box<CacheRing<T, LEN>>>);

impl<T, const LEN: usize> Default for BlockCache<T, LEN> {
    fn default() -> BlockCache<T, LEN> {
        BlockCache(None)
    }
}

/// Compares two slices. Most slices compared here are a few bytes long, for which a call of `memcmp` would cost
/// more than the comparison.
#[inline(always)]
pub(crate) fn bytes_equal(a: &[u8], b: &[u8]) -> bool {
    #[inline(always)]
    fn first_and_last_chunks_equal<const N: usize>(a: &[u8], b: &[u8]) -> bool {
        a.first_chunk::<N>() == b.first_chunk() && a.last_chunk::<N>() == b.last_chunk()
    }
    if a.len() != b.len() {
        return false;
    }
    match a.len() {
        0..4 => a.iter().eq(b),
        4..8 => first_and_last_chunks_equal::<4>(a, b),
        8..=16 => first_and_last_chunks_equal::<8>(a, b),
        _ => a == b,
    }
}

impl<T: Copy, const LEN: usize> BlockCache<T, LEN> {
    #[inline(always)]
    pub(crate) fn get(&self, block: &[u8]) -> Option<&T> {
        let memo = self.0.as_deref()?;
        let is_it = |it: &&CacheEntry<T, LEN>| {
            let known = it.block.get(..it.length as usize).unwrap_or_default();
            bytes_equal(known, block)
        };
        let found = memo.blocks.iter().take(memo.count).find(is_it)?;
        Some(&found.meaning)
    }

    /// Prefetches the cached blocks.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Some(memo) = &self.0 {
            prefetch(&**memo);
        }
    }

    /// Stores a steady block unless it is longer than `LEN`.
    pub(crate) fn put(&mut self, block: &[u8], says: T) {
        const { assert!(LEN <= u8::MAX as usize) };
        if block.len() > LEN {
            return;
        }
        let mut remembered = CacheEntry {
            meaning: says,
            length: block.len() as u8,
            block: [0; LEN],
        };
        remembered.block[..block.len()].copy_from_slice(block);
        let memo = self.0.get_or_insert_with(|| {
            Box::new(CacheRing {
                count: 0,
                blocks: [remembered; MAX_REMEMBERED_BLOCKS],
            })
        });
        memo.blocks[memo.count % MAX_REMEMBERED_BLOCKS] = remembered;
        memo.count += 1;
    }

    /// Discards all blocks, because the dynamic table has changed.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Returns the bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0
            .as_ref()
            .map_or(0, |_| size_of::<CacheRing<T, LEN>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_detects_any_byte_difference() {
        for length in 0..40 {
            let bytes: Vec<u8> = (0..length).collect();
            assert!(bytes_equal(&bytes, &bytes.clone()));
            for place in 0..bytes.len() {
                let mut other = bytes.clone();
                other[place] ^= 0x80;
                assert!(!bytes_equal(&bytes, &other), "{place} of {length}");
                assert!(!bytes_equal(&bytes, &bytes[..place]), "{place} of {length}");
            }
        }
    }
}
