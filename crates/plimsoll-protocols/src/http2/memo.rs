//! A cache of decoded header blocks.
//!
//! A steady block ([`plimsoll_wire::hpack::DecodedBlock`]) depends on its bytes alone until another block
//! changes the dynamic table. A server's blocks soon become steady and repeat, so the last few are kept with
//! their meaning and recognised by comparing bytes.

use plimsoll_engine::prefetch::prefetch;

/// The number of blocks that are kept.
const REMEMBERED_BLOCKS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Remembered<T, const LEN: usize> {
    says: T,
    length: u8,
    block: [u8; LEN],
}

#[derive(Debug)]
struct Blocks<T, const LEN: usize> {
    /// How many blocks were stored. The next one goes to this index modulo the ring's length.
    count: usize,
    blocks: [Remembered<T, LEN>; REMEMBERED_BLOCKS],
}

/// A cache of the last few blocks of at most `LEN` bytes. It is allocated when the first block is stored.
#[derive(Debug)]
pub(crate) struct Memo<T, const LEN: usize>(Option<Box<Blocks<T, LEN>>>);

impl<T, const LEN: usize> Default for Memo<T, LEN> {
    fn default() -> Memo<T, LEN> {
        Memo(None)
    }
}

/// Compares two slices. Those compared here are mostly a few bytes long, for which a call of `memcmp` would
/// cost more than the comparison.
#[inline(always)]
pub(crate) fn are_same(a: &[u8], b: &[u8]) -> bool {
    #[inline(always)]
    fn ends<const N: usize>(a: &[u8], b: &[u8]) -> bool {
        a.first_chunk::<N>() == b.first_chunk() && a.last_chunk::<N>() == b.last_chunk()
    }
    if a.len() != b.len() {
        return false;
    }
    match a.len() {
        0..4 => a.iter().eq(b),
        4..8 => ends::<4>(a, b),
        8..=16 => ends::<8>(a, b),
        _ => a == b,
    }
}

impl<T: Copy, const LEN: usize> Memo<T, LEN> {
    #[inline(always)]
    pub(crate) fn get(&self, block: &[u8]) -> Option<&T> {
        let memo = self.0.as_deref()?;
        let is_it = |it: &&Remembered<T, LEN>| {
            let known = it.block.get(..it.length as usize).unwrap_or_default();
            are_same(known, block)
        };
        let found = memo.blocks.iter().take(memo.count).find(is_it)?;
        Some(&found.says)
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
        let mut remembered = Remembered {
            says,
            length: block.len() as u8,
            block: [0; LEN],
        };
        remembered.block[..block.len()].copy_from_slice(block);
        let memo = self.0.get_or_insert_with(|| {
            Box::new(Blocks {
                count: 0,
                blocks: [remembered; REMEMBERED_BLOCKS],
            })
        });
        memo.blocks[memo.count % REMEMBERED_BLOCKS] = remembered;
        memo.count += 1;
    }

    /// Discards all blocks, because the dynamic table has changed.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |_| size_of::<Blocks<T, LEN>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_detects_any_byte_difference() {
        for length in 0..40 {
            let bytes: Vec<u8> = (0..length).collect();
            assert!(are_same(&bytes, &bytes.clone()));
            for place in 0..bytes.len() {
                let mut other = bytes.clone();
                other[place] ^= 0x80;
                assert!(!are_same(&bytes, &other), "{place} of {length}");
                assert!(!are_same(&bytes, &bytes[..place]), "{place} of {length}");
            }
        }
    }
}
