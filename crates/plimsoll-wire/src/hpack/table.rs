//! The static table (RFC 7541, Appendix A) and the dynamic table (§2.3.2, §4).
//!
//! The dynamic table stores its strings in one buffer, oldest first, so that a connection with a few entries
//! costs a few hundred bytes and at most three allocations.

use std::collections::VecDeque;

use super::ENTRY_OVERHEAD_BYTES;

/// Names and values of the indices 1 to 61.
#[rustfmt::skip]
pub(super) static STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"),
    (":path", "/index.html"), (":scheme", "http"), (":scheme", "https"), (":status", "200"),
    (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""),
    ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""),
    ("authorization", ""), ("cache-control", ""), ("content-disposition", ""),
    ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""),
    ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""),
    ("range", ""), ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""),
    ("set-cookie", ""), ("strict-transport-security", ""), ("transfer-encoding", ""),
    ("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    start: u32,
    name: u32,
    value: u32,
}

impl TableEntry {
    fn size(self) -> usize {
        (self.name + self.value) as usize + ENTRY_OVERHEAD_BYTES
    }
}

/// The entries added by one direction's header blocks; index 0 is the newest.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// Entries, newest first, in the order of their indices.
    entries: VecDeque<TableEntry>,
    /// Names and values, oldest first; bytes before the oldest entry are unused.
    text: Vec<u8>,
    size: usize,
    max_size: usize,
}

impl DynamicTable {
    pub(super) fn new(max_size: u32) -> DynamicTable {
        DynamicTable {
            entries: VecDeque::new(),
            text: Vec::new(),
            size: 0,
            max_size: max_size as usize,
        }
    }

    /// Returns the size according to RFC 7541 §4.1, in bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns name and value of the entry at `index`; 0 is the newest.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        let start = entry.start as usize;
        let middle = start + entry.name as usize;
        Some((
            &self.text[start..middle],
            &self.text[middle..middle + entry.value as usize],
        ))
    }

    /// Adds an entry after evicting as many old ones as necessary. An entry that is larger than the table empties it
    /// (§4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + ENTRY_OVERHEAD_BYTES;
        self.evict_to_size(self.max_size.saturating_sub(size));
        if size > self.max_size {
            return;
        }
        self.compact_text();
        let entry = TableEntry {
            start: self.text.len() as u32,
            name: name.len() as u32,
            value: value.len() as u32,
        };
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(value);
        self.entries.push_front(entry);
        self.size += size;
    }

    /// Returns whether adding the last `added` entries again would leave the table unchanged: it is full, and
    /// contains only repetitions of these entries.
    pub(super) fn is_unchanged_by_repeating(&self, added: usize) -> bool {
        let all = self.entries.len();
        if added == 0 || added > all {
            return false;
        }
        let fits_one_more = self.size + self.entries[all % added].size() <= self.max_size;
        let mut pairs = added..all;
        !fits_one_more && pairs.all(|n| self.entry(n) == self.entry(n - added))
    }

    pub(super) fn resize(&mut self, max_size: u32) {
        self.max_size = max_size as usize;
        self.evict_to_size(self.max_size);
    }

    /// Returns the heap memory in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.entries.capacity() * size_of::<TableEntry>()
    }

    fn evict_to_size(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size();
        }
    }

    /// Moves the used text to the front when half of the buffer is unused, which limits the buffer to twice the table's
    /// size.
    fn compact_text(&mut self) {
        let dead = self
            .entries
            .back()
            .map_or(self.text.len(), |oldest| oldest.start as usize);
        if dead > 0 && dead * 2 >= self.text.len() {
            self.text.drain(..dead);
            for entry in &mut self.entries {
                entry.start -= dead as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_entries_are_evicted_first() {
        let mut table = DynamicTable::new(100);
        table.insert(b"aa", b"1");
        table.insert(b"bb", b"2");
        assert_eq!((table.size(), table.len()), (70, 2));
        table.insert(b"cc", b"3");
        assert_eq!((table.size(), table.len()), (70, 2));
        assert_eq!(table.entry(0), Some((&b"cc"[..], &b"3"[..])));
        assert_eq!(table.entry(1), Some((&b"bb"[..], &b"2"[..])));
        assert_eq!(table.entry(2), None);
        table.resize(40);
        assert_eq!(table.len(), 1);
        table.insert(b"too", b"large for a table of forty bytes");
        assert_eq!((table.size(), table.len()), (0, 0));
    }

    #[test]
    fn table_text_stays_bounded() {
        let mut table = DynamicTable::new(4096);
        for i in 0..100_000u32 {
            table.insert(b"x-number", i.to_string().as_bytes());
        }
        assert_eq!(table.entry(0), Some((&b"x-number"[..], &b"99999"[..])));
        assert!(table.heap_bytes() < 16 * 1024, "{}", table.heap_bytes());
    }
}
