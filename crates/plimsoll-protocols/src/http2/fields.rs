//! Metadata that differ from call to call: appended to a request's header block as literals
//! that change no table (RFC 7541, 6.2.2), so that the block before them stays the same bytes.

use plimsoll_model::template::{MetadataField, Variation, VaryingMetadata};
use plimsoll_wire::hpack::{ENTRY_OVERHEAD, begin_literal, prefix_with_length};

/// The fields of every call, made ready.
#[derive(Debug)]
pub(crate) struct VaryingFields {
    variation: Variation,
    /// With the representation of its name.
    fields: Box<[(Box<[u8]>, MetadataField)]>,
}

impl VaryingFields {
    pub(crate) fn new(metadata: &VaryingMetadata) -> VaryingFields {
        let ready = |field: &MetadataField| {
            let mut name = Vec::new();
            begin_literal(&field.name, &mut name);
            (name.into(), field.clone())
        };
        VaryingFields {
            variation: metadata.variation.clone(),
            fields: metadata.fields.iter().map(ready).collect(),
        }
    }

    /// Appends the fields of call `number`. `unix_ns`: nanoseconds since 1970.
    #[inline]
    pub(crate) fn write(&self, number: u64, unix_ns: u64, block: &mut Vec<u8>) {
        let moment = self.variation.moment(number, 0, unix_ns);
        for (name, field) in &self.fields {
            block.extend_from_slice(name);
            let start = block.len();
            field.write(&moment, block);
            prefix_with_length(block, start);
        }
    }

    /// What they take of a header list (RFC 9113, 6.5.2), at most. Bytes.
    pub(crate) fn most(&self) -> usize {
        let sizes = self.fields.iter().map(|(_, field)| field);
        sizes
            .map(|field| field.name.len() + field.most() + ENTRY_OVERHEAD)
            .sum()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(_, field)| &*field.name)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_model::template::{Order, Template};

    use super::*;
    use plimsoll_wire::hpack::Decoder;

    fn fields(typed: &[(&str, &str)]) -> VaryingFields {
        let mut slots = 0;
        VaryingFields::new(&VaryingMetadata {
            variation: Variation::new(1, 1, 0, Order::RoundRobin),
            fields: typed
                .iter()
                .map(|(name, typed)| MetadataField {
                    name: (*name).to_owned(),
                    typed: (*typed).to_owned(),
                    template: Template::parse(typed, &mut slots, None).unwrap(),
                })
                .collect(),
        })
    }

    #[test]
    fn values_of_any_length_are_decoded_as_they_were_made() {
        for length in [0, 1, 125, 126, 127, 128, 253, 254, 255, 400, 20_000] {
            let text = "x".repeat(length);
            let fields = fields(&[("x-a", &format!("{text}{{{{seq}}}}")), ("b", "{{client}}")]);
            let mut block = Vec::new();
            fields.write(7, 0, &mut block);
            let mut decoded = Vec::new();
            let mut decoder = Decoder::new(4_096, 1 << 20);
            decoder
                .decode(&block, |field| {
                    decoded.push((field.name.to_vec(), field.value.to_vec()));
                })
                .unwrap();
            let expected = [
                (b"x-a".to_vec(), format!("{text}7").into_bytes()),
                (b"b".to_vec(), b"0".to_vec()),
            ];
            assert_eq!(decoded, expected);
            assert!(fields.most() >= length + 4 + 64);
        }
    }

    #[test]
    fn an_identifier_of_a_binary_name_is_base64_without_padding() {
        let fields = fields(&[("id-bin", "{{uuid}}")]);
        let mut block = Vec::new();
        fields.write(0, 0, &mut block);
        let value = &block[block.len() - 22..];
        assert!(
            value
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || b"+/".contains(b))
        );
        assert_eq!(block[block.len() - 23], 22);
    }
}
