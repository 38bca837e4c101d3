//! Decodes header blocks to fields (RFC 7541 §3 and §6).

use super::table::{DynamicTable, STATIC_TABLE};
use super::{HpackError, huffman, integer};

/// A field of a decoded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderField<'a> {
    /// The name; lower case unless the peer violated RFC 9113 §8.2.1.
    pub name: &'a [u8],
    /// The value; HPACK allows all octets.
    pub value: &'a [u8],
    /// Whether the field was sent as "never indexed" because its value is sensitive (RFC 7541 §7.1.3).
    pub sensitive: bool,
}

/// The result of [`Decoder::decode`] for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedBlock {
    /// Whether the block added entries or resized the table, so that indices now refer to other entries.
    pub has_changed_table: bool,
    /// Whether decoding the same bytes again would produce the same fields and leave the table unchanged, until another
    /// block changes it. This is true for a block that adds no entries. It is also true for a block that refers to no
    /// dynamic entries, if the whole table consists of repetitions of the entries that the block adds.
    pub is_steady: bool,
    /// Whether the total size of the fields, including 32 bytes of overhead per field (RFC 9113 §6.5.2), exceeds the
    /// limit. The remaining fields were decoded, but not passed to the visitor.
    pub is_list_too_large: bool,
}

/// The decoding state of one direction of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// The SETTINGS_HEADER_TABLE_SIZE that this end has announced.
    max_table_size: u32,
    max_list_size: u32,
}

impl Decoder {
    /// Creates a decoder. `max_table_size` is the SETTINGS_HEADER_TABLE_SIZE announced to the peer, and `max_list_size`
    /// is the size at which a field list is cut off; both in bytes.
    pub fn new(max_table_size: u32, max_list_size: u32) -> Decoder {
        Decoder {
            table: DynamicTable::new(max_table_size),
            max_table_size,
            max_list_size,
        }
    }

    /// Decodes one complete header block and passes its fields to `visit`, in order.
    ///
    /// # Errors
    /// Returns an error if the block violates RFC 7541. The compression state is then lost, and the connection must be
    /// closed with COMPRESSION_ERROR (RFC 9113 §4.3). Fields before the error have already been passed to `visit`.
    pub fn decode<F>(&mut self, block: &[u8], mut visit: F) -> Result<DecodedBlock, HpackError>
    where
        F: FnMut(HeaderField<'_>),
    {
        let mut decoded = DecodedBlock {
            has_changed_table: false,
            is_steady: true,
            is_list_too_large: false,
        };
        let (mut added, mut resized, mut highest) = (0, false, 0);
        let mut left = self.max_list_size as usize;
        let mut show = |field: HeaderField<'_>| {
            let size = field.name.len() + field.value.len() + super::ENTRY_OVERHEAD_BYTES;
            match left.checked_sub(size) {
                Some(rest) if !decoded.is_list_too_large => {
                    left = rest;
                    visit(field);
                }
                _ => decoded.is_list_too_large = true,
            }
        };
        let mut name_text = Vec::new();
        let mut value_text = Vec::new();
        let mut at = 0;
        let mut fields_began = false;
        while let Some(&first) = block.get(at) {
            if first & 0xe0 == 0x20 {
                if fields_began {
                    return Err(HpackError::MisplacedSizeUpdate);
                }
                let size = integer::decode(block, &mut at, 5)?;
                if size > self.max_table_size {
                    return Err(HpackError::SizeUpdateTooLarge {
                        size,
                        limit: self.max_table_size,
                    });
                }
                self.table.resize(size);
                resized = true;
                continue;
            }
            fields_began = true;
            if first & 0x80 != 0 {
                let index = integer::decode(block, &mut at, 7)?;
                highest = index.max(highest);
                let (name, value) = self.indexed_field(index)?;
                show(HeaderField {
                    name,
                    value,
                    sensitive: false,
                });
            } else if first & 0x40 != 0 {
                let index = integer::decode(block, &mut at, 6)?;
                highest = index.max(highest);
                if index == 0 {
                    let name = read_string(block, &mut at, &mut name_text)?;
                    let value = read_string(block, &mut at, &mut value_text)?;
                    show(HeaderField {
                        name,
                        value,
                        sensitive: false,
                    });
                    self.table.insert(name, value);
                } else {
                    // The insertion may evict the entry that contains the name, so the name is copied.
                    name_text.clear();
                    name_text.extend_from_slice(self.indexed_field(index)?.0);
                    let value = read_string(block, &mut at, &mut value_text)?;
                    show(HeaderField {
                        name: &name_text,
                        value,
                        sensitive: false,
                    });
                    self.table.insert(&name_text, value);
                }
                added += 1;
            } else {
                let sensitive = first & 0x10 != 0;
                let index = integer::decode(block, &mut at, 4)?;
                highest = index.max(highest);
                let name = match index {
                    0 => read_string(block, &mut at, &mut name_text)?,
                    _ => self.indexed_field(index)?.0,
                };
                let value = read_string(block, &mut at, &mut value_text)?;
                show(HeaderField {
                    name,
                    value,
                    sensitive,
                });
            }
        }
        decoded.has_changed_table = resized || added > 0;
        // If the block adds entries, its indices into the dynamic table refer to other entries the next time, so it may
        // contain only static ones.
        let is_alike =
            highest as usize <= STATIC_TABLE.len() && self.table.is_unchanged_by_repeating(added);
        decoded.is_steady = !resized && (added == 0 || is_alike);
        Ok(decoded)
    }

    /// Returns the heap memory in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.table.heap_bytes()
    }

    #[inline]
    fn indexed_field(&self, index: u32) -> Result<(&[u8], &[u8]), HpackError> {
        let bad = HpackError::BadIndex(index);
        let place = (index as usize).checked_sub(1).ok_or(bad)?;
        match STATIC_TABLE.get(place) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => self.table.entry(place - STATIC_TABLE.len()).ok_or(bad),
        }
    }
}

/// Reads a string literal (RFC 7541 §5.2); `text` is the buffer for Huffman-coded ones.
#[inline]
fn read_string<'a>(
    block: &'a [u8],
    at: &mut usize,
    text: &'a mut Vec<u8>,
) -> Result<&'a [u8], HpackError> {
    let huffman_coded = block.get(*at).ok_or(HpackError::Truncated)? & 0x80 != 0;
    let length = integer::decode(block, at, 7)? as usize;
    let end = at.checked_add(length).ok_or(HpackError::Truncated)?;
    let raw = block.get(*at..end).ok_or(HpackError::Truncated)?;
    *at = end;
    if !huffman_coded {
        return Ok(raw);
    }
    text.clear();
    huffman::decode(raw, text)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
