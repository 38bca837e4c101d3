//! Header blocks that come again.
//!
//! A block that does not change the dynamic table is a pure function of its bytes until
//! one that does. A server's blocks soon are such, and repeat: the last few are
//! remembered with what they say and recognised by comparing bytes.

/// Blocks remembered.
const BLOCKS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Remembered<T, const LEN: usize> {
    says: T,
    length: u8,
    block: [u8; LEN],
}

#[derive(Debug)]
struct Blocks<T, const LEN: usize> {
    /// How many were remembered; the next goes to this place, modulo their number.
    count: usize,
    blocks: [Remembered<T, LEN>; BLOCKS],
}

/// What the last blocks of at most `LEN` bytes said; nothing on the heap until there is one.
#[derive(Debug)]
pub(crate) struct Memo<T, const LEN: usize>(Option<Box<Blocks<T, LEN>>>);

impl<T, const LEN: usize> Default for Memo<T, LEN> {
    fn default() -> Memo<T, LEN> {
        Memo(None)
    }
}

impl<T: Copy, const LEN: usize> Memo<T, LEN> {
    #[inline(always)]
    pub(crate) fn get(&self, block: &[u8]) -> Option<&T> {
        let memo = self.0.as_deref()?;
        let is_it = |it: &&Remembered<T, LEN>| {
            let known = it.block.get(..it.length as usize).unwrap_or_default();
            // In a steady connection a block is a few bytes: less than a call to compare them.
            let same = || match LEN {
                ..64 => known.iter().eq(block),
                _ => known == block,
            };
            known.len() == block.len() && same()
        };
        let found = memo.blocks.iter().take(memo.count).find(is_it)?;
        Some(&found.says)
    }

    /// Remembers a block, if it is not too long, that changed no table.
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
                blocks: [remembered; BLOCKS],
            })
        });
        memo.blocks[memo.count % BLOCKS] = remembered;
        memo.count += 1;
    }

    /// The table has changed.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |_| size_of::<Blocks<T, LEN>>())
    }
}
