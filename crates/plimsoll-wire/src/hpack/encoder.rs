//! Encodes fields to header blocks, designed for blocks that are encoded once and sent many times.
//!
//! A repeated header list has three blocks: the *first* block adds its fields to the peer's dynamic table, the *steady*
//! block for later requests consists of indices only, and the *plain* block leaves the table unchanged, for a peer
//! whose table is too small. [`PeerTable`] has the connection's state and chooses the block for the next request.

use super::table::{DynamicTable, STATIC_TABLE};
use super::{DEFAULT_TABLE_BYTES, HeaderField, huffman, integer};

/// An encoder with a model of the peer's dynamic table.
#[derive(Debug)]
pub struct Encoder {
    table: DynamicTable,
    inserted_bytes: usize,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder {
            table: DynamicTable::new(DEFAULT_TABLE_BYTES),
            inserted_bytes: 0,
        }
    }
}

impl Encoder {
    /// Encodes `fields`, and adds those that are in neither table to the dynamic table.
    pub fn encode<'a>(&mut self, fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
        self.encode_block(fields, true)
    }

    /// Appends one field, as an index if a table contains it. Otherwise, adds it to the dynamic table if `keep` is set
    /// and it is not sensitive (RFC 7541 §6.2.3). Returns whether the table has changed.
    fn encode_field(&mut self, field: HeaderField<'_>, keep: bool, block: &mut Vec<u8>) -> bool {
        let HeaderField {
            name,
            value,
            sensitive,
        } = field;
        let (exact, by_name) = self.find(name, value);
        if sensitive {
            append_literal(by_name, 4, 0x10, name, value, block);
            return false;
        }
        if let Some(index) = exact {
            integer::encode(index, 7, 0x80, block);
            return false;
        }
        if !keep {
            append_literal(by_name, 4, 0, name, value, block);
            return false;
        }
        append_literal(by_name, 6, 0x40, name, value, block);
        self.table.insert(name, value);
        self.inserted_bytes += name.len() + value.len() + super::ENTRY_OVERHEAD_BYTES;
        true
    }

    /// Encodes `fields` without using the dynamic table (RFC 7541 §6.2.2).
    pub fn encode_plain<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
        Encoder::default().encode_block(fields, false)
    }

    /// Returns the total size in bytes of all entries inserted so far, including evicted ones.
    pub fn inserted_bytes(&self) -> usize {
        self.inserted_bytes
    }

    fn encode_block<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a str, &'a str)>,
        keep: bool,
    ) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            self.encode_field(new_field(name, value), keep, &mut block);
        }
        block
    }

    /// Returns the index of the field, and an index of its name, if there are any.
    fn find(&self, name: &[u8], value: &[u8]) -> (Option<u32>, Option<u32>) {
        let (exact, mut by_name) = find_static(name, value);
        if exact.is_some() {
            return (exact, by_name);
        }
        let mut place = 0;
        while let Some((entry_name, entry_value)) = self.table.entry(place) {
            let index = (STATIC_TABLE.len() + 1 + place) as u32;
            if entry_name == name {
                if entry_value == value {
                    return (Some(index), by_name);
                }
                by_name = by_name.or(Some(index));
            }
            place += 1;
        }
        (None, by_name)
    }
}

fn new_field<'a>(name: &'a str, value: &'a str) -> HeaderField<'a> {
    HeaderField {
        name: name.as_bytes(),
        value: value.as_bytes(),
        sensitive: false,
    }
}

fn find_static(name: &[u8], value: &[u8]) -> (Option<u32>, Option<u32>) {
    let is_name = |entry: &&(&str, &str)| entry.0.as_bytes() == name;
    // Entries with the same name are adjacent (RFC 7541, Appendix A).
    let Some(first) = STATIC_TABLE.iter().position(|entry| is_name(&entry)) else {
        return (None, None);
    };
    let exact = STATIC_TABLE[first..]
        .iter()
        .take_while(is_name)
        .position(|entry| entry.1.as_bytes() == value);
    (
        exact.map(|place| (first + place) as u32 + 1),
        Some(first as u32 + 1),
    )
}

fn append_literal(
    index: Option<u32>,
    prefix: u8,
    pattern: u8,
    name: &[u8],
    value: &[u8],
    block: &mut Vec<u8>,
) {
    integer::encode(index.unwrap_or(0), prefix, pattern, block);
    if index.is_none() {
        append_string(name, block);
    }
    append_string(value, block);
}

/// Appends a literal field without indexing (RFC 7541 §6.2.2), except for the value, which must follow with its length
/// before it ([`prefix_with_length`]).
pub fn begin_literal(name: &str, block: &mut Vec<u8>) {
    let (_, by_name) = find_static(name.as_bytes(), b"");
    integer::encode(by_name.unwrap_or(0), 4, 0, block);
    if by_name.is_none() {
        append_string(name.as_bytes(), block);
    }
}

/// Converts the bytes in `block` from `start` on into a string literal (RFC 7541 §5.2).
#[inline]
pub fn prefix_with_length(block: &mut Vec<u8>, start: usize) {
    let length = block.len() - start;
    integer::encode(length as u32, 7, 0, block);
    let prefix = block.len() - start - length;
    block[start..].rotate_right(prefix);
}

/// Appends a string literal, Huffman-coded if that is shorter.
fn append_string(text: &[u8], block: &mut Vec<u8>) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::encode(coded as u32, 7, 0x80, block);
        huffman::encode(text, block);
    } else {
        integer::encode(text.len() as u32, 7, 0, block);
        block.extend_from_slice(text);
    }
}

/// The choice between the three blocks of a header list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChoice {
    /// The block that fills the peer's table.
    First,
    /// The block that consists of indices into the peer's table.
    Steady,
    /// The block that needs no table.
    Plain,
}

/// The peer's dynamic table: its allowed size, and whether it contains the list's entries.
///
/// The encoder never uses more than the initial 4,096 bytes, so larger sizes need no update.
#[derive(Clone, Copy, Debug)]
pub struct PeerTable {
    /// The size that the last size update signalled to the peer's decoder.
    signalled: u32,
    /// The size that the peer's SETTINGS currently allow, up to 4,096.
    allowed: u32,
    /// The smallest size that the peer's SETTINGS allowed since the last block.
    lowest: u32,
    is_inserted: bool,
}

impl Default for PeerTable {
    fn default() -> PeerTable {
        let size = DEFAULT_TABLE_BYTES;
        PeerTable {
            signalled: size,
            allowed: size,
            lowest: size,
            is_inserted: false,
        }
    }
}

impl PeerTable {
    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE, in bytes.
    pub fn set_allowed_size(&mut self, size: u32) {
        self.allowed = size.min(DEFAULT_TABLE_BYTES);
        self.lowest = self.lowest.min(self.allowed);
    }

    /// Returns whether the steady block can be sent without size updates. This is the common case, and takes two
    /// comparisons.
    #[inline]
    pub fn can_send_steady_block(&self) -> bool {
        self.is_inserted && self.signalled == self.lowest && self.signalled == self.allowed
    }

    /// Chooses the next block of a list whose entries need `needed` bytes, and appends the size updates that must
    /// precede it (RFC 7541 §4.2) to `out`. The caller must then send the block.
    pub fn choose_block(&mut self, needed: usize, out: &mut Vec<u8>) -> BlockChoice {
        if (self.lowest as usize) < needed {
            self.is_inserted = false;
        }
        self.append_due_updates(out);
        if self.is_inserted {
            return BlockChoice::Steady;
        }
        if (self.allowed as usize) < needed {
            return BlockChoice::Plain;
        }
        self.is_inserted = true;
        BlockChoice::First
    }

    /// Appends the size updates that must precede a block without table changes, on a connection that also sends lists
    /// with entries of `needed` bytes.
    pub fn append_size_updates(&mut self, needed: usize, out: &mut Vec<u8>) {
        if (self.lowest as usize) < needed {
            self.is_inserted = false;
        }
        self.append_due_updates(out);
    }

    /// Appends the size updates with which the next block must begin (RFC 7541 §4.2).
    fn append_due_updates(&mut self, out: &mut Vec<u8>) {
        if self.lowest < self.signalled {
            integer::encode(self.lowest, 5, 0x20, out);
            self.signalled = self.lowest;
        }
        if self.allowed != self.signalled {
            integer::encode(self.allowed, 5, 0x20, out);
            self.signalled = self.allowed;
        }
        self.lowest = self.allowed;
    }
}

/// An encoder of a connection's varying field lists, using the dynamic table that the peer allows: for relays, which do
/// not know the lists in advance.
#[derive(Debug, Default)]
pub struct FieldListEncoder {
    encoder: Encoder,
    peer: PeerTable,
}

impl FieldListEncoder {
    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE, in bytes.
    pub fn set_allowed_table_size(&mut self, size: u32) {
        self.peer.set_allowed_size(size);
    }

    /// Appends the block of `fields`; those that `keep` accepts are added to the table. Returns false if the block did
    /// not change the table, so that the same block can be sent again until another one changes the table. The caller
    /// must send the block.
    pub fn encode<'a>(
        &mut self,
        fields: impl Iterator<Item = HeaderField<'a>>,
        keep: impl Fn(&HeaderField<'_>) -> bool,
        block: &mut Vec<u8>,
    ) -> bool {
        let mut changed = !self.is_table_size_current();
        if changed {
            self.encoder.table.resize(self.peer.lowest);
            self.encoder.table.resize(self.peer.allowed);
            self.peer.append_due_updates(block);
        }
        for field in fields {
            let kept = keep(&field);
            changed |= self.encoder.encode_field(field, kept, block);
        }
        changed
    }

    /// Returns whether no size update is due.
    fn is_table_size_current(&self) -> bool {
        self.peer.signalled == self.peer.lowest && self.peer.signalled == self.peer.allowed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Decoder;
    use super::*;

    const REQUEST: [(&str, &str); 5] = [
        (":method", "POST"),
        (":path", "/score.ScoreService/GetScore"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("x-trace", "~~~~"),
    ];

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        decoder
            .decode(block, |field| {
                fields.push((text(field.name), text(field.value)))
            })
            .unwrap();
        fields
    }

    fn to_owned_fields(fields: &[(&str, &str)]) -> Vec<(String, String)> {
        fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn steady_block_is_fully_indexed() {
        let mut encoder = Encoder::default();
        let first = encoder.encode(REQUEST);
        let steady = encoder.encode(REQUEST);
        assert_eq!(steady.len(), REQUEST.len());
        assert_eq!(encoder.encode(REQUEST), steady);
        let mut decoder = Decoder::new(4096, 1 << 16);
        for block in [&first, &steady, &steady] {
            assert_eq!(decode(&mut decoder, block), to_owned_fields(&REQUEST));
        }
        let mut decoder = Decoder::new(0, 1 << 16);
        assert_eq!(
            decode(&mut decoder, &Encoder::encode_plain(REQUEST)),
            to_owned_fields(&REQUEST)
        );
    }

    #[test]
    fn block_choice_follows_peer_table_size() {
        let mut table = PeerTable::default();
        let mut updates = Vec::new();
        let mut next = |table: &mut PeerTable| {
            updates.clear();
            let choice = table.choose_block(200, &mut updates);
            (choice, updates.clone())
        };
        assert_eq!(next(&mut table), (BlockChoice::First, vec![]));
        assert!(table.can_send_steady_block());
        table.set_allowed_size(1 << 20);
        assert!(table.can_send_steady_block());
        // A smaller size that suffices is signalled, and the entries remain.
        table.set_allowed_size(256);
        assert!(!table.can_send_steady_block());
        assert_eq!(
            next(&mut table),
            (BlockChoice::Steady, vec![0x3f, 0xe1, 0x01])
        );
        // A size that is too small needs the plain block.
        table.set_allowed_size(100);
        assert_eq!(next(&mut table), (BlockChoice::Plain, vec![0x3f, 69]));
        assert_eq!(next(&mut table), (BlockChoice::Plain, vec![]));
        // A sufficient size makes the first block necessary again.
        table.set_allowed_size(300);
        assert_eq!(
            next(&mut table),
            (BlockChoice::First, vec![0x3f, 0x8d, 0x02])
        );
        // If the size is reduced and enlarged between two requests, both are signalled, and the entries are gone.
        table.set_allowed_size(0);
        table.set_allowed_size(4096);
        assert_eq!(
            next(&mut table),
            (BlockChoice::First, vec![0x20, 0x3f, 0xe1, 0x1f])
        );
        assert!(table.can_send_steady_block());
    }

    proptest! {
        #[test]
        fn request_decodes_with_any_table_size(sizes in prop::collection::vec(
            prop_oneof![Just(None), (0u32..600).prop_map(Some)], 1..40)) {
            let mut encoder = Encoder::default();
            let first = encoder.encode(REQUEST);
            let steady = encoder.encode(REQUEST);
            let plain = Encoder::encode_plain(REQUEST);
            let mut table = PeerTable::default();
            // The decoder's own limit stays at 4,096: wrong updates show in the contents of the table.
            let mut decoder = Decoder::new(4096, 1 << 16);
            for size in sizes {
                match size {
                    Some(size) => table.set_allowed_size(size),
                    None => {
                        let mut block = Vec::new();
                        let choice = table.choose_block(encoder.inserted_bytes(), &mut block);
                        block.extend_from_slice(match choice {
                            BlockChoice::First => &first,
                            BlockChoice::Steady => &steady,
                            BlockChoice::Plain => &plain,
                        });
                        prop_assert_eq!(decode(&mut decoder, &block), to_owned_fields(&REQUEST));
                    }
                }
            }
        }

        #[test]
        fn lists_round_trip_any_table_size(lists in prop::collection::vec((
            prop::option::of(0u32..600),
            prop::collection::vec(
                ("[a-z-]{1,12}", prop::collection::vec(any::<u8>(), 0..60), any::<bool>()),
                0..8,
            ),
        ), 1..20)) {
            let mut encoder = FieldListEncoder::default();
            let mut decoder = Decoder::new(4096, 1 << 16);
            for (allowed, list) in lists {
                if let Some(size) = allowed {
                    encoder.set_allowed_table_size(size);
                }
                let fields = list.iter().map(|(name, value, sensitive)| HeaderField {
                    name: name.as_bytes(),
                    value,
                    sensitive: *sensitive,
                });
                let mut block = Vec::new();
                encoder.encode(fields.clone(), |field| field.value.len() % 3 > 0, &mut block);
                let mut at = 0;
                decoder.decode(&block, |field| {
                    assert_eq!(field, fields.clone().nth(at).unwrap());
                    at += 1;
                }).unwrap();
                prop_assert_eq!(at, list.len());
            }
        }

        #[test]
        fn arbitrary_fields_round_trip(lists in prop::collection::vec(prop::collection::vec(
            ("[a-z-]{1,20}", "[ -~]{0,60}"), 0..12), 1..6)) {
            let mut encoder = Encoder::default();
            let mut decoder = Decoder::new(4096, 1 << 16);
            for list in lists {
                let fields = || list.iter().map(|(name, value)| (&name[..], &value[..]));
                prop_assert_eq!(&decode(&mut decoder, &encoder.encode(fields())), &list);
                prop_assert_eq!(&decode(&mut decoder, &Encoder::encode_plain(fields())), &list);
            }
        }
    }
}
