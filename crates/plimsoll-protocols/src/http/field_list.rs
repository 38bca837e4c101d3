//! The fields of an HTTP/2 header block in one reused buffer.

/// The fields of a block, stored one after another.
#[derive(Debug, Default)]
pub(super) struct FieldList {
    bytes: Vec<u8>,
    /// The offsets in `bytes` at which each name and each value ends.
    ends: Vec<(usize, usize)>,
}

impl FieldList {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(super) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(name);
        let end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((end, self.bytes.len()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        let places = starts.zip(&self.ends);
        places.map(|(start, &(middle, end))| (&self.bytes[start..middle], &self.bytes[middle..end]))
    }

    /// Returns the heap memory in use, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<(usize, usize)>()
    }
}
